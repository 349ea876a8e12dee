// vDNN on a small trace, worked out by hand from the rules at the head of policies/vdnn.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/golden/golden_run.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Nanoseconds kernel_ns = 100;

// Five layers, ten ops of 100 ns: f0 … f4, b4 … b0. f(i) reads a(i-1) and writes a(i), 40 bytes; b(i) reads a(i-1), the
// input of its layer; b4 also a4. f2 and b2 are called conv.
Trace five_modules() {
  Trace trace;
  std::vector<TensorId> a;
  for (int i = 0; i < 5; ++i) a.push_back(trace.add_tensor("a" + std::to_string(i), 40, Role::activation, false));
  const auto add = [&](std::size_t i, Phase phase, std::vector<TensorId> reads, std::vector<TensorId> writes) {
    const std::string name = (phase == Phase::forward ? "f" : "b") + std::to_string(i);
    trace.add_op(make_op(trace, name, (i == 2 ? "Conv" : "linear") + std::to_string(i), phase, kernel_ns), reads,
                 writes);
  };
  for (std::size_t i = 0; i < 5; ++i) {
    add(i, Phase::forward, i == 0 ? std::vector<TensorId>{} : std::vector{a[i - 1]}, {a[i]});
  }
  for (std::size_t i = 5; i-- > 0;) {
    add(i, Phase::backward,
        i == 4   ? std::vector{a[3], a[4]}
        : i == 0 ? std::vector<TensorId>{}
                 : std::vector{a[i - 1]},
        {});
  }
  return trace;
}

// A copy of 40 bytes takes 160 ns.
MachineSpec machine_of(Bytes gpu_bytes) {
  MachineSpec machine = small_machine(gpu_bytes);
  machine.links[0].bandwidth = machine.links[1].bandwidth = byte_per_ns / 4;
  machine.validate();
  return machine;
}

// Everything would fit. a0 leaves during f1, a1 during f2, a2 during f3; a3, f4's, stays: b4 follows at once.
//   f1 100 to 200; a0 leaves from 100 to 260. f2 waits for that, 60, and runs to 360; a1 leaves from 260 to 420. f3
//   waits 60, runs to 520; a2 leaves from 420 to 580. f4 waits 60, runs to 680.
//   b4, from 680 to 780, fetches a2, the nearest: 680 to 840. b3 waits 60, runs from 840 to 940, and fetches a1, 840 to
//   1000. b2 waits 60, a0 comes from 1000 to 1160; b1 waits 60.
TEST(VdnnTest, Golden) {
  const Trace trace = five_modules();
  const GoldenRun run = run_golden("vdnn", {}, trace, machine_of(400));
  EXPECT_THAT(run.waits(0), ElementsAre(0, 0, 60, 60, 60, 0, 60, 60, 60, 0));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 60, 60, 60, 0, 60, 60, 60, 0));
  EXPECT_EQ(run.stall(StallCause::d2h), 180);
  EXPECT_EQ(run.stall(StallCause::h2d), 180);
  EXPECT_EQ(run.transfers(1, d2h), 3U);
  EXPECT_EQ(run.transfers(1, h2d), 3U);
  EXPECT_EQ(run.result.iteration_ns.back(), 1360);
  EXPECT_TRUE(run.result.steady);
  expect_golden("vdnn", run.text);
}

// The forward pass is over at 500. b4 is issued while a2 is still leaving (420 to 580): it stays. b3, at 600, fetches
// a1, until 760: b2 waits 60; a0 comes until 920: b1 waits 60.
TEST(VdnnTest, WithoutSynchronisation) {
  const GoldenRun run = run_golden("vdnn", {{"synchronise", "false"}}, five_modules(), machine_of(400));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 0, 0, 0, 0, 60, 60, 0));
  EXPECT_EQ(run.transfers(1, h2d), 2U);
}

// Only f2 is a convolution: a1 leaves during it and returns during b4. f3 and b3 wait for the copies, 60 each.
TEST(VdnnTest, OnlyConvolutions) {
  const GoldenRun run = run_golden("vdnn", {{"offload", "conv"}}, five_modules(), machine_of(400));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 60, 0, 0, 60, 0, 0, 0));
  EXPECT_EQ(run.transfers(1, d2h), 1U);
  EXPECT_EQ(run.transfers(1, h2d), 1U);
  EXPECT_THAT(run.result.policy_notes, IsEmpty());
  const GoldenRun none_there = run_golden("vdnn", {{"offload", "conv"}}, five_layers(kernel_ns, 40), machine_of(400));
  EXPECT_EQ(none_there.transfers(1, d2h), 0U);
  EXPECT_THAT(none_there.result.policy_notes, ElementsAre(HasSubstr("nothing is offloaded")));
}

// All five are alive when f4 runs. With what is away 120 bytes are enough: the way out is the same.
TEST(VdnnTest, MemoryThatDoesNotHoldEverything) {
  const GoldenRun run = run_golden("vdnn", {}, five_modules(), machine_of(120));
  EXPECT_TRUE(run.result.fits);
  EXPECT_EQ(run.transfers(1, d2h), 3U);
}

}  // namespace
}  // namespace tencache
