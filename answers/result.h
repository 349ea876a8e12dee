// Results as JSON (the contract of the command line) and as text. What each figure means: docs/results.md.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "answers/bound.h"
#include "answers/described.h"
#include "answers/durations.h"
#include "answers/explain.h"
#include "answers/manifest.h"
#include "studies/workload.h"

namespace tencache {

struct ResultMisfit {
  std::string op;
  Bytes bytes_missing = 0;
};
TENCACHE_ANSWER(ResultMisfit, op, bytes_missing)

struct ResultHead {
  std::string policy, machine, trace;
  bool fits = false;
  TextOrNull reason;  // why not
  Absent<ResultMisfit> misfit;
};
TENCACHE_ANSWER(ResultHead, policy, machine, trace, fits, reason, misfit)

// Of the wait for the CPU's optimizer: while the CPU computes, and while it waits itself for what it reads.
struct CpuWait {
  double computing = 0, transfers = 0;  // seconds of an iteration
};
TENCACHE_ANSWER(CpuWait, computing, transfers)

// Exact: compute + gaps + stalls = time, over the whole window.
struct Attribution {
  std::uint64_t iterations = 0;
  Nanoseconds time_ns = 0, compute_ns = 0, gap_ns = 0;
  EnumMap<StallCause, Nanoseconds> stall_ns;
};
TENCACHE_ANSWER(Attribution, iterations, time_ns, compute_ns, gap_ns, stall_ns)

// Of an iteration.
struct ResultTimes {
  std::optional<double> iteration_seconds, first_iteration_seconds;
  double ideal_seconds = 0, bound_seconds = 0;
  std::string bound_term;
  Absent<double> bound_choice_seconds;  // of a trace with choices of recomputation: what efficiency divides
  std::optional<double> slowdown, efficiency, compute_seconds, gap_seconds;
  std::optional<StallSeconds> stall_seconds;
  std::optional<Named<double>> busy_seconds;  // of lanes and links
  std::optional<CpuWait> cpu_optimizer_wait_seconds;
  std::optional<Named<double>> phase_seconds;
  std::optional<Attribution> attribution;
};
TENCACHE_ANSWER(ResultTimes, iteration_seconds, first_iteration_seconds, ideal_seconds, bound_seconds, bound_term,
                bound_choice_seconds, slowdown, efficiency, compute_seconds, gap_seconds, stall_seconds, busy_seconds,
                cpu_optimizer_wait_seconds, phase_seconds, attribution)

// Shares of accesses and of their bytes that were in GPU memory; of the tensors that an iteration begins with there.
struct HitRates {
  std::optional<double> accesses, bytes, tensors;
};
TENCACHE_ANSWER(HitRates, accesses, bytes, tensors)

// What a tier's allocator cost, over the whole window. The last three: where chunks move.
struct AllocatorCost {
  std::string kind;
  double fragmentation = 0, padding = 0, placeless = 0;
  Absent<double> holes, moved_bytes, moving_seconds;
};
TENCACHE_ANSWER(AllocatorCost, kind, fragmentation, padding, placeless, holes, moved_bytes, moving_seconds)

struct ResultTraffic {
  std::optional<HitRates> gpu_hit_rate;
  std::optional<Named<Json>> traffic_bytes;  // numbers: whole where the period is one iteration
  std::optional<Named<Bytes>> peak_bytes;
  Absent<double> page_locking_seconds;  // where the machine states at which rate
  std::optional<Named<std::optional<double>>> mean_utilization;
  std::optional<Named<AllocatorCost>> allocators;
  std::optional<double> tokens_per_second, usd_per_million_tokens;
  std::uint64_t iterations = 0;
  bool steady = false;
};
TENCACHE_ANSWER(ResultTraffic, gpu_hit_rate, traffic_bytes, peak_bytes, page_locking_seconds, mean_utilization,
                allocators, tokens_per_second, usd_per_million_tokens, iterations, steady)

// Shares that were in GPU memory; null: no op of the GPU reads such tensors, or the policy does not govern them.
struct RoleHitRate {
  std::optional<double> accesses, bytes;
};
TENCACHE_ANSWER(RoleHitRate, accesses, bytes)

// Of a text generation (studies/generation.h). Tokens a second and their price are those of any result, and the block's
// time is the iteration's.
struct GenerationAnswer {
  std::uint64_t requests = 0, new_tokens = 0;
  std::optional<double> time_to_first_token_seconds, time_per_output_token_seconds, decode_tokens_per_second;
  std::optional<Named<double>> traffic_bytes_per_token;  // by link
  RoleHitRate kv_cache_hit_rate, expert_hit_rate;
};
TENCACHE_ANSWER(GenerationAnswer, requests, new_tokens, time_to_first_token_seconds, time_per_output_token_seconds,
                decode_tokens_per_second, traffic_bytes_per_token, kv_cache_hit_rate, expert_hit_rate)

struct DependsOn {
  std::vector<std::string> figures;
  std::string confidence;
  double share = 0;
};
TENCACHE_ANSWER(DependsOn, figures, confidence, share)

// What add_interval knows.
struct ResultSamples {
  std::optional<std::pair<double, double>> interval_seconds;
  std::optional<std::uint64_t> samples, misfit_samples, fastest_samples;
  std::optional<bool> ties_with_best;
  std::optional<std::vector<DependsOn>> depends_on;
};
TENCACHE_ANSWER(ResultSamples, interval_seconds, samples, misfit_samples, fastest_samples, ties_with_best, depends_on)

// Of several ranks, each; the figures of the slowest are the result's own. Where it does not fit, no times.
struct RankResult {
  std::size_t rank = 0;
  bool slowest = false;
  std::uint64_t iterations = 0;
  bool steady = false;
  std::optional<double> iteration_seconds;
  Absent<double> first_iteration_seconds, compute_seconds, gap_seconds;
  Absent<StallSeconds> stall_seconds;
  Absent<Named<double>> phase_seconds;
  Absent<Attribution> attribution;
  Absent<Named<Json>> traffic_bytes;
  Absent<Named<std::optional<double>>> mean_utilization;
  Named<Bytes> peak_bytes;
};
TENCACHE_ANSWER(RankResult, rank, slowest, iterations, steady, iteration_seconds, first_iteration_seconds,
                compute_seconds, gap_seconds, stall_seconds, phase_seconds, attribution, traffic_bytes,
                mean_utilization, peak_bytes)

// What DeepSpeed would take of CPU memory for this run (studies/deepspeed_memory.h).
struct DeepSpeedCpuMemory {
  Bytes bytes = 0, bytes_with_pin_memory = 0, page_locked_bytes_with_pin_memory = 0;
  bool fits = false, fits_with_pin_memory = false;
};
TENCACHE_ANSWER(DeepSpeedCpuMemory, bytes, bytes_with_pin_memory, page_locked_bytes_with_pin_memory, fits,
                fits_with_pin_memory)

struct InjectedFaults {
  std::string plan;
  Named<std::uint64_t> injected;  // by kind
};
TENCACHE_ANSWER(InjectedFaults, plan, injected)

// What a policy chose of a trace with choices of recomputation (core/trace.h).
struct LayerRecomputation {
  std::string layer;
  std::uint32_t micro_batch = 0;
  RecomputeLevel level = RecomputeLevel::keep;
};
TENCACHE_ANSWER(LayerRecomputation, layer, micro_batch, level)
// Of each choice of the trace; none: it has none.
Absent<std::vector<LayerRecomputation>> recomputation_of(const Trace& trace, std::span<const RecomputeLevel> levels);

// A result without the tool's own times: the same input gives the same bytes. Where the trace does not fit, the figures
// of the run are null.
struct UntimedResult : ResultHead, ResultTimes, ResultTraffic, ResultSamples {
  Absent<GenerationAnswer> generation;  // of a text generation that fits
  Absent<std::vector<RankResult>> ranks;
  std::uint64_t simulated_events = 0;
  std::vector<std::string> changes, policy_notes;
  Absent<std::vector<LayerRecomputation>>
      recompute;  // of a trace with choices, each, in the order of the backward pass
  std::optional<DeepSpeedCpuMemory> deepspeed_cpu_memory;  // none: of another policy, or it does not fit
  std::vector<std::string> notes;
  // How far its time may be believed (studies/validity.h): "validated within 43.7 % (…)", "extrapolated"; none of the
  // bound, the ideal, a measured run, and where it does not fit.
  std::optional<std::string> validity;
  // The system that runs such a step under the policy today, and whether that changes what training ends with: "no", or
  // when. Only of what was simulated.
  Absent<RunsWith> runs_with;
  Absent<std::string> changes_training;
  std::optional<RescalingAnswer> rescaled;
  std::optional<GpuTimeAnswer> gpu_time;
  Absent<InjectedFaults> faults;
  Manifest manifest;
};
BOOST_DESCRIBE_STRUCT(UntimedResult, (ResultHead, ResultTimes, ResultTraffic, ResultSamples),
                      (generation, ranks, simulated_events, changes, policy_notes, recompute, deepspeed_cpu_memory,
                       notes, validity, runs_with, changes_training, rescaled, gpu_time, faults, manifest))

// `error` is predicted / measured - 1; null where nothing was measured.
struct ComparedFigure {
  std::optional<double> predicted, measured, error;
};
TENCACHE_ANSWER(ComparedFigure, predicted, measured, error)

struct ComparedTimes {
  ComparedFigure compute, gaps;
};
TENCACHE_ANSWER(ComparedTimes, compute, gaps)

// What was predicted and what was measured of an iteration, side by side.
struct ResultComparison {
  ComparedFigure iteration_seconds;
  ComparedTimes time_seconds;
  Named<ComparedFigure> stall_seconds, busy_seconds, traffic_bytes, peak_bytes;
};
TENCACHE_ANSWER(ResultComparison, iteration_seconds, time_seconds, stall_seconds, busy_seconds, traffic_bytes,
                peak_bytes)

// Of a measured run, what was predicted of it.
struct PredictedResult {
  std::optional<std::string> file;
  std::string sha256;
  std::optional<double> iteration_seconds;
  Absent<std::optional<double>> measured_seconds;  // that it is compared with, where not the result's own
  // Of a recording of several steps (repeat_step): all but peaks and `result` is the mean of one.
  Absent<std::uint64_t> steps;
  std::optional<double> error;
  std::optional<ResultComparison> comparison;  // none: one of the two does not fit
  UntimedResult result;
};
TENCACHE_ANSWER(PredictedResult, file, sha256, iteration_seconds, measured_seconds, steps, error, comparison, result)

struct ResultAnswer : UntimedResult {
  Timing timing;
  Absent<TermAnswer> binding;  // of the bound's row
  Absent<bool> measured;
  Absent<PredictedResult> prediction;

