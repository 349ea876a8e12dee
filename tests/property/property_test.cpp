// Whatever the policy says and whatever goes wrong with copies, the engine keeps its rules.
// tests/property/auditor_machine.h watches them from the machine's side.
#include <gtest/gtest.h>

#include <stdexcept>

#include "core/error.h"
#include "sim/sim_machine.h"
#include "tests/property/auditor_machine.h"
#include "tests/property/random_case.h"

namespace tencache {
namespace {

struct Outcome {
  RunResult result;
  std::string violation;
  std::string failure;  // an I/O error that the engine gave up on
  EventLog log;
  Timeline timeline;
  std::array<Bytes, max_links> copied{};
  Bytes moved = 0;
};

Outcome run(const RandomCase& made, bool trouble) {
  Outcome outcome;
  SimMachine simulated(made.machine);
  TroubleMachine troubled(simulated, made.seed);
  Machine& machine = trouble ? static_cast<Machine&>(troubled) : simulated;
  const std::unique_ptr<Policy> policy = made.make();
  const Layout layout = policy->layout(made.machine, &made.program);
  AuditorMachine auditor(machine, made.machine, made.program.trace, layout);
  try {
    Engine engine(made.machine, auditor, *policy, &made.program,
                  {.timeline = &outcome.timeline, .log = &outcome.log, .on_iteration = {}});
    outcome.result = engine.run(made.limits);
    outcome.violation = auditor.violation();
    outcome.copied = auditor.copied_bytes();
    for (LinkId link = 0; link < made.machine.links.size(); ++link) {
      if (engine.counters().links[link].bytes != outcome.copied[link] && outcome.violation.empty()) {
        outcome.violation = "link " + std::to_string(link) + " counts " +
                            std::to_string(engine.counters().links[link].bytes) + " bytes of " +
                            std::to_string(outcome.copied[link]);
      }
    }
    outcome.moved = auditor.moved_bytes();
    if (const Bytes moved = engine.counters().tiers[0].moved_bytes; moved != outcome.moved && outcome.violation.empty())
      outcome.violation = std::to_string(moved) + " moved bytes are counted of " + std::to_string(outcome.moved);
    const RunResult& r = outcome.result;
    if (r.fits && r.iterations != made.limits.max_iterations && outcome.violation.empty())
      outcome.violation = "it ended early";
    const Counters& w = r.window;
    Nanoseconds sum = w.compute_ns + w.gap_ns;
    for (const Nanoseconds stall : w.stall_ns) sum += stall;
    Nanoseconds phases = 0;
    for (const Nanoseconds phase : w.phase_ns) phases += phase;
    if (r.fits && phases != sum && outcome.violation.empty()) {
      outcome.violation = "phases are " + std::to_string(phases) + " ns of " + std::to_string(sum);
    }
    if (r.fits && made.machine.issue_ahead == 1 && sum != w.time_ns && outcome.violation.empty()) {
      outcome.violation = "compute, gaps and stalls are " + std::to_string(sum) + " ns of " + std::to_string(w.time_ns);
    }
  } catch (const OutOfMemory& error) {
    outcome.violation = std::string("out of memory left the engine: ") + error.what();
  } catch (const Error& error) {
    outcome.failure = error.what();
    if (!trouble) outcome.violation = outcome.failure;
    if (outcome.violation.empty()) outcome.violation = auditor.violation();
  } catch (const std::runtime_error& error) {
    outcome.violation = error.what();
  }
  return outcome;
}

bool same(const Span& a, const Span& b) {
  return a.start_ns == b.start_ns && a.end_ns == b.end_ns && a.kind == b.kind && a.cause == b.cause &&
         a.lane == b.lane && a.op == b.op && a.chunk == b.chunk && a.bytes == b.bytes && a.from == b.from &&
         a.to == b.to && a.urgent == b.urgent && a.iteration == b.iteration;
}

struct Tally {
  std::uint64_t fit = 0, misfit = 0, failed = 0, completions = 0, moved = 0;  // the last: cases in which chunks did
};

void check(std::uint64_t first_seed, std::uint64_t count, const CaseOptions& options, bool trouble, Tally& tally) {
  first_seed *= 1'000'000;
  count = case_count(count);
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    const SeedOnAbort at_abort(seed);
    const RandomCase made = random_case(seed, options);
    const Outcome outcome = run(made, trouble);
    ASSERT_EQ(outcome.violation, "") << made.describe();
    tally.fit += outcome.failure.empty() && outcome.result.fits ? 1 : 0;
    tally.misfit += outcome.failure.empty() && !outcome.result.fits ? 1 : 0;
    tally.failed += outcome.failure.empty() ? 0 : 1;
    tally.completions += outcome.result.simulated_events;
    tally.moved += outcome.moved > 0 ? 1 : 0;
    if (seed % 8 != 0) continue;
    const Outcome again = run(made, trouble);
    ASSERT_TRUE(outcome.log.decisions == again.log.decisions) << "a repetition decides otherwise\n" << made.describe();
    ASSERT_EQ(outcome.timeline.spans.size(), again.timeline.spans.size()) << made.describe();
    for (std::size_t i = 0; i < again.timeline.spans.size(); ++i) {
      ASSERT_TRUE(same(outcome.timeline.spans[i], again.timeline.spans[i])) << "a repetition runs otherwise\n"
                                                                            << made.describe();
    }
  }
}

void report(const Tally& tally) {
  testing::Test::RecordProperty("fit", static_cast<int>(tally.fit));
  testing::Test::RecordProperty("misfit", static_cast<int>(tally.misfit));
  testing::Test::RecordProperty("failed", static_cast<int>(tally.failed));
  // Cases that all run out of memory would prove little.
  EXPECT_GT(tally.fit, tally.misfit);
  EXPECT_GT(tally.misfit, 0U);
}

TEST(PropertyTest, RulesHoldUnderRandomDecisions) {
  Tally tally;
  check(1, 6000, {.policy = "random"}, false, tally);
  report(tally);
}

TEST(PropertyTest, RulesHoldUnderEveryPolicy) {
  Tally tally;
  for (const std::string& policy : registered_policies()) check(2, 400, {.policy = policy}, false, tally);
  check(5, 700, {.policy = "belady", .settings = {{"prefetch", "ordered"}}}, false, tally);
  check(6, 400, {.policy = "lru", .settings = {{"window", "3"}}}, false, tally);
  check(8, 400, {.policy = "ssdtrain", .settings = {{"minimum", "1"}}}, false, tally);
  check(9, 400, {.policy = "patrickstar", .settings = {{"chunk_size", "200"}}}, false, tally);
  report(tally);
}

TEST(PropertyTest, RulesHoldInTiersWithAddresses) {
  Tally tally;
  check(3, 3000, {.exact_allocators = false}, false, tally);
  report(tally);
}

TEST(PropertyTest, RulesHoldWhereChunksMove) {
  Tally tally;
  check(10, 4000, {.movable = true}, false, tally);
  check(11, 2000, {.movable = true, .policy = "random"}, false, tally);
  report(tally);
  EXPECT_GT(tally.moved, tally.fit / 20);
  check(12, 2000, {.movable = true}, true, tally);
}

TEST(PropertyTest, RulesHoldWhereTransfersGoInPieces) {
  Tally tally;
  check(13, 4000, {.pieces = true}, false, tally);
  check(14, 2000, {.pieces = true, .policy = "random"}, false, tally);
  report(tally);
  check(15, 2000, {.pieces = true, .policy = "random"}, true, tally);
  check(16, 2000, {.movable = true, .pieces = true, .policy = "random"}, false, tally);
}

TEST(PropertyTest, RulesHoldWhenCopiesFailAndComeLate) {
  Tally tally;
  check(4, 4000, {}, true, tally);
  report(tally);
  EXPECT_GT(tally.failed, 0U);
}

}  // namespace
}  // namespace tencache
