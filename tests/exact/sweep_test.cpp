// The library of sweeps: cost and fronts against cases worked by hand, what the file may say, results on disk.
#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "studies/sweep/cost.h"
#include "studies/sweep/recommend.h"
#include "studies/sweep/sweep_costs.h"
#include "studies/sweep/sweep_file.h"
#include "studies/sweep/sweep_plan.h"
#include "studies/sweep/sweep_results.h"
#include "studies/sweep/sweep_run.h"
#include "studies/validity.h"

namespace tencache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ------------------------------------------------------------------------------------------------------------- cost

// 3.6 $/h is a tenth of a cent a second.
TEST(Cost, OnDemandByHand) {
  const Work work{.iteration_seconds = 2, .tokens_per_iteration = 1000, .run_tokens = 2500};
  const auto cost = cost_on_demand({.on_demand_usd = 3.6, .spot_usd = {}}, work);
  ASSERT_TRUE(cost);
  EXPECT_DOUBLE_EQ(cost->usd_per_hour, 3.6);
  EXPECT_DOUBLE_EQ(cost->usd_per_iteration, 0.002);
  EXPECT_DOUBLE_EQ(*cost->usd_per_million_tokens, 2);
  EXPECT_DOUBLE_EQ(*cost->run_hours, 6.0 / 3600);  // three whole iterations
  EXPECT_DOUBLE_EQ(*cost->run_usd, 0.006);
}

TEST(Cost, WhatIsNotKnownIsNotMadeUp) {
  EXPECT_FALSE(cost_on_demand({}, {.iteration_seconds = 1}));
  // Neither is storage free nor a spot machine the user's for ever because nobody said what they cost.
  EXPECT_FALSE(cost_on_demand({.on_demand_usd = 3.6, .storage_usd = {}}, {.iteration_seconds = 1}));
  EXPECT_FALSE(cost_on_spot({.spot_usd = 1.8}, {.iteration_seconds = 1}, {}));
  EXPECT_FALSE(
      cost_on_spot({.spot_usd = 1.8, .storage_usd = {}, .interruptions_per_hour = 0}, {.iteration_seconds = 1}, {}));
  const auto cost = cost_on_demand({.on_demand_usd = 3.6, .spot_usd = {}}, {.iteration_seconds = 1, .run_tokens = 5});
  EXPECT_DOUBLE_EQ(cost->usd_per_iteration, 0.001);
  EXPECT_FALSE(cost->usd_per_million_tokens);
  EXPECT_FALSE(cost->run_usd);
}

// 730 GB at 0.1 $ a month of 730 hours are 0.1 $ an hour, whatever the machine costs.
TEST(Cost, AttachedStorageIsPaidByTheHour) {
  EXPECT_DOUBLE_EQ(storage_usd_per_hour(730, 0.1), 0.1);
  const auto cost = cost_on_demand({.on_demand_usd = 3.5, .spot_usd = {}, .storage_usd = 0.1},
                                   {.iteration_seconds = 2, .tokens_per_iteration = 1000});
  EXPECT_DOUBLE_EQ(cost->usd_per_hour, 3.6);
  EXPECT_DOUBLE_EQ(cost->usd_per_iteration, 0.002);
}

// A link that is busy for half of 10 s, at 2 GB/s between 1 and 4: twice as fast it saves 2.5 s, half as fast it adds 5.
TEST(Validity, OfALinkOfWhichOnlyBoundsAreKnown) {
  MachineSpec machine;
  machine.links.resize(2);
  machine.links[0].name = "h2d";
  machine.links[1].name = "nvme_read";
  machine.links[0].bandwidth = machine.links[1].bandwidth = 2'000'000'000;
  machine.facts = {{"links.h2d.bandwidth", "a paper", "measured", "", 0.5},
                   {"links.nvme_read.bandwidth", "a list", "estimated", "", 1}};
  RunResult result;
  result.window.time_ns = 10 * second_ns;
  result.window.links[0].busy_ns = 9 * second_ns;
  EXPECT_TRUE(time_at_bounds(machine, result, 10).links.empty()) << "unused, or measured with a spread";
  result.window.links[1].busy_ns = 5 * second_ns;
  const TimeAtBounds at = time_at_bounds(machine, result, 10);
  EXPECT_DOUBLE_EQ(at.fast, 7.5);
  EXPECT_DOUBLE_EQ(at.slow, 15);
  EXPECT_THAT(at.links, ElementsAre("nvme_read (1 to 4 GB/s)"));
  result.window.compute_ns = 9 * second_ns;
  EXPECT_DOUBLE_EQ(time_at_bounds(machine, result, 10).fast, 9) << "what the GPU computes for";
}

