#include "studies/sweep/recommend.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "policies/counterparts.h"

namespace tencache {
namespace {

constexpr double resolution = 0.01;

bool within(double value, double best, double margin) { return value <= best * (1 + margin); }

}  // namespace

double tie_margin(const SweepRow& a, const SweepRow& b) {
  return std::max({resolution, a.validated_within.value_or(0), b.validated_within.value_or(0)});
}

bool ties(const SweepRow& a, const SweepRow& b) {
  const double margin = tie_margin(a, b);
  return within(*a.iteration_seconds, *b.iteration_seconds, margin) &&
         within(*a.usd_per_iteration, *b.usd_per_iteration, margin);
}

bool may_be_advised(const SweepRow& row, bool any_policy) {
  if (row.policy == "ideal") return false;
  const std::optional<RunsWith> system = parse_enum<RunsWith>(row.runs_with);
  return any_policy || !system || can_be_run(*system);
}

void sort_by_cost(std::vector<std::size_t>& ties, const std::vector<SweepRow>& rows,
                  std::optional<double> SweepRow::*cost) {
  std::ranges::stable_sort(ties, [&](std::size_t a, std::size_t b) {
    const auto cost_of = [&](std::size_t i) {
      return (rows[i].*cost).value_or(std::numeric_limits<double>::infinity());
    };
    return cost_of(a) < cost_of(b);
  });
}

namespace {

// Of `of.fitting`, which is from fast to slow.
void add_ties(Advice& of, const std::vector<SweepRow>& rows, double budget_usd_per_hour, bool any_policy) {
  const auto near = [&](std::size_t i, const std::optional<std::size_t>& best, auto member) {
    return best && i != *best && within(*(rows[i].*member), *(rows[*best].*member), tie_margin(rows[i], rows[*best]));
  };
  for (const std::size_t i : of.fitting) {
    const SweepRow& row = rows[i];
    if (!may_be_advised(row, any_policy)) continue;
    if (near(i, of.fastest, &SweepRow::iteration_seconds)) of.fastest_ties.push_back(i);
    if (row.spot_usd_per_iteration && near(i, of.cheapest_on_spot, &SweepRow::spot_usd_per_iteration)) {
      of.cheapest_on_spot_ties.push_back(i);
    }
    if (!row.usd_per_iteration) continue;
    if (near(i, of.cheapest, &SweepRow::usd_per_iteration)) of.cheapest_ties.push_back(i);
    if (*row.usd_per_hour < budget_usd_per_hour && near(i, of.in_budget, &SweepRow::iteration_seconds)) {
      of.in_budget_ties.push_back(i);
    }
  }
  for (auto* ties : {&of.cheapest_ties, &of.fastest_ties, &of.in_budget_ties}) {
    sort_by_cost(*ties, rows, &SweepRow::usd_per_iteration);
  }
  sort_by_cost(of.cheapest_on_spot_ties, rows, &SweepRow::spot_usd_per_iteration);
}

}  // namespace

std::vector<Advice> advise(const std::vector<SweepRow>& rows, double budget_usd_per_hour, bool any_policy) {
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
    if (!may_be_advised(row, any_policy)) continue;
    if (row.on_front) of.front.push_back(i);
    const auto take_if_less = [&](std::optional<std::size_t>& best, auto&& measure) {
      if (!best || measure(row) < measure(rows[*best])) best = i;
    };
    const auto time_first = [](const SweepRow& r) {
      return std::pair(*r.iteration_seconds, r.usd_per_hour.value_or(0));
    };
    take_if_less(of.fastest, time_first);
    if (row.spot_usd_per_iteration) {
      take_if_less(of.cheapest_on_spot,
                   [](const SweepRow& r) { return std::pair(*r.spot_usd_per_iteration, *r.iteration_seconds); });
    }
    if (!row.usd_per_iteration) continue;
    take_if_less(of.cheapest, [](const SweepRow& r) { return std::pair(*r.usd_per_iteration, *r.iteration_seconds); });
    if (*row.usd_per_hour < budget_usd_per_hour) take_if_less(of.in_budget, time_first);
  }
  const auto faster = [&rows](std::size_t a, std::size_t b) {
    return *rows[a].iteration_seconds < *rows[b].iteration_seconds;
  };
  for (Advice& of : advice) {
    std::ranges::stable_sort(of.front, faster);
    std::ranges::stable_sort(of.fitting, faster);
    add_ties(of, rows, budget_usd_per_hour, any_policy);
  }
  return advice;
}

}  // namespace tencache
