// Each policy on one small trace. What it must do, and when, is worked out by hand from its rule in the comment above
// its test; the run's whole timeline is compared with tests/goldens/<name>.txt (golden_run.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "tests/golden/golden_run.h"

namespace tencache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Nanoseconds forward_ns = 150, backward_ns = 300, update_ns = 50;
constexpr Nanoseconds forward_and_backward_ns = 3 * (forward_ns + backward_ns);
constexpr Nanoseconds compute_ns = forward_and_backward_ns + 3 * update_ns;
constexpr Bytes parameter_bytes = 100, activation_bytes = 50;  // gradients and states are of the parameter's size
constexpr Nanoseconds copy_ns = 100;                           // of a parameter, gradient or state: 1 byte/ns

// Three layers, nine ops: f0 f1 f2 b2 b1 b0 u0 u1 u2. Layer i has parameter p, activation a, gradient g and state s.
//   f(i) reads p(i) and a(i-1), writes a(i);  b(i) reads p(i) and a(i), writes g(i);
//   u(i) reads p(i), g(i), s(i), writes p(i), s(i). f2 and b2 follow each other in the same module.
Trace three_layers() {
  Trace trace;
  std::array<TensorId, 3> p{}, a{}, g{}, s{};
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string layer = std::to_string(i);
    p[i] = trace.add_tensor("p" + layer, parameter_bytes, Role::parameter, true);
    a[i] = trace.add_tensor("a" + layer, activation_bytes, Role::activation, false);
    g[i] = trace.add_tensor("g" + layer, parameter_bytes, Role::gradient, false);
    s[i] = trace.add_tensor("s" + layer, parameter_bytes, Role::optimizer_state, true);
  }
  using Tensors = std::vector<TensorId>;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string layer = std::to_string(i);
    trace.add_op(make_op(trace, "f" + layer, "layer" + layer, Phase::forward, forward_ns),
                 i == 0 ? Tensors{p[i]} : Tensors{p[i], a[i - 1]}, Tensors{a[i]});
  }
  for (std::size_t i = 3; i-- > 0;) {
    const std::string layer = std::to_string(i);
    trace.add_op(make_op(trace, "b" + layer, "layer" + layer, Phase::backward, backward_ns), Tensors{p[i], a[i]},
                 Tensors{g[i]});
  }
  for (std::size_t i = 0; i < 3; ++i) {
    trace.add_op(make_op(trace, "u" + std::to_string(i), "", Phase::optimizer, update_ns), Tensors{p[i], g[i], s[i]},
                 Tensors{p[i], s[i]});
  }
  return trace;
}

// Links of 1 byte/ns in both directions. The CPU updates at 2.5 bytes/ns: the 500 bytes of an update (p, g, s read;
// p, s written) take 200 ns, as 500 / (28 x 0.089285) = 200.002 rounded down.
constexpr Nanoseconds cpu_update_ns = 200;
MachineSpec machine_of(Bytes gpu_bytes) {
  MachineSpec machine = small_machine(gpu_bytes);
  machine.cpu.adam_parameters_per_second = 89'285'000;
  machine.validate();
  return machine;
}

GoldenRun run_policy(const std::string& name, const Settings& settings, Bytes gpu_bytes) {
  return run_golden(name, settings, three_layers(), machine_of(gpu_bytes));
}

// The GPU has no limit and holds all persistent tensors at the start: nothing moves, nothing waits, although the
// machine's 350 bytes would not hold the 1050 of the trace.
TEST(PolicyGoldenTest, Ideal) {
  const GoldenRun run = run_policy("ideal", {}, 350);
  EXPECT_THAT(run.result.iteration_ns, ElementsAre(compute_ns, compute_ns));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(run.transfers(0, h2d) + run.transfers(0, d2h) + run.transfers(1, h2d) + run.transfers(1, d2h), 0U);
  EXPECT_TRUE(run.result.steady);
  expect_golden("ideal", run.text);
}

