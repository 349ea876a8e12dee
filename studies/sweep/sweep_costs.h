// What a sweep's rows cost on their machines, and which are worth their money.
#pragma once

#include <vector>

#include "studies/sweep/sweep_plan.h"
#include "studies/sweep/sweep_row.h"

namespace tencache {

// The costs of one row on its machine, anew: prices are no part of a row's key.
void add_costs(SweepRow& row, const PlannedMachine& machine, const SweepCostSettings& settings);
// `on_front` and `ties_with_front`, for each workload among its rows that fit, have a price and may be advised.
void mark_fronts(std::vector<SweepRow>& rows, bool any_policy = false);

}  // namespace tencache
