// The engine and the simulated machine against the naive ones: the same times to the nanosecond, the same transfers,
// the same residents at the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "sim/simulate.h"
#include "sim/simulated_rank.h"
#include "tests/differential/naive_engine.h"
#include "tests/property/random_case.h"

namespace tencache {
namespace {

NaiveResult run_fast(const RandomCase& made) {
  NaiveResult result;
  SimulatedRank machine(made.machine);
  const std::unique_ptr<Policy> policy = made.make();
  Timeline timeline;
  EventLog log;
  Engine engine(made.machine, machine.port(), *policy, &made.program,
                {.timeline = &timeline, .log = &log, .on_iteration = {}});
  machine.look_at(engine.memory());
  const RunResult run = engine.run(made.limits);
  const Counters& w = run.window;
  Nanoseconds sum = w.compute_ns + w.gap_ns;
  for (const Nanoseconds stall : w.stall_ns) sum += stall;
  EXPECT_TRUE(!run.fits || made.machine.issue_ahead > 1 || sum == w.time_ns)
      << "compute, gaps and stalls are " << sum << " ns of " << w.time_ns << "\n"
      << made.describe();
  result.fits = run.fits;
  result.iteration_ns = run.iteration_ns;
  for (const Span& span : timeline.spans) {
    if (span.kind == SpanKind::op) result.ops.push_back({span.lane, span.op, span.start_ns, span.end_ns});
    if (span.kind == SpanKind::move) {
      result.moves.push_back({span.lane, span.chunk, 0, span.start_ns, span.end_ns - span.start_ns});
    }
    if (span.kind != SpanKind::transfer) continue;
    result.transfers.push_back({static_cast<LinkId>(span.lane - first_link_lane), span.chunk, span.from, span.to,
                                span.urgent, span.bytes > 0, span.start_ns, span.end_ns});
  }
  auto move = result.moves.begin();
  for (const Decision& decision : log.decisions) {
    if (decision.kind == Decision::Kind::move) (move++)->to = decision.offset;
  }
  for (TierId tier = 0; tier < made.machine.tiers.size(); ++tier) {
    auto& residents = result.residents.emplace_back();
    for (ChunkId chunk = engine.memory().coldest(tier); chunk != none; chunk = engine.memory().warmer(chunk, tier))
      residents.push_back(chunk);
  }
  return result;
}

std::string text(const NaiveOp& op) {
  return "lane " + std::to_string(op.lane) + " op " + std::to_string(op.op) + " " + std::to_string(op.start_ns) + ".." +
         std::to_string(op.end_ns);
}

std::string text(const NaiveTransfer& transfer) {
  return "link " + std::to_string(transfer.link) + " chunk " + std::to_string(transfer.chunk) + " " +
         std::to_string(transfer.from) + "->" + std::to_string(transfer.to) + " " + std::to_string(transfer.start_ns) +
         ".." + std::to_string(transfer.end_ns) + (transfer.urgent ? " urgent" : "") +
         (transfer.done ? "" : " cancelled");
}

std::string text(const NaiveMove& move) {
  return "server " + std::to_string(move.server) + " chunk " + std::to_string(move.chunk) + " to " +
         std::to_string(move.to) + " at " + std::to_string(move.decided_ns) + " for " + std::to_string(move.takes_ns);
}

template <typename Item>
std::string difference(const std::vector<Item>& fast, const std::vector<Item>& naive) {
  for (std::size_t i = 0; i < std::min(fast.size(), naive.size()); ++i) {
    if (fast[i] != naive[i])
      return "number " + std::to_string(i) + ": fast " + text(fast[i]) + ", naive " + text(naive[i]) + "\n";
  }
  if (fast.size() == naive.size()) return "";
  const bool more = fast.size() > naive.size();
  return std::to_string(fast.size()) + " by the fast engine, " + std::to_string(naive.size()) +
         " by the naive one; next: " + text((more ? fast : naive)[std::min(fast.size(), naive.size())]) + "\n";
}

void compare(std::uint64_t first_seed, std::uint64_t count, const CaseOptions& options) {
  count = case_count(count);
  std::uint64_t fit = 0, transfers = 0, moves = 0;
  for (std::uint64_t seed = first_seed * 1'000'000; seed < first_seed * 1'000'000 + count; ++seed) {
    const SeedOnAbort at_abort(seed);
    const RandomCase made = random_case(seed, options);
    const std::unique_ptr<Policy> policy = made.make();
    const NaiveResult fast = run_fast(made);
    const NaiveResult naive = run_naive(made.program, made.machine, *policy, made.limits.max_iterations);
    ASSERT_EQ(difference(fast.moves, naive.moves), "") << made.describe();
    ASSERT_EQ(difference(fast.transfers, naive.transfers), "") << difference(fast.ops, naive.ops) << made.describe();
    ASSERT_EQ(difference(fast.ops, naive.ops), "") << made.describe();
    ASSERT_EQ(fast.fits, naive.fits) << made.describe();
    ASSERT_EQ(fast.iteration_ns, naive.iteration_ns) << made.describe();
    ASSERT_EQ(fast.residents, naive.residents) << made.describe();
    fit += fast.fits ? 1 : 0;
    transfers += fast.transfers.size();
    moves += fast.moves.size();
  }
  EXPECT_GT(fit, count / 2);
  EXPECT_GE(transfers, options.policy == "ideal" ? 0 : 5 * count);
  if (options.movable) {
    EXPECT_GT(moves, count / 10);
  }
}

TEST(DifferentialTest, RandomPolicy) { compare(11, 1500, {.policy = "random"}); }
TEST(DifferentialTest, EveryPolicy) {
  std::uint64_t first_seed = 100;
  for (const std::string& policy : registered_policies()) {
    SCOPED_TRACE(policy);
    ASSERT_NO_FATAL_FAILURE(compare(first_seed++, policy == "ideal" ? 100 : 400, {.policy = policy}));
  }
}
TEST(DifferentialTest, CapacitiesThatChange) {
  compare(18, 3000, {.changing = true, .policy = "random"});
  compare(19, 1000, {.changing = true, .policy = "harvest"});
  compare(20, 500, {.changing = true, .policy = "lru"});
}
TEST(DifferentialTest, RandomPolicyWhereChunksMove) { compare(17, 3000, {.movable = true, .policy = "random"}); }
TEST(DifferentialTest, EveryPolicyWhereChunksMove) {
  std::uint64_t first_seed = 200;
  for (const std::string& policy : registered_policies()) {
    SCOPED_TRACE(policy);
    if (policy == "ideal") continue;
    ASSERT_NO_FATAL_FAILURE(compare(first_seed++, 200, {.movable = true, .policy = policy}));
  }
}
TEST(DifferentialTest, BeladyOrdered) { compare(13, 600, {.policy = "belady", .settings = {{"prefetch", "ordered"}}}); }
TEST(DifferentialTest, SmallChunks) {
  compare(15, 400, {.policy = "patrickstar", .settings = {{"chunk_size", "200"}}});
}
TEST(DifferentialTest, SmallActivations) { compare(16, 400, {.policy = "ssdtrain", .settings = {{"minimum", "1"}}}); }
TEST(DifferentialTest, RunAheadRandomPolicy) { compare(17, 1500, {.run_ahead = true, .policy = "random"}); }
TEST(DifferentialTest, RunAheadEveryPolicy) {
  std::uint64_t first_seed = 300;
  for (const std::string& policy : registered_policies()) {
    SCOPED_TRACE(policy);
    ASSERT_NO_FATAL_FAILURE(
        compare(first_seed++, policy == "ideal" ? 100 : 300, {.run_ahead = true, .policy = policy}));
  }
}
TEST(DifferentialTest, RunAheadRandomPolicyWhereChunksMove) {
  compare(18, 3000, {.movable = true, .run_ahead = true, .policy = "random"});
}
TEST(DifferentialTest, RunAheadEveryPolicyWhereChunksMove) {
  std::uint64_t first_seed = 400;
  for (const std::string& policy : registered_policies()) {
    SCOPED_TRACE(policy);
    if (policy == "ideal") continue;
    ASSERT_NO_FATAL_FAILURE(compare(first_seed++, 100, {.movable = true, .run_ahead = true, .policy = policy}));
  }
}
// Staged transfers of large chunks go in pieces.
TEST(DifferentialTest, Pieces) {
  compare(19, 2000, {.pieces = true, .policy = "random"});
  compare(20, 1000, {.run_ahead = true, .pieces = true, .policy = "random"});
  compare(21, 1000, {.movable = true, .run_ahead = true, .pieces = true, .policy = "random"});
}
TEST(DifferentialTest, PiecesEveryPolicy) {
  std::uint64_t first_seed = 500;
  for (const std::string& policy : registered_policies()) {
    SCOPED_TRACE(policy);
    if (policy == "ideal") continue;
    ASSERT_NO_FATAL_FAILURE(compare(first_seed++, 200, {.pieces = true, .policy = policy}));
  }
}
// What gates decide is not known before: policies see sealed programs.
TEST(DifferentialTest, Gates) {
  compare(22, 1500, {.policy = "random", .gates = true});
  compare(23, 1000, {.run_ahead = true, .policy = "random", .gates = true});
  compare(24, 400, {.policy = "foresight", .settings = {{"oracle", "true"}}, .gates = true});
}
TEST(DifferentialTest, GatesEveryPolicy) {
  std::uint64_t first_seed = 600;
  for (const std::string& policy : registered_policies()) {
    SCOPED_TRACE(policy);
    ASSERT_NO_FATAL_FAILURE(compare(first_seed++, policy == "ideal" ? 50 : 200, {.policy = policy, .gates = true}));
  }
}
TEST(DifferentialTest, PrefetchWindow) { compare(14, 400, {.policy = "lfu", .settings = {{"window", "3"}}}); }

}  // namespace
}  // namespace tencache