// δ = 50, M = 2500: sqrt(2 · 50 · 2500) = 500; δ / 2M = 0.01; 500 · (1 + 0.1/3 + 0.01/9) - 50.
TEST(Cost, DalysIntervalByHand) {
  EXPECT_NEAR(best_checkpoint_interval_seconds(50, 2500), 500 * (1 + 0.1 / 3 + 0.01 / 9) - 50, 1e-9);
  EXPECT_NEAR(best_checkpoint_interval_seconds(50, 2500), 467.222, 1e-3);
  EXPECT_EQ(best_checkpoint_interval_seconds(100, 50), 50);  // δ = 2 M
}

// M = 1000, τ + δ = M ln 2, so that exp(…) - 1 = 1: 1000 / 600 at R = 0, twice that at R = M ln 2.
TEST(Cost, DalysTimeByHand) {
  const double delta = 1000 * std::log(2.0) - 600;
  EXPECT_NEAR(slowdown_of_interruptions(1000, 600, {.checkpoint_seconds = delta, .restart_seconds = 0}), 10.0 / 6,
              1e-12);
  EXPECT_NEAR(
      slowdown_of_interruptions(1000, 600, {.checkpoint_seconds = delta, .restart_seconds = 1000 * std::log(2.0)}),
      20.0 / 6, 1e-12);
}

// The interval that Daly gives is the best there is: neither half nor twice as much is better.
TEST(Cost, DalysIntervalIsTheBest) {
  const CheckpointCosts costs{.checkpoint_seconds = 60, .restart_seconds = 300};
  for (const double mean : {1800.0, 7200.0, 72000.0}) {
    const double best = best_checkpoint_interval_seconds(60, mean);
    const double at_best = slowdown_of_interruptions(mean, best, costs);
    for (const double factor : {0.5, 0.8, 1.25, 2.0}) {
      EXPECT_LT(at_best, slowdown_of_interruptions(mean, factor * best, costs)) << mean << " × " << factor;
    }
  }
}

TEST(Cost, SpotPaysForWhatIsDoneAgain) {
  const double delta = 1000 * std::log(2.0) - 600;
  const HourlyPrices prices{.on_demand_usd = 3.6, .spot_usd = 1.8, .storage_usd = 0, .interruptions_per_hour = 3.6};
  const Work work{.iteration_seconds = 2, .tokens_per_iteration = 1000, .run_tokens = 3000};
  const auto spot =
      cost_on_spot(prices, work, {.checkpoint_seconds = delta, .restart_seconds = 0, .interval_seconds = 600});
  ASSERT_TRUE(spot);
  EXPECT_EQ(spot->interval_seconds, 600);
  EXPECT_NEAR(spot->slowdown, 10.0 / 6, 1e-12);
  EXPECT_NEAR(*spot->cost.usd_per_million_tokens, 2 * 0.5 * 10 / 6, 1e-12);
  EXPECT_NEAR(*spot->cost.run_hours, 6.0 / 3600 * 10 / 6, 1e-12);
  // Never taken away: half the price, half the cost.
  const auto calm =
      cost_on_spot({.on_demand_usd = 3.6, .spot_usd = 1.8, .storage_usd = 0, .interruptions_per_hour = 0}, work, {});
  EXPECT_EQ(calm->slowdown, 1);
  EXPECT_EQ(calm->interval_seconds, 0);
  EXPECT_DOUBLE_EQ(*calm->cost.usd_per_million_tokens, 1);
  // Taken away every minute, with five minutes to come back: no run ends.
  EXPECT_FALSE(
      cost_on_spot({.on_demand_usd = 3.6, .spot_usd = 1.8, .storage_usd = 0, .interruptions_per_hour = 60}, work, {}));
  EXPECT_FALSE(cost_on_spot({.on_demand_usd = 3.6, .spot_usd = {}}, work, {}));
}