// GPU of 350; parameters and states start on the CPU; least recently used first; what is clean is dropped at once.
// First iteration, the wait before each op:
//   f0 100  p0 comes in.                                          f1 100  p1 comes in.
//   f2 100  a2 fills the GPU; p0, the coldest, is clean: dropped. p2 comes in.
//   b2   0  g2 needs 100. Coldest: a0 (50, dirty, moves out meanwhile), p1 (100, clean, dropped): room at once.
//   b1 100  a2 has died: g1 has room; p2 is dropped, p1 comes in.
//   b0 350  g0, p0, a0 need 250, 50 are free: g2 and g1 (dirty) leave 100 + 100. g0 takes the first 100, p0 the second:
//           p0 comes in 100, a0 50.
//   u0 100  p1 is dropped, s0 comes in.
//   u1 400  150 free: p1 in 100; now g1 and s1 need 200, 50 are free: p0 and s0 (just updated) leave, 100 + 100; g1
//           comes in beside s0's leaving, s1 after it 100. Of that, room for s1 (d2h) 300, its copy (h2d) 100.
//   u2 400  the same with p1 and s1.
// The second finds p2 and s2 dirty on the GPU: 200 more before f1 for their way out (d2h; a1 and p1 need 150, so both
// leave), and then the state is that of the first iteration before f2.
TEST(PolicyGoldenTest, OnDemand) {
  const GoldenRun run = run_policy("on-demand", {}, 350);
  const Nanoseconds first_waits_ns = 100 + 100 + 100 + 0 + 100 + 350 + 100 + 400 + 400;
  EXPECT_THAT(run.waits(0), ElementsAre(100, 100, 100, 0, 100, 350, 100, 400, 400));
  EXPECT_THAT(run.waits(1), ElementsAre(100, 300, 100, 0, 100, 350, 100, 400, 400));
  ASSERT_GE(run.result.iterations, 2U);
  EXPECT_EQ(run.result.iteration_ns[0], compute_ns + first_waits_ns);
  EXPECT_EQ(run.result.iteration_ns[1], compute_ns + first_waits_ns + 2 * copy_ns);
  EXPECT_EQ(run.stall(StallCause::d2h), 2 * copy_ns + 2 * 3 * copy_ns);  // before f1; before u1 and u2
  // One copy's time before each op but b2; b0 waits for g2's and g1's way out too, but a0 waits behind p0, for the
  // link.
  EXPECT_EQ(run.stall(StallCause::h2d), 7 * copy_ns + 350);
  // In: p0, p1, p2, p1, p0 a0, s0, then p, g, s twice. Out: a0, g2, g1, p0, s0, p1, s1; then p2 and s2.
  EXPECT_EQ(run.transfers(0, h2d), 13U);
  EXPECT_EQ(run.transfers(0, d2h), 7U);
  EXPECT_EQ(run.transfers(1, h2d), 13U);
  EXPECT_EQ(run.transfers(1, d2h), 9U);
  EXPECT_TRUE(run.result.steady);
  EXPECT_EQ(run.result.period, 1U);
  expect_golden("on_demand", run.text);
}

// First in, first out; a fetch frees its source, so every victim is written; dead tensors move like live ones, so from
// the second iteration on outputs are fetched too. GPU of 350. Second iteration; on the GPU are p2, g2, s2, 50 free:
//   f0 250  p0 and a0 need 150: p2 out 100, p0 in 100, a0 in 50.
//   f1 250  p1 and a1: g2 out 100, s2 out 100 beside p1 in, a1 in 50. It waited for room (d2h) 200.
//   f2 250  p2 and a2: p0 out 100, p2 in 100, a2 in 50.
//   b2 250  g2: a0 out 50, p1 out 100, g2 in 100. For room 150.
//   b1 300  p1 and g1: p2 out 100, p1 in 100 beside a2 out, g1 in 100.
//   b0 400  p0, a0, g0: a1 out 50, g2 out 100, p0 in 100 beside p1 out, a0 in 50, g0 in 100.
//   u0 200  s0: g1 out 100, s0 in 100. For room 100.
//   u1 450  p1, g1, s1 need 300: p0, a0, g0, s0 out 350, the first three are only 250; s1 in 100. For room 350.
//   u2 400  50 free, p1, g1, s1 out 300, s2 in 100. For room 300.
// As many copies go out as come in: 2 + 2 + 2 + 1 + 2 + 3 + 1 + 3 + 3.
TEST(PolicyGoldenTest, OnDemandAsG10sUnifiedMemory) {
  const GoldenRun run = run_policy("on-demand", {{"mode", "g10-uvm"}}, 350);
  EXPECT_THAT(run.waits(0), ElementsAre(100, 100, 250, 50, 150, 350, 200, 450, 400));
  EXPECT_THAT(run.waits(1), ElementsAre(250, 250, 250, 250, 300, 400, 200, 450, 400));
  ASSERT_GE(run.result.iterations, 2U);
  EXPECT_EQ(run.result.iteration_ns[1], compute_ns + 4 * 250 + 300 + 400 + 200 + 450 + 400);
  EXPECT_EQ(run.stall(StallCause::d2h), 200 + 150 + 100 + 350 + 300);
  EXPECT_EQ(run.stall(StallCause::h2d), 250 + 50 + 250 + 100 + 300 + 400 + 100 + 100 + 100);
  EXPECT_EQ(run.transfers(1, h2d), 19U);
  EXPECT_EQ(run.transfers(1, d2h), 19U);
  EXPECT_TRUE(run.result.steady);
  EXPECT_EQ(run.result.period, 1U);
  expect_golden("on_demand_g10_uvm", run.text);
}

