// What to take, from the rows of a sweep.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "studies/sweep/sweep_row.h"

namespace tencache {

// How far two rows must lie apart, as a share of the better one, for one to be called better: the error within which
// predictions like them are validated, where one is, else 1 %, which is no more than the figures' resolution.
double tie_margin(const SweepRow& a, const SweepRow& b);
// Whether `a`, whose iteration costs and takes no less than that of `b` in one of the two, is no worse than that much
// in either. Both fit and have prices.
bool ties(const SweepRow& a, const SweepRow& b);

// Not `ideal`, which no machine can have, nor, unless asked for, what no system runs today.
bool may_be_advised(const SweepRow& row, bool any_policy);

// The rows with these indices from cheap to dear by `cost`, those without one last; else in their order.
void sort_by_cost(std::vector<std::size_t>& ties, const std::vector<SweepRow>& rows,
                  std::optional<double> SweepRow::*cost);

// Of one workload; indices of rows. The policy `ideal` is left out; all else that fits is among `fitting`, and the rest
// is of what may be advised.
struct Advice {
  std::string workload;
  std::size_t combinations = 0;
  std::vector<std::size_t> fitting;             // from fast to slow
  std::vector<std::size_t> front;               // of time against cost, from fast to cheap
  std::optional<std::size_t> cheapest;          // an iteration; none: nothing that fits has a price
  std::optional<std::size_t> fastest;           // none: nothing fits that may be advised
  std::optional<std::size_t> in_budget;         // the fastest of those below so many USD an hour
  std::optional<std::size_t> cheapest_on_spot;  // an iteration; none: nothing that fits has a cost on spot
  // What is within tie_margin() of them, the cheapest iteration first, what has no price last.
  std::vector<std::size_t> cheapest_ties, fastest_ties, in_budget_ties, cheapest_on_spot_ties;
};
// In the rows' order of workloads; what is equally good is taken in the order of rows. `budget_usd_per_hour` 0: none.
std::vector<Advice> advise(const std::vector<SweepRow>& rows, double budget_usd_per_hour, bool any_policy = false);

}  // namespace tencache