TEST(Front, ByHand) {
  const std::vector<TimeAndCost> points = {{1, 10}, {2, 5}, {3, 6}, {4, 1}, {1, 11}, {2, 5}, {5, 1}};
  EXPECT_THAT(pareto_front(points), ElementsAre(true, true, false, true, false, true, false));
  EXPECT_TRUE(pareto_front({}).empty());
}

SweepRow row(const std::string& key, std::uint64_t position, const std::string& workload, bool fits, double seconds,
             std::optional<double> usd_per_hour) {
  SweepRow row;
  row.key = key;
  row.position = position;
  row.workload = workload;
  row.machine = "m" + key;
  row.policy = "lru";
  row.options = "{}";
  row.fits = fits;
  if (!fits) row.reason = "out of memory";
  if (fits) row.iteration_seconds = seconds;
  row.usd_per_hour = usd_per_hour;
  if (fits && usd_per_hour) row.usd_per_iteration = *usd_per_hour / 3600 * seconds;
  return row;
}

// Iterations cost 3600/3600·10, 2·1, (no price), 1·40 / 3600 …: a = 1 s at 36 $/h = 0.01; b = 4 s at 3.6 = 0.004;
// c = 3 s at 3.6 = 0.003, which beats b in both; d fits no machine; e has no price.
TEST(Advice, ByHand) {
  std::vector<SweepRow> rows = {row("a", 0, "w", true, 1, 36),   row("b", 1, "w", true, 4, 3.6),
                                row("c", 2, "w", true, 3, 3.6),  row("d", 3, "w", false, 0, 1),
                                row("e", 4, "w", true, 0.5, {}), row("f", 5, "other", false, 0, 1)};
  mark_fronts(rows);
  const std::vector<Advice> advice = advise(rows, 30);
  ASSERT_EQ(advice.size(), 2u);
  EXPECT_EQ(advice[0].workload, "w");
  EXPECT_EQ(advice[0].combinations, 5u);
  EXPECT_THAT(advice[0].fitting, ElementsAre(4u, 0u, 2u, 1u));  // from fast to slow
  EXPECT_THAT(advice[0].front, ElementsAre(0u, 2u));
  EXPECT_EQ(advice[0].cheapest, 2u);
  EXPECT_EQ(advice[0].fastest, 4u);
  EXPECT_EQ(advice[0].in_budget, 2u);
  EXPECT_TRUE(advice[1].fitting.empty());
  EXPECT_FALSE(advice[1].cheapest || advice[1].fastest || advice[1].in_budget);
  EXPECT_FALSE(advise(rows, 0)[0].in_budget);
}

