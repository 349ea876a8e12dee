// Rehearsals: what a planner is told is what the run then does.
#include "sim/rehearse.h"

#include <gtest/gtest.h>

#include "policies/registry.h"
#include "sim/simulate.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

// Two parameters that do not fit together: each is fetched while the GPU waits.
Program two_parameters() {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::parameter, true),
                 b = trace.add_tensor("b", 100, Role::parameter, true);
  add_op(trace, 10, {a}, {});
  add_op(trace, 20, {b}, {});
  return {std::move(trace), {}};
}

// Rehearses `on-demand` when the schedule is known, and runs as it.
class Rehearser final : public Policy {
 public:
  explicit Rehearser(std::uint64_t budget) : budget_(budget) {}
  void on(const Event& event, const View& view, Actions&) override {
    if (event.kind != EventKind::profile_ready) return;
    ASSERT_TRUE(view.can_rehearse());
    const auto candidate = make_policy("on-demand").policy;
    told = view.rehearse(*candidate, {.events = budget_});
  }
  Rehearsal told;

 private:
  std::uint64_t budget_;
};

TEST(Rehearse, TellsWhatTheRunThenDoes) {
  const Program program = two_parameters();
  const MachineSpec machine = small_machine(150);
  Rehearser policy(1'000'000);
  const RunResult result = simulate(program, machine, policy);
  EXPECT_TRUE(policy.told.fits);
  EXPECT_TRUE(policy.told.complete);
  EXPECT_EQ(policy.told.iteration_ns, result.window.time_ns / static_cast<Nanoseconds>(result.period));
  // Each op waits for its 100 bytes at 1 byte/ns, then runs; b is on the GPU at the end, both are on the CPU.
  EXPECT_EQ(policy.told.iteration_ns, 230);
  EXPECT_EQ(policy.told.tiers, (std::vector<std::uint8_t>{2, 3}));
  EXPECT_EQ(policy.told.stored, 0U);
}

TEST(Rehearse, TheBudgetEndsIt) {
  Rehearser policy(1);
  simulate(two_parameters(), small_machine(150), policy);
  EXPECT_FALSE(policy.told.complete);
  EXPECT_EQ(policy.told.events, 1u);
}

TEST(Rehearse, ALongIterationEndsIt) {
  const auto candidate = make_policy("on-demand").policy;
  const Program program = two_parameters();
  // Its iterations take 230 ns each; the last events of one come after 210 and 230 ns.
  EXPECT_FALSE(rehearse(program, small_machine(150), *candidate, {.hopeless_ns = 180}).complete) << "an eighth longer";
  EXPECT_FALSE(rehearse(program, small_machine(150), *candidate, {.iterations = 2, .hopeless_ns = 205}).complete)
      << "and none comes that is shorter";
  EXPECT_TRUE(rehearse(program, small_machine(150), *candidate, {.iterations = 2, .hopeless_ns = 230}).complete);
}

// An update on the CPU, which the next iteration hides, is no part of the last one either; but for where something has
// to be in storage.
TEST(Rehearse, TheLastIterationEndsWhereTheNextWouldBegin) {
  Trace trace;
  const TensorId gradient = trace.add_tensor("gradient", 10, Role::gradient, false),
                 state = trace.add_tensor("state", 10, Role::optimizer_state, true);
  trace.add_tensor("unused", 100, Role::parameter, true);
  add_op(trace, 90, {}, {});
  add_op(trace, 10, {}, {gradient});
  add_op(trace, 60, {gradient, state}, {state}, Device::cpu);
  const Program program{std::move(trace), {}};
  MachineSpec machine = small_machine(150);
  machine.tiers.push_back({"nvme", TierKind::nvme, 1'000'000, 1, {}});
  const auto iteration_ns = [&](Bytes cpu_bytes) {
    machine.tiers[1].capacity = cpu_bytes;
    const auto candidate = make_policy("on-demand").policy;
    return rehearse(program, machine, *candidate, {.iterations = 1}).iteration_ns;
  };
  EXPECT_EQ(iteration_ns(1'000), 100);
  machine.tiers[0].capacity = 50;
  EXPECT_EQ(iteration_ns(69), 170) << "120 bytes are alive, and 119 have room";
}

TEST(Rehearse, OutOfMemoryIsAnAnswer) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::parameter, true),
                 b = trace.add_tensor("b", 100, Role::parameter, true);
  add_op(trace, 10, {a, b}, {});
  const Program program{std::move(trace), {}};
  const auto candidate = make_policy("on-demand").policy;
  EXPECT_FALSE(rehearse(program, small_machine(150), *candidate, {.events = 1000}).fits);
}

TEST(Rehearse, OfferedNowhereElse) {
  const Program program = two_parameters();
  class Asks final : public Policy {
   public:
    void on(const Event& event, const View& view, Actions&) override {
      if (event.kind == EventKind::profile_ready) offered = view.can_rehearse();
    }
    bool offered = true;
  } candidate;
  rehearse(program, small_machine(150), candidate, {.events = 1000});
  EXPECT_FALSE(candidate.offered) << "rehearsals do not nest";
}

}  // namespace
}  // namespace tencache
