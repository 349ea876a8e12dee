#include "traces/transform/lower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/error.h"
#include "policies/registry.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  machine.cpu.adam_parameters_per_second = 1e9;
  const MadePolicy made = make_policy("zero-offload");
  const Program program = lower(with_update(), *made.policy, machine);
  EXPECT_EQ(program.trace.ops[0].device, Device::gpu);
  EXPECT_EQ(program.trace.ops[1].device, Device::cpu);
  EXPECT_EQ(program.trace.ops[1].duration_ns, 42);
  EXPECT_EQ(program.trace.ops[1].bytes, 1200U);
  EXPECT_EQ(program.changes.size(), 1U);
}

std::string complaint_of(const MachineSpec& machine) {
  try {
    lower(with_update(), *make_policy("zero-offload").policy, machine);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LowerTest, OthersLeaveItAndAMissingRateIsAnError) {
  const MachineSpec machine = small_machine(10'000);
  EXPECT_TRUE(lower(with_update(), *make_policy("on-demand").policy, machine).changes.empty());
  EXPECT_THAT(complaint_of(machine), HasSubstr("state cpu.adam_parameters_per_second"));
  MachineSpec without_cpu = machine;
  without_cpu.tiers.resize(1);
  EXPECT_THAT(complaint_of(without_cpu), HasSubstr("the machine has no CPU memory"));
}

class Reversing final : public Policy {
 public:
  void order(const Trace&, const MachineSpec&, std::vector<std::int32_t>& groups) const override {
    std::reverse(groups.begin(), groups.end());
  }
};

// Two runs of the same two groups, and an op between them that must stay where it is.
TEST(LowerTest, GroupsInSeveralRunsAreCountedOnce) {
  Trace trace;
  for (const std::int32_t group : {0, 1, -1, 0, 1}) {
    const OpIndex op = add_op(trace, 10, {}, {});
    trace.ops[op].group = group;
    trace.ops[op].reorderable = group >= 0;
  }
  const Program program = lower(trace, Reversing(), small_machine(1000));
  EXPECT_THAT(program.changes, ElementsAre("2 optimizer sub-groups put into the policy's order"));
  EXPECT_EQ(program.trace.ops[0].group, 1);
  EXPECT_EQ(program.trace.ops[3].group, 1);
}

class WithHooks final : public Policy {
 public:
  Requirements requirements() const override { return {.governed = {}, .module_hooks = true}; }
};

// Modules a a b - b of the GPU and one op of the CPU between: a is entered after b of the iteration before, b twice.
TEST(LowerTest, ModuleHooksCostTheHostTime) {
  Trace trace;
  const std::array<const char*, 6> modules = {"a", "a", "b", "", "b", "c"};
  for (const char* module : modules) {
    const OpIndex op = add_op(trace, 10, {}, {}, std::string_view(module) == "c" ? Device::cpu : Device::gpu, 3);
    trace.ops[op].module = trace.names.intern(module);
  }
  MachineSpec machine = small_machine(1000);
  EXPECT_TRUE(lower(trace, WithHooks(), machine).changes.empty());
  machine.host.per_module_ns = 100;
  const Program program = lower(trace, WithHooks(), machine);
  std::vector<Nanoseconds> gaps;
  for (const Op& op : program.trace.ops) gaps.push_back(op.gap_before_ns);
  EXPECT_EQ(gaps, (std::vector<Nanoseconds>{103, 3, 103, 3, 103, 3}));
  EXPECT_EQ(program.changes.size(), 1U);
  EXPECT_EQ(lower(trace, Policy(), machine).trace.ops[0].gap_before_ns, 3);
}

}  // namespace
}  // namespace tencache
