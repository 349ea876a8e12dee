// Intervals: what is drawn, that it is the same everywhere, and what is concluded from it.
#include "answers/intervals.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "answers/result.h"
#include "configs/machine_yaml.h"
#include "configs/rescale_to_machine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/in_process.h"

namespace tencache {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

const std::string machine_text =
    "name: test\n"
    "tiers:\n"
    "  - {name: gpu, kind: gpu, capacity: {value: 200MiB, confidence: estimated}, granularity: 4KiB}\n"
    "  - {name: cpu, kind: cpu, capacity: unlimited, granularity: 4KiB}\n"
    "links:\n"
    "  - {name: h2d, from: cpu, to: gpu, bandwidth: {value: 500MB/s, confidence: estimated},\n"
    "     latency: {value: 20us, confidence: measured}}\n"
    "  - {name: d2h, from: gpu, to: cpu, bandwidth: {value: 500MB/s, confidence: estimated}}\n"
    "initial_tier: cpu\n"
    "cpu: {adam_parameters_per_second: {value: 1e8, confidence: published}}\n";

TEST(Intervals, FiguresOfOneValueAreOne) {
  const MachineSpec machine = parse_machine(machine_text, "m.yaml");
  const MachineSampler sampler(machine);
  std::vector<std::string> figures;
  for (const UncertainFigure& figure : sampler.figures()) {
    figures.push_back(figure.paths.front() + " " + std::to_string(figure.paths.size()) + " " +
                      std::to_string(static_cast<int>(std::lround(100 * figure.spread))));
  }
  EXPECT_THAT(figures, ElementsAre("tiers.gpu.capacity 1 5", "links.h2d.bandwidth 2 30", "links.h2d.latency 1 5",
                                   "cpu.adam_parameters_per_second 1 2"));
}

TEST(Intervals, AFiguresOwnSpreadCountsForItsConfidences) {
  std::string text = machine_text;
  const std::string latency = "20us, confidence: measured";
  text.replace(text.find(latency), latency.size(), latency + ", spread: 0.4");
  const MachineSpec machine = parse_machine(text, "m.yaml");
  EXPECT_EQ(MachineSampler(machine).figures()[2].spread, 0.4);
}

TEST(Intervals, FactorsStayWithinTheSpreadAndAreTheSameEverywhere) {
  const MachineSpec machine = parse_machine(machine_text, "m.yaml");
  const MachineSampler sampler(machine);
  double smallest = 2, largest = 0;
  const std::vector<std::vector<double>> samples = sampler.factors(7, 1000);
  ASSERT_EQ(samples.size(), 1000u);
  for (const std::vector<double>& factors : samples) {
    ASSERT_EQ(factors.size(), 4u);
    for (std::size_t i = 0; i < factors.size(); ++i) {
      const double spread = sampler.figures()[i].spread;
      EXPECT_GE(factors[i], 1 / (1 + spread));
      EXPECT_LE(factors[i], 1 + spread);
    }
    smallest = std::min(smallest, factors[1]);
    largest = std::max(largest, factors[1]);
  }
  EXPECT_LT(smallest, 0.775);
  EXPECT_GT(largest, 1.295);
  // mt19937_64(5489) begins with 14514284786278117030: (that >> 11) ÷ 2^52 - 1 = 0.5736419097356038.
  EXPECT_THAT(sampler.factors(5489, 1)[0][0], DoubleEq(1 + 0.05 * 0.5736419097356038));
  // A sample takes up where the one before left off: the third's first figure is the ninth number.
  std::mt19937_64 random(7);
  random.discard(2 * 4);
  const double position = static_cast<double>(random() >> 11) * 0x1p-52 - 1;
  const double factor = 1 + sampler.figures()[0].spread * std::fabs(position);
  EXPECT_EQ(samples[2][0], position < 0 ? 1 / factor : factor);
  EXPECT_EQ(samples[2], sampler.factors(7, 3)[2]);  // however many there are
  EXPECT_NE(samples[0], samples[1]);
  EXPECT_NE(samples[0], sampler.factors(8, 1)[0]);
}

TEST(Intervals, TheSampledMachineHasTheFigures) {
  const MachineSpec machine = parse_machine(machine_text, "m.yaml");
  const MachineSpec sampled = MachineSampler(machine).machine({0.5, 1.25, 1.5, 2});
  EXPECT_EQ(sampled.tiers[0].capacity, 100 * MiB);
  EXPECT_EQ(sampled.tiers[1].capacity, unlimited);
  EXPECT_EQ(sampled.links[0].bandwidth, 625'000'000u);
  EXPECT_EQ(sampled.links[1].bandwidth, 625'000'000u);
  EXPECT_EQ(sampled.links[0].latency_ns, 30'000);
  EXPECT_EQ(sampled.links[1].latency_ns, 0);
  EXPECT_EQ(sampled.cpu.adam_parameters_per_second, 2e8);
}

TEST(Intervals, ARanksOwnFigureIsDrawnOnItsOwn) {
  const MachineSpec machine = parse_machine(
      machine_text + "ranks:\n  - {}\n  - {links: {h2d: {bandwidth: {value: 100MB/s, confidence: estimated}}}}\n",
      "m.yaml");
  const MachineSampler sampler(machine);
  ASSERT_EQ(sampler.figures().size(), 5u);
  EXPECT_THAT(sampler.figures()[4].paths, ElementsAre("ranks.1.links.h2d.bandwidth"));
  const MachineSpec sampled = sampler.machine({1, 2, 1, 1, 3});
  EXPECT_EQ(sampled.links[0].bandwidth, 1'000'000'000u);
  EXPECT_EQ(sampled.of_rank(1).links[0].bandwidth, 300'000'000u);
  EXPECT_EQ(sampled.of_rank(1).links[1].bandwidth, 1'000'000'000u);
}

TEST(Intervals, ExplainedShareIsTheSquaredCorrelation) {
  EXPECT_DOUBLE_EQ(explained_share({1, 2, 3}, {5, 7, 9}), 1);
  EXPECT_DOUBLE_EQ(explained_share({1, 2, 3}, {9, 7, 5}), 1);
  EXPECT_DOUBLE_EQ(explained_share({1, 2, 3}, {4, 4, 4}), 0);
  EXPECT_DOUBLE_EQ(explained_share({-1, 0, 1}, {1, 0, 1}), 0);
  EXPECT_DOUBLE_EQ(explained_share({1, 2, 3}, {1, 3, 2}), 0.25);  // r = 0.5
}

class SampledWorkload : public ::testing::Test {
 protected:
  SampledWorkload() {
    Scenario scenario;
    scenario.trace.file = std::string(TENCACHE_SOURCE_DIR) + "/traces/samples/gpt-small.trace.jsonl.zst";
    scenario.machine.name = std::string(TENCACHE_SOURCE_DIR) + "/configs/machines/demo-small-gpu.yaml";
    workload_ = load_workload(scenario);
    workload_.machine = parse_machine(machine_text, "m.yaml");
  }
  double seconds(const std::string& policy) const {
    return simulate_policy(workload_, policy, {}).result.iteration_seconds();
  }

  Workload workload_;
};

TEST_F(SampledWorkload, AnIntervalHoldsTheTimeAndNamesItsCause) {
  workload_.machine.facts.clear();
  workload_.machine.facts.push_back({"links.h2d.bandwidth", "", "estimated", ""});
  const Intervals intervals =
      sample_intervals(workload_, {{"on-demand", {}, seconds("on-demand")}}, {.samples = 24, .seed = 3});
  const Interval& interval = intervals.policies.front();
  EXPECT_LT(interval.low, seconds("on-demand"));
  EXPECT_GT(interval.high, seconds("on-demand"));
  EXPECT_EQ(interval.fastest, 24u);
  ASSERT_EQ(interval.influences.size(), 1u);
  EXPECT_EQ(intervals.name_of(interval.influences[0]), "links.h2d.bandwidth (estimated)");
  EXPECT_GT(interval.influences[0].share, 0.9);
  EXPECT_TRUE(intervals.winner_depends_on.empty());
  // Nearest rank: of 24, the second smallest and the second largest.
  std::vector<double> sorted = interval.seconds;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(interval.low, sorted[1]);
  EXPECT_EQ(interval.high, sorted[22]);
}

TEST_F(SampledWorkload, TheSameSeedGivesTheSame) {
  const std::vector<Sampled> policies = {{"on-demand", {}, seconds("on-demand")}, {"lru", {}, seconds("lru")}};
  const Intervals one = sample_intervals(workload_, policies, {.samples = 8, .seed = 1});
  const Intervals again = sample_intervals(workload_, policies, {.samples = 8, .seed = 1});
  const Intervals other = sample_intervals(workload_, policies, {.samples = 8, .seed = 2});
  EXPECT_EQ(one.policies[0].seconds, again.policies[0].seconds);
  EXPECT_NE(one.policies[0].seconds, other.policies[0].seconds);
  EXPECT_TRUE(one.policies[0].ties_with_best != one.policies[1].ties_with_best);  // one of them is the best
}

TEST_F(SampledWorkload, MisfitsOpenTheInterval) {
  workload_.machine.tiers[0].capacity = 12 * MiB;  // the largest op needs exactly that
  const Intervals intervals = sample_intervals(workload_, {{"on-demand", {}, 1.0}}, {.samples = 16, .seed = 1});
  const Interval& interval = intervals.policies.front();
  EXPECT_EQ(interval.high, std::numeric_limits<double>::infinity());
  ResultSamples result;
  add_interval(result, intervals, interval);
  EXPECT_TRUE(to_json_of(result)["interval_seconds"][1].is_null());
}

TEST_F(SampledWorkload, NothingUncertainGivesNoInterval) {
  workload_.machine.facts.clear();
  const Intervals intervals = sample_intervals(workload_, {{"on-demand", {}, 1.0}}, {.samples = 16, .seed = 1});
  EXPECT_EQ(intervals.samples, 0u);
  ResultSamples result;
  add_interval(result, intervals, intervals.policies.front());
  EXPECT_FALSE(result.interval_seconds);
}

// The sample's trace as if it had been modelled for an H100, all of it elementwise.
class ModelledWorkload : public SampledWorkload {
 protected:
  ModelledWorkload() {
    workload_.machine.facts.clear();
    Trace trace = *workload_.trace;
    for (Op& op : trace.ops) op.duration_source = DurationSource::modelled;
    trace.header.hardware = "modelled: h100";
    workload_.trace = std::make_shared<const Trace>(std::move(trace));
    workload_.gpu_time = modelled_gpu_time(*workload_.trace, {});
  }
};

TEST_F(ModelledWorkload, KernelsAreDrawnWhereNothingOfTheMachineIsUncertain) {
  const double written = seconds("ideal");
  const Intervals intervals =
      sample_intervals(workload_, {{"ideal", {}, written}, {"on-demand", {}, 1.0}}, {.samples = 32, .seed = 3});
  ASSERT_EQ(intervals.samples, 32u);
  ASSERT_EQ(intervals.figures.size(), 1u);
  EXPECT_EQ(intervals.figures[0].paths.front(), "kernels.h100.elementwise");
  EXPECT_EQ(intervals.drawn(), "modelled GPU times");
  EXPECT_LT(intervals.policies[0].low, written);
  EXPECT_GT(intervals.policies[0].high, written);
  EXPECT_GT(intervals.policies[0].influences[0].share, 0.99);
  // One factor for all ops and both policies: what computing takes is in proportion to it.
  const auto factors = draw_kernel_factors(*workload_.gpu_time, 3, 32);
  const double compute = [&] {
    double sum = 0;
    for (const Op& op : workload_.trace->ops) sum += op.device == Device::gpu ? to_seconds(op.duration_ns) : 0;
    return sum;
  }();
  for (std::size_t sample = 0; sample < 32; ++sample) {
    const double factor = factors[sample][static_cast<std::size_t>(KernelKind::elementwise)];
    EXPECT_NEAR(intervals.policies[0].seconds[sample] - written, (factor - 1) * compute, 1e-3 * compute);
    EXPECT_GE(intervals.policies[1].seconds[sample], intervals.policies[0].seconds[sample]);
  }
}

TEST_F(ModelledWorkload, TheMachinesDrawsStayWhatTheyWere) {
  workload_.machine = parse_machine(machine_text, "m.yaml");
  const Intervals intervals = sample_intervals(workload_, {{"on-demand", {}, 1.0}}, {.samples = 4, .seed = 1});
  EXPECT_EQ(intervals.figures.size(), MachineSampler(workload_.machine).figures().size() + 1);
  EXPECT_EQ(intervals.drawn(), "the machine's figures and modelled GPU times");
}

TEST_F(ModelledWorkload, TheResultSaysHowFarOff) {
  const Json json = to_json_of(gpu_time_answer(workload_));
  EXPECT_EQ(json["gpu"], "h100");
  EXPECT_EQ(json["measured"], true);
  EXPECT_EQ(json["by_kernel"].size(), 1u);
  EXPECT_DOUBLE_EQ(json["error"], json["by_kernel"]["elementwise"]["error"]);
  GpuTime time{.gpu = "h100", .stack = "eager", .measured = true, .error = 0.057, .extrapolated_share = 0.12};
  EXPECT_EQ(gpu_time_note(time),
            "GPU times are modelled for the h100 (eager): ± 6 % (median error); 12 % of the GPU's time is of shapes "
            "beyond the measured ones");
  time = {.gpu = "v100-16g", .stack = "", .error = 0.14, .extrapolated_share = 1};
  EXPECT_EQ(gpu_time_note(time),
            "GPU times are modelled for the v100-16g, not measured on this GPU, ± 14 % (median error)");
}

TEST_F(ModelledWorkload, RescaledDurationsHaveTheErrorsOfTheGpuThatTheyWereRescaledTo) {
  EXPECT_EQ(modelled_gpu_time(*workload_.trace, Rescaling{.from = "h100", .to = "v100-16g", .precision = "fp32"})->gpu,
            "v100-16g");
  Trace other = *workload_.trace;
  other.header.hardware = "modelled: something else";
  EXPECT_FALSE(modelled_gpu_time(other, {}));  // in no list
}

// A link of which only bounds are known never decides who is the fastest in silence.
TEST(Intervals, CompareSaysWhatBoundsDecide) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("tencache_intervals_test." + std::to_string(getpid()) + ".yaml");
  const auto compared = [&](const std::string& high) {
    std::ofstream(file) << "name: b\nbase: g5.xlarge\nlinks:\n"
                        << "  h2d: {bandwidth: &l {low: 0.5GB/s, high: " << high << ", confidence: estimated}}\n"
                        << "  d2h: {bandwidth: *l}\n";
    return run_in_process({"compare", "--model", "gpt2", "--batch", "1", "--seq", "64", "-m", file.string(),
                           "--gpu-memory", "1GiB", "-p", "on-demand,zero-offload"});
  };
  const InProcessAnswer wide = compared("50GB/s"), narrow = compared("0.51GB/s");
  std::filesystem::remove(file);
  EXPECT_EQ(wide.code, 0) << wide.err;
  EXPECT_THAT(wide.out, ::testing::HasSubstr("h2d (0.5 to 50 GB/s)"));
  EXPECT_THAT(narrow.out, ::testing::Not(::testing::HasSubstr("only bounds")));
}

}  // namespace
}  // namespace tencache
