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

TEST(GateTest, AHostRunKeepsTheRulesAndIsDecidedAgain) {
  const std::string folder = std::filesystem::temp_directory_path().string();
  std::uint64_t verified = 0, fit = 0;
  for (const std::string& policy : all_policies()) {
    for (std::uint64_t seed = 22'000'000; seed < 22'000'000 + case_count(40); ++seed) {
      const SeedOnAbort at_abort(seed);
      CaseOptions options;
      options.real_pages = true;
      options.policy = policy;
      RandomCase made = random_case(seed, options);
      for (Tier& tier : made.machine.tiers) {
        if (tier.kind == TierKind::nvme) tier.directories = {folder};
      }
      ReplayBodies bodies(made.program.trace,
                          {.check_everything = true, .write_everything = true, .duration_scale = 0});
      HostMachineOptions host_options;
      host_options.pace = false;
      HostMachine host(made.machine, bodies, host_options);
      const std::unique_ptr<Policy> object = made.make();
      const Layout layout = object->layout(made.machine, &made.program);
      AuditorMachine auditor(host, made.machine, made.program.trace, layout);
      EventLog log;
      Engine engine(made.machine, auditor, *object, &made.program,
                    {.timeline = nullptr, .log = &log, .on_iteration = {}});
      const RunResult result = engine.run(made.limits);
      ASSERT_EQ(auditor.violation(), "") << made.describe();
      ASSERT_EQ(bodies.counts().first_corruption, "") << made.describe();
      // `ideal` has no limit, but this machine has: that it is full is not in the log.
      if (policy == "ideal" && !result.fits) continue;
      ASSERT_EQ(first_difference(log.decisions, replay(log, made)), "") << made.describe();
      verified += bodies.counts().tensor_checks;
      fit += result.fits ? 1 : 0;
    }
  }
  EXPECT_GT(fit, 100U);
  EXPECT_GT(verified, 1000U);
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