// Within 1 % nothing is better: of 1 s, 1.005 s and 1.02 s at 1 $/h the first two tie, in time and so in cost; with a
// prediction validated within 25 % all three do. 1.005 s costs 0.5 % more than the front's only row: a tie with it.
TEST(Advice, SaysWhatTies) {
  std::vector<SweepRow> rows = {row("a", 0, "w", true, 1.005, 1), row("b", 1, "w", true, 1, 1),
                                row("c", 2, "w", true, 1.02, 1), row("d", 3, "w", true, 1, {})};
  mark_fronts(rows);
  EXPECT_TRUE(rows[1].on_front && !rows[1].ties_with_front);
  EXPECT_TRUE(rows[0].ties_with_front && !rows[0].on_front);
  EXPECT_FALSE(rows[2].ties_with_front || rows[3].ties_with_front);
  Advice advice = advise(rows, 2)[0];
  EXPECT_EQ(advice.cheapest, 1u);
  EXPECT_THAT(advice.cheapest_ties, ElementsAre(0u));
  EXPECT_EQ(advice.fastest, 3u);  // the first of two equal ones: without a price it counts as the cheaper one
  EXPECT_THAT(advice.fastest_ties, ElementsAre(1u, 0u));
  EXPECT_THAT(advice.in_budget_ties, ElementsAre(0u));
  for (SweepRow& of : rows) of.validated_within = 0.25;
  mark_fronts(rows);
  EXPECT_TRUE(rows[2].ties_with_front);
  advice = advise(rows, 0)[0];
  EXPECT_THAT(advice.cheapest_ties, ElementsAre(0u, 2u));
  EXPECT_THAT(advice.fastest_ties, ElementsAre(1u, 0u, 2u));
}

// A dear machine that is 0.5 % faster is no better than a cheap one, which is named first; of none is the price known.
TEST(Advice, NamesTheCheapestOfATieFirst) {
  std::vector<SweepRow> rows = {row("a", 0, "w", true, 1, 36), row("b", 1, "w", true, 1.002, {}),
                                row("c", 2, "w", true, 1.004, 9), row("d", 3, "w", true, 1.005, 3.6)};
  const Advice advice = advise(rows, 0)[0];
  EXPECT_EQ(advice.fastest, 0u);
  EXPECT_THAT(advice.fastest_ties, ElementsAre(3u, 2u, 1u));
  std::vector<std::size_t> all = {0, 1, 2, 3};
  sort_by_cost(all, rows, &SweepRow::usd_per_iteration);
  EXPECT_THAT(all, ElementsAre(3u, 2u, 0u, 1u));
}

// a is cheaper on demand, b on spot; c has no cost on spot.
TEST(Advice, CheapestOnSpot) {
  std::vector<SweepRow> rows = {row("a", 0, "w", true, 1, 1), row("b", 1, "w", true, 2, 1),
                                row("c", 2, "w", true, 3, 1), row("d", 3, "w", true, 4, 1)};
  rows[0].spot_usd_per_iteration = 3;
  rows[1].spot_usd_per_iteration = 1;
  rows[3].spot_usd_per_iteration = 1.005;
  const Advice advice = advise(rows, 0)[0];
  EXPECT_EQ(advice.cheapest, 0u);
  EXPECT_EQ(advice.cheapest_on_spot, 1u);
  EXPECT_THAT(advice.cheapest_on_spot_ties, ElementsAre(3u));
}

// The ideal is what no machine can do: it must not be on a front or advised.
TEST(Advice, NeverTheIdeal) {
  std::vector<SweepRow> rows = {row("a", 0, "w", true, 1, 1), row("b", 1, "w", true, 2, 1)};
  rows[0].policy = "ideal";
  mark_fronts(rows);
  EXPECT_FALSE(rows[0].on_front);
  EXPECT_TRUE(rows[1].on_front);
  EXPECT_EQ(advise(rows, 0)[0].fastest, 1u);
}

// Nobody can take a faster policy that no system runs, unless that is asked for; it stays among what fits.
TEST(Advice, OnlyOfWhatCanBeRun) {
  std::vector<SweepRow> rows = {row("a", 0, "w", true, 1, 1), row("b", 1, "w", true, 1.001, 1),
                                row("c", 2, "w", true, 2, 1), row("d", 3, "w", true, 3, 1)};
  rows[0].runs_with = "nothing";
  rows[1].runs_with = "research artifact";
  rows[2].runs_with = "tencache run";
  rows[3].runs_with = "DeepSpeed";
  mark_fronts(rows);
  EXPECT_TRUE(rows[2].on_front && !rows[0].on_front && !rows[1].ties_with_front);
  Advice advice = advise(rows, 2)[0];
  EXPECT_THAT(advice.fitting, ElementsAre(0u, 1u, 2u, 3u));
  EXPECT_EQ(advice.fastest, 2u);
  EXPECT_EQ(advice.cheapest, 2u);
  EXPECT_EQ(advice.in_budget, 2u);
  EXPECT_TRUE(advice.fastest_ties.empty());
  mark_fronts(rows, true);
  EXPECT_TRUE(rows[0].on_front && !rows[2].on_front);
  advice = advise(rows, 2, true)[0];
  EXPECT_EQ(advice.fastest, 0u);
  EXPECT_THAT(advice.fastest_ties, ElementsAre(1u));
}

