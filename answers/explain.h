// `tencache explain` as an answer: what studies/explain.h found, and what it takes for granted.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "answers/bound.h"
#include "answers/described.h"
#include "answers/document.h"
#include "answers/durations.h"
#include "studies/explain.h"
#include "studies/workload.h"

namespace tencache {

TENCACHE_ANSWER(TimeParts, fits, reason, iteration_seconds, compute_seconds, gap_seconds, stall_seconds)
// Only the first three where it does not fit.
bool has_member(const TimeParts& parts, std::string_view name);
TENCACHE_ANSWER(ExplainedCause, cause, attributed_seconds, change, confirmed_seconds, still_seconds, moved_seconds,
                without)
TENCACHE_ANSWER(ExplainedStep, cause, change, seconds, iteration_seconds)
TENCACHE_ANSWER(RefusedStep, cause, change, reason)
TENCACHE_ANSWER(ExplainedSteps, steps, attributed_seconds, confirmed_seconds, remainder_seconds, refused)
TENCACHE_ANSWER(CostlyOp, op, name, module, phase, seconds, stall_seconds)
TENCACHE_ANSWER(CostlyLayer, layer, seconds, stall_seconds)
TENCACHE_ANSWER(CostlyTensor, tensor, name, role, bytes, gained_without_seconds, seconds, stall_seconds)
TENCACHE_ANSWER(ExplainedChange, change, kind, name, value, unit, fits, iteration_seconds, gained_seconds)

TENCACHE_ANSWER(RecomputedLayer, layer, seconds, gained_seconds, kept)
TENCACHE_ANSWER(OtherRecomputation, level, gained_seconds, then)
TENCACHE_ANSWER(ExplainedRecomputation, seconds, layers, others)

struct ExplainAnswer : Explanation {
  std::string policy, machine, trace;
  bool fits = true;
  std::optional<std::string> reason;
  double ideal_seconds = 0, bound_seconds = 0;
  std::string bound_term;
  Absent<double> bound_choice_seconds;  // of a trace with choices of recomputation
  TermAnswer binding;
  std::vector<std::string> notes;
  std::optional<RescalingAnswer> rescaled;
  std::optional<GpuTimeAnswer> gpu_time;
  Json manifest;
  Timing timing;

  // Known only while the command runs.
  std::string title;                                         // "gpt2, batch 8 on g10-a100 under lru"
  double run_bound_seconds = 0;                              // of a run that does not become steady, another
  std::size_t all_ops = 0, all_layers = 0, all_tensors = 0;  // that wait; the lists have the first of them
  std::size_t all_recomputed = 0;                            // layers
};
TENCACHE_ANSWER(ExplainAnswer, policy, machine, trace, fits, reason, run, ideal_seconds, bound_seconds, bound_term,
                bound_choice_seconds, binding, causes, in_turn, ops, layers, tensors, stalls_of_no_tensor_seconds,
                changes, recomputation, simulations, notes, rescaled, gpu_time, manifest, timing)

// With so many ops, layers and tensors.
ExplainAnswer explain_answer(const Workload& workload, Explanation explanation, const References& references,
                             std::size_t top, double run_seconds);
Document document_of(const ExplainAnswer& answer);

// A run's time as the parts of a bar, those above 0.
std::vector<ChartPart> chart_parts(const TimeParts& run);

}  // namespace tencache
