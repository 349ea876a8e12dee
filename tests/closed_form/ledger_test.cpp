// The ledger alone, on figures that can be worked out on paper.
#include "core/engine/ledger.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tencache {
namespace {

struct LedgerTest : testing::Test {
  void at(Nanoseconds now) {
    const Nanoseconds passed = now - moment.now;
    moment.now = now;
    ledger.advance(passed, Residency(MachineSpec{}, {}, 0, false));
  }
  Nanoseconds stall(StallCause cause) const { return ledger.counters().stall_ns[cause]; }
  Nanoseconds phase(Phase phase) const { return ledger.counters().phase_ns[static_cast<std::size_t>(phase)]; }
  // Compute, gaps and stalls; the sum over phases is the same.
  Nanoseconds sum() const {
    const Counters& c = ledger.counters();
    const Nanoseconds stalls = std::accumulate(c.stall_ns.begin(), c.stall_ns.end(), Nanoseconds{0});
    EXPECT_EQ(std::accumulate(c.phase_ns.begin(), c.phase_ns.end(), Nanoseconds{0}), c.compute_ns + c.gap_ns + stalls);
    return c.compute_ns + c.gap_ns + stalls;
  }

  Moment moment;
  Timeline timeline;
  Ledger ledger{moment, &timeline, false};
};

// Issued at 10, room by an eviction at 30, the last byte at 60, done at 100: 10 gap, 20 d2h, 30 h2d, 40 compute.
TEST_F(LedgerTest, ALateOpIsGapThenItsCausesThenCompute) {
  const OpTiming op{
      .late = true,
      .issued_ns = 10,
      .ready_ns = 60,
      .lateness = {
          .asked_ns = 10, .room_ns = 30, .first_hop_ns = 30, .room = StallCause::d2h, .last = StallCause::h2d}};
  ledger.wait(0, op, 60);
  ledger.compute(0, op, 100);
  EXPECT_EQ(ledger.counters().gap_ns, 10);
  EXPECT_EQ(stall(StallCause::d2h), 20);
  EXPECT_EQ(stall(StallCause::h2d), 30);
  EXPECT_EQ(ledger.counters().compute_ns, 40);
  EXPECT_EQ(sum(), 100);
  ASSERT_EQ(timeline.spans.size(), 4U);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(timeline.spans[i].start_ns, timeline.spans[i - 1].end_ns);
}

// Time is taken once: what lies before the end of the last piece counts for nothing.
TEST_F(LedgerTest, TimeIsTakenOnce) {
  ledger.gap(0, 30, none);
  ledger.gap(0, 20, none);
  ledger.stall(0, 30, StallCause::memory, none);
  ledger.stall(0, 35, StallCause::memory, none);
  EXPECT_EQ(ledger.counters().gap_ns, 30);
  EXPECT_EQ(stall(StallCause::memory), 5);
  EXPECT_EQ(sum(), 35);
}

// Ready at 20, but other ranks come at 50.
TEST_F(LedgerTest, WaitingForOtherRanksIsCollective) {
  ledger.wait(0, {.meets = true, .issued_ns = 20, .ready_ns = 20}, 50);
  EXPECT_EQ(ledger.counters().gap_ns, 20);
  EXPECT_EQ(stall(StallCause::collective), 30);
}

// The GPU computes backward until 50 and waits until 100 for the CPU, which updates from 60 to 90. Backward's until the
// update begins, the optimizer's from there on; 30 of the wait the CPU computes.
TEST_F(LedgerTest, WaitingForTheCpuCountsForBackwardUntilItsFirstUpdate) {
  Program program;
  program.trace.ops.resize(2);
  program.trace.ops[0].phase = Phase::backward;
  program.trace.ops[1].phase = Phase::optimizer;
  ledger.follow(&program);
  ledger.compute(0, {.op = 0}, 50);
  at(60);
  ledger.cpu_starts(1);
  const OpTiming update{.op = 1, .issued_ns = 60, .ready_ns = 60};
  ledger.wait(1, update, 60);
  ledger.compute(1, update, 90);
  at(100);
  ledger.stall(0, 100, StallCause::cpu_optimizer, 0);
  EXPECT_EQ(stall(StallCause::cpu_optimizer), 50);
  EXPECT_EQ(ledger.counters().cpu_wait_compute_ns, 30);
  EXPECT_EQ(ledger.counters().cpu_compute_ns, 30);
  EXPECT_EQ(phase(Phase::backward), 60);
  EXPECT_EQ(phase(Phase::optimizer), 40);
  EXPECT_EQ(sum(), 100);
}

// 40 bytes for 10 ns, then 70 for 5.
TEST_F(LedgerTest, OccupancyIsIntegrated) {
  MachineSpec spec;
  spec.tiers = {{"gpu", TierKind::gpu, 100, 1, {}}};
  Residency memory(spec, {{}}, 0, false);
  for (const Bytes bytes : {40, 30}) memory.add_tensor(bytes, Role::activation, false);
  ASSERT_TRUE(memory.reserve(0, 0));
  ledger.advance(10, memory);
  ASSERT_TRUE(memory.reserve(1, 0));
  ledger.advance(5, memory);
  EXPECT_TRUE(ledger.counters().tiers[0].occupancy_byte_ns == 40 * 10 + 70 * 5);
}

// Iterations of 10, 20 and 40 ns whose ends have the states 7, 8, 7: the period is the last two.
TEST_F(LedgerTest, AStateThatRecursEndsThePeriod) {
  ledger.boundary();
  const Nanoseconds ends[] = {10, 30, 70};
  const std::uint64_t states[] = {7, 8, 7};
  for (int i = 0; i < 3; ++i) {
    at(ends[i]);
    ledger.boundary();
    EXPECT_EQ(ledger.recurs(states[i]), i == 2);
  }
  RunResult result;
  ledger.report(result);
  EXPECT_TRUE(result.steady);
  EXPECT_EQ(result.iterations, 3U);
  EXPECT_EQ(result.period, 2U);
  EXPECT_EQ(result.window.time_ns, 60);
  EXPECT_EQ(result.iteration_ns, (std::vector<Nanoseconds>{10, 20, 40}));
}

// Without a period the second half is the window; of a live program all of it, though only two boundaries are kept.
TEST_F(LedgerTest, WithoutAPeriodTheWindowIsTheSecondHalfOrAll) {
  Ledger live(moment, nullptr, true);
  for (Ledger* each : {&ledger, &live}) {
    for (Nanoseconds end = 0; end <= 40; end += 10) {
      moment.now = end;
      each->advance(0, Residency(MachineSpec{}, {}, 0, false));
      each->boundary();
    }
    RunResult result;
    each->report(result);
    EXPECT_FALSE(result.steady);
    EXPECT_EQ(result.iterations, 4U);
    EXPECT_EQ(result.period, each == &live ? 4U : 2U);
    EXPECT_EQ(result.window.time_ns, each == &live ? 40 : 20);
  }
}

}  // namespace
}  // namespace tencache
