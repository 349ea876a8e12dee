// TERAIO: its plan on small traces, worked out by hand from the rules at the head of policies/teraio.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "policies/registry.h"
#include "tests/golden/golden_run.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Nanoseconds kernel_ns = 100;
constexpr Bytes tensor_bytes = 40;

// CPU memory: 100 bytes a kernel each way; the SSD: 25. No latencies.
constexpr auto machine_of = small_machine_with_slow_storage;

// GPU of 130. The kernels f0 … f4, b4 … b0 need 40 80 120 160 200 200 160 120 80 40: 3 to 6 are too much. Periods:
// a0 [2, 9), a1 [3, 8), a2 [4, 7), a3 [5, 6). Benefit / size is the time above the limit between the transfers:
//   a0  out in kernels 2 (25 bytes) and 3 (15), in from 7 (15) and 8 (25): 4, 5, 6: 300
//   a1  out in 3 and 4, in from 6: 5: 100.   a2, a3: out and in meet.
// a0 goes to the SSD: 4, 5, 6 need 160 160 120 now. a1 has 10 bytes left in 3, so its offload ends in 5, and its
// prefetch (10 left in 7) must begin in 5: nothing. To CPU memory it is out in 3 and in from 7 on: 4 and 5, 200. a2
// that way: out in 4, in from 6: 5, 100. So a1 goes to CPU memory: 4, 5, 6 need 120 120 80, and only 3 has too much,
// which no period frees. Run: a0 leaves from 200, when f2 is issued, to 360. f3, issued at 300, lets a1 leave, until
// 340, and waits for that room. b2 is issued at 740 and asks for a1 (back at 780, needed at 840) and a0 (at 900, needed
// at 940).
TEST(TeraioTest, Golden) {
  const Trace trace = five_layers(kernel_ns, tensor_bytes);
  const MachineSpec machine = machine_of(130);
  const Settings mixed = {{"cpu_memory", "40"}};
  EXPECT_THAT(plan_of("teraio", mixed, trace, machine),
              ElementsAre("2: evict a0 to nvme", "3: evict a1 to cpu", "7: fetch a1", "7: fetch a0"));
  const GoldenRun run = run_golden("teraio", mixed, trace, machine);
  EXPECT_THAT(run.waits(0), ElementsAre(0, 0, 0, 40, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 40, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(run.stall(StallCause::d2h), 40);
  EXPECT_EQ(run.result.iteration_seconds(), 1040e-9);
  EXPECT_TRUE(run.result.steady);
  EXPECT_THAT(run.result.policy_notes, ElementsAre(HasSubstr("does not bring the memory below the limit")));
  expect_golden("teraio", run.text);
}

// Without CPU memory only a0 has a plan. f3 waits for its room until 360. At 460 f4 lacks 30 bytes and nothing is
// leaving: a1, the coldest that it does not use, leaves for the SSD, until 620. b2, issued at 920, asks for a0 by the
// plan, and for a1 because b1 is next: that is urgent and goes first, until 1080; a0 comes until 1240. b1 waits from
// 1020, b0 from 1180.
TEST(TeraioTest, WhatThePlanMissesGoesToTheSsdOnDemand) {
  const Trace trace = five_layers(kernel_ns, tensor_bytes);
  const MachineSpec machine = machine_of(130);
  EXPECT_THAT(plan_of("teraio", {}, trace, machine), ElementsAre("2: evict a0 to nvme", "7: fetch a0"));
  const GoldenRun run = run_golden("teraio", {}, trace, machine);
  EXPECT_THAT(run.waits(0), ElementsAre(0, 0, 0, 60, 160, 0, 0, 0, 60, 60));
  EXPECT_EQ(run.transfers(0, h2d) + run.transfers(0, d2h), 0U);
  // A byte less than a1 needs is no room for it.
  EXPECT_EQ(plan_of("teraio", {{"cpu_memory", "39"}}, trace, machine), plan_of("teraio", {}, trace, machine));
}

// Kernels 4, 5, 6 need 30 more than the GPU has. "large" (80) and "small" (40) can both be away in all of them. By the
// listing both have 300; the larger is taken. By the text small has 30 bytes x 300 over the time of two trips of 40,
// 80; large the same over 160.
TEST(TeraioTest, BenefitByTheTextCountsTheExcess) {
  Trace trace;
  const TensorId large = trace.add_tensor("large", 80, Role::activation, false);
  const TensorId small = trace.add_tensor("small", 40, Role::activation, false);
  const TensorId x = trace.add_tensor("x", 50, Role::activation, false);
  for (int op = 0; op < 10; ++op) {
    add_op(trace, kernel_ns,
           op == 9            ? std::vector{large, small}
           : op > 4 && op < 7 ? std::vector{x}
                              : std::vector<TensorId>{},
           op == 0   ? std::vector{large, small}
           : op == 4 ? std::vector{x}
                     : std::vector<TensorId>{});
  }
  const MachineSpec machine = small_machine(140, true);
  EXPECT_THAT(plan_of("teraio", {}, trace, machine), ElementsAre("1: evict large to nvme", "8: fetch large"));
  EXPECT_THAT(plan_of("teraio", {{"benefit", "text"}}, trace, machine),
              ElementsAre("1: evict small to nvme", "8: fetch small"));
}

// w is used in kernel 2 of six, so not from 3 to 8, which is 2 of the next iteration. x needs 100 in kernels 4 and 5:
// too much for 120. w is out in 3 (25 bytes) and 4 (15); in from 6, which is 0, (15) and 7 (25). Kernel 5 has room.
TEST(TeraioTest, PeriodsRunOverTheIterationsEnd) {
  Trace trace;
  const TensorId w = trace.add_tensor("w", tensor_bytes, Role::parameter, true);
  const TensorId x = trace.add_tensor("x", 100, Role::activation, false);
  for (int op = 0; op < 6; ++op) {
    add_op(trace, kernel_ns,
           op == 2   ? std::vector{w}
           : op == 5 ? std::vector{x}
                     : std::vector<TensorId>{},
           op == 4 ? std::vector{x} : std::vector<TensorId>{});
  }
  EXPECT_THAT(plan_of("teraio", {}, trace, machine_of(120)), ElementsAre("0: fetch w", "3: evict w to nvme"));
}

// Without an SSD: CPU memory, as far as it goes.
TEST(TeraioTest, CpuMemoryTakesTheSsdsPlace) {
  const Trace trace = five_layers(kernel_ns, tensor_bytes);
  EXPECT_THAT(plan_of("teraio", {}, trace, small_machine(130)),
              ElementsAre("2: evict a0 to cpu", "3: evict a1 to cpu", "7: fetch a1", "8: fetch a0"));
  MachineSpec machine = small_machine(130);
  machine.tiers[1].capacity = tensor_bytes;
  EXPECT_EQ(plan_of("teraio", {}, trace, machine).size(), 2U);  // one of the two
}

TEST(TeraioTest, NothingMovesWhereEverythingFits) {
  const Trace trace = five_layers(kernel_ns, tensor_bytes);
  EXPECT_THAT(plan_of("teraio", {}, trace, machine_of(200)), testing::IsEmpty());
  EXPECT_THAT(plan_of("teraio", {{"limit", "0.99"}}, trace, machine_of(200)), testing::Not(testing::IsEmpty()));
  EXPECT_THROW(make_policy("teraio", {{"limit", "0"}}), Error);
}

}  // namespace
}  // namespace tencache