// GPU of 1000, updates on the CPU (200 each). Layers are the runs f0 | f1 | f2 b2 | b1 | b0. Each begins with the copy
// of its parameter, 100 in which the GPU waits; what it leaves is clean and goes at once, gradients go out meanwhile.
// First iteration: the layers begin at 0, 250, 500, 1050, 1450; b0 ends at 1850. g0 goes out (100) and u0 runs from
//   1950 to 2150. f0 of the next iteration reads p0, which u0 writes: that ends this one.
// Second: f0 waits 100 for p0, which the update has changed, beside u1 (until 2350), f1 for p1 beside u2; the rest is
//   the same, and so is the time.
TEST(PolicyGoldenTest, L2l) {
  const GoldenRun run = run_policy("l2l", {}, 1000);
  const Nanoseconds after_backward_ns = copy_ns + cpu_update_ns;  // g0 out, then u0
  EXPECT_THAT(run.waits(0), ElementsAre(100, 100, 100, 0, 100, 100));
  EXPECT_THAT(run.waits(1), ElementsAre(after_backward_ns + 100, 100, 100, 0, 100, 100));
  ASSERT_GE(run.result.iterations, 2U);
  EXPECT_EQ(run.result.iteration_ns[0], forward_and_backward_ns + 5 * copy_ns + after_backward_ns);
  EXPECT_EQ(run.result.iteration_ns[1], run.result.iteration_ns[0]);
  EXPECT_EQ(run.stall(StallCause::h2d), 5 * copy_ns);
  EXPECT_EQ(run.stall(StallCause::cpu_optimizer), after_backward_ns);
  EXPECT_EQ(run.transfers(0, h2d), 5U);
  EXPECT_EQ(run.transfers(0, d2h), 3U);  // g2, g1, g0
  EXPECT_TRUE(run.result.steady);
  expect_golden("l2l", run.text);
}

// GPU of 700, on which parameters and states start (600). Pages move at half of a link's bandwidth: 200 a state. Only
// states leave, the coldest first, and each returns right before its update.
//   f0, f1   0  a0 and a1 fill the GPU.
//   f2     200  a2 needs 50: s0 leaves.          b2 200  g2 needs 100, 50 are free: s1 leaves. a2 dies behind it.
//   b1       0  g1 finds 100. a1 dies.           b0 200  g0 needs 100, 50 are free: s2 leaves. a0 dies.
//   u0 to u2 200 each: s0, s1, s2 come back one by one, into what a0, g0 and g1 left.
// All are on the GPU again at the end, and the second iteration is the same.
TEST(PolicyGoldenTest, PagedOptimizer) {
  const GoldenRun run = run_policy("paged-optimizer", {{"least", "none"}}, 700);
  EXPECT_THAT(run.waits(0), ElementsAre(0, 0, 200, 200, 0, 200, 200, 200, 200));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 200, 200, 0, 200, 200, 200, 200));
  EXPECT_EQ(run.stall(StallCause::d2h), 3 * 2 * copy_ns);
  EXPECT_EQ(run.stall(StallCause::h2d), 3 * 2 * copy_ns);
  EXPECT_EQ(run.transfers(1, h2d), 3U);
  EXPECT_EQ(run.transfers(1, d2h), 3U);
  EXPECT_TRUE(run.result.steady);
  expect_golden("paged_optimizer", run.text);
}

