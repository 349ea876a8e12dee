// The search for a policy's best knobs, on times that are formulas; which options are knobs; jittered traces.
#include "studies/tune.h"

#include <atomic>
#include <cmath>
#include <mutex>
#include <set>

#include "core/error.h"
#include "policies/knobs.h"
#include "tests/cli_fixture.h"
#include "traces/file/file_io.h"
#include "traces/transform/edits.h"

namespace tencache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr double infinite = std::numeric_limits<double>::infinity();

Knob numbers(const std::string& name, std::size_t count) {
  Knob knob{.name = name, .values = {}, .ordered = true, .unit = "", .only_with = {}};
  for (std::size_t i = 0; i < count; ++i) knob.values.push_back(std::to_string(i));
  return knob;
}

double number(const Settings& settings, const std::string& name, double standard = 0) {
  const auto found = settings.find(name);
  return found == settings.end() ? standard : std::stod(found->second);
}

// Time: a formula of the settings. Every default is 0.
TuneProblem problem_of(std::vector<Knob> knobs, std::function<double(const Settings&)> seconds) {
  TuneProblem problem;
  for (const Knob& knob : knobs) problem.defaults.emplace(knob.name, "0");
  problem.knobs = std::move(knobs);
  problem.measure = [seconds = std::move(seconds)](const Settings& settings, std::size_t, std::size_t) {
    const double value = seconds(settings);
    return Measured{.seconds = value, .misfit = std::isfinite(value) ? "" : "too large"};
  };
  return problem;
}

TEST(Tune, TriesAllCombinationsWhereTheBudgetAllows) {
  // 12 combinations; the least of (a - 1)² + (b - 2)² + 1 is at a = 1, b = 2.
  const TuneProblem problem = problem_of({numbers("a", 3), numbers("b", 4)}, [](const Settings& settings) {
    return 1 + std::pow(number(settings, "a") - 1, 2) + std::pow(number(settings, "b") - 2, 2);
  });
  const TuneResult result = tune(problem, {.budget = 12});
  EXPECT_TRUE(result.exhaustive);
  EXPECT_EQ(result.simulations, 12u);
  EXPECT_EQ(result.combinations, 12);
  EXPECT_THAT(result.candidates[result.best].settings, ElementsAre(Pair("a", "1"), Pair("b", "2")));
  EXPECT_DOUBLE_EQ(result.candidates[result.best].score, 1.0 / 6);  // the defaults take 6 s
  EXPECT_TRUE(result.ties.empty());
}

TEST(Tune, WithoutKnobsTriesTheDefaults) {
  const TuneResult result = tune(problem_of({}, [](const Settings&) { return 3; }), {.budget = 10});
  EXPECT_EQ(result.simulations, 1u);
  EXPECT_EQ(result.candidates.size(), 1u);
  EXPECT_EQ(result.candidates[result.best].median_seconds(0), 3);
}

// Eight knobs of seven values, one of which matters only with another's value: 5.8 million combinations.
TuneProblem large_problem() {
  std::vector<Knob> knobs;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"}) knobs.push_back(numbers(name, 7));
  knobs[7].only_with = {{"a", "5"}};
  return problem_of(knobs, [](const Settings& settings) {
    double seconds = 10;
    for (const char* name : {"a", "b", "c", "d"}) seconds += std::fabs(number(settings, name) - 5);
    if (number(settings, "a") == 5) seconds -= number(settings, "h");
    return seconds;
  });
}

TEST(Tune, FindsTheOptimumOfManyKnobsAndLeavesTheRestAtTheirDefaults) {
  const TuneProblem problem = large_problem();
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const TuneResult result = tune(problem, {.budget = 400, .seed = seed});
    EXPECT_FALSE(result.exhaustive);
    EXPECT_THAT(result.candidates[result.best].settings,
                ElementsAre(Pair("a", "5"), Pair("b", "5"), Pair("c", "5"), Pair("d", "5"), Pair("h", "6")))
        << seed;
    // Each knob's steps are away from that, whatever was simulated in between.
    ASSERT_EQ(result.flatness.size(), 8u);
    std::size_t known = 0;
    for (const Flatness& flatness : result.flatness) {
      for (const FlatnessStep& step : flatness.steps) {
        if (!step.simulated) continue;
        ++known;
        Settings settings = result.candidates[result.best].settings;
        settings[flatness.knob] = step.value;
        const double best = problem.measure(result.candidates[result.best].settings, 0, 0).seconds;
        EXPECT_NEAR(step.relative_time, problem.measure(settings, 0, 0).seconds / best, 1e-12) << flatness.knob;
      }
    }
    EXPECT_GE(known, 16u);
  }
}

