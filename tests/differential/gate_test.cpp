// The gate: what was decided on the real machine is decided again, bit for bit, by a fresh policy object that sees only
// the log of what happened. And the auditor of the property tests beside the real machine.
#include <gtest/gtest.h>

#include <filesystem>

#include "executor/host_machine.h"
#include "executor/replay_bodies.h"
#include "policies/registry.h"
#include "sim/sim_machine.h"
#include "tests/property/auditor_machine.h"
#include "tests/property/random_case.h"
#include "tests/replay_log.h"

namespace tencache {
namespace {

std::vector<Decision> replay(const EventLog& log, const RandomCase& made) {
  LogMachine machine(log);
  EventLog again;
  const std::unique_ptr<Policy> policy = made.make();
  Engine engine(made.machine, machine, *policy, &made.program,
                {.timeline = nullptr, .log = &again, .on_iteration = {}});
  engine.run(made.limits);
  EXPECT_EQ(machine.diverged(), "") << made.describe();
  return again.decisions;
}

std::vector<std::string> all_policies() {
  std::vector<std::string> names{"random"};
  for (const PolicyInfo& info : list_policies()) names.push_back(info.name);
  return names;
}

TEST(GateTest, ASimulatedRunIsDecidedAgain) {
  for (const std::string& policy : all_policies()) {
    for (std::uint64_t seed = 21'000'000; seed < 21'000'000 + case_count(200); ++seed) {
      const SeedOnAbort at_abort(seed);
      const RandomCase made = random_case(seed, {.policy = policy});
      SimMachine machine(made.machine);
      EventLog log;
      const std::unique_ptr<Policy> object = made.make();
      Engine engine(made.machine, machine, *object, &made.program,
                    {.timeline = nullptr, .log = &log, .on_iteration = {}});
      engine.run(made.limits);
      ASSERT_EQ(first_difference(log.decisions, replay(log, made)), "") << made.describe();
    }
  }
}

// Runs under each policy on real memory; returns the bytes that moved within tier 0.
Bytes check_host_runs(std::uint64_t first_seed, std::uint64_t count, const CaseOptions& usual) {
  const std::string folder = std::filesystem::temp_directory_path().string();
  std::uint64_t verified = 0, fit = 0;
  Bytes moved = 0;
  for (const std::string& policy : all_policies()) {
    for (std::uint64_t seed = first_seed; seed < first_seed + case_count(count); ++seed) {
      const SeedOnAbort at_abort(seed);
      CaseOptions options = usual;
      options.real_pages = true;
      options.policy = policy;
      RandomCase made = random_case(seed, options);
      for (Tier& tier : made.machine.tiers) {
        if (tier.kind == TierKind::nvme) tier.directories = {folder};
      }
      ReplayBodies bodies(made.program.trace,
                          {.check_everything = true, .write_everything = true, .duration_scale = 0});
      const std::unique_ptr<Policy> object = made.make();
      const Layout layout = object->layout(made.machine, &made.program);
      HostMachineOptions host_options;
      host_options.pace = false;
      host_options.addressed = addressed_tiers(made.machine, layout);
      HostMachine host(made.machine, bodies, host_options);
      AuditorMachine auditor(host, made.machine, made.program.trace, layout);
      EventLog log;
      Engine engine(made.machine, auditor, *object, &made.program,
                    {.timeline = nullptr, .log = &log, .on_iteration = {}});
      const RunResult result = engine.run(made.limits);
      EXPECT_EQ(auditor.violation(), "") << made.describe();
      EXPECT_EQ(bodies.counts().first_corruption, "") << made.describe();
      // `ideal` has no limit, but this machine has: that it is full is not in the log.
      if (policy == "ideal" && !result.fits) continue;
      EXPECT_EQ(first_difference(log.decisions, replay(log, made)), "") << made.describe();
      if (testing::Test::HasFailure()) return 0;
      verified += bodies.counts().tensor_checks;
      fit += result.fits ? 1 : 0;
      moved += auditor.moved_bytes();
    }
  }
  EXPECT_GT(fit, 100U);
  EXPECT_GT(verified, 1000U);
  return moved;
}

TEST(GateTest, AHostRunKeepsTheRulesAndIsDecidedAgain) { EXPECT_EQ(check_host_runs(22'000'000, 40, {}), 0U); }

TEST(GateTest, AHostRunMovesChunksWithTheirContent) {
  EXPECT_GT(check_host_runs(23'000'000, 15, {.movable = true}), MiB);
}

TEST(GateTest, TheFirstDifferenceIsNamed) {
  const Decision fetch{.kind = Decision::Kind::fetch, .from = 1, .to = 0, .chunk = 4, .why = {}};
  const Decision drop{.kind = Decision::Kind::drop, .from = 0, .chunk = 4, .why = {}};
  EXPECT_EQ(first_difference({fetch, drop}, {fetch, drop}), "");
  EXPECT_EQ(first_difference({fetch, drop}, {drop, drop}),
            "decision 0: logged '" + describe(fetch) + "', replayed '" + describe(drop) + "'");
  EXPECT_EQ(first_difference({fetch, drop}, {fetch, fetch}),
            "decision 1: logged '" + describe(drop) + "', replayed '" + describe(fetch) + "'");
  EXPECT_EQ(first_difference({fetch, drop}, {fetch}), "2 decisions logged, 1 replayed");
}

}  // namespace
}  // namespace tencache
