#include "sim/sweep/recommend.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tencache {

std::vector<Advice> advise(const std::vector<SweepRow>& rows, double budget_usd_per_hour) {
  std::vector<Advice> advice;
  std::map<std::string, std::size_t> place;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const SweepRow& row = rows[i];
    const auto [found, is_new] = place.emplace(row.workload, advice.size());
    if (is_new) advice.emplace_back().workload = row.workload;
    Advice& of = advice[found->second];
    if (row.policy == "ideal") continue;
    ++of.combinations;
    if (!row.fits || !row.iteration_seconds) continue;
    of.fitting.push_back(i);
    if (row.on_front) of.front.push_back(i);
    const auto take_if_less = [&](std::optional<std::size_t>& best, auto&& measure) {
      if (!best || measure(row) < measure(rows[*best])) best = i;
    };
    const auto time_first = [](const SweepRow& r) {
      return std::pair(*r.iteration_seconds, r.usd_per_hour.value_or(0));
    };
    take_if_less(of.fastest, time_first);
    if (!row.usd_per_iteration) continue;
    take_if_less(of.cheapest, [](const SweepRow& r) { return std::pair(*r.usd_per_iteration, *r.iteration_seconds); });
    if (*row.usd_per_hour < budget_usd_per_hour) take_if_less(of.in_budget, time_first);
  }
  const auto faster = [&rows](std::size_t a, std::size_t b) {
    return *rows[a].iteration_seconds < *rows[b].iteration_seconds;
  };
  for (Advice& of : advice) {
    std::stable_sort(of.front.begin(), of.front.end(), faster);
    std::stable_sort(of.fitting.begin(), of.fitting.end(), faster);
  }
  return advice;
}

}  // namespace tencache