TEST(Tune, TheSameForASeedWhateverTheNumberOfThreads) {
  const TuneProblem problem = large_problem();
  const TuneResult one = tune(problem, {.budget = 200, .seed = 7, .threads = 1});
  const TuneResult four = tune(problem, {.budget = 200, .seed = 7, .threads = 4});
  ASSERT_EQ(one.candidates.size(), four.candidates.size());
  for (std::size_t i = 0; i < one.candidates.size(); ++i) {
    EXPECT_EQ(one.candidates[i].settings, four.candidates[i].settings) << i;
    EXPECT_EQ(one.candidates[i].seconds, four.candidates[i].seconds) << i;
  }
  EXPECT_EQ(one.best, four.best);
  EXPECT_EQ(one.ties, four.ties);
}

TEST(Tune, KeepsToTheBudgetAndSimulatesNothingTwice) {
  for (const std::uint64_t budget : {1U, 7U, 50U, 301U}) {
    TuneProblem problem = large_problem();
    const auto measure = problem.measure;
    std::mutex mutex;
    std::uint64_t calls = 0;
    std::set<Settings> seen;
    problem.measure = [&](const Settings& settings, std::size_t workload, std::size_t copy) {
      const std::lock_guard lock(mutex);
      ++calls;
      EXPECT_TRUE(seen.insert(settings).second);
      return measure(settings, workload, copy);
    };
    const TuneResult result = tune(problem, {.budget = budget});
    EXPECT_LE(calls, budget);
    EXPECT_EQ(result.simulations, calls);
    EXPECT_EQ(result.candidates.size(), calls);
  }
}

// No more is kept than trying each change of the best without would take.
TEST(Tune, LeavesNothingUnknownThatTheBudgetAllows) {
  for (const std::uint64_t budget : {1U, 2U, 3U, 5U, 8U, 12U, 20U, 30U, 60U}) {
    const TuneResult result = tune(large_problem(), {.budget = budget});
    bool unknown = false;
    for (const Flatness& flatness : result.flatness) {
      for (const FlatnessStep& step : flatness.steps) unknown = unknown || !step.simulated;
    }
    EXPECT_TRUE(!unknown || result.simulations + result.candidates[result.best].changed >= budget) << budget;
  }
}

// However small the budget, what the best changes was tried without, or is named.
TEST(Tune, NamesChangesThatItDidNotTryWithout) {
  for (const std::uint64_t budget : {3U, 5U, 8U, 12U, 20U, 30U, 60U}) {
    TuneProblem problem = large_problem();
    std::mutex mutex;
    std::set<Settings> seen;
    const auto measure = problem.measure;
    problem.measure = [&](const Settings& settings, std::size_t workload, std::size_t copy) {
      const std::lock_guard lock(mutex);
      seen.insert(settings);
      return measure(settings, workload, copy);
    };
    const TuneResult result = tune(problem, {.budget = budget});
    const Settings& best = result.candidates[result.best].settings;
    for (const auto& [knob, value] : best) {
      Settings without = best;
      without.erase(knob);
      if (knob == "a") without.erase("h");  // which has no effect then
      const bool named = std::ranges::find(result.untested, knob) != result.untested.end();
      EXPECT_EQ(named, !seen.contains(without)) << budget << " " << knob;
    }
    if (budget < 30) continue;
    EXPECT_THAT(result.untested, ::testing::IsEmpty());
  }
}

// Where the budget ends the search early, what is simulated after it may be faster than what the search had found.
TEST(Tune, NothingThatWasSimulatedIsFasterThanTheBest) {
  const TuneProblem problem = large_problem();
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const std::uint64_t budget : {20U, 30U, 40U, 60U, 80U}) {
      const TuneOptions options{.budget = budget, .seed = seed};
      const TuneResult result = tune(problem, options);
      const double best = result.candidates[result.best].score;
      for (const Candidate& candidate : result.candidates) {
        EXPECT_GE(candidate.score, best / (1 + options.tie)) << budget << " " << seed;
      }
      for (const Flatness& flatness : result.flatness) {
        for (const FlatnessStep& step : flatness.steps)
          EXPECT_TRUE(step.ties || step.relative_time > 1) << flatness.knob;
      }
    }
  }
}

TEST(Tune, WhereTheDefaultsDoNotFitAnotherTimeIsTheReference) {
  TuneProblem problem = problem_of({numbers("a", 6), numbers("b", 6)}, [](const Settings& settings) {
    return number(settings, "a") < 3 ? infinite : 4 + number(settings, "b");
  });
  problem.reference_seconds = {2};
  const TuneResult result = tune(problem, {.budget = 30});
  EXPECT_FALSE(result.candidates[0].fits);
  EXPECT_EQ(result.candidates[0].misfit, "too large");
  EXPECT_DOUBLE_EQ(result.candidates[result.best].score, 2);
  EXPECT_THAT(result.candidates[result.best].settings, ElementsAre(Pair("a", "3")));  // the least change
}

