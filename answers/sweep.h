// A sweep's results for people and for scripts.
#pragma once

#include <string>
#include <vector>

#include "answers/described.h"
#include "studies/sweep/recommend.h"
#include "studies/sweep/sweep_results.h"

namespace tencache {

// studies/sweep/recommend.h; rows by their position.
struct AdviceAnswer {
  std::string workload;
  std::size_t combinations = 0, fitting = 0;
  std::optional<std::uint64_t> cheapest, fastest, fastest_in_budget, cheapest_on_spot;
  std::vector<std::uint64_t> cheapest_on_spot_ties, cheapest_ties, fastest_ties, fastest_in_budget_ties;
  std::optional<double> budget_usd_per_hour;
  std::vector<std::uint64_t> front;
};
TENCACHE_ANSWER(AdviceAnswer, workload, combinations, fitting, cheapest, fastest, fastest_in_budget, cheapest_on_spot,
                cheapest_on_spot_ties, cheapest_ties, fastest_ties, fastest_in_budget_ties, budget_usd_per_hour, front)

struct SweepAnswer {
  Named<std::string> sweep;  // SweepResults::about
  std::vector<SweepRow> rows;
  std::vector<AdviceAnswer> advice;
  Json manifest;
};
TENCACHE_ANSWER(SweepAnswer, sweep, rows, advice, manifest)

// `shard`: of the part that the results are, else empty.
SweepAnswer sweep_answer(const SweepResults& results, double budget_usd_per_hour, const std::string& shard);

// The front of each workload (of many workloads, its ends) and what to take.
// `top`: so many of the fastest rows of each workload beside its front, where the workloads are few.
std::string sweep_text(const SweepResults& results, double budget_usd_per_hour, std::size_t top);

}  // namespace tencache
