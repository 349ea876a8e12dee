// accelerate and zero-inference on small traces; what they do, and when, follows from the rules at the head of their
// files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "policies/registry.h"
#include "policies/weight_homes.h"
#include "sim/simulate.h"
#include "tests/small_cases.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A model of an embedding of 50 bytes, two layers of 100 and a head of 60; a kernel of 40 ns for each.
Trace model() {
  Trace trace;
  const char* const names[] = {"embed.weight", "layers.0.a.weight", "layers.0.b.weight", "layers.1.weight",
                               "head.weight"};
  const Bytes bytes[] = {50, 60, 40, 100, 60};
  std::vector<TensorId> weights;
  for (std::size_t i = 0; i < 5; ++i) weights.push_back(trace.add_tensor(names[i], bytes[i], Role::parameter, true));
  add_op(trace, 40, {weights[0]}, {});
  add_op(trace, 40, {weights[1], weights[2]}, {});
  add_op(trace, 40, {weights[3]}, {});
  add_op(trace, 40, {weights[4]}, {});
  return trace;
}

RunResult run(const std::string& policy, const Settings& settings, const MachineSpec& machine, const Trace& trace) {
  const MadePolicy made = make_policy(policy, settings);
  return simulate(lower(trace, *made.policy, machine), machine, *made.policy,
                  {.max_iterations = 4, .until_steady = false});
}

std::vector<TierId> homes(const WeightHomes& homes) {
  return {homes.of(0), homes.of(1), homes.of(2), homes.of(3), homes.of(4)};
}

