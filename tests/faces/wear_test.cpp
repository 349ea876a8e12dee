// What a run writes to its SSDs: three blocks of 16 MiB, each updated in place by one op, on a GPU with room for two in
// front of storage. Under lru each leaves and comes back in every iteration: 48 MiB written.
#include "studies/wear.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/in_process.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double written = 48.0 * MiB;

MachineSpec machine(std::uint32_t devices) {
  MachineSpec machine;
  machine.name = "box";
  Tier gpu, nvme;
  gpu.name = "gpu";
  gpu.kind = TierKind::gpu;
  gpu.capacity = 32 * MiB;
  nvme.name = "nvme";
  nvme.kind = TierKind::nvme;
  nvme.capacity = 1'000'000'000'000;
  machine.tiers = {gpu, nvme};
  machine.resources.push_back({.name = "ssd", .bandwidth = 1'000'000'000});
  for (const bool in : {true, false}) {
    Link link;
    link.name = in ? "read" : "write";
    link.from = in ? 1 : 0;
    link.to = in ? 0 : 1;
    link.bandwidth = 1'000'000'000;
    link.uses = {0};
    link.devices = devices;
    link.stripe_bytes = devices > 1 ? MiB : 0;
    machine.links.push_back(link);
  }
  machine.initial_tier = 1;
  machine.validate();
  return machine;
}

Trace three_blocks() {
  Trace trace;
  for (TensorId i = 0; i < 3; ++i) {
    trace.add_tensor(std::string("w").append(std::to_string(i)), 16 * MiB, Role::parameter, true);
    Op op;
    op.duration_ns = 10'000'000;
    const TensorId ids[] = {i};
    trace.add_op(op, ids, ids);
  }
  return trace;
}

// An iteration is 3 × 10 ms + 6 × 16.8 ms = 130.7 ms: 661,223 a day.
TEST(Wear, CountsWhatIsWrittenAtTheSteadyRate) {
  const MachineSpec box = machine(1);
  const Outcome outcome = run_policy(three_blocks(), box, "lru", {}, {});
  ASSERT_TRUE(outcome.result.fits);
  EXPECT_NEAR(outcome.result.iteration_seconds(), 0.03 + 2 * written / 1e9, 1e-6);
  const std::vector<TierWear> wears = wear_of(outcome, box, {.rated = Bytes{600'000'000'000'000}});
  ASSERT_EQ(wears.size(), 1u);
  const TierWear& wear = wears[0];
  EXPECT_EQ(wear.ssds, 1u);
  EXPECT_DOUBLE_EQ(wear.ssd_written_bytes_per_iteration, written);
  const double a_day = written * 86'400 / (0.03 + 2 * written / 1e9);
  EXPECT_NEAR(wear.ssd_written_bytes_per_day / a_day, 1, 1e-6);
  EXPECT_NEAR(wear.drive_writes_per_day.value_or(0), wear.ssd_written_bytes_per_day / 1e12, 1e-9);
  EXPECT_NEAR(*wear.years * 365 * wear.ssd_written_bytes_per_day, 600e12, 1e3);
}

TEST(Wear, SharesWritesAmongTheSsdsOfAnArray) {
  const MachineSpec box = machine(4);
  const Outcome outcome = run_policy(three_blocks(), box, "lru", {}, {});
  const TierWear wear = wear_of(outcome, box, {})[0];
  EXPECT_EQ(wear.ssds, 4u);
  EXPECT_EQ(wear.ssd_capacity_bytes, 250'000'000'000u);
  EXPECT_DOUBLE_EQ(wear.ssd_written_bytes_per_iteration, written / 4);
  // One drive write a day for five years, unless told otherwise.
  EXPECT_DOUBLE_EQ(wear.ssd_rated_bytes.value_or(0), 250e9 * 365 * 5);
}

TEST(Wear, TakesDutyAndAmplification) {
  const MachineSpec box = machine(1);
  const Outcome outcome = run_policy(three_blocks(), box, "lru", {}, {});
  const TierWear whole = wear_of(outcome, box, {})[0];
  const TierWear part = wear_of(outcome, box, {.duty = 0.25, .write_amplification = 2, .rated = {}})[0];
  EXPECT_DOUBLE_EQ(part.ssd_written_bytes_per_iteration, whole.ssd_written_bytes_per_iteration);
  EXPECT_DOUBLE_EQ(part.ssd_written_bytes_per_day, whole.ssd_written_bytes_per_day / 2);
  EXPECT_DOUBLE_EQ(*part.years, *whole.years * 2);
  const TierWear three = wear_of(outcome, box, {.rated = {}, .drive_writes_per_day = 3, .warranty_years = 3})[0];
  EXPECT_DOUBLE_EQ(three.ssd_rated_bytes.value_or(0), 1e12 * 3 * 3 * 365);
}

TEST(Wear, TakesTheMachinesRatingUnlessTold) {
  MachineSpec box = machine(2);
  box.tiers[1].rated_written_bytes = 1'200'000'000'000'000;
  const Outcome outcome = run_policy(three_blocks(), box, "lru", {}, {});
  const TierWear own = wear_of(outcome, box, {.rated = {}, .drive_writes_per_day = {}})[0];
  EXPECT_EQ(own.rated_by, "machine");
  EXPECT_DOUBLE_EQ(own.ssd_rated_bytes.value_or(0), 1.2e15);  // of each of the two
  const TierWear told = wear_of(outcome, box, {.rated = Bytes{600'000'000'000'000}, .drive_writes_per_day = {}})[0];
  EXPECT_EQ(told.rated_by, "options");
  EXPECT_DOUBLE_EQ(told.ssd_rated_bytes.value_or(0), 6e14);
  const TierWear daily = wear_of(outcome, box, {.rated = {}, .drive_writes_per_day = 1})[0];
  EXPECT_EQ(daily.rated_by, "options");
  EXPECT_DOUBLE_EQ(daily.ssd_rated_bytes.value_or(0), 500e9 * 365 * 5);
}

TEST(Wear, RatesNothingOfUnknownCapacityAndNoFileSystem) {
  MachineSpec box = machine(1);
  box.tiers[1].capacity = unlimited;
  const Outcome outcome = run_policy(three_blocks(), box, "lru", {}, {});
  for (const WearOptions& options : {WearOptions{}, WearOptions{.rated = {}, .drive_writes_per_day = 2}}) {
    const TierWear wear = wear_of(outcome, box, options)[0];
    EXPECT_EQ(wear.rated_by, std::nullopt);
    EXPECT_EQ(wear.ssd_capacity_bytes, std::nullopt);
    EXPECT_GT(wear.ssd_written_bytes_per_day, 0);
    EXPECT_FALSE(wear.years);
  }
  EXPECT_TRUE(wear_of(outcome, box, {.rated = Bytes{600'000'000'000'000}})[0].years);
  box.tiers[1].name = "pfs";
  EXPECT_TRUE(wear_of(outcome, box, {}).empty());
}

// Two ranks that write to one array through a shared resource: its writes are both's, its capacity that of both parts.
TEST(Wear, AddsUpRanksThatShareAnArray) {
  MachineSpec box = machine(1);
  box.resources[0].shared = 0;
  box.tiers[1].capacity /= 2;
  MachineSpec other = box;
  box.other_ranks = {other};
  Trace trace = three_blocks();
  for (TensorId i = 0; i < 3; ++i) {
    trace.add_tensor(std::string("v").append(std::to_string(i)), 16 * MiB, Role::parameter, true);
    Op op = trace.ops[i];
    op.rank = 1;
    const TensorId ids[] = {i + 3};
    trace.add_op(op, ids, ids);
  }
  const Outcome outcome = run_policy(trace, box, "lru", {}, {});
  ASSERT_TRUE(outcome.result.fits) << outcome.result.misfit;
  const TierWear wear = wear_of(outcome, box, {})[0];
  EXPECT_EQ(wear.ssds, 1u);
  EXPECT_EQ(wear.ssd_capacity_bytes, 1'000'000'000'000u);
  EXPECT_DOUBLE_EQ(wear.ssd_written_bytes_per_iteration, 2 * written);
  // Of two such pairs the trace uses one; of two ranks in two pairs both.
  MachineSpec pairs = box;
  pairs.other_ranks = {other, other, other};
  pairs.other_ranks[1].resources[0].shared = pairs.other_ranks[2].resources[0].shared = 1;
  const TierWear one = wear_of(run_policy(trace, pairs, "lru", {}, {}), pairs, {})[0];
  EXPECT_EQ(one.ssds, 1u);
  EXPECT_EQ(one.ssd_capacity_bytes, 1'000'000'000'000u);
  std::swap(pairs.other_ranks[0], pairs.other_ranks[1]);
  const TierWear both = wear_of(run_policy(trace, pairs, "lru", {}, {}), pairs, {})[0];
  EXPECT_EQ(both.ssds, 2u);
  EXPECT_EQ(both.ssd_capacity_bytes, 1'000'000'000'000u);
  EXPECT_DOUBLE_EQ(both.ssd_written_bytes_per_iteration, written);
  // Arrays of their own.
  MachineSpec apart = box;
  apart.resources[0].shared = apart.other_ranks[0].resources[0].shared = none;
  const TierWear own = wear_of(run_policy(trace, apart, "lru", {}, {}), apart, {})[0];
  EXPECT_EQ(own.ssds, 2u);
  EXPECT_EQ(own.ssd_capacity_bytes, 500'000'000'000u);
  EXPECT_DOUBLE_EQ(own.ssd_written_bytes_per_iteration, written);
}

TEST(EnduranceCommand, SaysYearsAndRating) {
  const std::vector<std::string> model = {"endurance", "--model", "gpt2",      "--batch", "8",        "--seq",
                                          "256",       "-m",      "g5.xlarge", "-p",      "on-demand"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = model;
    words.insert(words.end(), more.begin(), more.end());
    return run_in_process(words);
  };
  const InProcessAnswer small = with({"--gpu-memory", "1250MiB", "--cpu-memory", "512MiB", "--tbw", "600TB"});
  EXPECT_EQ(small.code, 0) << small.err;
  EXPECT_THAT(small.out, AllOf(HasSubstr("600 TB"), HasSubstr("--tbw 600TB"), HasSubstr("1 × 250 GB")));
  EXPECT_THAT(with({}).out, AllOf(HasSubstr("nothing is written"), HasSubstr("assumed")));
  EXPECT_EQ(with({"--gpu-memory", "16MiB"}).code, 1);
  EXPECT_EQ(with({"--tbw", "0"}).code, 2);
  const InProcessAnswer bare = with({"--tbw", "600"});
  EXPECT_EQ(bare.code, 2);
  EXPECT_THAT(bare.err, HasSubstr("--tbw: '600' has no unit; write 600TB"));
  EXPECT_EQ(with({"--set", "no_such_option=1"}).code, 2);
  EXPECT_EQ(with({"--tbw", "1TB", "--dwpd", "1"}).code, 2);
  EXPECT_EQ(with({"--duty", "200"}).code, 2);
  for (const char* option : {"--duty", "--dwpd", "--write-amplification", "--warranty-years"}) {
    EXPECT_EQ(with({option, "nan"}).code, 2) << option;
  }
  const InProcessAnswer unlimited_nvme =
      run_in_process({"endurance", "--model", "gpt2", "--batch", "8", "--seq", "256", "-m", "g10-a100", "--gpu-memory",
                      "1250MiB", "--cpu-memory", "512MiB", "-p", "on-demand"});
  EXPECT_THAT(unlimited_nvme.out, HasSubstr("rating not known: --tbw")) << unlimited_nvme.err;
}

TEST(EnduranceCommand, TakesTheMachineFilesRating) {
  const std::string file = ::testing::TempDir() + "/rated.yaml";
  std::ofstream(file) << "name: rated\nbase: g5.xlarge\ntiers:\n  nvme: {tbw: 1.2PB}\n";
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"endurance", "--model",      "gpt2",    "--batch",      "8",      "--seq", "256",
                                      "-p",        "--gpu-memory", "1250MiB", "--cpu-memory", "512MiB", "-m",    file};
    words.insert(words.begin() + 8, "on-demand");
    words.insert(words.end(), more.begin(), more.end());
    return run_in_process(words).out;
  };
  EXPECT_THAT(with({}), AllOf(HasSubstr("1200 TB"), HasSubstr("the machine's tbw")));
  EXPECT_THAT(with({"--json"}), HasSubstr("\"rated_by\": \"machine\""));
  EXPECT_THAT(with({"--tbw", "600TB"}), AllOf(HasSubstr("600 TB"), HasSubstr("--tbw 600TB")));
}

TEST(EnduranceCommand, WhatTheMachineCannotServeDoesNotFit) {
  const InProcessAnswer answer =
      run_in_process({"endurance", "--model", "llama-3-8b", "--batch", "1", "--seq", "2048", "-m", "g5.xlarge", "-p",
                      "zero-infinity", "--set", "offload_param=nvme", "--json"});
  EXPECT_EQ(answer.code, 1) << answer.err;
  EXPECT_THAT(answer.out, AllOf(HasSubstr("\"fits\": false"), HasSubstr("raise buffer_size")));
}

}  // namespace
}  // namespace tencache