// ------------------------------------------------------------------------------------------------------ results file

class ResultsFile : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "tencache_sweep_test_" + std::to_string(getpid()) + ".sqlite";
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }
  std::string path_;
};

TEST_F(ResultsFile, KeepsEveryField) {
  SweepRow full = row("k1", 7, "w, \"quoted\"", true, 0.1 + 0.2, 3.06);
  full.gpu_peak_bytes = (1ull << 40) + 1;
  full.options = R"({"window":"3"})";
  full.on_front = true;
  full.spot_slowdown = 1.0 / 3;
  const SweepRow misfit = row("k0", 3, "w", false, 0, {});
  {
    SweepStore store(path_);
    store.add({full, misfit});
    store.set_about({{"name", "test"}});
  }
  const SweepResults results = read_sweep(path_);
  EXPECT_THAT(results.rows, ElementsAre(misfit, full));
  EXPECT_EQ(results.about.at("name"), "test");
  SweepStore store(path_);
  store.remove({"k0"});
  EXPECT_THAT(store.rows(), ElementsAre(full));
}

TEST_F(ResultsFile, IsReadWhileItIsWritten) {
  SweepStore store(path_);
  EXPECT_TRUE(read_sweep(path_).rows.empty());
  store.add({row("a", 0, "w", true, 1, 1)});
  EXPECT_EQ(read_sweep(path_).rows.size(), 1u);
}

TEST_F(ResultsFile, HasOneWriter) {
  SweepStore store(path_);
  try {
    SweepStore other(path_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("being written by another sweep"));
  }
}

TEST_F(ResultsFile, IsNoOtherFile) {
  std::ofstream(path_) << "something else, of more than a few bytes, that nobody wants to lose";
  for (const auto& open :
       std::vector<std::function<void()>>{[&] { SweepStore store(path_); }, [&] { read_sweep(path_); }}) {
    try {
      open();
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("no results file of a sweep"));
    }
  }
  EXPECT_THROW(read_sweep(path_ + ".none"), Error);
}

TEST(SweepCsv, QuotesWhatNeedsIt) {
  const std::string csv = sweep_csv({row("k", 0, "a, \"b\"", false, 0, 0.5)});
  EXPECT_THAT(csv, ::testing::StartsWith("key,position,build,workload,"));
  EXPECT_THAT(csv, HasSubstr("\nk,0,,\"a, \"\"b\"\"\","));
}

// ---------------------------------------------------------------------------------------------------------- patterns

TEST(Pattern, StarsStandForAnything) {
  for (const auto& [pattern, text] : std::vector<std::pair<std::string, std::string>>{
           {"g5.*", "g5.xlarge"}, {"*", ""}, {"*a*b", "xxaxxabxb"}, {"p4d.24xlarge", "p4d.24xlarge"}, {"a**", "a"}}) {
    EXPECT_TRUE(matches_pattern(pattern, text)) << pattern << " " << text;
  }
  for (const auto& [pattern, text] : std::vector<std::pair<std::string, std::string>>{
           {"g5.*", "g6.xlarge"}, {"", "a"}, {"a", ""}, {"*a", "ab"}, {"a*b", "a"}}) {
    EXPECT_FALSE(matches_pattern(pattern, text)) << pattern << " " << text;
  }
}

}  // namespace
}  // namespace tencache