// Layers whole, in the model's order; what comes after one that does not fit goes below, too. The embedding and the
// first layer need 150 bytes and 100 for the second layer; this one 100, and 60 for the head.
TEST(WeightHomes, FillTheTiersInOrder) {
  const Trace trace = model();
  using List = std::vector<Bytes>;
  EXPECT_THAT(homes(WeightHomes(trace, List{250, 160, 1})), ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(homes(WeightHomes(trace, List{249, 1000, 1})), ElementsAre(0, 1, 1, 1, 1));
  EXPECT_THAT(homes(WeightHomes(trace, List{250, 159, 1})), ElementsAre(0, 0, 0, 2, 2));
  EXPECT_THAT(homes(WeightHomes(trace, List{310, 1, 1})), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(homes(WeightHomes(trace, List{0, 100, 1}, WeightHomes::Mapped::layers)), ElementsAre(0, 1, 1, 2, 0));
  EXPECT_EQ(largest_layer_weight(trace), 100u);
  EXPECT_THAT(WeightHomes(trace, List{250, 160, 1}).start(trace, 40), ElementsAre(1, 1, 1, 1, 1, 2, 2, 2, 2, 2));
}

// At 1 byte/ns each layer's weights take 100 ns before its kernel: 4 × 40 + 2 × 100.
TEST(Accelerate, WaitsForEachLayer) {
  const RunResult result = run("accelerate", {{"map", "offload"}}, small_machine(1000), model());
  EXPECT_THAT(result.iteration_ns, testing::Each(4 * 40 + 2 * 100));
  EXPECT_EQ(result.peak_bytes[0], 50u + 60 + 100);  // embedding, head, one layer
}

// 250 bytes hold, less the second layer, the embedding and the first one; the second layer and the head are copied. 150
// hold the embedding alone.
TEST(Accelerate, FillsTheGpuByItself) {
  EXPECT_THAT(run("accelerate", {}, small_machine(250), model()).iteration_ns, testing::Each(4 * 40 + 100 + 60));
  EXPECT_THAT(run("accelerate", {{"gpu_weights", "150"}}, small_machine(250), model()).iteration_ns,
              testing::Each(4 * 40 + 100 + 100 + 60));
}

// What is no weight stays, and does not fit: out of memory, as with the system.
TEST(Accelerate, LeavesTheCacheAlone) {
  Trace trace = model();
  const TensorId cache = trace.add_tensor("kv", 200, Role::kv_cache, false);
  add_op(trace, 40, {}, {cache});
  add_op(trace, 40, {3, cache}, {});
  EXPECT_THAT(run("accelerate", {{"map", "offload"}}, small_machine(400), trace).misfit, HasSubstr("out of memory"));
  EXPECT_TRUE(run("accelerate", {{"map", "offload"}}, small_machine(410), trace).fits);
}

// 310 bytes pass the link in each iteration, longer than the kernels, and it never rests: the next weights are fetched
// while a kernel runs. A bucket of one byte fetches nothing ahead: each kernel waits for its own.
TEST(ZeroInference, StreamsAhead) {
  EXPECT_EQ(run("zero-inference", {{"bucket", "200"}}, small_machine(1000), model()).iteration_ns.back(), 310);
  EXPECT_EQ(run("zero-inference", {{"bucket", "1"}}, small_machine(1000), model()).iteration_ns.back(), 310 + 4 * 40);
}

// Six kernels of 40 ns; embedding and head stay, each layer takes 100 ns. Every second layer offloaded, one ahead:
// layer 3 comes while layer 2 runs and is waited for 60 ns; layer 1 has the time of three kernels. Two ahead: a layer
// comes again as soon as it is done. All four offloaded, one ahead: three wait for all of their weights, the first one,
// which comes while head and embedding run, for 20 ns.
TEST(VllmPrefetch, CountsOffloadedLayersAhead) {
  Trace trace;
  std::vector<TensorId> weights = {trace.add_tensor("embed.weight", 50, Role::parameter, true)};
  for (int layer = 0; layer < 4; ++layer) {
    weights.push_back(trace.add_tensor("layers." + std::to_string(layer) + ".weight", 100, Role::parameter, true));
  }
  weights.push_back(trace.add_tensor("head.weight", 60, Role::parameter, true));
  for (const TensorId weight : weights) {
    add_op(trace, 40, {weight}, {});
    const std::string_view name = trace.name(trace.tensors[weight]);
    trace.ops.back().module = trace.names.intern(std::string(name.substr(0, name.rfind('.'))));
  }
  const auto with = [&](const char* group, const char* offloaded, const char* step) {
    return run("vllm-prefetch", {{"group_size", group}, {"num_in_group", offloaded}, {"prefetch_step", step}},
               small_machine(1000), trace);
  };
  EXPECT_EQ(with("2", "1", "1").iteration_ns.back(), 6 * 40 + 60);
  EXPECT_EQ(with("2", "1", "1").peak_bytes[0], 50u + 60 + 3 * 100);
  EXPECT_EQ(with("2", "1", "2").iteration_ns.back(), 6 * 40);
  EXPECT_EQ(with("2", "1", "2").peak_bytes[0], 50u + 60 + 4 * 100);
  EXPECT_EQ(with("4", "4", "1").iteration_ns.back(), 6 * 40 + 3 * 100 + 20);
  EXPECT_EQ(with("4", "4", "1").peak_bytes[0], 50u + 60 + 100);
  EXPECT_EQ(with("4", "8", "1").iteration_ns.back(), with("4", "4", "1").iteration_ns.back());  // more than all: all
  EXPECT_THROW(with("2", "1", "0"), Error);
}

TEST(ZeroInference, ReadsFromStorage) {
  const RunResult result =
      run("zero-inference", {{"weights", "nvme"}, {"bucket", "1"}}, small_machine(1000, true), model());
  ASSERT_TRUE(result.fits) << result.misfit;
  EXPECT_THAT(
      [] {
        run("zero-inference", {{"weights", "nvme"}}, small_machine(1000), model());
      },
      testing::ThrowsMessage<Error>(HasSubstr("zero-inference")));
}

// SGLang's way: what of a layer is offloaded comes before it, and is gone after it. 60 bytes of the first layer: 60 ns.
// 200: both layers, one after the other, 200 ns, and one of them is on the GPU at a time.
TEST(VllmUva, LayersCopyBeforeTheyRun) {
  Trace trace = model();
  const char* const modules[] = {"embed", "layers.0", "layers.1", "head"};
  for (std::size_t i = 0; i < 4; ++i) trace.ops[i].module = trace.names.intern(modules[i]);
  const auto with = [&](const char* offload) {
    return run("vllm-uva", {{"cpu_offload", offload}, {"copied", "true"}}, small_machine(1000), trace);
  };
  EXPECT_EQ(with("60B").iteration_ns.back(), 4 * 40 + 60);
  EXPECT_EQ(with("200B").iteration_ns.back(), 4 * 40 + 200);
  EXPECT_EQ(with("200B").peak_bytes[0], 50u + 60 + 100);
  EXPECT_EQ(with("none").iteration_ns.back(), 4 * 40);
}

// A layer with an attention's weight of 20 bytes and two experts of 40, of which the gate chooses the second: with all
// of the layer 100 bytes are copied before it, with vllm-prefetch of experts alone 80, which come again while the two
// other kernels run.
TEST(VllmUva, ExpertsAreCopiedWhicheverIsChosen) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 2, Role::activation, false);
  const TensorId embedding = trace.add_tensor("embed.weight", 50, Role::parameter, true);
  const TensorId attention = trace.add_tensor("layers.0.attn.weight", 20, Role::parameter, true);
  trace.add_tensor("layers.0.mlp.experts.0.w", 40, Role::expert, true);
  const TensorId second = trace.add_tensor("layers.0.mlp.experts.1.w", 40, Role::expert, true);
  trace.add_op(make_op(trace, "embed", "embed", Phase::decode, 40), std::vector{embedding}, std::vector{x});
  const OpIndex gate = trace.add_op(make_op(trace, "gate", "layers.0.mlp", Phase::decode, 40),
                                    std::vector{x, attention}, std::vector{x});
  Op op = make_op(trace, "expert", "layers.0.mlp.experts.1", Phase::decode, 40);
  op.detail = trace.add_detail({.revealed_by = gate});
  trace.add_op(op, std::vector{x, second}, std::vector{x});
  trace.validate();
  EXPECT_EQ(
      run("vllm-uva", {{"cpu_offload", "1GB"}, {"copied", "true"}}, small_machine(1000), trace).iteration_ns.back(),
      3 * 40 + 100);
  const Settings groups = {{"group_size", "1"}, {"experts", "true"}};
  EXPECT_EQ(run("vllm-prefetch", groups, small_machine(1000), trace).iteration_ns.back(), 3 * 40);
  EXPECT_EQ(run("vllm-prefetch", groups, small_machine(1000), trace).peak_bytes[0], 2u + 50 + 20 + 80);
}

