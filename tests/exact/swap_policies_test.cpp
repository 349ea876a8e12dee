// tensile and capuchin: their plans on small traces, worked out by hand from the rules at the heads of their files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "core/error.h"
#include "policies/registry.h"
#include "tests/golden/golden_run.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Nanoseconds kernel_ns = 100;

// Ten kernels of 100 ns, f0 … f4, b4 … b0, as five_layers: f(i) reads a(i-1) and writes a(i), b(i) reads a(i). a0 has
// 20 bytes, a1 60, a2, a3 and a4 40. The kernels need 20 80 120 160 200 200 160 120 80 20. Not used are
//   a0 in kernels [2, 9), a1 in [3, 8), a2 in [4, 7), a3 in [5, 6).
// Links move 100 bytes a kernel each way.
Trace uneven_layers() {
  Trace trace;
  constexpr std::array<Bytes, 5> bytes = {20, 60, 40, 40, 40};
  std::vector<TensorId> a;
  for (std::size_t i = 0; i < 5; ++i) {
    a.push_back(trace.add_tensor("a" + std::to_string(i), bytes[i], Role::activation, false));
  }
  for (std::size_t i = 0; i < 5; ++i) {
    add_op(trace, kernel_ns, i == 0 ? std::vector<TensorId>{} : std::vector{a[i - 1]}, {a[i]});
  }
  for (std::size_t i = 5; i-- > 0;) add_op(trace, kernel_ns, {a[i]}, {});
  return trace;
}

// w, persistent, 40 bytes, is used in kernel 2 of six: not from 3 to 8, which is 2 of the next iteration. x needs 100
// in kernels 4 and 5.
Trace weight_and_peak() {
  Trace trace;
  const TensorId w = trace.add_tensor("w", 40, Role::parameter, true);
  const TensorId x = trace.add_tensor("x", 100, Role::activation, false);
  for (int op = 0; op < 6; ++op) {
    add_op(trace, kernel_ns,
           op == 2   ? std::vector{w}
           : op == 5 ? std::vector{x}
                     : std::vector<TensorId>{},
           op == 4 ? std::vector{x} : std::vector<TensorId>{});
  }
  return trace;
}