  std::string file;  // that it was read from; known only to who reads it
};
BOOST_DESCRIBE_STRUCT(ResultAnswer, (UntimedResult), (timing, binding, measured, prediction))

// Without an interval. Deterministic but for `timing`.
ResultAnswer result_answer(const Workload& workload, const Outcome& outcome, const References& references);

// The lower bound as a row of `compare --json`: a result of this policy name, of which only the time is known.
inline constexpr const char* bound_row = "bound";
ResultAnswer bound_row_answer(const Workload& workload, const References& references);

// One result for people, several lines.
// Of what ran on hardware, what the machine file alone says is left out.
enum class Ran : std::uint8_t { simulated, measured };
std::string result_text(const Workload& workload, const Outcome& outcome, const References& references,
                        Ran ran = Ran::simulated);

CpuWait cpu_wait(const RunResult& result);
// Empty where nothing waits for it.
std::string cpu_wait_text(const RunResult& result);

std::optional<DeepSpeedCpuMemory> deepspeed_cpu_memory(const Workload& workload, const Outcome& outcome);
// A sentence where that is too much, though the simulation fits; else empty.
std::string deepspeed_note(const Workload& workload, const Outcome& outcome);

// What a reader of the result must know, a sentence each.
std::vector<std::string> notes_of(const Workload& workload);

// "GPU times are modelled for the h100 (eager): ± 6 % (median error)".
std::string gpu_time_note(const GpuTime& time);

Json machine_json(const MachineSpec& machine);

// "BERT, batch 256" where the trace says so, else the file's name.
std::string trace_title(const Workload& workload);

}  // namespace tencache