// A kernel takes as long as the link needs for the weights that it reads in place. 61 bytes: `a` of 60 is not enough,
// and all of the first layer is offloaded, 100 ns. 60 bytes: `a` alone. Nothing of it is copied to the GPU.
TEST(VllmUva, KernelsReadOverTheLink) {
  const auto with = [&](const char* offload) {
    return run("vllm-uva", {{"cpu_offload", offload}}, small_machine(1000), model());
  };
  EXPECT_EQ(with("61B").iteration_ns.back(), 3 * 40 + 100);
  EXPECT_EQ(with("61B").peak_bytes[0], 50u + 100 + 60);
  EXPECT_EQ(with("60B").iteration_ns.back(), 3 * 40 + 60);
  EXPECT_EQ(with("none").iteration_ns.back(), 4 * 40);
  EXPECT_EQ(with("30B").iteration_ns.back(), 3 * 40 + 60);
  MachineSpec shared = small_machine(1000);
  shared.resources = {{"dram", byte_per_ns / 2}};
  shared.links[0].uses = {0};
  EXPECT_EQ(run("vllm-uva", {{"cpu_offload", "60B"}}, shared, model()).iteration_ns.back(), 3 * 40 + 120);
}

TEST(VllmUva, SaysWhatIsReadInPlaceAndNeedsALink) {
  const MadePolicy made = make_policy("vllm-uva", {{"cpu_offload", "60B"}});
  EXPECT_THAT(lower(model(), *made.policy, small_machine(1000)).changes,
              ElementsAre("1 ops read 60 B in place over the link: 40 ns of kernels take 60 ns"));
  MachineSpec machine = small_machine(1000);
  machine.links.erase(machine.links.begin());
  EXPECT_THAT([&] { lower(model(), *made.policy, machine); },
              testing::ThrowsMessage<Error>(HasSubstr("no link leads from CPU memory to the GPU")));
}