TEST(Tune, SeveralWorkloadsCountByTheGeometricMeanRelativeToTheDefaults) {
  // A long workload that a = 1 slows down by 10 %, and a short one that it makes twice as fast.
  TuneProblem problem = problem_of({numbers("a", 2)}, {});
  problem.workloads = 2;
  problem.measure = [](const Settings& settings, std::size_t workload, std::size_t) {
    const bool changed = number(settings, "a") == 1;
    return Measured{.seconds = workload == 0 ? (changed ? 1100.0 : 1000.0) : (changed ? 1.0 : 2.0), .misfit = ""};
  };
  const TuneResult result = tune(problem, {.budget = 4});
  EXPECT_NEAR(result.candidates[result.best].score, std::sqrt(1.1 * 0.5), 1e-12);
}

TEST(Tune, StartsAndFixedSettingsAreTried) {
  TuneProblem problem = large_problem();
  problem.knobs.erase(problem.knobs.begin());  // a
  problem.fixed = {{"a", "5"}};
  problem.starts = {{{"b", "5"}, {"c", "5"}, {"unknown", "1"}}};
  const TuneResult result = tune(problem, {.budget = 2});
  ASSERT_EQ(result.candidates.size(), 2u);
  EXPECT_THAT(result.candidates[0].settings, ElementsAre(Pair("a", "5")));
  EXPECT_THAT(result.candidates[1].settings, ElementsAre(Pair("a", "5"), Pair("b", "5"), Pair("c", "5")));
  EXPECT_THAT(result.starts, ElementsAre(1u));
  EXPECT_EQ(result.best, 1u);
}

TEST(Tune, ADefaultThatTheUserLeavesOutIsNeverTheBest) {
  TuneProblem problem =
      problem_of({numbers("a", 3)}, [](const Settings& settings) { return 1 + number(settings, "a"); });
  problem.knobs[0].values = {"1", "2"};
  const TuneResult result = tune(problem, {.budget = 10});
  EXPECT_THAT(result.candidates[result.best].settings, ElementsAre(Pair("a", "1")));
}

TEST(Tune, WhatOtherOptionsMustBeIsPartOfTheCandidate) {
  TuneProblem problem = problem_of({numbers("a", 2)}, [](const Settings& settings) {
    return number(settings, "a") == 1 && number(settings, "room") == 8 ? 1 : 2;
  });
  problem.complete = [](Settings& settings) {
    if (settings.contains("a")) settings.emplace("room", "8");
  };
  const TuneResult result = tune(problem, {.budget = 10});
  EXPECT_THAT(result.candidates[result.best].settings, ElementsAre(Pair("a", "1"), Pair("room", "8")));
}

TEST(Tune, ShowsHowFlatTheOptimumIs) {
  // Best at a = 2: one step down costs 10 %, one up fits no more. b does nothing, c has no effect without a = 4.
  std::vector<Knob> knobs = {numbers("a", 5), numbers("b", 3), numbers("c", 2)};
  knobs[2].only_with = {{"a", "4"}};
  const TuneProblem problem = problem_of(knobs, [](const Settings& settings) {
    constexpr double seconds[] = {20, 11, 10};
    const double a = number(settings, "a");
    return a > 2 ? infinite : seconds[static_cast<int>(a)];
  });
  const TuneResult result = tune(problem, {.budget = 100});
  ASSERT_EQ(result.flatness.size(), 3u);
  const Flatness& a = result.flatness[0];
  EXPECT_EQ(a.value, "2");
  ASSERT_EQ(a.steps.size(), 3u);  // 0 is the default
  EXPECT_NEAR(a.steps[0].relative_time, 2, 1e-12);
  EXPECT_NEAR(a.steps[1].relative_time, 1.1, 1e-12);
  EXPECT_EQ(a.steps[2].relative_time, infinite);
  ASSERT_EQ(result.flatness[1].steps.size(), 1u);
  EXPECT_TRUE(result.flatness[1].steps[0].ties);
  EXPECT_FALSE(result.flatness[2].has_effect);
  EXPECT_EQ(result.ties.size(), 2u);  // b = 1, b = 2
}

Candidate with_times(std::vector<double> seconds) {
  Candidate candidate;
  candidate.fits = true;
  candidate.seconds = {std::move(seconds)};
  return candidate;
}

