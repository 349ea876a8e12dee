// G10: its plan on small traces, worked out by hand from the rules at the head of policies/g10.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "policies/registry.h"
#include "tests/golden/golden_run.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

using testing::ElementsAre;

constexpr Nanoseconds kernel_ns = 100;
constexpr Bytes tensor_bytes = 40;

// To the CPU 1 byte/ns: a trip of 40 bytes takes 40 ns, two and a half take 100. To the SSD a quarter of it: 160 and
// 400, 25 bytes a kernel.
constexpr auto machine_of = small_machine_with_slow_storage;

std::vector<std::string> plan_of(const Trace& trace, const MachineSpec& machine, const Settings& settings = {}) {
  return plan_of("g10", settings, trace, machine);
}

// The ten kernels of five_layers take 100 ns each. GPU of 130: the plan may fill 128. With allocation one kernel ahead
// the kernels need
//   80 120 160 200 200 200 160 120 80 40: 2 to 6 are too much.
// Benefits: a0, half out in kernel 2, half in from 8 on: 500 ns x 40. a1: 3 to 7, 400 ns. a2: 4 to 6, 200 ns. a3: none.
//   a0, 700 ns long, goes to the SSD: out in kernels 2 (25 bytes) and 3 (15), in from 7 (25) and 8 (15). Free in 4,
//   5, 6. Now a1: 10 bytes are left in kernel 3, half is out in 4, and half in from 6 on (nothing left in 7): 200 ns,
//   like a2. It is longer, and next: out in 3, 4, 5; in from 5 on: they meet, no migration. a2, 300 ns, is too short
//   for the SSD and long enough for the CPU: out in 4, in in 6, free in 5. 2, 3 and 4 are still too much, and nothing
//   is left to do. No prefetch can move: 5 and 6 need 120 already.
// Run: a0 leaves from 200 (when op 2 is issued) to 360. f3 needs room for a3 at 300 and waits for it, 60. a2 leaves
// when
//   f4 is issued, 460 to 500, and f4 waits 40 for a4's room. a2 is back at 740 (asked for at 700, b3), a0 at 960 (800,
//   b2; needed at 1000).
TEST(G10Test, Golden) {
  const Trace trace = five_layers(kernel_ns, tensor_bytes);
  const MachineSpec machine = machine_of(130);
  EXPECT_THAT(plan_of(trace, machine),
              ElementsAre("2: evict a0 to nvme", "4: evict a2 to cpu", "6: fetch a2", "7: fetch a0"));
  const GoldenRun run = run_golden("g10", {}, trace, machine);
  EXPECT_THAT(run.waits(0), ElementsAre(0, 0, 0, 60, 40, 0, 0, 0, 0, 0));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 60, 40, 0, 0, 0, 0, 0));
  EXPECT_EQ(run.stall(StallCause::nvme_write), 60);
  EXPECT_EQ(run.stall(StallCause::d2h), 40);
  EXPECT_EQ(run.result.iteration_seconds(), 1100e-9);
  EXPECT_TRUE(run.result.steady);
  expect_golden("g10", run.text);
}

// GPU of 170 (168): only kernels 3, 4 and 5 are too much. a0 to the SSD frees 4 and 5; nothing helps 3. Its prefetch
// moves from 7 to 6, which needs 120 without it, not to 5, which needs 160.
TEST(G10Test, PrefetchesMoveEarlierWhileMemoryFits) {
  EXPECT_THAT(plan_of(five_layers(kernel_ns, tensor_bytes), machine_of(170)),
              ElementsAre("2: evict a0 to nvme", "6: fetch a0"));
  EXPECT_THAT(plan_of(five_layers(kernel_ns, tensor_bytes), machine_of(170), {{"eager", "false"}}),
              ElementsAre("2: evict a0 to nvme", "7: fetch a0"));
}

TEST(G10Test, NothingMovesWhereEverythingFits) {
  EXPECT_THAT(plan_of(five_layers(kernel_ns, tensor_bytes), machine_of(210)), testing::IsEmpty());
  EXPECT_THAT(plan_of(five_layers(kernel_ns, tensor_bytes), machine_of(170), {{"limit", "1"}}),
              testing::Not(testing::IsEmpty()));
  EXPECT_THAT(plan_of(five_layers(kernel_ns, tensor_bytes), machine_of(200), {{"limit", "1"}}), testing::IsEmpty());
}

