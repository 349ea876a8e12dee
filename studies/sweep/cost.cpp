#include "studies/sweep/cost.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

namespace tencache {
namespace {

constexpr double hours_per_month = 730;
constexpr double longest_slowdown = 10;

RunCost cost_of(double usd_per_hour, double slowdown, const Work& work) {
  const double seconds = work.iteration_seconds * slowdown;
  RunCost cost;
  cost.usd_per_hour = usd_per_hour;
  cost.usd_per_iteration = usd_per_hour / 3600 * seconds;
  if (work.tokens_per_iteration == 0) return cost;
  const auto tokens = static_cast<double>(work.tokens_per_iteration);
  cost.usd_per_million_tokens = cost.usd_per_iteration / tokens * 1e6;
  if (work.run_tokens <= 0) return cost;
  const double iterations = std::ceil(work.run_tokens / tokens);
  cost.run_hours = iterations * seconds / 3600;
  cost.run_usd = *cost.run_hours * usd_per_hour;
  return cost;
}

}  // namespace

double storage_usd_per_hour(double gigabytes, double usd_per_gigabyte_month) {
  return gigabytes * usd_per_gigabyte_month / hours_per_month;
}

std::optional<RunCost> cost_on_demand(const HourlyPrices& prices, const Work& work) {
  if (!prices.on_demand_usd || !prices.storage_usd) return std::nullopt;
  return cost_of(*prices.on_demand_usd + *prices.storage_usd, 1, work);
}

std::optional<SpotCost> cost_on_spot(const HourlyPrices& prices, const Work& work, const CheckpointCosts& checkpoints) {
  if (!prices.spot_usd || !prices.storage_usd || !prices.interruptions_per_hour) return std::nullopt;
  SpotCost spot;
  if (*prices.interruptions_per_hour > 0) {
    const double mean = 3600 / *prices.interruptions_per_hour;
    spot.interval_seconds = checkpoints.interval_seconds > 0
                                ? checkpoints.interval_seconds
                                : best_checkpoint_interval_seconds(checkpoints.checkpoint_seconds, mean);
    spot.slowdown = slowdown_of_interruptions(mean, spot.interval_seconds, checkpoints);
    if (!(spot.slowdown <= longest_slowdown)) return std::nullopt;
  }
  spot.cost = cost_of(*prices.spot_usd + *prices.storage_usd, spot.slowdown, work);
  return spot;
}

double best_checkpoint_interval_seconds(double checkpoint_seconds, double mean_seconds_between_interruptions) {
  if (checkpoint_seconds >= 2 * mean_seconds_between_interruptions) return mean_seconds_between_interruptions;
  const double share = checkpoint_seconds / (2 * mean_seconds_between_interruptions);
  return std::sqrt(2 * checkpoint_seconds * mean_seconds_between_interruptions) *
             (1 + std::sqrt(share) / 3 + share / 9) -
         checkpoint_seconds;
}

double slowdown_of_interruptions(double mean_seconds_between_interruptions, double interval_seconds,
                                 const CheckpointCosts& checkpoints) {
  const double mean = mean_seconds_between_interruptions;
  return mean * std::exp(checkpoints.restart_seconds / mean) *
         std::expm1((interval_seconds + checkpoints.checkpoint_seconds) / mean) / interval_seconds;
}

std::vector<bool> pareto_front(std::span<const TimeAndCost> points) {
  std::vector<std::size_t> order(points.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    if (points[a].seconds != points[b].seconds) return points[a].seconds < points[b].seconds;
    return points[a].usd < points[b].usd;
  });
  std::vector<bool> on_front(points.size(), false);
  double cheapest = std::numeric_limits<double>::infinity(), seconds_of_cheapest = 0;
  for (const std::size_t i : order) {
    const bool cheaper = points[i].usd < cheapest;
    const bool equal = points[i].usd == cheapest && points[i].seconds == seconds_of_cheapest;
    if (!cheaper && !equal) continue;
    on_front[i] = true;
    cheapest = points[i].usd;
    seconds_of_cheapest = points[i].seconds;
  }
  return on_front;
}

}  // namespace tencache