TEST(Tune, WithCopiesATieIsWhatIsNotAlwaysFaster) {
  const Candidate base = with_times({1.0, 1.1, 0.9, 1.2, 1.0});
  // Two of five copies are slower: a tie, though the median is 3 % faster.
  EXPECT_TRUE(ties(base, with_times({0.97, 1.067, 0.873, 1.25, 1.02}), 0.005));
  // Always 3 % faster, by the same copies' times: none, though the times themselves overlap.
  EXPECT_FALSE(ties(base, with_times({0.97, 1.067, 0.873, 1.164, 0.97}), 0.005));
  EXPECT_TRUE(ties(base, with_times({0.97, 1.067, 0.873, 1.164, 0.97}), 0.05));
  EXPECT_FALSE(ties(with_times({1.0}), with_times({0.99}), 0.005));
  EXPECT_TRUE(ties(with_times({1.0}), with_times({0.999}), 0.005));
}

TEST(Tune, JudgesByTheMedianOfTheCopiesAndCapsWhatIsHopeless) {
  TuneProblem problem = problem_of({numbers("a", 3)}, {});
  problem.copies = 5;
  std::atomic<int> slow_runs = 0;
  problem.measure = [&](const Settings& settings, std::size_t, std::size_t copy) {
    const double a = number(settings, "a");
    if (a == 2) {
      ++slow_runs;
      return Measured{.seconds = 30, .misfit = ""};
    }
    const double outlier = copy == 3 ? 100 : 0;  // whatever the settings
    return Measured{.seconds = 10 - a + outlier, .misfit = ""};
  };
  const TuneResult result = tune(problem, {.budget = 100, .spread = 0.05});
  EXPECT_THAT(result.candidates[result.best].settings, ElementsAre(Pair("a", "1")));
  EXPECT_DOUBLE_EQ(result.candidates[result.best].score, 0.9);
  EXPECT_EQ(slow_runs, 1);
  EXPECT_EQ(result.simulations, 11u);
}

TEST(Tune, WhatIsNearTheBestIsSimulatedOnAllCopies) {
  // 5 % slower or faster than the defaults: neither is given up after the first copy.
  TuneProblem problem = problem_of({numbers("a", 3)}, [](const Settings& settings) {
    constexpr double seconds[] = {1, 1.05, 0.95};
    return seconds[static_cast<int>(number(settings, "a"))];
  });
  problem.copies = 4;
  const TuneResult result = tune(problem, {.budget = 100, .spread = 0.05});
  EXPECT_EQ(result.simulations, 12u);
  for (const Candidate& candidate : result.candidates) EXPECT_FALSE(candidate.capped);
}

// ---- Knobs.

TEST(Knobs, EveryValueOfEveryPolicyIsValid) {
  for (const PolicyInfo& policy : list_policies()) {
    for (const Knob& knob : knobs_of(policy)) {
      EXPECT_GE(knob.values.size(), 2u) << policy.name << " " << knob.name;
      std::set<std::string> once(knob.values.begin(), knob.values.end());
      EXPECT_EQ(once.size(), knob.values.size()) << policy.name << " " << knob.name;
      for (const std::string& value : knob.values) {
        Settings settings{{knob.name, value}};
        for (const auto& [other, needed] : knob.only_with) settings[other] = needed;
        complete(policy.name, 0, settings);
        EXPECT_NO_THROW(make_policy(policy.name, settings)) << policy.name << " " << knob.name << "=" << value;
      }
    }
  }
}

PolicyInfo policy_named(const std::string& name) {
  for (const PolicyInfo& policy : list_policies()) {
    if (policy.name == name) return policy;
  }
  throw Error("no such policy");
}

Knob knob_named(const std::string& policy, const std::string& name) {
  for (const Options::Info& option : policy_named(policy).options) {
    if (option.name == name) return knob_of(option);
  }
  throw Error("no such knob");
}

TEST(Knobs, DefaultsAreAmongTheValuesInOrder) {
  EXPECT_THAT(knob_named("zero-infinity", "prefetch_bucket").values,
              ElementsAre("2500000", "10000000", "25000000", "50000000", "100000000", "250000000", "1000000000"));
  EXPECT_THAT(knob_named("layer-streaming", "buffers").values, ElementsAre("1", "2", "3", "4", "8", "16"));
  EXPECT_THAT(knob_named("zero-offload", "chunk").values,
              ElementsAre("1MiB", "4MiB", "16777216", "64MiB", "256MiB", "whole"));
  EXPECT_THAT(knob_named("zero-infinity", "pipeline_read").values, ElementsAre("false", "true"));
  EXPECT_THAT(knob_named("zero-infinity", "pipeline_read").only_with, ElementsAre(Pair("offload_optimizer", "nvme")));
}

