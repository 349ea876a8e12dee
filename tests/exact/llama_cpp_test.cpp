// llama-cpp on small blocks: where layers live and run follows from the rules at the head of its file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "policies/registry.h"
#include "sim/simulate.h"
#include "tests/small_block.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// The CPU moves a byte in 2 ns: an op of the block, which moves 100, takes 200 ns there.
MachineSpec machine_of(Bytes gpu_bytes) {
  MachineSpec machine = small_machine(gpu_bytes);
  machine.cpu.flops_per_second = 1e12;
  machine.cpu.bandwidth = byte_per_ns / 2;
  return machine;
}

struct Ran {
  Program program;
  RunResult result;
  std::size_t on_cpu = 0;
};

Ran run(const Settings& settings, const MachineSpec& machine, const Trace& trace) {
  const MadePolicy made = make_policy("llama-cpp", settings);
  Ran ran{lower(trace, *made.policy, machine), {}, 0};
  ran.result = simulate(ran.program, machine, *made.policy, {.max_iterations = 4, .until_steady = false});
  for (const Op& op : ran.program.trace.ops) ran.on_cpu += op.device == Device::cpu ? 1 : 0;
  return ran;
}

// Layers of 800 bytes of weights, one micro-batch: five ops a layer and step.
TEST(LlamaCpp, TheFirstLayersAreTheCpus) {
  const SmallBlock block(4, 1, Device::gpu, true);
  const auto ops_on_cpu = [&](const char* layers) {
    return run({{"gpu_layers", layers}}, machine_of(100'000), block.trace).on_cpu;
  };
  EXPECT_EQ(ops_on_cpu("1"), 3u * 5 * 2);
  EXPECT_EQ(ops_on_cpu("4"), 0u);
  EXPECT_EQ(ops_on_cpu("999"), 0u);
}

// The feed-forward op of each of the first two layers and two steps is the CPU's, whatever else lives on the GPU.
TEST(LlamaCpp, TheFirstFeedForwardBlocksMayBeTheCpus) {
  const SmallBlock block(4, 1, Device::gpu, true);
  const Ran ran = run({{"cpu_ffn", "2"}}, machine_of(100'000), block.trace);
  ASSERT_TRUE(ran.result.fits) << ran.result.misfit;
  EXPECT_EQ(ran.on_cpu, 2u * 2);
  for (const Op& op : ran.program.trace.ops) {
    EXPECT_TRUE(op.device == Device::gpu || ran.program.trace.name(op) == "ff");
  }
  EXPECT_EQ(run({{"cpu_ffn", "2"}, {"gpu_layers", "3"}}, machine_of(100'000), block.trace).on_cpu, 2u * (5 + 1));
}

// No weight crosses the link: the activation between the layers of CPU and GPU does, once a step, and nothing else.
TEST(LlamaCpp, WeightsStayWhereTheyAreComputed) {
  const SmallBlock block(4, 1, Device::gpu, true);
  const Ran ran = run({{"gpu_layers", "2"}}, machine_of(100'000), block.trace);
  ASSERT_TRUE(ran.result.fits) << ran.result.misfit;
  EXPECT_EQ(ran.result.window.links[0].bytes, ran.result.period * 2u * 8);
  // Of each of two layers and two steps five ops on either device.
  EXPECT_EQ(ran.on_cpu, 2u * 2 * 5);
  EXPECT_EQ(ran.result.window.compute_ns, static_cast<Nanoseconds>(ran.result.period) * 2 * 2 * 5 * 10);
}

// Prompts of as many tokens as offload_from run on the GPU: each weight of a layer on the CPU is copied once for them.
TEST(LlamaCpp, LongPromptsAreTheGpus) {
  SmallBlock block(3, 1, Device::gpu, true);
  for (Op& op : block.trace.ops) {
    if (block.trace.kernel(op).kind != KernelKind::attention) continue;
    op.kernel = block.trace.kernels.intern({.kind = KernelKind::attention, .shape = {1, 1, 1, 64, 64, 1}});
  }
  const Ran ran = run({{"gpu_layers", "1"}}, machine_of(100'000), block.trace);
  ASSERT_TRUE(ran.result.fits) << ran.result.misfit;
  EXPECT_EQ(ran.on_cpu, 2u * 5);  // the step
  EXPECT_GE(ran.result.window.links[0].bytes, ran.result.period * 2u * 800);
  EXPECT_EQ(run({{"gpu_layers", "1"}, {"offload_from", "65"}}, machine_of(100'000), block.trace).on_cpu, 2u * 5 * 2);
}

// A layer's weights are 800 bytes and its caches 55: of four layers as many as fit are the GPU's.
TEST(LlamaCpp, FitsWhatItCan) {
  const SmallBlock block(4, 1, Device::gpu, true);
  const Ran two = run({}, machine_of(2 * 855 + 100), block.trace);
  ASSERT_TRUE(two.result.fits) << two.result.misfit;
  EXPECT_EQ(two.on_cpu, 2u * 5 * 2);
  EXPECT_THAT(two.result.policy_notes, testing::ElementsAre("2 of 4 layers fit on the GPU: -ngl 2"));
  const Ran all = run({{"fit", "false"}}, machine_of(2 * 855 + 100), block.trace);
  EXPECT_THAT(all.result.misfit, HasSubstr("out of memory"));
}

// A head that reads the token embedding has a copy of it on the GPU: it is looked up on the CPU, and never crosses.
TEST(LlamaCpp, ATiedHeadHasItsOwnCopy) {
  SmallBlock block(2, 1, Device::gpu, true);
  Trace& trace = block.trace;
  const TensorId embedding = trace.add_tensor("embed", 1000, Role::parameter, true);
  const auto add = [&](const char* module, Phase phase) {
    Op op = make_op(trace, module, module, phase, 10);
    op.kernel = trace.kernels.intern({.kind = KernelKind::elementwise});
    op.placeable = true;
    op.bytes = 100;
    trace.add_op(op, std::vector<TensorId>{embedding},
                 std::vector<TensorId>{trace.add_tensor("t", 4, Role::activation, false)});
  };
  add("lm_head", Phase::decode);
  add("embed", Phase::prefill);
  std::rotate(trace.ops.begin(), trace.ops.end() - 1, trace.ops.end());
  const Ran ran = run({}, machine_of(100'000), trace);
  ASSERT_TRUE(ran.result.fits) << ran.result.misfit;
  EXPECT_EQ(ran.on_cpu, 1u);  // the lookup
  EXPECT_EQ(ran.result.window.links[0].bytes, 0u);
  EXPECT_GE(ran.result.peak_bytes[0], 2 * 800u + 1000);
  EXPECT_GE(ran.result.peak_bytes[1], 1000u);
  // Without it on the GPU, it is computed where it lives.
  EXPECT_EQ(run({{"gpu_layers", "2"}}, machine_of(100'000), trace).on_cpu, 2u);
}

TEST(LlamaCpp, CachesMayStayInCpuMemory) {
  const SmallBlock block(2, 1, Device::gpu, true);
  const Ran ran = run({{"kv_offload", "false"}}, machine_of(100'000), block.trace);
  EXPECT_EQ(ran.on_cpu, 2u * 2 * 2);  // cache and attention, of each layer and step
}

// That all ops of a generation may move to the CPU does not make them updates, which systems of training move there.
TEST(LlamaCpp, AloneMovesAllThatATraceLetsIt) {
  const SmallBlock block(4, 1, Device::gpu, true);
  for (const PolicyInfo& info : list_policies()) {
    const std::string& policy = info.name;
    const MadePolicy made = make_policy(policy, {});
    const Program program = lower(block.trace, *made.policy, machine_of(100'000));
    const auto moved = std::ranges::count(program.trace.ops, Device::cpu, &Op::device);
    EXPECT_LE(moved, policy == "flexgen" || policy == "zero-inference" ? 4 * 2 : 0) << policy;
  }
}

TEST(LlamaCpp, NeedsATraceThatLetsIt) {
  const Ran stays = run({{"gpu_layers", "1"}}, machine_of(10'000), SmallBlock(2, 1).trace);
  EXPECT_EQ(stays.on_cpu, 0u);
  EXPECT_THAT(stays.result.policy_notes, testing::ElementsAre(HasSubstr("10 ops that llama.cpp computes on the CPU")));
  EXPECT_THAT(
      [] {
        run({{"gpu_layers", "0"}}, small_machine(1000), SmallBlock(2, 1, Device::gpu, true).trace);
      },
      ThrowsMessage<Error>(HasSubstr("cpu.tflops")));
}

}  // namespace
}  // namespace tencache
