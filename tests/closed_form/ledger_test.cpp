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
  Ledger ledger{moment, &timeline, false, Completes::over};
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
  Ledger live(moment, nullptr, true, Completes::over);
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

// Observed later: the op, launched at 10, waited for a copy until 50 and ran 60 to 100. What was told meanwhile comes after
// it: the boundary of 20, and then the gap until 130.
TEST_F(LedgerTest, WhatIsToldWaitsForTheObservation) {
  Ledger later(moment, &timeline, false, Completes::ordered);
  const auto now = [&](Nanoseconds ns) {
    moment.now = ns;
    later.advance(0, Residency(MachineSpec{}, {}, 0, false));
  };
  later.boundary();
  now(10);
  later.expect_op(0, 7, {.issued_ns = 5, .ready_ns = 10});
  now(20);
  later.boundary();
  later.gap(0, 130, none);
  later.expect_op(0, 8, {});
  EXPECT_EQ(later.iterations(), 0U);
  EXPECT_EQ(later.counters().compute_ns, 0);
  later.observe_op(0, {.fence = 9, .start_ns = 1, .end_ns = 2}, {});  // nobody's
  later.observe_op(0, {.fence = 7, .start_ns = 60, .end_ns = 100}, {.until_ns = 50, .cause = StallCause::h2d});
  EXPECT_EQ(later.counters().compute_ns, 40);
  EXPECT_EQ(later.counters().stall_ns[StallCause::h2d], 45);
  EXPECT_EQ(later.counters().gap_ns, 5 + 10 + 30);
  EXPECT_FALSE(later.settled());
  later.settle();
  EXPECT_TRUE(later.settled());
  RunResult result;
  later.report(result);
  EXPECT_EQ(result.iteration_ns, (std::vector<Nanoseconds>{100}));
}

// A copy counts when it is observed.
TEST_F(LedgerTest, ACopyThatIsExpectedCountsOnceItIsObserved) {
  Ledger later(moment, &timeline, false, Completes::ordered);
  later.expect_copy(3, {.kind = SpanKind::transfer, .lane = first_link_lane + 1, .bytes = 64});
  EXPECT_EQ(later.counters().links[1].bytes, 0U);
  for (int twice = 0; twice < 2; ++twice) later.observe_copy({.fence = 3, .start_ns = 20, .end_ns = 50});
  EXPECT_EQ(later.counters().links[1].bytes, 64U);
  EXPECT_EQ(later.counters().links[1].busy_ns, 30);
  ASSERT_EQ(timeline.spans.size(), 1U);
  EXPECT_EQ(timeline.spans[0].start_ns, 20);
}

}  // namespace
}  // namespace tencache
