// A sweep's results for people and for scripts.
#pragma once

#include <string>
#include <vector>

#include "answers/json.h"
#include "studies/sweep/recommend.h"
#include "studies/sweep/sweep_results.h"

namespace tencache {

// {"sweep": {…}, "rows": […], "advice": […], "manifest": {…}}; `shard`: of the part that they are, else empty.
Json sweep_json(const SweepResults& results, double budget_usd_per_hour, const std::string& shard);

// The front of each workload (of many workloads, its ends) and what to take.
// `top`: so many of the fastest rows of each workload beside its front, where the workloads are few.
std::string sweep_text(const SweepResults& results, double budget_usd_per_hour, std::size_t top);

}  // namespace tencache
