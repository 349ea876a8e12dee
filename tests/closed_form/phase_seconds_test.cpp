// How an iteration is divided among the phases (docs/results.md, "Phases").
#include <gtest/gtest.h>

#include "tests/small_cases.h"

namespace tencache {
namespace {

// One forward, one backward op and an update on the given device; the gradient takes 200 ns to the CPU, the parameter
// 30 ns to the GPU, which has room for both.
Trace step(Device device, Nanoseconds update_ns) {
  Trace trace;
  const TensorId p = trace.add_tensor("p", 30, Role::parameter, true);
  const TensorId g = trace.add_tensor("g", 200, Role::gradient, false);
  trace.add_op(make_op(trace, "forward", "a", Phase::forward, 40), std::vector{p}, {});
  trace.add_op(make_op(trace, "loss", "a", Phase::loss, 10), std::vector{p}, {});
  trace.add_op(make_op(trace, "backward", "a", Phase::backward, 100), std::vector{p}, std::vector{g});
  Op update = make_op(trace, "update", "a", Phase::optimizer, update_ns);
  update.device = device;
  trace.add_op(update, std::vector{p, g}, std::vector{p});
  return trace;
}

void leave_gradients(const Event& event, const View& view, Actions& actions) {
  if (event.kind != EventKind::op_done || event.device != Device::gpu) return;
  for (const Use& use : event.uses) {
    if (use.write && view.memory.role(use.tensor) == Role::gradient) actions.evict(use.tensor, 1);
  }
}

Nanoseconds phase(const RunResult& result, Phase phase) {
  return result.window.phase_ns[static_cast<std::size_t>(phase)];
}

// The GPU's next op waits for the CPU: 200 ns until the gradient is there, which ends the backward pass, and 70 ns for
// the update. Its wait for the changed parameter is the forward pass's.
TEST(PhaseSecondsTest, TheCpusUpdateBeginsWhenTheGradientIsThere) {
  const SmallRun run = run_small(small_machine(1000), step(Device::cpu, 70), 4, whole_tensors(), leave_gradients);
  EXPECT_EQ(run.result.period, 2U);
  EXPECT_EQ(phase(run.result, Phase::forward), 2 * (30 + 40));
  EXPECT_EQ(phase(run.result, Phase::loss), 2 * 10);
  EXPECT_EQ(phase(run.result, Phase::backward), 2 * (100 + 200));
  EXPECT_EQ(phase(run.result, Phase::optimizer), 2 * 70);
  EXPECT_EQ(run.result.window.time_ns, 2 * 450);
}

TEST(PhaseSecondsTest, TheGpusUpdateIsItsOwn) {
  const SmallRun run = run_small(small_machine(1000), step(Device::gpu, 70), 4);
  EXPECT_EQ(phase(run.result, Phase::forward), 2 * 40);
  EXPECT_EQ(phase(run.result, Phase::backward), 2 * 100);
  EXPECT_EQ(phase(run.result, Phase::optimizer), 2 * 70);
}

// No op of the GPU waits any more; what is left of the iteration counts in the same way.
TEST(PhaseSecondsTest, TheLastIterationWaitsForTheCpu) {
  const SmallRun run = run_small(small_machine(1000), step(Device::cpu, 70), 1, whole_tensors(), leave_gradients);
  EXPECT_EQ(phase(run.result, Phase::forward), 30 + 40);
  EXPECT_EQ(phase(run.result, Phase::backward), 100 + 200);
  EXPECT_EQ(phase(run.result, Phase::optimizer), 70);
  EXPECT_EQ(run.result.window.time_ns, 450);
}

}  // namespace
}  // namespace tencache
