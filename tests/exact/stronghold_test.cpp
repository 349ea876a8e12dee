// stronghold on a small trace, worked out by hand from the rules at the head of policies/stronghold.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/golden/golden_run.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Nine ops: f0 f1 f2 b2 b1 b0 u0 u1 u2. Layer i has parameter p, activation a (50 bytes), gradient g and state s (100
// each). f(i) reads p(i) and a(i-1), writes a(i), 150 ns; b(i) reads p(i) and a(i), writes g(i), 300 ns; u(i) reads
// p(i), g(i), s(i), writes p(i), s(i), and is sub-group i. `clip`: before the updates an op reads all gradients, and
// each update reads what it writes.
Trace three_layers(bool clip) {
  Trace trace;
  std::vector<TensorId> p, a, g, s;
  for (const char* layer : {"0", "1", "2"}) {
    p.push_back(trace.add_tensor(std::string("p") + layer, 100, Role::parameter, true));
    a.push_back(trace.add_tensor(std::string("a") + layer, 50, Role::activation, false));
    g.push_back(trace.add_tensor(std::string("g") + layer, 100, Role::gradient, false));
    s.push_back(trace.add_tensor(std::string("s") + layer, 100, Role::optimizer_state, true));
  }
  using Tensors = std::vector<TensorId>;
  const auto op = [&trace](const std::string& kind, std::size_t i, const std::string& module, Phase phase,
                           Nanoseconds duration_ns) {
    return make_op(trace, kind + std::to_string(i), module.empty() ? "" : module + std::to_string(i), phase,
                   duration_ns);
  };
  for (std::size_t i = 0; i < 3; ++i) {
    trace.add_op(op("f", i, "layers.", Phase::forward, 150), i == 0 ? Tensors{p[i]} : Tensors{p[i], a[i - 1]},
                 Tensors{a[i]});
  }
  for (std::size_t i = 3; i-- > 0;) {
    trace.add_op(op("b", i, "layers.", Phase::backward, 300), Tensors{p[i], a[i]}, Tensors{g[i]});
  }
  TensorId norm = none;
  if (clip) {
    norm = trace.add_tensor("norm", 4, Role::workspace, false);
    trace.add_op(make_op(trace, "norm", "", Phase::backward, 10), g, Tensors{norm});
  }
  for (std::size_t i = 0; i < 3; ++i) {
    Op update = op("u", i, "", Phase::optimizer, 50);
    update.group = static_cast<std::int32_t>(i);
    update.reorderable = true;
    Tensors reads{p[i], g[i], s[i]};
    if (clip) reads.push_back(norm);
    trace.add_op(update, reads, Tensors{p[i], s[i]});
  }
  return trace;
}

// Links of 1 byte/ns: 100 ns a parameter. The CPU updates at 2.5 bytes/ns: 500 bytes in 200 ns.
MachineSpec machine_of(Bytes gpu_bytes) {
  MachineSpec machine = small_machine(gpu_bytes);
  machine.cpu.adam_parameters_per_second = 89'285'000;
  machine.validate();
  return machine;
}

// Layers are f0 | f1 | f2 b2 | b1 | b0. A window of 1 hides no fetch; of 2: f0's 150 ns hide p1's 100, f1's 150 p2's,
// b2's p1's, b1's p0's.
//   f0 waits 100 for p0, and p1 follows until 200. f1 (250): p0 leaves, clean; p2 comes, 250 to 350. f2 b2 (400 to
//   850): p1 stays for b1. b1 (850 to 1150): p2 leaves, p0 comes. b0 until 1450. The gradients leave as they are made,
//   g2 from 850 to 950, g1 until 1250, g0 until 1550; the updates are put into that order: u2 from 950 to 1150, u1 from
//   1250 to 1450, u0 from 1550 to 1750. That ends the iteration, as f0 reads p0. p0 is in the window and comes back
//   until 1850; p1, fetched when f0 is issued (1750), follows it until 1950.
TEST(StrongHoldTest, Golden) {
  const GoldenRun run = run_golden("stronghold", {}, three_layers(false), machine_of(1000));
  EXPECT_THAT(run.waits(0), ElementsAre(100, 0, 0, 0, 0, 0));
  EXPECT_THAT(run.waits(1), ElementsAre(300 + 100, 0, 0, 0, 0, 0));
  ASSERT_GE(run.result.iterations, 2U);
  EXPECT_EQ(run.result.iteration_ns[0], 1750);
  EXPECT_EQ(run.result.iteration_ns[1], 1750);
  EXPECT_EQ(run.transfers(1, h2d), 4U);  // p0, p1; p2; p0
  EXPECT_EQ(run.transfers(1, d2h), 3U);  // the gradients
  EXPECT_THAT(run.result.policy_notes, ElementsAre("a window of 2 of 5 layers, 200 B of parameters at most"));
  EXPECT_TRUE(run.result.steady);
  expect_golden("stronghold", run.text);
}

// 150 bytes of activations and the gradients of two layers leave 150 of 500 for the window.
TEST(StrongHoldTest, TheWindowIsWhatFits) {
  const GoldenRun run = run_golden("stronghold", {}, three_layers(false), machine_of(500));
  EXPECT_THAT(run.result.policy_notes, ElementsAre(HasSubstr("a window of 1 of 5 layers")));
  EXPECT_THAT(run.result.policy_notes, ElementsAre(HasSubstr("does not fit")));
  EXPECT_THAT(run.waits(0), ElementsAre(100, 100, 100, 0, 100, 100));
  const GoldenRun chosen = run_golden("stronghold", {{"window", "3"}}, three_layers(false), machine_of(1000));
  EXPECT_THAT(chosen.result.policy_notes, ElementsAre(HasSubstr("a window of 3 of 5 layers")));
}

// Behind a barrier all updates can begin at once: the first layer's goes first, as recorded, and f0 does not wait for
// the others.
TEST(StrongHoldTest, BehindABarrierUpdatesKeepTheirOrder) {
  const GoldenRun run = run_golden("stronghold", {}, three_layers(true), machine_of(1000));
  const auto at = [&run](const char* update) { return run.text.find(std::string("run ") + update); };
  ASSERT_NE(at("u0"), std::string::npos);
  EXPECT_LT(at("u0"), at("u1"));
  EXPECT_LT(at("u1"), at("u2"));
}

}  // namespace
}  // namespace tencache