// Two experts of 100 bytes, a kernel of 50 ns for each. From CPU memory each takes 100 ns, from the other GPU 25.
Trace two_experts() {
  Trace trace;
  for (const char* name : {"layers.0.experts.0.weight", "layers.0.experts.1.weight"}) {
    add_op(trace, 50, {trace.add_tensor(name, 100, Role::expert, true)}, {});
  }
  return trace;
}
MachineSpec pair_of_gpus(Bytes peer, std::vector<CapacityOverTime::Change> changes = {}) {
  MachineSpec machine = small_machine(1000);
  machine.tiers.push_back({"peer", TierKind::gpu, peer, 1, {}});
  machine.tiers.back().over_time.changes = std::move(changes);
  machine.links.push_back(make_link("p2d", 2, 0, 4 * byte_per_ns));
  machine.links.push_back(make_link("h2p", 1, 2));
  machine.validate();
  return machine;
}
RunResult harvest(const MachineSpec& machine, const Settings& settings = {}) {
  const Trace trace = two_experts();
  const MadePolicy made = make_policy("harvest", settings);
  return simulate(lower(trace, *made.policy, machine), machine, *made.policy,
                  {.max_iterations = 40, .until_steady = false});
}

// An expert is fetched again when it has just been dropped. With both in the other GPU that takes less than the other
// one's kernel. From CPU memory the link never rests. With one there and one in CPU memory the latter is waited for 50
// ns.
TEST(Harvest, FetchesFromTheOtherGpu) {
  EXPECT_EQ(harvest(pair_of_gpus(200)).iteration_ns.back(), 2 * 50);
  EXPECT_EQ(harvest(pair_of_gpus(200), {{"peer", "false"}}).iteration_ns.back(), 2 * 100);
  EXPECT_EQ(harvest(pair_of_gpus(100)).iteration_ns.back(), 50 + 100);
  EXPECT_EQ(harvest(pair_of_gpus(200), {{"experts_away", "0.5"}}).iteration_ns.back(), 2 * 50);
  EXPECT_EQ(harvest(pair_of_gpus(99)).iteration_ns.back(), 2 * 100);  // no expert fits there
}

// At 1000 ns one expert's room is taken back: the one that is filled in last goes. At 2000 ns the other one's, too, at
// 3000 ns all of it is there again.
TEST(Harvest, LosesWhatIsTakenBackAndFillsAgain) {
  const RunResult result = harvest(pair_of_gpus(200, {{1000, 100}, {2000, 0}, {3000, 200}}));
  ASSERT_TRUE(result.fits) << result.misfit;
  Nanoseconds begin = 0;
  for (const Nanoseconds takes : result.iteration_ns) {
    if (begin > 400 && begin + takes < 1000) {
      EXPECT_EQ(takes, 100) << begin;
    }
    if (begin > 1200 && begin + takes < 2000) {
      EXPECT_EQ(takes, 150) << begin;
    }
    if (begin > 2200 && begin + takes < 3000) {
      EXPECT_EQ(takes, 200) << begin;
    }
    begin += takes;
  }
  EXPECT_EQ(result.iteration_ns.back(), 100);
  EXPECT_GT(begin, 3500);
}

