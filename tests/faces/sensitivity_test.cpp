// Time against a figure of the machine, on a trace whose times are formulas.
#include "studies/sensitivity.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "answers/line_chart.h"
#include "core/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/in_process.h"
#include "tests/small_cases.h"
#include "traces/file/trace_file.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// GPU of 48 MiB, CPU memory, storage; a chunk is a tensor.
MachineSpec machine() {
  MachineSpec machine = three_tiers(48 * MiB, GiB, 10 * GiB);
  machine.resources.push_back({.name = "dram", .bandwidth = 50'000'000'000});
  machine.resources.push_back({.name = "nvme_total", .bandwidth = 3'000'000'000});
  machine.links = {make_link("h2d", 1, 0), make_link("d2h", 0, 1), make_link("nvme_read", 2, 1, 3'000'000'000),
                   make_link("nvme_write", 1, 2, 1'500'000'000)};
  for (LinkId link = 0; link < 4; ++link) machine.links[link].uses.push_back(0);
  for (LinkId link = 2; link < 4; ++link) machine.links[link].uses.push_back(1);
  machine.cpu.adam_parameters_per_second = 1e9;
  return machine;
}

// Three layers of 16 MiB, each with 10 ms of the GPU; with room for two of them under `lru` all three come in every
// iteration, on demand.
Trace cycle() {
  Trace trace;
  for (int i = 0; i < 3; ++i) trace.add_tensor("w" + std::to_string(i), 16 * MiB, Role::parameter, true);
  for (TensorId i = 0; i < 3; ++i) {
    Op op;
    op.duration_ns = 10'000'000;
    op.gap_before_ns = 1'000'000;
    const TensorId reads[] = {i};
    trace.add_op(op, reads, {});
  }
  return trace;
}

SensitivityRequest request_of(const Trace& trace, const MachineSpec& machine, const std::string& name,
                              std::vector<double> values) {
  SensitivityRequest request;
  request.trace = &trace;
  request.machine = &machine;
  request.policies = {"lru"};
  request.axes = {{parameter_named(machine, name), std::move(values)}};
  return request;
}

// Demand fetches of 48 MiB an iteration between ops: 33 ms + 50.33 MB ÷ bandwidth. Within 1 % of 33 ms from
// 50.33e6 ÷ 0.33e-3 = 152.5 GB/s on (with DRAM out of the way).
TEST(Sensitivity, FindsTheKneeOfAFormula) {
  MachineSpec box = with_parameter(parameter_named(machine(), "gpu_memory"), machine(), 32.0 * MiB);
  box.resources[0].bandwidth = unlimited;
  const Trace trace = cycle();
  const SensitivityResult result = analyse_sensitivity(request_of(trace, box, "h2d", {1e9, 1e10, 1e11, 1e12}));
  ASSERT_EQ(result.lines.size(), 1u);
  const SensitivityLine& line = result.lines[0];
  for (const SensitivityPoint& point : line.points) {
    EXPECT_TRUE(point.fits);
    EXPECT_NEAR(point.iteration_seconds, 0.033 + 48.0 * MiB / point.value, 1e-6) << point.value;
  }
  EXPECT_NEAR(line.unlimited.iteration_seconds, 0.033, 1e-6);
  ASSERT_EQ(line.knee_state, KneeState::found);
  const double knee = 48.0 * MiB / 0.33e-3;
  EXPECT_GE(line.knee->value, knee * 0.999);
  EXPECT_LE(line.knee->value, knee * 1.011);
}

// At a byte a second 24 GiB take eight hundred years: no time, and nothing that the knee is compared with.
TEST(Sensitivity, WhatTakesMoreThanAHundredYearsIsNoTime) {
  Trace trace = cycle();
  for (Tensor& tensor : trace.tensors) tensor.bytes = 8 * GiB;
  MachineSpec box = machine();
  box.tiers[0].capacity = 17 * GiB;
  box.tiers[1].capacity = 64 * GiB;
  box.resources[0].bandwidth = unlimited;
  SensitivityRequest request = request_of(trace, box, "h2d", {1, 1e9, 1e13, 1e14});
  request.policies = {"lru", bound_line};
  for (const SensitivityLine& line : analyse_sensitivity(request).lines) {
    EXPECT_FALSE(line.points[0].fits);
    EXPECT_EQ(line.points[0].verdict, "too slow: over 100 years");
    EXPECT_THAT(line.points[0].reason.value(), HasSubstr("hundred years"));
    EXPECT_TRUE(line.points[1].fits);
    EXPECT_EQ(line.knee_state, KneeState::found);
  }
  request.axes = {{parameter_named(box, "gpu_speed"), {1e-12, 1}}};
  EXPECT_EQ(analyse_sensitivity(request).lines[0].points[0].verdict, "too slow: over 100 years");
}

TEST(Sensitivity, SaysWhereTheRangeHasNoKnee) {
  const MachineSpec roomy = machine();
  const Trace trace = cycle();
  // All fits on the GPU: no link matters.
  EXPECT_EQ(analyse_sensitivity(request_of(trace, roomy, "h2d", {1e9, 2e9})).lines[0].knee_state,
            KneeState::below_range);
  const MachineSpec small = with_parameter(parameter_named(roomy, "gpu_memory"), roomy, 32.0 * MiB);
  EXPECT_EQ(analyse_sensitivity(request_of(trace, small, "h2d", {1e9, 2e9})).lines[0].knee_state,
            KneeState::above_range);
  const MachineSpec tiny = with_parameter(parameter_named(roomy, "gpu_memory"), roomy, 8.0 * MiB);
  const SensitivityLine none = analyse_sensitivity(request_of(trace, tiny, "h2d", {1e9, 2e9})).lines[0];
  EXPECT_EQ(none.knee_state, KneeState::never_fits);
  EXPECT_FALSE(none.points[0].fits);
  EXPECT_NE(none.points[0].reason.value_or(""), "");
}

// A plan that is best at 64: 100 s ÷ value up to there, 2 s beyond, 1.9 s without limit. At 64 it takes 1.5625 s, and
// nothing beyond is faster; 1 % more of that is reached from 63.4 on.
TEST(Sensitivity, NothingBeyondTheKneeIsFasterThanIt) {
  const auto at = [](double value) { return SensitivityPoint{value, true, "", value <= 64 ? 100 / value : 2}; };
  SensitivityLine line;
  line.unlimited = {0, true, "", 1.9};
  for (const double value : {16.0, 32.0, 64.0, 128.0, 256.0}) line.points.push_back(at(value));
  find_knee(line, 0.01, at);
  ASSERT_EQ(line.knee_state, KneeState::found);
  EXPECT_GE(line.knee->value, 64 / 1.01);
  EXPECT_LE(line.knee->value, 64);
  for (const SensitivityPoint& point : line.points) {
    if (point.value < line.knee->value) continue;
    EXPECT_GE(point.iteration_seconds * 1.01, line.knee->iteration_seconds);
  }
  // With all of the range beyond the best, each value of it is as good; where no limit is best, none is enough.
  line.points.erase(line.points.begin(), line.points.begin() + 3);
  line.unlimited.iteration_seconds = 2;
  find_knee(line, 0.01, at);
  EXPECT_EQ(line.knee_state, KneeState::below_range);
  line.unlimited.iteration_seconds = 1.9;
  find_knee(line, 0.01, at);
  EXPECT_EQ(line.knee_state, KneeState::above_range);
  // What fits on the grid only has a knee there; what fits nowhere has none.
  line.unlimited.fits = false;
  line.points[0].fits = false;
  find_knee(line, 0.01, at);
  EXPECT_EQ(line.knee_state, KneeState::found);
  line.points[1].fits = false;
  find_knee(line, 0.01, at);
  EXPECT_EQ(line.knee_state, KneeState::never_fits);
}

TEST(Sensitivity, KnowsWhatIsSlowerWithoutLimit) {
  const auto point = [](double value, double seconds) { return SensitivityPoint{value, seconds > 0, "", seconds}; };
  EXPECT_FALSE(slower_without_limit(point(1, 3), point(0, 3.02), 0.01));
  EXPECT_TRUE(slower_without_limit(point(1, 3), point(0, 3.04), 0.01));
  EXPECT_TRUE(slower_without_limit(point(1, 3), point(0, 0), 0.01));  // does not fit
}

// The knee of a memory is where it fits all.
TEST(Sensitivity, FindsTheMemoryThatIsEnough) {
  const MachineSpec box = machine();
  const Trace trace = cycle();
  const SensitivityLine line =
      analyse_sensitivity(request_of(trace, box, "gpu_memory", {8.0 * MiB, 20.0 * MiB, 64.0 * MiB})).lines[0];
  EXPECT_FALSE(line.points[0].fits);
  EXPECT_TRUE(line.points[1].fits);
  ASSERT_EQ(line.knee_state, KneeState::found);
  EXPECT_GE(line.knee->value, 48.0 * MiB);
  EXPECT_LE(line.knee->value, 48.0 * MiB * 1.01);
}

TEST(Sensitivity, HasALineForEachValueOfASecondFigure) {
  const MachineSpec box = machine();
  const Trace trace = cycle();
  SensitivityRequest request = request_of(trace, box, "h2d", {1e9, 4e9});
  request.policies = {"lru", bound_line};
  request.axes.push_back({parameter_named(box, "gpu_speed"), {1, 10}});
  const SensitivityResult result = analyse_sensitivity(request);
  ASSERT_EQ(result.lines.size(), 4u);
  EXPECT_EQ(result.lines[1].policy, "lru");
  EXPECT_EQ(result.lines[1].second_value, 10);
  // All is on the GPU; gaps stay.
  EXPECT_NEAR(result.lines[0].points[0].iteration_seconds, 0.033, 1e-9);
  EXPECT_NEAR(result.lines[1].points[0].iteration_seconds, 0.006, 1e-9);
  EXPECT_NEAR(result.lines[3].points[0].iteration_seconds, 0.006, 1e-9);
}

TEST(MachineParameters, ChangeWhatTheySay) {
  const MachineSpec box = machine();
  // A link takes its own total along, not the DRAM that all share.
  const MachineSpec faster = with_parameter(parameter_named(box, "nvme_read"), box, 80e9);
  EXPECT_EQ(faster.links[2].bandwidth, 80'000'000'000u);
  EXPECT_EQ(faster.links[3].bandwidth, 1'500'000'000u);
  EXPECT_EQ(faster.resources[1].bandwidth, 80'000'000'000u);
  EXPECT_EQ(faster.resources[0].bandwidth, 50'000'000'000u);
  const MachineSpec slower = with_parameter(parameter_named(box, "nvme_read"), box, 1e9);
  EXPECT_EQ(slower.resources[1].bandwidth, 3'000'000'000u);
  // All of the storage in proportion.
  const MachineSpec half = with_parameter(parameter_named(box, "nvme"), box, 1.5e9);
  EXPECT_EQ(half.links[2].bandwidth, 1'500'000'000u);
  EXPECT_EQ(half.links[3].bandwidth, 750'000'000u);
  EXPECT_EQ(half.resources[1].bandwidth, 1'500'000'000u);
  const MachineSpec pcie = with_parameter(parameter_named(box, "pcie"), box, 2e9);
  EXPECT_EQ(pcie.links[0].bandwidth, 2'000'000'000u);
  EXPECT_EQ(pcie.links[1].bandwidth, 2'000'000'000u);
  MachineSpec uneven = box;
  uneven.links[1].bandwidth = 400'000'000;
  const MachineSpec twice = with_parameter(parameter_named(uneven, "pcie"), uneven, 2e9);
  EXPECT_EQ(twice.links[0].bandwidth, 2'000'000'000u);
  EXPECT_EQ(twice.links[1].bandwidth, 800'000'000u);
  EXPECT_EQ(with_parameter(parameter_named(box, "cpu_adam"), box, 5e9).cpu.adam_parameters_per_second, 5e9);
  EXPECT_EQ(with_parameter(parameter_named(box, "cpu_memory"), box, 1e6).tiers[1].capacity, 1'000'000u);
  for (const MachineParameter& parameter : parameters_of(box)) {
    const double value = value_of(parameter, box);
    EXPECT_DOUBLE_EQ(value_of(parameter, with_parameter(parameter, box, value)), value) << parameter.name;
  }
  try {
    parameter_named(box, "speed");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("nvme_read"), HasSubstr("gpu_memory"), HasSubstr("cpu_adam"),
                                    HasSubstr("pcie"), HasSubstr("dram")));
  }
}

TEST(MachineParameters, KnowWhichOverlap) {
  const MachineSpec box = machine();
  const auto overlapping = [&](const char* a, const char* b) {
    const MachineParameter first = parameter_named(box, a), second = parameter_named(box, b);
    EXPECT_EQ(overlap(first, second, box), overlap(second, first, box));
    return overlap(first, second, box);
  };
  EXPECT_TRUE(overlapping("h2d", "h2d"));
  EXPECT_TRUE(overlapping("h2d", "pcie"));
  EXPECT_TRUE(overlapping("nvme_read", "nvme"));
  EXPECT_TRUE(overlapping("nvme", "nvme_total"));
  EXPECT_TRUE(overlapping("nvme_write", "nvme_total"));  // takes it along
  EXPECT_FALSE(overlapping("nvme_read", "nvme_write"));  // the faster one raises the total, in whatever order
  EXPECT_FALSE(overlapping("h2d", "d2h"));
  EXPECT_FALSE(overlapping("pcie", "nvme"));
  EXPECT_FALSE(overlapping("nvme", "dram"));
  EXPECT_FALSE(overlapping("gpu_memory", "cpu_memory"));
  EXPECT_FALSE(overlapping("gpu_speed", "h2d"));
}

TEST(LogarithmicValues, HaveExactEnds) {
  const std::vector<double> values = logarithmic_values(1e9, 1.6e10, 5);
  ASSERT_EQ(values.size(), 5u);
  EXPECT_EQ(values.front(), 1e9);
  EXPECT_EQ(values.back(), 1.6e10);
  EXPECT_NEAR(values[2], 4e9, 1);
}

// A point is where its values say, and nothing outside the picture.
TEST(LineChart, DrawsPointsOnItsAxes) {
  LineChart chart;
  chart.title = "a < b & c";
  chart.x_label = "bandwidth";
  chart.y_label = "seconds";
  chart.ticks = {{1, "one"}, {10, "ten"}, {100, "hundred"}};
  chart.panels = {{"",
                   {{.name = "policy",
                     .points = {{1, 8}, {10, std::nan("")}, {100, 2}},
                     .mark = LinePoint{10, 4},
                     .mark_label = "10 GB/s",
                     .reference = false}}}};
  const std::string svg = draw_svg(chart);
  EXPECT_THAT(svg, AllOf(HasSubstr("a &lt; b &amp; c"), HasSubstr(">hundred<"), HasSubstr(">10 GB/s<"),
                         HasSubstr(">seconds<"), HasSubstr(">policy<"), HasSubstr("#0072b2")));
  // The axis goes from 0 to 10, 274 units high, its foot at 308: 8 is at 88.8 and 2 at 253.2; x from 70 to 520.
  EXPECT_THAT(svg, AllOf(HasSubstr("M70.0 88.8"), HasSubstr("M520.0 253.2"), HasSubstr("cx=\"295.0\" cy=\"198.4\"")));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

class SensitivityCommand : public ::testing::Test {
 protected:
  SensitivityCommand() {
    trace_ = ::testing::TempDir() + "/sensitivity_" + std::to_string(::getpid()) + ".trace.jsonl";
    write_trace(cycle(), trace_);
  }
  ~SensitivityCommand() override { std::filesystem::remove(trace_); }
  std::vector<std::string> words(const std::string& over, std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"sensitivity", trace_, "-m",  "small-host", "--gpu-memory",
                                      "32MiB",       "-p",   "lru", "--over",     over};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::string trace_;
};

TEST_F(SensitivityCommand, PrintsTableAndKnee) {
  const InProcessAnswer answer = run_in_process(words("h2d=1GB/s..1000GB/s:4"));
  EXPECT_EQ(answer.code, 0);
  EXPECT_THAT(answer.out,
              AllOf(HasSubstr("1000.00 GB/s"), HasSubstr("bound"), HasSubstr("unlimited"), HasSubstr("of h2d")));
  EXPECT_EQ(answer.err, "");
}

// Of a trace that leaves open what to recompute there are two bounds.
TEST_F(SensitivityCommand, SaysWhichBoundItIs) {
  const auto printed = [&](const char* recompute) {
    return run_in_process({"sensitivity", "--model", "gpt2", "--batch", "1", "--seq", "64", "--recompute", recompute,
                           "-m", "rtx-4090", "--over", "h2d=4GB/s,8GB/s", "-p", "lru"})
        .out;
  };
  EXPECT_THAT(printed("choose"), HasSubstr("\nbound: no policy is faster, whatever it recomputes\n"));
  EXPECT_THAT(printed("none"), testing::Not(HasSubstr("whatever it recomputes")));
}

TEST_F(SensitivityCommand, RefusesWhatItCannotRead) {
  for (const auto& [over, message] : {std::pair{"h2d", "NAME=FROM..TO"},
                                      {"speed=1..2", "valid names are"},
                                      {"h2d=2GB/s..1GB/s", "ends before"},
                                      {"h2d=1GB/s..2GB/s:1", "2 to 999"},
                                      {"h2d=0..2GB/s", "above 0"},
                                      {"h2d=1..2GB/s", "'1' has no unit; write 1GB/s"},
                                      {"gpu_memory=8..16GiB", "'8' has no unit; write 8GiB"},
                                      {"gpu_speed=fast", "no number"}}) {
    const InProcessAnswer answer = run_in_process(words(over));
    EXPECT_EQ(answer.code, 2) << over;
    EXPECT_THAT(answer.err, HasSubstr(message)) << over;
    EXPECT_EQ(answer.out, "");
  }
  EXPECT_EQ(run_in_process(words("h2d=1GB/s..2GB/s", {"--over", "h2d=1GB/s,2GB/s"})).code, 2);
  for (const char* percent : {"nan", "inf", "-1", "51", "1%", ""}) {
    EXPECT_EQ(run_in_process(words("h2d=1GB/s..2GB/s", {"--tolerance", percent})).code, 2) << percent;
  }
  const InProcessAnswer both = run_in_process(words("h2d=1GB/s..2GB/s", {"--over", "pcie=5GB/s"}));
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("h2d and pcie overlap"));
}

TEST_F(SensitivityCommand, SaysInTheRowWhyThereIsNoTime) {
  const InProcessAnswer answer = run_in_process(words("gpu_memory=8MiB,32MiB,64MiB"));
  EXPECT_EQ(answer.code, 0);
  EXPECT_THAT(answer.out, AllOf(HasSubstr("8.00 MiB    out of memory"),
                                HasSubstr("lru with 8.00 MiB of gpu_memory: out of memory: op")));
}

TEST_F(SensitivityCommand, ExitsWithOneWhereNothingFits) {
  EXPECT_EQ(run_in_process(words("gpu_memory=1MiB,2MiB")).code, 1);
}

}  // namespace
}  // namespace tencache
