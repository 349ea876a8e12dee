// `tencache fit` as an answer: what a step asks of memory, what overflows first, and how each policy copes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answers/described.h"
#include "answers/document.h"
#include "answers/durations.h"
#include "studies/bound.h"
#include "studies/fit.h"
#include "studies/fit_system.h"
#include "studies/largest.h"
#include "studies/training_memory.h"
#include "studies/workload.h"

namespace tencache {

// Bytes of distinct tensors, at an op where there is one.
struct BytesAnswer {
  Bytes bytes = 0;
  std::optional<OpIndex> op;
  std::optional<std::string> name;
  Named<Bytes> by_role;
};
TENCACHE_ANSWER(BytesAnswer, bytes, op, name, by_role)

// A tier and all faster ones together, which is what can be held once it is full.
struct TierFill {
  std::string name, kind;
  std::optional<Bytes> capacity_bytes;  // none: unlimited
  Bytes held_bytes = 0;                 // of the peak, when faster tiers are filled first
  Bytes left_over_bytes = 0;            // of the peak, beyond this tier and all faster ones
  std::optional<BytesAnswer> overflows_first_at;

  Bytes capacity() const { return capacity_bytes.value_or(unlimited); }
};
TENCACHE_ANSWER(TierFill, name, kind, capacity_bytes, held_bytes, left_over_bytes, overflows_first_at)

struct DemandAnswer {
  std::size_t rank = 0;
  BytesAnswer persistent, peak;
  Bytes gpu_granularity_bytes = 0, peak_bytes_in_gpu_memory = 0;  // the peak in whole pages of that size
  BytesAnswer largest_gpu_op;
  bool largest_gpu_op_fits = true;
  std::vector<TierFill> tiers;

  // Known only while the command runs.
  std::optional<std::size_t> alike;  // the first rank that is as this one
  std::string remarks;               // on the GPU's pages
};
TENCACHE_ANSWER(DemandAnswer, rank, persistent, peak, gpu_granularity_bytes, peak_bytes_in_gpu_memory, largest_gpu_op,
                largest_gpu_op_fits, tiers)

struct StagingAnswer {
  std::string tier;
  std::uint64_t count = 0;
  Bytes buffer_bytes = 0, bytes = 0;
};
TENCACHE_ANSWER(StagingAnswer, tier, count, buffer_bytes, bytes)

TENCACHE_ANSWER(KindMemory, kind, parameters, frozen, parameter_bytes, gradient_bytes, master_bytes, state_bytes,
                states)
TENCACHE_ANSWER(TierPeak, name, startup_peak_bytes, steady_peak_bytes, pinned_peak_bytes)
TENCACHE_ANSWER(MinimumWithMore, tier, bytes, more_of, more_bytes)

TENCACHE_ANSWER(TierUse, tier, peak_bytes, capacity_bytes)
TENCACHE_ANSWER(SystemVerdict, system, fits, tier, peak_bytes, missing_bytes, reason, tiers)
TENCACHE_ANSWER(FitChange, flag, fits, slowdown)

TENCACHE_ANSWER(LargestGeneration, policy, axis, asked, largest, overflow, limit)

struct FitPolicyAnswer : FitVerdict {
  Json deepspeed_cpu_memory, manifest;
};
TENCACHE_ANSWER(FitPolicyAnswer, policy, fits, reason, op, bytes_missing, minimum_gpu_bytes, minimum_cpu_bytes,
                minimum_nvme_bytes, pinned_fits, deepspeed_cpu_memory, tiers, iteration_seconds, peak_bytes, manifest,
                minimum_with_more)
bool has_member(const FitPolicyAnswer& answer, std::string_view name);

// All of the step on the GPU, without a policy, under an allocator of `tencache fragment`.
struct FitAllocatorAnswer {
  std::string allocator;
  bool fits = false;                              // in the GPU tier
  Bytes requested_bytes = 0, reserved_bytes = 0;  // at most, with as much memory as it takes
  std::uint64_t retries = 0;  // in the GPU tier: all that is free given back, and the device waited for
};
TENCACHE_ANSWER(FitAllocatorAnswer, allocator, fits, requested_bytes, reserved_bytes, retries)

struct FitAnswer {
  std::string trace, machine;
  bool fits = false;  // under any of the policies that page nothing and have a limit
  bool without_offloading = false;
  Bytes without_offloading_peak_bytes = 0;
  Absent<SystemVerdict> with;      // the software that was named
  std::vector<FitChange> changes;  // that make it fit, where it does not
  Bytes missing_bytes = 0;         // under that software, else of the GPU without offloading
  std::vector<std::string> assumed;
  double bound_seconds = 0;
  std::string bound_term;
  Absent<double> bound_choice_seconds;  // of a trace with choices of recomputation
  std::vector<std::string> notes;
  std::optional<GpuTimeAnswer> gpu_time;
  std::optional<StagingAnswer> staging;
  std::vector<DemandAnswer> demand;
  std::vector<FitPolicyAnswer> policies;
  Absent<std::vector<KindMemory>> training_memory;     // of a generated training step
  Absent<std::vector<FitAllocatorAnswer>> allocators;  // those asked for
  Absent<std::vector<LargestGeneration>> largest;      // of a text generation, where it was searched
  Json manifest;

  // Known only while the command runs.
  std::string title;               // "gpt2, batch 8 on g10-a100"
  std::vector<TierKind> searched;  // for the least memory
  std::string remarks;             // where DeepSpeed would not fit, and how fast it can be at best
};
TENCACHE_ANSWER(FitAnswer, trace, machine, fits, without_offloading, without_offloading_peak_bytes, with, changes,
                missing_bytes, assumed, bound_seconds, bound_term, bound_choice_seconds, notes, gpu_time, staging,
                demand, policies, training_memory, allocators, largest, manifest)

// Of the first rank, in three iterations.
std::vector<FitAllocatorAnswer> allocator_answers(const Workload& workload, const std::vector<std::string>& allocators);
// `recorded_seconds`: recorded_bound_seconds of the trace.
FitAnswer fit_answer(const FitRequest& request, std::vector<FitVerdict> verdicts, const Bound& bound,
                     std::optional<double> recorded_seconds);
Document document_of(const FitAnswer& answer);

}  // namespace tencache