TEST(Knobs, WhatSaysAnotherSystemIsNone) {
  std::set<std::string> names;
  for (const Knob& knob : knobs_of(policy_named("10cache"))) names.insert(knob.name);
  EXPECT_THAT(names, UnorderedElementsAre("window_reserve", "states_window", "gpu_share", "cpu_share", "states_share"));
  EXPECT_TRUE(knobs_of(policy_named("ideal")).empty());
}

TEST(Knobs, TheUserRestrictsThem) {
  const Knob bucket = knob_named("zero-infinity", "prefetch_bucket");
  EXPECT_THAT(restricted(bucket, "5e8,1e7").values, ElementsAre("1e7", "5e8"));
  EXPECT_THAT(restricted(bucket, "1e7..5e7").values, ElementsAre("10000000", "20000000", "40000000", "50000000"));
  EXPECT_THAT(restricted(bucket, "2..5").values, ElementsAre("2", "3", "4", "5"));
  EXPECT_THAT(restricted(knob_named("zero-offload", "chunk"), "1MiB..4MiB").values,
              ElementsAre("1MiB", "2MiB", "4MiB"));
  EXPECT_EQ(index_of(bucket, "5e7"), 3u);
  EXPECT_EQ(index_of(bucket, "5e9"), std::nullopt);
  const Knob device = knob_named("zero-infinity", "offload_param");
  EXPECT_THAT([&] { restricted(device, "cpu,disk"); },
              ::testing::ThrowsMessage<Error>(HasSubstr("'disk' is none of its values: cpu, nvme, none")));
  EXPECT_THAT([&] { restricted(device, "a..b"); }, ::testing::ThrowsMessage<Error>(HasSubstr("it is no number")));
  EXPECT_THAT([&] { restricted(bucket, "5..1"); }, ::testing::ThrowsMessage<Error>(HasSubstr("lo..hi")));
  EXPECT_THAT([&] { restricted(bucket, "1,,2"); }, ::testing::ThrowsMessage<Error>(HasSubstr("a value is missing")));
}

TEST(Knobs, ZeroInfinitysOverlapsTakeBuffers) {
  Settings settings{{"offload_optimizer", "nvme"}, {"pipeline_read", "true"}, {"pipeline_write", "true"}};
  complete("zero-infinity", 0, settings);
  EXPECT_EQ(settings["optimizer_buffer_count"], "12");
  settings = {{"offload_param", "nvme"}};
  complete("zero-infinity", 525'336'576, settings);  // an embedding of 128,256 × 4096
  EXPECT_THAT(settings, ElementsAre(Pair("buffer_size", "530000000"), Pair("offload_param", "nvme")));
}

