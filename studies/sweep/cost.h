// What training costs on a rented machine. Pure arithmetic; USD, seconds, hours.
//
// On demand: an hour costs the machine and the storage attached to it, whether all of its GPUs work or not; nothing is
// lost. Spot: the machine is taken away now and then, and what was done since the last checkpoint is done again.
//
// Spot, after J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
// Generation Computer Systems 22 (2006), equations 20 and 37; interruptions are a Poisson process. With a mean time M
// between interruptions, a checkpoint of δ seconds after every τ seconds of work and R seconds to be back at work,
// T seconds of work take
//   M · exp(R / M) · (exp((τ + δ) / M) - 1) · T / τ
// and τ is best at sqrt(2 δ M) · (1 + sqrt(δ / 2M) / 3 + (δ / 2M) / 9) - δ for δ < 2 M, else at M (the first term is
// Young's, Communications of the ACM 17 (1974)).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tencache {

// Of one machine; none: not known.
struct HourlyPrices {
  std::optional<double> on_demand_usd = {}, spot_usd = {};  // an hour of the whole machine
  std::optional<double> storage_usd = 0;                    // an hour of what is attached to it
  std::optional<double> interruptions_per_hour = {};        // of spot; 0: it is never taken away
};
// A month of billing is 730 hours.
double storage_usd_per_hour(double gigabytes, double usd_per_gigabyte_month);

struct CheckpointCosts {
  double checkpoint_seconds = 60;  // to write one, during which nothing else runs; above 0
  double restart_seconds = 300;    // from an interruption until the work goes on
  double interval_seconds = 0;     // of work between checkpoints; 0: the best after Daly
};

struct Work {
  double iteration_seconds = 0;
  std::uint64_t tokens_per_iteration = 0;  // 0: not known
  double run_tokens = 0;                   // of a whole run; 0: not asked
};

struct RunCost {
  double usd_per_hour = 0, usd_per_iteration = 0;
  std::optional<double> usd_per_million_tokens;  // where the tokens are known
  std::optional<double> run_hours, run_usd;      // where a run was asked for; whole iterations
};
// None where a price is not known, of the machine or of its storage.
std::optional<RunCost> cost_on_demand(const HourlyPrices& prices, const Work& work);

struct SpotCost {
  RunCost cost;                 // with what interruptions add
  double slowdown = 1;          // expected time ÷ time without interruptions and checkpoints
  double interval_seconds = 0;  // between checkpoints; 0: without interruptions none is taken
};
// None where a price or how often the machine is taken away is not known, or where that is so often that the run hardly
// ends (10 times as long).
std::optional<SpotCost> cost_on_spot(const HourlyPrices& prices, const Work& work, const CheckpointCosts& checkpoints);

double best_checkpoint_interval_seconds(double checkpoint_seconds, double mean_seconds_between_interruptions);
// Expected time ÷ work.
double slowdown_of_interruptions(double mean_seconds_between_interruptions, double interval_seconds,
                                 const CheckpointCosts& checkpoints);

// Which points no other one dominates: none is as good in both and better in one. Equal points are all on the front.
struct TimeAndCost {
  double seconds = 0, usd = 0;
};
std::vector<bool> pareto_front(std::span<const TimeAndCost> points);

}  // namespace tencache