// Small states stay where they are, and nothing else may leave.
TEST(PolicyGoldenTest, PagedOptimizerLeavesSmallStatesAlone) {
  const GoldenRun run = run_policy("paged-optimizer", {}, 700);
  EXPECT_FALSE(run.result.fits);
}

// Two buffers, GPU of 1000: room is never short, so that only the policy moves anything. Layers are runs of ops of one
// module: f0 | f1 | f2 b2 | b1 | b0 | u0 u1 u2 (no module: on demand).
// First iteration: before f0 p0 comes in; p1 behind it, p2 while f1 runs (p0 leaves, clean). Entering f2 b2, p1 stays:
//   b1, the next layer, has it. Entering b1: p2 (clean) goes, g2 streams out, p0 comes in. Entering b0: p1 goes, g1
//   streams out. Entering the updates p0 stays for f0, the next layer, and g0 is in use. u0 waits for s0 (100), u1 and
//   u2 for p, g and s (300 each).
// Second: p and s are all on the GPU, updated. p0 leaves after f0 (a write now) and returns during b1; p2 and g2 leave
//   during b1, p1 and g1 during b0; u1 and u2 wait for p and g to return (200 each). States are left where they are.
TEST(PolicyGoldenTest, LayerStreaming) {
  const GoldenRun run = run_policy("layer-streaming", {{"buffers", "2"}}, 1000);
  EXPECT_THAT(run.waits(0), ElementsAre(100, 0, 0, 0, 0, 0, 100, 300, 300));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 0, 0, 0, 0, 200, 200));
  ASSERT_GE(run.result.iterations, 2U);
  EXPECT_EQ(run.result.iteration_ns[0], compute_ns + 8 * copy_ns);
  EXPECT_EQ(run.result.iteration_ns[1], compute_ns + 2 * 2 * copy_ns);
  EXPECT_EQ(run.stall(StallCause::h2d), 2 * 2 * copy_ns);
  // In: p0 p1 p2, p0, s0, p1 g1 s1, p2 g2 s2; out: g2 g1. Then in p0, p1 g1, p2 g2 and out p0, p2 g2, p1 g1.
  EXPECT_EQ(run.transfers(0, h2d), 11U);
  EXPECT_EQ(run.transfers(0, d2h), 2U);
  EXPECT_EQ(run.transfers(1, h2d), 5U);
  EXPECT_EQ(run.transfers(1, d2h), 5U);
  EXPECT_TRUE(run.result.steady);
  EXPECT_EQ(run.result.period, 1U);
  expect_golden("layer_streaming", run.text);
}

// Four layers, f0 f1 f2 f3 b3 b2 b1 b0, 100 ns each: f(i) reads a(i-1) and writes a(i), 100 bytes; b(i) reads a(i) and
// g(i+1) and writes g(i), 10 bytes; f0 reads x, 10 bytes on the CPU.
Trace four_activations() {
  Trace trace;
  std::array<TensorId, 4> a{};
  const TensorId x = trace.add_tensor("x", 10, Role::input, true);
  for (std::size_t i = 0; i < 4; ++i) {
    const std::string layer = std::to_string(i);
    a[i] = trace.add_tensor("a" + layer, 100, Role::activation, false);
    trace.add_op(make_op(trace, "f" + layer, "layer" + layer, Phase::forward, 100),
                 std::vector<TensorId>{i == 0 ? x : a[i - 1]}, std::vector<TensorId>{a[i]});
  }
  TensorId upstream = none;
  for (std::size_t i = 4; i-- > 0;) {
    const std::string layer = std::to_string(i);
    const TensorId g = trace.add_tensor("g" + layer, 10, Role::gradient, false);
    trace.add_op(make_op(trace, "b" + layer, "layer" + layer, Phase::backward, 100),
                 upstream == none ? std::vector<TensorId>{a[i]} : std::vector<TensorId>{a[i], upstream},
                 std::vector<TensorId>{g});
    upstream = g;
  }
  return trace;
}