TEST(Knobs, ZeroInfinitysSettingsReserveMemory) {
  // 8e9 parameters of bf16, 12 bytes of states each; four ranks share each parameter.
  ModelShape model{.parameters = 8'000'000'000, .element_bytes = 2, .state_bytes = 96'000'000'000, .shards = 4};
  Settings all{{"offload_param", "nvme"},     {"buffer_count", "5"},   {"buffer_size", "1e8"},
               {"offload_optimizer", "nvme"}, {"sub_group", "1e9"},    {"optimizer_buffer_count", "4"},
               {"max_in_cpu", "1000000000"},  {"reduce_bucket", "5e8"}};
  const ReservedMemory nvme = reserved_memory("zero-infinity", all, model);
  EXPECT_EQ(nvme.pinned_buffers, 1'000'000'000u + 16'000'000'000u);
  EXPECT_EQ(nvme.cpu_home, 2'000'000'000u);
  EXPECT_EQ(nvme.gpu_bucket, 4'000'000'000u);
  all["offload_param"] = all["offload_optimizer"] = "cpu";
  const ReservedMemory cpu = reserved_memory("zero-infinity", all, model);
  EXPECT_EQ(cpu.pinned_buffers, 0u);
  EXPECT_EQ(cpu.cpu_home, 112'000'000'000u);
  model.parameters = 500'000'000;
  all["offload_optimizer"] = "nvme";
  EXPECT_EQ(reserved_memory("zero-infinity", all, model).pinned_buffers, 8'000'000'000u);  // no group is larger
  EXPECT_EQ(reserved_memory("lru", all, model).cpu_home, 0u);
}

// ---- Jitter.

TEST(Jitter, StaysWithinTheSpreadAndIsTheSameForASeed) {
  Trace trace;
  const TensorId tensor = trace.add_tensor("a", 1024, Role::activation, true);
  for (int i = 0; i < 1000; ++i) {
    Op op;
    op.duration_ns = 1'000'000;
    op.gap_before_ns = 10;
    trace.add_op(op, std::vector{tensor}, std::vector<TensorId>{});
  }
  const Trace first = jittered(trace, 0.1, 3), again = jittered(trace, 0.1, 3), other = jittered(trace, 0.1, 4);
  Nanoseconds least = 1'000'000, most = 0, sum = 0;
  bool differs = false;
  for (std::size_t i = 0; i < trace.ops.size(); ++i) {
    const Nanoseconds duration = first.ops[i].duration_ns;
    EXPECT_EQ(duration, again.ops[i].duration_ns);
    differs = differs || duration != other.ops[i].duration_ns;
    EXPECT_EQ(first.ops[i].gap_before_ns, 10);
    least = std::min(least, duration), most = std::max(most, duration), sum += duration;
  }
  EXPECT_TRUE(differs);
  EXPECT_GE(least, 909'090);
  EXPECT_LT(least, 915'000);
  EXPECT_LE(most, 1'100'000);
  EXPECT_GT(most, 1'090'000);
  EXPECT_NEAR(static_cast<double>(sum), 1e9, 1e7);
}

// ---- The command.

class TuneCommand : public CommandLine {
 protected:
  void SetUp() override {
    CommandLine::SetUp();
    std::ofstream(path("m.yaml")) << "name: tiny\n"
                                     "tiers:\n"
                                     "  - {name: gpu, kind: gpu, capacity: 24MiB, granularity: 4KiB}\n"
                                     "  - {name: cpu, kind: cpu, capacity: 1GiB, granularity: 4KiB}\n"
                                     "links:\n"
                                     "  - {name: h2d, from: cpu, to: gpu, bandwidth: 2GB/s}\n"
                                     "  - {name: d2h, from: gpu, to: cpu, bandwidth: 2GB/s}\n"
                                     "initial_tier: cpu\n"
                                     "cpu: {adam_parameters_per_second: 1e9}\n";
  }
};

TEST_F(TuneCommand, TheSameBytesWithAnyNumberOfThreads) {
  const std::vector<std::string> words = {"tune",         "small.trace.jsonl",
                                          "-m",           "m.yaml",
                                          "-p",           "zero-infinity",
                                          "--budget",     "60",
                                          "--jitter",     "5%",
                                          "--set",        "reduce_bucket=1000000",
                                          "--gpu-memory", "64MiB",
                                          "--json"};
  std::vector<nlohmann::json> documents;
  for (const char* threads : {"1", "3"}) {
    std::vector<std::string> with = words;
    with.insert(with.end(), {"--threads", threads});
    const Answer answer = run(with);
    ASSERT_EQ(answer.code, 0) << answer.err;
    documents.push_back(answer.json());
    documents.back().erase("timing");
  }
  EXPECT_EQ(documents[0], documents[1]);
  EXPECT_LE(documents[0]["simulations"], 60);
  EXPECT_EQ(documents[0]["manifest"]["run"]["copies"], 5);
}

TEST_F(TuneCommand, TheCommandItPrintsGivesTheTimeItPromises) {
  const Answer answer = run({"tune", "small.trace.jsonl", "-m", "m.yaml", "-p", "layer-streaming", "--set",
                             "chunk=1MiB", "--json", "--csv", "all.csv"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const nlohmann::json tuned = answer.json();
  std::istringstream command(tuned["workloads"][0]["replay"].get<std::string>());
  std::vector<std::string> words{std::istream_iterator<std::string>(command), {}};
  ASSERT_EQ(words.front(), "tencache");
  words.erase(words.begin());
  words.push_back("--json");
  const nlohmann::json replayed = run(words).json();
  EXPECT_EQ(replayed["iteration_seconds"], tuned["workloads"][0]["iteration_seconds"]);
  EXPECT_EQ(tuned["exhaustive"], true);
  EXPECT_EQ(tuned["combinations"], 6);
  // The header and a row for each candidate.
  const std::string csv = content(path("all.csv"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 7);
  EXPECT_THAT(csv, HasSubstr("candidate,best,ties,fits,capped,relative_time,seconds_1,buffers,chunk,reason\n0,"));
}

TEST_F(TuneCommand, SaysThatExpertsAreDrawn) {
  std::ofstream(path("moe.yaml")) << "{name: moe, family: mixtral, layers: 1, hidden: 64, heads: 2, intermediate: 64, "
                                     "experts: 4, experts_per_token: 2, vocabulary: 100, max_sequence: 64}\n";
  const Answer answer = run({"tune", "--model", path("moe.yaml"), "--new-tokens", "2", "--prompt", "4", "-p", "lru",
                             "-m", "rtx-4090", "--budget", "2"});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("note: the experts that gates choose are drawn here"));
}

TEST_F(TuneCommand, TakesAModelInPlaceOfATraceOrBesideIt) {
  const std::vector<std::string> model = {"--model", "gpt2", "--batch", "1", "--seq", "64", "--gpu", "a10g"};
  std::vector<std::string> words = {"tune",         "-m",   "m.yaml",   "-p", "layer-streaming", "--gpu-memory", "1GiB",
                                    "--cpu-memory", "8GiB", "--budget", "2",  "--json"};
  EXPECT_THAT(run(words).err, HasSubstr("TRACES are required, or --model"));
  words.insert(words.end(), model.begin(), model.end());
  const Answer alone = run(words);
  ASSERT_EQ(alone.code, 0) << alone.err;
  const nlohmann::json tuned = alone.json();
  ASSERT_EQ(tuned["workloads"].size(), 1u);
  std::istringstream command(tuned["workloads"][0]["replay"].get<std::string>());
  std::vector<std::string> replay{std::istream_iterator<std::string>(command), {}};
  replay.erase(replay.begin());
  replay.push_back("--json");
  EXPECT_EQ(run(replay).json()["iteration_seconds"], tuned["workloads"][0]["iteration_seconds"]);
  words.push_back("small.trace.jsonl");
  const nlohmann::json both = run(words).json();
  ASSERT_EQ(both["workloads"].size(), 2u);
  EXPECT_EQ(both["workloads"][0]["trace"], "small.trace.jsonl");
}

TEST_F(TuneCommand, TheCommandItPrintsIsQuotedForAShell) {
  std::filesystem::copy_file(path("small.trace.jsonl"), path("a $trace.jsonl"));
  const Answer answer = run({"tune", "a $trace.jsonl", "-m", "m.yaml", "-p", "layer-streaming", "--budget", "1"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("tencache replay 'a $trace.jsonl' --machine m.yaml --policy"));
}

TEST_F(TuneCommand, WhatIsLeftOfTheBudgetIsSpent) {
  const Answer three = run({"tune", "small.trace.jsonl", "-m", "m.yaml", "-p", "lru", "--budget", "3"});
  EXPECT_THAT(three.out, HasSubstr(": 3 candidates of 48, 3 simulations\n"));
  const Answer two = run({"tune", "small.trace.jsonl", "-m", "m.yaml", "-p", "lru", "--budget", "2"});
  EXPECT_THAT(two.out, HasSubstr("? not simulated: the budget is spent; raise --budget\n"));
  const Answer one = run({"tune", "small.trace.jsonl", "-m", "m.yaml", "-p", "lru", "--budget", "1"});
  EXPECT_THAT(one.out, HasSubstr(": 1 candidate of 48, 1 simulation\n"));
}

TEST_F(TuneCommand, WhereNothingFitsTheAnswerIsNo) {
  const Answer answer =
      run({"tune", "small.trace.jsonl", "-m", "m.yaml", "-p", "layer-streaming", "--gpu-memory", "8MiB"});
  EXPECT_EQ(answer.code, 1);
  EXPECT_THAT(answer.out, HasSubstr("None fits."));
  EXPECT_THAT(answer.out, HasSubstr("out of memory"));
}

// Without recomputation it does not fit; with a part of the layers it takes less time than with all.
TEST_F(TuneCommand, PlansWhatToRecompute) {
  std::vector<std::string> words = {"tune",
                                    "--model",
                                    "gpt2-large",
                                    "--batch",
                                    "8",
                                    "--seq",
                                    "1024",
                                    "-m",
                                    "rtx-4090",
                                    "-p",
                                    "zero-offload",
                                    "--budget",
                                    "1",
                                    "--plan",
                                    "plan.json",
                                    "--recompute",
                                    "choose-early-stop"};
  const Answer answer = run(words);
  ASSERT_EQ(answer.code, 0) << answer.err;
  const nlohmann::json plan = nlohmann::json::parse(content(path("plan.json")));
  EXPECT_LT(plan["predicted"]["plan"]["seconds"], plan["predicted"]["block"]["seconds"]);
  EXPECT_EQ(plan["predicted"]["keep"]["fits"], false);
  EXPECT_EQ(plan["layers"].size(), 36u);
  const auto recomputed = std::ranges::count(plan["layers"], "block", [](const auto& layer) { return layer["level"]; });
  EXPECT_GT(recomputed, 0);
  EXPECT_EQ(answer.err, "plan in plan.json\n");
  EXPECT_THAT(answer.out, HasSubstr("does not fit: out of memory"));
  EXPECT_THAT(answer.out, HasSubstr("the plan: " + std::to_string(recomputed) + " of 36 layers  "));
  EXPECT_THAT(answer.out, HasSubstr("Without the plan none fits.\n"));
  EXPECT_THAT(answer.out, Not(HasSubstr("None fits")));

  // The same in the result, which is repeated without the file.
  std::filesystem::remove(path("plan.json"));
  words.push_back("--json");
  const Answer again = run(words);
  ASSERT_EQ(again.code, 0) << again.err;
  const nlohmann::json result = nlohmann::json::parse(again.out);
  EXPECT_EQ(result["plan"], plan);
  EXPECT_EQ(result["best"]["fits"], false);
  EXPECT_FALSE(result["workloads"][0].contains("recompute"));  // of settings that fit
  EXPECT_TRUE(std::filesystem::exists(path("plan.json")));
  write_file(path("result.json"), again.out);
  std::filesystem::remove(path("plan.json"));
  const Answer repeated = run({"reproduce", "result.json"});
  EXPECT_EQ(repeated.code, 0) << repeated.out << repeated.err;
  EXPECT_FALSE(std::filesystem::exists(path("plan.json")));

  words.insert(words.end(), {"--gpu-memory", "1GiB"});
  const Answer none = run(words);
  EXPECT_EQ(none.code, 1);
  EXPECT_EQ(nlohmann::json::parse(none.out)["plan"]["predicted"]["plan"]["fits"], false);
  EXPECT_FALSE(std::filesystem::exists(path("plan.json")));
  std::erase(words, "--json");
  const Answer said = run(words);
  EXPECT_THAT(said.out, HasSubstr("None fits.\n"));
  EXPECT_THAT(said.err, HasSubstr("plan.json is not written: no plan fits\n"));
  const Answer refused =
      run({"tune", "small.trace.jsonl", "-m", "m.yaml", "-p", "lru", "--budget", "1", "--choose-plan"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("no plan of recomputation: no choice: the trace names none"));
}

// What a policy decides itself: each choice of the trace, at the level that a replay of the best settings has.
TEST_F(TuneCommand, SaysWhatThePolicyRecomputes) {
  const std::vector<std::string> of = {"--model",      "gpt2",        "--batch", "8",         "--seq",
                                       "1024",         "--recompute", "choose",  "-m",        "rtx-4090",
                                       "--gpu-memory", "6GiB",        "-p",      "foresight", "--json"};
  std::vector<std::string> words = {"tune", "--budget", "1"}, replay = {"replay"};
  words.insert(words.end(), of.begin(), of.end());
  replay.insert(replay.end(), of.begin(), of.end());
  const Answer tuned = run(words), replayed = run(replay);
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  ASSERT_EQ(replayed.code, 0) << replayed.err;
  const nlohmann::json levels = nlohmann::json::parse(tuned.out)["workloads"][0]["recompute"];
  EXPECT_EQ(levels.size(), 12u);
  EXPECT_EQ(levels, nlohmann::json::parse(replayed.out)["recompute"]);
  EXPECT_FALSE(nlohmann::json::parse(tuned.out).contains("plan"));
}

TEST_F(TuneCommand, SaysWhatIsWrong) {
  const std::vector<std::string> base = {"tune", "small.trace.jsonl", "-m", "m.yaml", "-p"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = base;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  expect_bad_usage(with({"ideal"}), HasSubstr("policy 'ideal' has no knob left to turn; it has no options"));
  expect_bad_usage(with({"no-such"}), HasSubstr("no policy is named 'no-such'"));
  expect_bad_usage(with({"zero-offload", "--over", "window=1,2"}), HasSubstr("has no option 'window'; it has: "));
  expect_bad_usage(with({"zero-offload", "--over", "chunk=huge..1"}), HasSubstr("lo..hi"));
  expect_bad_usage(with({"zero-offload", "--over", "chunk=abc"}), HasSubstr("option chunk=abc is not valid"));
  expect_bad_usage(with({"zero-offload", "--over", "chunk=1MiB", "--set", "chunk=2MiB"}), HasSubstr("--set fixes it"));
  expect_bad_usage(with({"zero-offload", "--jitter", "5 percent"}), HasSubstr("write a share below 1"));
  expect_bad_usage(with({"zero-offload", "--copies", "3"}), HasSubstr("without --jitter"));
  expect_bad_usage(with({"zero-offload", "--csv", "small.trace.jsonl"}), HasSubstr("is another file"));
}

}  // namespace
}  // namespace tencache