// p and q are not used in kernels [1, 9); kernels 4 and 5 need 100 more (x, allocated one ahead). GPU of 120 (118):
// both must go. p takes the SSD's way out in kernels 1 and 2 (10 bytes are left), and its way in in 7 and 8 (10 left).
// A trip of q alone would end in kernel 2, and all of kernel 1 is taken: to the CPU if it has room, else to the SSD all
// the same: out until kernel 4, in from 5 on.
TEST(G10Test, CpuMemoryWhereTheWriteSlotsAreTaken) {
  Trace trace;
  const TensorId p = trace.add_tensor("p", tensor_bytes, Role::activation, false);
  const TensorId q = trace.add_tensor("q", tensor_bytes, Role::activation, false);
  const TensorId x = trace.add_tensor("x", 100, Role::activation, false);
  for (int op = 0; op < 10; ++op) {
    add_op(trace, kernel_ns, op == 9 ? std::vector{p, q} : std::vector<TensorId>{},
           op == 0   ? std::vector{p, q}
           : op == 5 ? std::vector{x}
                     : std::vector<TensorId>{});
  }
  MachineSpec machine = machine_of(120);
  const Settings late = {{"eager", "false"}};
  EXPECT_THAT(plan_of(trace, machine, late),
              ElementsAre("1: evict q to cpu", "1: evict p to nvme", "7: fetch p", "8: fetch q"));
  machine.tiers[1].capacity = tensor_bytes - 1;
  EXPECT_THAT(plan_of(trace, machine, late),
              ElementsAre("1: evict p to nvme", "1: evict q to nvme", "5: fetch q", "7: fetch p"));
}

// w is used in kernel 2 of six: from 3 to 8, which is 2 of the next iteration, it is not. x needs 100 in kernels 3 and
// 4: too much for a GPU of 120. Alone on the link w leaves until 460, in kernel 4; a trip and a half before 800, at
// 560, in kernel 5, its prefetch begins. With bandwidth reserved it would begin in kernel 6 (15 bytes) and 7, which is
// op 0.
TEST(G10Test, PeriodsOverTheIterationsEndReserveNothing) {
  Trace trace;
  const TensorId w = trace.add_tensor("w", tensor_bytes, Role::parameter, true);
  const TensorId x = trace.add_tensor("x", 100, Role::activation, false);
  for (int op = 0; op < 6; ++op) {
    add_op(trace, kernel_ns, op == 2 ? std::vector{w} : std::vector<TensorId>{},
           op == 4 ? std::vector{x} : std::vector<TensorId>{});
  }
  EXPECT_THAT(plan_of(trace, machine_of(120)), ElementsAre("3: evict w to nvme", "5: fetch w"));
  EXPECT_THAT(plan_of(trace, machine_of(120), {{"reserve_wrapping", "true"}, {"eager", "false"}}),
              ElementsAre("0: fetch w", "3: evict w to nvme"));
}

TEST(G10Test, ALimitIsAShare) {
  EXPECT_THROW(make_policy("g10", {{"limit", "0"}}), Error);
  EXPECT_THROW(make_policy("g10", {{"limit", "1.1"}}), Error);
}

// GPU of 100, which a0 and then both of op 1 fill: no period is long enough for a plan. All moves on demand.
TEST(G10Test, WhatThePlanLeavesIsFetchedOnDemand) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", tensor_bytes, Role::activation, false);
  const TensorId x = trace.add_tensor("x", 100, Role::activation, false);
  add_op(trace, 10, {}, {a});
  add_op(trace, 10, {}, {x});
  add_op(trace, 10, {a}, {});
  EXPECT_THAT(plan_of(trace, machine_of(100)), testing::IsEmpty());
  const GoldenRun run = run_golden("g10", {}, trace, machine_of(100));
  EXPECT_THAT(run.waits(0), ElementsAre(0, 40, 40));
}

}  // namespace
}  // namespace tencache
