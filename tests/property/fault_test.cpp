// Faults made on purpose, by seed, on both machines: the engine keeps its rules and ends with the right content, or
// stops with one error that says what and where. Every assertion names the seed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <thread>

#include "core/engine/event_log.h"
#include "core/error.h"
#include "core/fault_plan.h"
#include "executor/host_machine.h"
#include "executor/replay_bodies.h"
#include "policies/registry.h"
#include "sim/sim_machine.h"
#include "tests/property/auditor_machine.h"
#include "tests/property/random_case.h"
#include "tests/replay_log.h"

namespace tencache {
namespace {

using testing::HasSubstr;

// ---- The plan -------------------------------------------------------------------------------------------------------

TEST(FaultPlanTest, WhatIsWrittenIsReadAgain) {
  const std::string all =
      "seed=7,copy_error=0.01,delay=0.05:2ms,slow_link=@3+:10x,device_gone=@1000:ssd,no_memory=1e-05,io_error=@0,"
      "short_read=1,torn_write=0.25,disk_full=60%";
  EXPECT_EQ(to_string(parse_fault_plan(all)), all);
  EXPECT_EQ(to_string(parse_fault_plan("delay=0.5:1500us")), "seed=1,delay=0.5:1500us");
  for (const char* nothing : {"seed=3,disk_full=100%", "seed=3,copy_error=0"}) {  // and no mixture when read again
    EXPECT_EQ(to_string(parse_fault_plan(nothing)), "seed=3,copy_error=0");
    EXPECT_EQ(to_string(parse_fault_plan(to_string(parse_fault_plan(nothing)))), "seed=3,copy_error=0");
  }
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const std::string mixture = to_string(parse_fault_plan("seed=" + std::to_string(seed)));
    ASSERT_EQ(to_string(parse_fault_plan(mixture)), mixture) << "seed " << seed;
  }
}

TEST(FaultPlanTest, AMixtureHasEveryKindSometimes) {
  FaultCounts mixtures{};
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const FaultPlan plan = parse_fault_plan("seed=" + std::to_string(seed));
    std::uint64_t kinds = 0;
    for (std::size_t kind = 0; kind < fault_kind_count; ++kind) {
      const bool has = plan.has(static_cast<FaultKind>(kind));
      mixtures[kind] += has ? 1 : 0;
      kinds += has ? 1 : 0;
    }
    EXPECT_GT(kinds, 0U) << "seed " << seed;
  }
  for (std::size_t kind = 0; kind < fault_kind_count; ++kind) {
    EXPECT_GT(mixtures[kind], 80U) << to_string(static_cast<FaultKind>(kind));
    EXPECT_LT(mixtures[kind], 600U) << to_string(static_cast<FaultKind>(kind));
  }
}