// GPU of 140. The peak is kernel 4 (200). Idle there: a0 (20), a1 (60), a2 (40). a1: out in 3, in in 7, away in 4, 5,
// 6: 160 140 140 100 from kernel 3 on. The peak is 3. Idle there: a0; a1, which is on its way still. a0: out in 2, in
// in 8, away in 3 to 7: 140 120 120 80 60. That fits. Run: both are out and in before anybody waits.
TEST(TensileTest, Golden) {
  const Trace trace = uneven_layers();
  const MachineSpec machine = small_machine(140);
  EXPECT_THAT(plan_of("tensile", {}, trace, machine),
              ElementsAre("2: evict a0 to cpu", "3: evict a1 to cpu", "7: fetch a1", "8: fetch a0"));
  const GoldenRun run = run_golden("tensile", {}, trace, machine);
  EXPECT_THAT(run.waits(0), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(run.transfers(1, d2h), 2U);
  EXPECT_EQ(run.result.iteration_ns.back(), 1000);
  EXPECT_TRUE(run.result.steady);
  EXPECT_THAT(run.result.policy_notes, IsEmpty());
  expect_golden("tensile", run.text);
}

// GPU of 160: a1 alone does it. At 40 bytes a kernel a1 is out in 3 and 4 and in in 6 and 7, so away in 5 only, and so
// is a2 (out in 4, in in 6); a0 is away in 3 to 7: 180 in 4 and 5. The peak is 4 again, and nobody else lowers it.
TEST(TensileTest, ThePeakThatNobodyLowersEndsIt) {
  EXPECT_THAT(plan_of("tensile", {}, uneven_layers(), small_machine(160)),
              ElementsAre("3: evict a1 to cpu", "7: fetch a1"));
  MachineSpec slow = small_machine(160);
  slow.links[0].bandwidth = slow.links[1].bandwidth = 2 * byte_per_ns / 5;
  EXPECT_THAT(plan_of("tensile", {}, uneven_layers(), slow), ElementsAre("2: evict a0 to cpu", "8: fetch a0"));
  EXPECT_THAT(run_golden("tensile", {}, uneven_layers(), slow).result.policy_notes,
              ElementsAre(HasSubstr("at its peak no tensor")));
}

// w: out in 3, in in 7, which is kernel 1 of the next iteration.
TEST(TensileTest, AcrossIterations) {
  EXPECT_THAT(plan_of("tensile", {}, weight_and_peak(), small_machine(120)),
              ElementsAre("1: fetch w", "3: evict w to cpu"));
}

// Where CPU memory has no room for a1 (60), the SSD takes it; a0 (20) stays with the CPU.
TEST(TensileTest, TheNextTierWhereCpuMemoryIsFull) {
  MachineSpec machine = small_machine(140, true);
  machine.tiers[1].capacity = 50;
  EXPECT_THAT(plan_of("tensile", {}, uneven_layers(), machine),
              ElementsAre("2: evict a0 to cpu", "3: evict a1 to nvme", "7: fetch a1", "8: fetch a0"));
}

// GPU of 170: 4 and 5 have too much. Free times: a0 700 - 2 x 20 = 660, a1 500 - 2 x 60 = 380, a2 300 - 2 x 40 = 220,
// a3
// 20. a0: gone at 220, needed back from 880: away in kernels 3 to 7, 180 in 4 and 5. a1: gone at 360, back from 740:
// away in 4, 5 and 6: 120. That fits. First iteration, passive: f4 lacks 30 bytes: a0 and a1, the coldest, leave, 20
// + 60. b1 waits for a1 (60), b0 for a0 (20). Second: nobody waits.
TEST(CapuchinTest, Golden) {
  const Trace trace = uneven_layers();
  const MachineSpec machine = small_machine(170);
  const GoldenRun run = run_golden("capuchin", {}, trace, machine);
  EXPECT_THAT(run.waits(0), ElementsAre(0, 0, 0, 0, 80, 0, 0, 0, 60, 20));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(run.transfers(1, d2h), 2U);
  EXPECT_EQ(run.transfers(1, h2d), 2U);
  EXPECT_EQ(run.result.iteration_ns.back(), 1000);
  EXPECT_TRUE(run.result.steady);
  EXPECT_THAT(run.result.policy_notes, IsEmpty());
  expect_golden("capuchin", run.text);
}

// At 20 bytes a kernel a0 has 700 - 2 x 100 ns, away in kernels 3 to 7: 180 in 4 and 5. a1 would have 500 - 2 x 300, a2
// 300 - 2 x 200: none.
TEST(CapuchinTest, PairsWithoutFreeTimeAreLeft) {
  MachineSpec slow = small_machine(170);
  slow.links[0].bandwidth = slow.links[1].bandwidth = byte_per_ns / 5;
  const GoldenRun run = run_golden("capuchin", {}, uneven_layers(), slow);
  EXPECT_THAT(run.result.policy_notes, ElementsAre(HasSubstr("no tensor is left that has free time")));
}

TEST(CapuchinTest, WhatPersistsMovesOnlyIfAsked) {
  const MachineSpec machine = small_machine(120);
  EXPECT_THAT(run_golden("capuchin", {}, weight_and_peak(), machine).result.policy_notes, testing::SizeIs(1));
  EXPECT_THAT(run_golden("capuchin", {{"persistent", "true"}}, weight_and_peak(), machine).result.policy_notes,
              IsEmpty());
}

TEST(SwapPoliciesTest, NothingMovesWhereEverythingFits) {
  for (const char* policy : {"tensile", "capuchin"}) {
    const GoldenRun run = run_golden(policy, {}, uneven_layers(), small_machine(200));
    EXPECT_EQ(run.transfers(1, d2h) + run.transfers(1, h2d), 0U) << policy;
    EXPECT_THROW(make_policy(policy, {{"limit", "1.1"}}), Error);
  }
}

}  // namespace
}  // namespace tencache
