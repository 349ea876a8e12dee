#include "traces/lower.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "policies/registry.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

Trace with_update() {
  Trace trace;
  const TensorId parameter = trace.add_tensor("p", 400, Role::parameter, true);
  const TensorId gradient = trace.add_tensor("g", 400, Role::gradient, false);
  add_op(trace, 10, {parameter}, {gradient});
  add_op(trace, 10, {parameter, gradient}, {parameter});
  trace.ops[1].phase = Phase::optimizer;
  trace.ops[1].placeable = true;
  return trace;
}

// 400 bytes of parameter read and written and 400 of gradient read: 1200 / (28 x 1e9 parameters/s) = 42 ns.
TEST(LowerTest, ZeroOffloadMovesTheUpdateToTheCpu) {
  MachineSpec machine = small_machine(10'000);
  machine.cpu_adam_parameters_per_second = 1e9;
  const MadePolicy made = make_policy("zero-offload");
  const Program program = lower(with_update(), *made.policy, machine);
  EXPECT_EQ(program.trace.ops[0].device, Device::gpu);
  EXPECT_EQ(program.trace.ops[1].device, Device::cpu);
  EXPECT_EQ(program.trace.ops[1].duration_ns, 42);
  EXPECT_EQ(program.changes.size(), 1U);
}

TEST(LowerTest, OthersLeaveItAndAMissingRateIsAnError) {
  const MachineSpec machine = small_machine(10'000);
  EXPECT_TRUE(lower(with_update(), *make_policy("on-demand").policy, machine).changes.empty());
  EXPECT_THROW(lower(with_update(), *make_policy("zero-offload").policy, machine), Error);
}

}  // namespace
}  // namespace tencache