// A gate of 10 ns chooses two of three experts, the next one the third. What is chosen is fetched when its gate is done
// and dropped after its kernel, so two experts' room is enough: 10 + 25 + 2 * 50 ns and 10 + 25 + 50 ns, or from CPU
// memory 10 + 100 + 100 + 50 and 10 + 100 + 50.
TEST(Harvest, FetchesWhatGatesChoose) {
  Trace trace;
  for (const char* name : {"mlp.experts.0.w", "mlp.experts.1.w", "mlp.experts.2.w"}) {
    trace.add_tensor(name, 100, Role::expert, true);
  }
  for (const std::vector<TensorId>& chosen : {std::vector<TensorId>{0, 1}, {2}}) {
    const OpIndex gate = trace.add_op(make_op(trace, "gate", "mlp", Phase::decode, 10), {}, {});
    for (const TensorId expert : chosen) {
      Op op = make_op(trace, "expert", "mlp.experts." + std::to_string(expert), Phase::decode, 50);
      op.detail = trace.add_detail({.revealed_by = gate});
      trace.add_op(op, std::vector{expert}, {});
    }
  }
  MachineSpec machine = pair_of_gpus(300);
  machine.tiers[0].capacity = 200;
  for (const auto& [peer, takes] : {std::pair("true", 220), std::pair("false", 420)}) {
    const RunResult result = run("harvest", {{"peer", peer}}, machine, trace);
    ASSERT_TRUE(result.fits) << result.misfit;
    EXPECT_EQ(result.iteration_ns.back(), takes) << peer;
  }
}

// The state recurs when the schedule's period and the iterations meet.
TEST(Harvest, IsSteadyOverWholePeriods) {
  MachineSpec machine = pair_of_gpus(200, {{1000, 0}});
  machine.tiers[2].over_time.period_ns = 2000;
  const MadePolicy made = make_policy("harvest", {});
  const RunResult result =
      simulate(lower(two_experts(), *made.policy, machine), machine, *made.policy, {.max_iterations = 300});
  EXPECT_TRUE(result.steady);
  EXPECT_EQ(result.window.time_ns % 2000, 0);
}

// What changes holds second copies only: activations that neither the GPU nor the CPU has room for do not go there.
TEST(Harvest, HoldsNoOnlyCopy) {
  Trace trace;
  const TensorId first = trace.add_tensor("a", 600, Role::activation, false);
  const TensorId second = trace.add_tensor("b", 600, Role::activation, false);
  add_op(trace, 50, {}, {first});
  add_op(trace, 50, {}, {second});
  add_op(trace, 50, {first}, {});
  add_op(trace, 50, {second}, {});
  const auto fits = [&](std::vector<CapacityOverTime::Change> changes) {
    MachineSpec machine = pair_of_gpus(2000, std::move(changes));
    machine.tiers[1].capacity = 500;
    machine.links.push_back(make_link("d2p", 0, 2));
    const MadePolicy made = make_policy("lru", {});
    return simulate(lower(trace, *made.policy, machine), machine, *made.policy, {}).fits;
  };
  EXPECT_TRUE(fits({}));
  EXPECT_FALSE(fits({{1'000'000, 10}}));
}

// Without another GPU all that is away comes from CPU memory, and a note says so.
TEST(Harvest, NeedsAnotherGpuForSecondCopies) {
  EXPECT_THAT(run("harvest", {}, small_machine(1000), model()).policy_notes,
              testing::Contains(HasSubstr("the machine has no other GPU")));
  const MachineSpec machine = pair_of_gpus(200, {{1000, 0}});
  EXPECT_THAT([&] { run("oomb", {}, machine, model()); },
              testing::ThrowsMessage<Error>(HasSubstr("has capacity_over_time")));
}

}  // namespace
}  // namespace tencache
