// A plan of recomputation (studies/recompute_plan.h) as an answer, and as the file that tencache.checkpoint() in Python
// applies (docs/schemas/recompute-plan.schema.json).
#pragma once

#include <string>
#include <string_view>

#include "answers/described.h"
#include "answers/document.h"
#include "studies/recompute_plan.h"

namespace tencache {

// Whether JSON has it: what the run takes, or why it does not fit.
bool has_member(const PlannedRun& run, std::string_view name);
TENCACHE_ANSWER(PlannedRun, fits, reason, seconds, gpu_peak_bytes)
TENCACHE_ANSWER(PlannedRuns, plan, keep, block)
TENCACHE_ANSWER(PlannedLayer, module, micro_batch, level)
TENCACHE_ANSWER(RecomputePlan, format_version, model, model_sha256, policy, machine, predicted, micro_batches, layers)

// A line a layer. The same plan gives the same bytes.
std::string format_plan(const RecomputePlan& plan);

// What the plan gives beside nothing and everything recomputed.
void add_plan(Document& document, const RecomputePlan& plan);

}  // namespace tencache
