// flashneuron on small traces, worked out by hand from the rules at the head of policies/flashneuron.cpp.
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

MachineSpec machine_of(Bytes gpu_bytes) {
  MachineSpec machine = small_machine(gpu_bytes, true);
  machine.links[2].bandwidth = machine.links[3].bandwidth = byte_per_ns / 4;  // 160 ns for 40 bytes
  machine.validate();
  return machine;
}

void add_phase_op(Trace& trace, Phase phase, const std::vector<TensorId>& reads, const std::vector<TensorId>& writes) {
  const std::string name = std::string("op").append(std::to_string(trace.ops.size()));
  trace.add_op(make_op(trace, name, "", phase, kernel_ns), reads, writes);
}

// Ten kernels: f0 … f4, b4 … b0, and a weight w of 20 that each of them reads. f(i) reads a(i-1) and writes a(i), b(i)
// reads a(i); activations are of 40. So for each micro-batch.
Trace five_layers(int micro_batches = 1) {
  Trace trace;
  const TensorId w = trace.add_tensor("w", 20, Role::parameter, true);
  for (; micro_batches > 0; --micro_batches) {
    std::vector<TensorId> a;
    for (int i = 0; i < 5; ++i) {
      a.push_back(trace.add_tensor(std::string("a").append(std::to_string(i)), 40, Role::activation, false));
    }
    for (std::size_t i = 0; i < 5; ++i) {
      add_phase_op(trace, Phase::forward, i == 0 ? std::vector{w} : std::vector{w, a[i - 1]}, {a[i]});
    }
    for (std::size_t i = 5; i-- > 0;) add_phase_op(trace, Phase::backward, {w, a[i]}, {});
  }
  return trace;
}

// GPU of 190: without w and the 80 that a forward op needs, 90 are left for activations, of which there are 200: a0, a1
// and a2 go.
//   Out: a0 after op 1, from 200 to 360; a1 until 520; a2 until 680. op 5, the first of the backward pass, would begin
//   at 500 and waits for that, 180. It leaves 90 free: a2 (40) and the 80 that an op may need are too much.
//   op 6 (780): a4 is dead, 130 are free: a2 is asked for and comes until 940; op 7 waits 60 for it. When op 7 is
//   issued (880), a3 is dead: a1 comes from 940 to 1100. op 8, issued at 1040, asks for a0, which comes until 1260.
//   op 8 ends at 1200: op 9 waits 60.
TEST(FlashNeuronTest, Golden) {
  const GoldenRun run = run_golden("flashneuron", {}, five_layers(), machine_of(190));
  EXPECT_THAT(run.waits(0), ElementsAre(0, 0, 0, 0, 0, 180, 0, 60, 60, 60));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 0, 0, 180, 0, 60, 60, 60));
  EXPECT_EQ(run.stall(StallCause::nvme_write), 180);
  EXPECT_EQ(run.stall(StallCause::nvme_read), 180);
  EXPECT_THAT(run.result.policy_notes, ElementsAre("3 of 5 activations, 120 B of 200 B, go to the SSD"));
  EXPECT_TRUE(run.result.steady);
  expect_golden("flashneuron", run.text);
}

// Each backward pass begins when its own activations have arrived.
TEST(FlashNeuronTest, MicroBatches) {
  const GoldenRun run = run_golden("flashneuron", {}, five_layers(2), machine_of(190));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 0, 0, 180, 0, 60, 60, 60, 0, 0, 0, 0, 0, 180, 0, 60, 60, 60));
}

TEST(FlashNeuronTest, NothingMovesWhereEverythingFits) {
  const GoldenRun run = run_golden("flashneuron", {}, five_layers(), machine_of(301));
  EXPECT_EQ(run.transfers(0, 2) + run.transfers(0, 3), 0U);
}

// GPU of 100, no weight. From the high end: x at 70, y at 40, z at 10. op 3 kills y; op 4 needs 35 and 40 are free, but
// in holes of 10 and 30. With pages from anywhere it fits.
TEST(FlashNeuronTest, AHoleThatIsTooSmallIsOutOfMemory) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 30, Role::activation, false);
  const TensorId y = trace.add_tensor("y", 30, Role::activation, false);
  const TensorId z = trace.add_tensor("z", 30, Role::activation, false);
  const TensorId large = trace.add_tensor("large", 35, Role::activation, false);
  for (const TensorId tensor : {x, y, z}) add_phase_op(trace, Phase::forward, {}, {tensor});
  add_phase_op(trace, Phase::forward, {y}, {});
  add_phase_op(trace, Phase::forward, {}, {large});
  add_phase_op(trace, Phase::forward, {x, z}, {});
  const GoldenRun run = run_golden("flashneuron", {}, trace, machine_of(100));
  EXPECT_FALSE(run.result.fits);
  EXPECT_EQ(run.result.misfit_op, "op4");
  EXPECT_THAT(run.result.policy_notes, ElementsAre(HasSubstr("0 of 0"),
                                                   "op 4 found no hole that is large enough, with 40 B of GPU memory "
                                                   "free: it is fragmented"));
  EXPECT_TRUE(run_golden("flashneuron", {{"allocator", "exact"}}, trace, machine_of(100)).result.fits);
}

TEST(FlashNeuronTest, WithoutAnSsdItCannotWork) {
  const MadePolicy made = make_policy("flashneuron");
  EXPECT_THROW(made.policy->layout(small_machine(190), nullptr), Error);
  MachineSpec unreachable = machine_of(190);
  unreachable.links.resize(2);
  EXPECT_THROW(made.policy->layout(unreachable, nullptr), Error);
}

}  // namespace
}  // namespace tencache