// GPU of 335, of which g0, the largest workspace of a task, leaves 325. Each op is a task. Before f3 are there a0, a1
// and a2, and a3 is made: 75 too many, nowhere else is it more. a2 is used by f3; a0 and a1 could both leave and return
// in time, so the one that is used later first goes: a1, after f2, its last use before b1. It has to be written, and f3
// waits for that. To be there for b1 it is asked for 100 ns before: after b3. x comes on demand, as all of the first
// task's.
TEST(PolicyGoldenTest, PressureFit) {
  const GoldenRun run = run_golden("pressurefit", {}, four_activations(), machine_of(335));
  EXPECT_THAT(run.waits(0), ElementsAre(10, 0, 0, 100, 0, 0, 0, 0));
  EXPECT_THAT(run.waits(1), ElementsAre(10, 0, 0, 100, 0, 0, 0, 0));
  EXPECT_EQ(run.transfers(0, d2h), 1U);
  EXPECT_EQ(run.transfers(0, h2d), 2U);
  EXPECT_TRUE(run.result.steady);
  expect_golden("pressurefit", run.text);
}

// GPU of 600: the parameters stay, gradients go out as they are made, u0 u1 u2 run on the CPU, 200 each, and the next
// iteration begins when they are done.
// First iteration: b2, b1, b0 end at 750, 1050, 1350, and g2, g1, g0 go out. u0 at 1350 reads p0 too, which only the
//   GPU has: p0 out, g0 out, u0 from 1550 to 1750; p1 out, u1 from 1850 to 2050; p2 out, u2 from 2150 to 2350.
//   p0 and p1 come back behind their updates.
// Second: f0 waits from 1350 to 2350. p2 comes back until 2450, f2 is not before 2650. The CPU has the parameters now:
//   after b0 only g0 goes out (100), then three updates of 200; so it goes on.
TEST(PolicyGoldenTest, ZeroOffload) {
  const GoldenRun run = run_policy("zero-offload", {}, 600);
  const Nanoseconds step_ns = copy_ns + 3 * cpu_update_ns;  // g0 out, then the updates
  EXPECT_THAT(run.waits(0), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(run.waits(1), ElementsAre(step_ns + 3 * copy_ns, 0, 0, 0, 0, 0));
  ASSERT_EQ(run.result.iterations, 2U);
  EXPECT_EQ(run.result.iteration_ns[0], forward_and_backward_ns + step_ns + 3 * copy_ns);
  EXPECT_EQ(run.result.iteration_ns[1], forward_and_backward_ns + step_ns);
  EXPECT_EQ(run.stall(StallCause::cpu_optimizer), step_ns);
  EXPECT_EQ(run.stall(StallCause::h2d), 0);
  EXPECT_EQ(run.result.window.cpu_compute_ns, 3 * cpu_update_ns);
  EXPECT_EQ(run.result.window.cpu_wait_compute_ns, 3 * cpu_update_ns);  // the rest of that stall is g0's way out
  EXPECT_EQ(run.transfers(0, h2d), 2U);                                 // p0, p1
  EXPECT_EQ(run.transfers(0, d2h), 6U);                                 // g2, g1, p0, g0, p1, p2
  EXPECT_EQ(run.transfers(1, h2d), 3U);
  EXPECT_EQ(run.transfers(1, d2h), 3U);
  EXPECT_TRUE(run.result.steady);
  expect_golden("zero_offload", run.text);
}

// GPU of 450: three parameters and three activations fill it, and the policy moves neither. b2 lacks the 100 bytes of
// g2; it needs p2, a2 and g2, 250 in all. overflow=evict goes on.
TEST(PolicyGoldenTest, ZeroOffloadOutOfMemory) {
  const GoldenRun run = run_policy("zero-offload", {{"overflow", "oom"}}, 450);
  EXPECT_FALSE(run.result.fits);
  EXPECT_EQ(run.result.misfit_op, "b2");
  EXPECT_EQ(run.result.misfit_bytes, 100U);
  EXPECT_THAT(run.result.misfit, HasSubstr("op 'b2' (op 3) needs 250 B"));
  EXPECT_THAT(run.result.misfit, HasSubstr("100 B are missing"));
  EXPECT_THAT(run.waits(0), ElementsAre(0, 0, 0));
  expect_golden("zero_offload_oom", run.text);
  EXPECT_TRUE(run_policy("zero-offload", {{"overflow", "evict"}}, 450).result.fits);
}

}  // namespace
}  // namespace tencache
