#include "studies/sweep/sweep_costs.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "studies/sweep/cost.h"
#include "studies/sweep/recommend.h"

namespace tencache {
namespace {

void clear_costs(SweepRow& row) {
  SweepCosts known;
  known.gpus = row.gpus;
  known.gpus_used = row.gpus_used;
  static_cast<SweepCosts&>(row) = known;
  static_cast<SweepSources&>(row) = {};
}

void set_source(const PriceFigure& figure, std::string& source, std::string& retrieved, std::string& confidence) {
  source = figure.source;
  retrieved = figure.retrieved;
  confidence = figure.confidence;
}

// Of the machine with what is attached to it; sets where the figures are from.
HourlyPrices hourly_prices(SweepRow& row, const PlannedMachine& machine, const SweepCostSettings& settings) {
  HourlyPrices prices;
  const PriceUsed& used = machine.price;
  if (machine.spec.price.on_demand > 0) {
    prices.on_demand_usd = machine.spec.price.on_demand;
    set_source(used.on_demand, row.price_source, row.price_retrieved, row.price_confidence);
  }
  const bool has_storage =
      std::ranges::any_of(machine.spec.tiers, [](const Tier& tier) { return tier.kind == TierKind::nvme; });
  if (!has_storage && settings.attached_storage_gb > 0) {
    prices.storage_usd.reset();
    if (used.storage) {
      prices.storage_usd = storage_usd_per_hour(settings.attached_storage_gb, used.storage->value);
      set_source(*used.storage, row.storage_price_source, row.storage_price_retrieved, row.storage_price_confidence);
    }
    row.storage_usd_per_hour = prices.storage_usd;
  }
  if (machine.spec.price.spot <= 0) return prices;
  prices.spot_usd = machine.spec.price.spot;
  set_source(used.spot, row.spot_price_source, row.spot_price_retrieved, row.spot_price_confidence);
  std::optional<PriceFigure> rate = used.interruptions;
  if (settings.interruptions_per_hour) {
    rate = {*settings.interruptions_per_hour, "cost.interruptions_per_hour of the sweep", "", "given"};
  }
  if (rate) {
    prices.interruptions_per_hour = rate->value;
    set_source(*rate, row.interruptions_source, row.interruptions_retrieved, row.interruptions_confidence);
  }
  row.spot_interruptions_per_hour = prices.interruptions_per_hour;
  return prices;
}

}  // namespace

void add_costs(SweepRow& row, const PlannedMachine& machine, const SweepCostSettings& settings) {
  clear_costs(row);
  if (machine.what_if) {
    row.price_source = what_if_price;
    return;
  }
  if (machine.spec.price.currency != "USD") return;
  const HourlyPrices prices = hourly_prices(row, machine, settings);
  const Work work{.iteration_seconds = row.iteration_seconds.value_or(0),
                  .tokens_per_iteration = row.tokens_per_iteration,
                  .run_tokens = settings.run_tokens};
  if (const auto cost = cost_on_demand(prices, work)) {
    row.usd_per_hour = cost->usd_per_hour;
    if (row.fits) {
      row.usd_per_iteration = cost->usd_per_iteration;
      row.usd_per_million_tokens = cost->usd_per_million_tokens;
      row.run_hours = cost->run_hours;
      row.run_usd = cost->run_usd;
    }
  }
  if (prices.spot_usd && prices.storage_usd) row.spot_usd_per_hour = *prices.spot_usd + *prices.storage_usd;
  if (const auto spot = cost_on_spot(prices, work, settings.checkpoints)) {
    row.spot_slowdown = spot->slowdown;
    if (spot->interval_seconds > 0) row.spot_checkpoint_interval_seconds = spot->interval_seconds;
    if (row.fits) {
      row.spot_usd_per_iteration = spot->cost.usd_per_iteration;
      row.spot_usd_per_million_tokens = spot->cost.usd_per_million_tokens;
      row.spot_run_hours = spot->cost.run_hours;
      row.spot_run_usd = spot->cost.run_usd;
    }
  }
}

void mark_fronts(std::vector<SweepRow>& rows, bool any_policy) {
  std::map<std::string, std::vector<std::size_t>> workloads;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].on_front = rows[i].ties_with_front = false;
    if (rows[i].fits && may_be_advised(rows[i], any_policy) && rows[i].iteration_seconds && rows[i].usd_per_iteration) {
      workloads[rows[i].workload].push_back(i);
    }
  }
  for (const auto& [workload, members] : workloads) {
    std::vector<TimeAndCost> points;
    for (const std::size_t i : members) points.push_back({*rows[i].iteration_seconds, *rows[i].usd_per_iteration});
    const std::vector<bool> on_front = pareto_front(points);
    for (std::size_t i = 0; i < members.size(); ++i) rows[members[i]].on_front = on_front[i];
    for (std::size_t i = 0; i < members.size(); ++i) {
      SweepRow& row = rows[members[i]];
      row.ties_with_front = !row.on_front && std::ranges::any_of(members, [&](std::size_t other) {
        return rows[other].on_front && ties(row, rows[other]);
      });
    }
  }
}

}  // namespace tencache