TEST(FaultPlanTest, AMistakeIsNamed) {
  const auto message = [](const char* text) {
    try {
      parse_fault_plan(text);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message("seed=1,copy_eror=0.1"),
            "fault plan: 'copy_eror=0.1': unknown kind; valid ones are seed, copy_error, delay, slow_link, "
            "device_gone, no_memory, io_error, short_read, torn_write, disk_full");
  for (const char* text : {"",
                           ",",
                           "seed",
                           "seed=-1",
                           "seed=1,seed=2",
                           "copy_error",
                           "copy_error=",
                           "copy_error=2",
                           "copy_error=nan",
                           "copy_error=-0.1",
                           "copy_error=0.1:3",
                           "copy_error=@",
                           "copy_error=@x",
                           "copy_error=0.1,copy_error=0.1",
                           "delay=0.1",
                           "delay=0.1:",
                           "delay=0.1:0s",
                           "delay=0.1:2h",
                           "delay=0.1:2000000s",
                           "slow_link=0.1",
                           "slow_link=0.1:2",
                           "slow_link=0.1:0x",
                           "slow_link=0.1:-1x",
                           "disk_full=1GiB",
                           "disk_full=101%",
                           "disk_full=%",
                           "seed=1,"}) {
    EXPECT_THAT(message(text), testing::AnyOf(HasSubstr("fault plan: '"), HasSubstr("not a time"))) << text;
  }
  MachineSpec spec;
  spec.name = "box";
  spec.tiers = {{"gpu", TierKind::gpu, 1, 1, {}}, {"cpu", TierKind::cpu, 1, 1, {}}};
  EXPECT_THAT([&] { FaultInjector(parse_fault_plan("device_gone=@1:ssd"), spec); },
              testing::ThrowsMessage<Error>(HasSubstr("'box' has no tier 'ssd'; its tiers are gpu, cpu")));
}

TEST(FaultPlanTest, AFullDiskIsAShareOfItsCapacity) {
  const FaultPlan half = parse_fault_plan("disk_full=50%");
  EXPECT_EQ(half.disk_room(1000), 500);
  EXPECT_EQ(half.disk_room(151), 75);
  EXPECT_EQ(half.disk_room(unlimited), unlimited) << "of no end there is no half";
  EXPECT_EQ(parse_fault_plan("disk_full=100%").disk_room(151), 151);
}

// Whoever asks, in whichever order, gets the same answer; as often as the probability says.
TEST(FaultPlanTest, DrawsAreAFunctionOfSeedKindAndIndex) {
  constexpr std::uint64_t count = 100'000;
  const FaultPlan plan = parse_fault_plan("seed=5,copy_error=0.1,delay=0.1:1ms");
  std::vector<bool> forwards(count), backwards(count);
  std::thread other([&] {
    for (std::uint64_t i = count; i-- > 0;) backwards[i] = plan.strikes(FaultKind::copy_error, i);
  });
  for (std::uint64_t i = 0; i < count; ++i) forwards[i] = plan.strikes(FaultKind::copy_error, i);
  other.join();
  EXPECT_TRUE(forwards == backwards);
  // Binomial: 10 000 with a standard deviation of 95.
  EXPECT_NEAR(static_cast<double>(std::count(forwards.begin(), forwards.end(), true)), 10'000, 500);
  std::uint64_t both = 0, both_seeds = 0;
  const FaultPlan next = parse_fault_plan("seed=6,copy_error=0.1");
  for (std::uint64_t i = 0; i < count; ++i) {
    both += forwards[i] && plan.strikes(FaultKind::delay, i) ? 1 : 0;
    both_seeds += forwards[i] && next.strikes(FaultKind::copy_error, i) ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(both), 1000, 200) << "kinds do not follow each other";
  EXPECT_NEAR(static_cast<double>(both_seeds), 1000, 200) << "seeds do not follow each other";
  const FaultPlan moments = parse_fault_plan("copy_error=@4,no_memory=@4+");
  for (std::uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(moments.strikes(FaultKind::copy_error, i), i == 4);
    EXPECT_EQ(moments.strikes(FaultKind::no_memory, i), i >= 4);
  }
  EXPECT_NE(plan.of_rank(1).seed, plan.seed);
  EXPECT_EQ(plan.of_rank(0).seed, plan.seed);
}

// ---- Both machines --------------------------------------------------------------------------------------------------

// Random cases are small: rates at which something happens to most of them.
FaultPlan plan_for(std::uint64_t seed) {
  Random random(seed ^ 0x6661756c74);
  FaultPlan plan;
  plan.seed = seed;
  for (std::size_t i = 0; i < fault_kind_count; ++i) {
    const auto kind = static_cast<FaultKind>(i);
    if (kind == FaultKind::device_gone || kind == FaultKind::no_memory || kind == FaultKind::disk_full) {
      if (!random.one_in(8)) continue;
    } else if (!random.one_in(2)) {
      continue;
    }
    const bool in_file = kind == FaultKind::io_error || kind == FaultKind::short_read || kind == FaultKind::torn_write;
    plan.rate(kind).probability = (in_file ? 0.006 : 0.002) * static_cast<double>(1 + random.below(50));
    if (kind == FaultKind::delay) plan.delay_ns = static_cast<Nanoseconds>(1 + random.below(50'000));
    if (kind == FaultKind::slow_link) plan.slow_factor = 2 + random.below(8);
    if (kind == FaultKind::device_gone) plan.rate(kind) = {.at = random.below(200)};
    if (kind == FaultKind::disk_full) plan.disk_percent = random.below(60);
  }
  return plan;
}

struct Tally {
  FaultCounts counts{};
  std::uint64_t right = 0, misfits = 0, stopped = 0, survived = 0;  // survived: right although something was injected
  std::uint64_t checksums = 0;                                      // stopped by a wrong one

  void add(const FaultCounts& more) {
    for (std::size_t i = 0; i < fault_kind_count; ++i) counts[i] += more[i];
  }
  std::string describe() const {
    return std::to_string(right) + " right (" + std::to_string(survived) + " of them disturbed), " +
           std::to_string(misfits) + " out of memory, " + std::to_string(stopped) + " stopped, " +
           std::to_string(checksums) + " of them by a checksum; injected: " + to_string(counts);
  }
  void expect_every_kind() const {
    if (case_count(4) < 4) return;  // too few cases
    for (std::size_t i = 0; i < fault_kind_count; ++i) {
      EXPECT_GT(counts[i], 0U) << to_string(static_cast<FaultKind>(i)) << " was never met; " << describe();
    }
  }
};

// One error, in words that say what was moved or placed, and why it could not be.
bool is_clean(const std::string& message) {
  for (const char* what : {"failed 3 times in a row: ", "was refused 3 times in a row: "}) {
    if (message.find(what) == std::string::npos) continue;
    for (const char* why : {"(injected)", "checksum", "Input/output error", "No space left on device"}) {
      if (message.find(why) != std::string::npos && message.find("of tensor ") != std::string::npos) return true;
    }
  }
  return false;
}

bool any(const FaultCounts& counts) {
  return std::any_of(counts.begin(), counts.end(), [](std::uint64_t count) { return count != 0; });
}

// What a run came to; `decisions` to compare.
struct Outcome {
  std::string stopped;  // the error; empty: none
  RunResult result;
  FaultCounts counts{};
  std::vector<Decision> decisions;
};

void tally_up(const Outcome& outcome, Tally& tally) {
  tally.add(outcome.counts);
  if (!outcome.stopped.empty()) {
    ++tally.stopped;
    tally.checksums += outcome.stopped.find("checksum") != std::string::npos ? 1 : 0;
  } else if (!outcome.result.fits) {
    ++tally.misfits;
  } else {
    ++tally.right;
    tally.survived += any(outcome.counts) ? 1 : 0;
  }
}

Outcome simulate_case(const RandomCase& made, const FaultPlan& plan) {
  Outcome outcome;
  SimMachine machine(made.machine, &plan);
  const std::unique_ptr<Policy> policy = made.make();
  const Layout layout = policy->layout(made.machine, &made.program);
  AuditorMachine auditor(machine, made.machine, made.program.trace, layout);
  EventLog log;
  try {
    Engine engine(made.machine, auditor, *policy, &made.program,
                  {.timeline = nullptr, .log = &log, .on_iteration = {}});
    outcome.result = engine.run(made.limits);
  } catch (const Error& error) {
    outcome.stopped = error.what();
  }
  EXPECT_EQ(auditor.violation(), "") << to_string(plan) << "\n" << made.describe();
  outcome.counts = machine.fault_counts();
  outcome.decisions = std::move(log.decisions);
  return outcome;
}

RandomCase case_for(std::uint64_t seed, const CaseOptions& options) {
  RandomCase made = random_case(seed, options);
  for (Tier& tier : made.machine.tiers) tier.checksums = tier.kind == TierKind::nvme;
  return made;
}

TEST(FaultTest, ThousandsOfSeedsInSimulation) {
  Tally tally;
  for (std::uint64_t seed = 31'000'000; seed < 31'000'000 + case_count(4000); ++seed) {
    const SeedOnAbort at_abort(seed);
    const RandomCase made = case_for(seed, {});
    const FaultPlan plan = plan_for(seed);
    const Outcome outcome = simulate_case(made, plan);
    if (HasFailure()) return;
    ASSERT_TRUE(outcome.stopped.empty() || is_clean(outcome.stopped)) << "seed " << seed << ": " << outcome.stopped;
    tally_up(outcome, tally);
    if (seed % 8 != 0) continue;
    const Outcome again = simulate_case(made, plan);
    ASSERT_TRUE(outcome.decisions == again.decisions && outcome.stopped == again.stopped &&
                outcome.counts == again.counts)
        << "a repetition of " << to_string(plan) << " runs otherwise\n"
        << made.describe();
  }
  tally.expect_every_kind();
  EXPECT_GT(tally.survived, tally.stopped);
  RecordProperty("tally", tally.describe());
  std::cout << "simulation: " << tally.describe() << "\n";
}

// A disturbed run is not taken for a steady one, and a plan without a rate disturbs nothing.
TEST(FaultTest, APlanThatNeverStrikesChangesNoDecision) {
  for (std::uint64_t seed = 32'000'000; seed < 32'000'000 + case_count(200); ++seed) {
    const SeedOnAbort at_abort(seed);
    const RandomCase made = case_for(seed, {});
    FaultPlan never;
    never.rate(FaultKind::copy_error).at = FaultRate::never - 1;
    const Outcome disturbed = simulate_case(made, never);
    SimMachine machine(made.machine);
    const std::unique_ptr<Policy> policy = made.make();
    EventLog log;
    Engine engine(made.machine, machine, *policy, &made.program,
                  {.timeline = nullptr, .log = &log, .on_iteration = {}});
    const RunResult result = engine.run(made.limits);
    const std::size_t common = std::min(log.decisions.size(), disturbed.decisions.size());
    ASSERT_TRUE(std::equal(log.decisions.begin(), log.decisions.begin() + static_cast<std::ptrdiff_t>(common),
                           disturbed.decisions.begin()))
        << made.describe();
    ASSERT_EQ(result.fits, disturbed.result.fits) << made.describe();
    if (disturbed.result.fits && disturbed.decisions.size() > 1000) {
      ASSERT_FALSE(disturbed.result.steady) << made.describe();
    }
  }
}

std::vector<std::string> all_policies() {
  std::vector<std::string> names{"random"};
  for (const PolicyInfo& info : list_policies()) names.push_back(info.name);
  return names;
}

// Every word that an op reads is compared with what it would be without faults.
Outcome run_case(RandomCase& made, const FaultPlan& plan, ReplayCounts& counts) {
  const std::string folder = std::filesystem::temp_directory_path().string();
  for (Tier& tier : made.machine.tiers) {
    if (tier.kind == TierKind::nvme) tier.directories = {folder};
  }
  Outcome outcome;
  ReplayBodies bodies(made.program.trace, {.check_everything = true, .write_everything = true, .duration_scale = 0});
  HostMachineOptions options;
  options.pace = false;
  options.faults = plan;
  HostMachine host(made.machine, bodies, options);
  const std::unique_ptr<Policy> object = made.make();
  const Layout layout = object->layout(made.machine, &made.program);
  AuditorMachine auditor(host, made.machine, made.program.trace, layout);
  EventLog log;
  try {
    Engine engine(made.machine, auditor, *object, &made.program,
                  {.timeline = nullptr, .log = &log, .on_iteration = {}});
    outcome.result = engine.run(made.limits);
  } catch (const Error& error) {
    outcome.stopped = error.what();
  }
  EXPECT_EQ(auditor.violation(), "") << to_string(plan) << "\n" << made.describe();
  outcome.counts = host.fault_counts();
  counts = bodies.counts();
  if (!outcome.stopped.empty() || made.policy == "ideal") return outcome;
  // The log of a disturbed run is decided again, too.
  LogMachine machine(log);
  EventLog again;
  const std::unique_ptr<Policy> fresh = made.make();
  Engine engine(made.machine, machine, *fresh, &made.program, {.timeline = nullptr, .log = &again, .on_iteration = {}});
  engine.run(made.limits);
  EXPECT_EQ(first_difference(log.decisions, again.decisions), "") << to_string(plan) << "\n" << made.describe();
  return outcome;
}

TEST(FaultTest, HundredsOfSeedsOnTheHost) {
  Tally tally;
  std::uint64_t verified = 0;
  std::uint64_t first = 33'000'000;
  for (const std::string& policy : all_policies()) {
    first += 1000;  // other plans, too
    for (std::uint64_t seed = first; seed < first + case_count(24); ++seed) {
      const SeedOnAbort at_abort(seed);
      RandomCase made = case_for(seed, {.real_pages = true, .policy = policy});
      const FaultPlan plan = plan_for(seed);
      ReplayCounts counts;
      const Outcome outcome = run_case(made, plan, counts);
      ASSERT_EQ(counts.first_corruption, "") << to_string(plan) << "\n" << made.describe();
      if (HasFailure()) return;
      ASSERT_TRUE(outcome.stopped.empty() || is_clean(outcome.stopped))
          << "seed " << seed << ", " << policy << ": " << outcome.stopped;
      tally_up(outcome, tally);
      verified += counts.tensor_checks;
    }
  }
  tally.expect_every_kind();
  EXPECT_GT(tally.survived, tally.stopped);
  std::cout << "host: " << tally.describe() << "; " << verified << " tensors compared word by word\n";
}

// Without checksums a torn write goes unnoticed: what the option is for, and that tearing tears. Which runs read what
// was torn depends on this computer's timing: as many are tried as it takes.
TEST(FaultTest, WithoutChecksumsATornWriteIsReadAsIfNothingWere) {
  std::uint64_t corrupted = 0, noticed = 0, seed = 34'000'000;
  for (const std::uint64_t end = seed + case_count(2000); seed < end && (corrupted < 2 || noticed < 2); ++seed) {
    const SeedOnAbort at_abort(seed);
    for (const bool checksums : {false, true}) {
      RandomCase made = random_case(seed, {.real_pages = true, .policy = "on-demand"});
      for (Tier& tier : made.machine.tiers) tier.checksums = checksums && tier.kind == TierKind::nvme;
      FaultPlan plan = parse_fault_plan("torn_write=1");
      plan.seed = seed;
      ReplayCounts counts;
      const Outcome outcome = run_case(made, plan, counts);
      if (checksums) {
        ASSERT_EQ(counts.first_corruption, "") << "seed " << seed;
        ASSERT_TRUE(outcome.stopped.empty() || outcome.stopped.find("its checksum is wrong") != std::string::npos)
            << "seed " << seed << ": " << outcome.stopped;
        noticed += outcome.stopped.empty() ? 0 : 1;
      } else {
        ASSERT_EQ(outcome.stopped, "") << "seed " << seed;
        corrupted += counts.first_corruption.empty() ? 0 : 1;
      }
    }
  }
  std::cout << "torn writes: " << corrupted << " runs read wrong data without checksums, " << noticed
            << " stopped with them\n";
  EXPECT_GE(corrupted, 2U);
  EXPECT_GE(noticed, 2U);
}

}  // namespace
}  // namespace tencache
