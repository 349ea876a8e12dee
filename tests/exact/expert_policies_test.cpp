// Policies for experts on a layer whose choices are written down; what they fetch, and where ops run, is worked out by
// the rules at the head of their files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "policies/registry.h"
#include "sim/simulate.h"
#include "tests/small_cases.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A layer of three experts, each a weight of 10 bytes that one op of 10 ns reads; x of 2 bytes. A gate of 10 ns for each
// list of experts that it chooses, the first `prompts` gates in the prompt's phase.
using Choices = std::vector<std::vector<std::size_t>>;
struct Layer {
  explicit Layer(const Choices& choices, std::size_t prompts = 0, Nanoseconds on_cpu_ns = 0) {
    const TensorId x = trace.add_tensor("x", 2, Role::activation, false);
    for (const char* name : {"mlp.experts.0.w", "mlp.experts.1.w", "mlp.experts.2.w"}) {
      trace.add_tensor(name, 10, Role::expert, true);
    }
    for (std::size_t step = 0; step < choices.size(); ++step) {
      const Phase phase = step < prompts ? Phase::prefill : Phase::decode;
      const OpIndex gate = trace.add_op(make_op(trace, "gate", "mlp", phase, 10), {}, std::vector{x});
      for (const std::size_t expert : choices[step]) {
        Op op = make_op(trace, "expert", "mlp.experts." + std::to_string(expert), phase, 10);
        op.placeable = true;
        op.flops = 1;
        op.detail = trace.add_detail({.revealed_by = gate, .cpu_duration_ns = on_cpu_ns});
        trace.add_op(op, std::vector{x, static_cast<TensorId>(1 + expert)}, std::vector{x});
      }
    }
    trace.validate();
  }
  Trace trace;
};

// Bytes that come to the GPU in an iteration, in the end; room for x and two experts.
Bytes fetched(const std::string& policy, const Settings& settings, const Trace& trace) {
  const MachineSpec machine = small_machine(22);
  const MadePolicy made = make_policy(policy, settings);
  const RunResult result = simulate(lower(trace, *made.policy, machine), machine, *made.policy,
                                    {.max_iterations = 10, .until_steady = false});
  EXPECT_TRUE(result.fits) << result.misfit;
  return result.window.links[0].bytes / result.period;
}

// 0 and 1 are there at the start of an iteration: 2 takes 0's place, 0 takes 2's.
TEST(ExpertLru, TheOneUsedLongestAgoLeaves) {
  EXPECT_EQ(fetched("expert-lru", {}, Layer(Choices{{0}, {1}, {2}, {1}, {0}}).trace), 20u);
  // In turn: none is ever there.
  EXPECT_EQ(fetched("expert-lru", {}, Layer(Choices{{0}, {1}, {2}}).trace), 30u);
}

// Chosen 3, 2 and 1 times an iteration: 2 takes the place of 1, and 1 the place of 2, which has fewer.
TEST(MoeInfinity, TheOneChosenLeastLeaves) {
  EXPECT_EQ(fetched("moe-infinity", {}, Layer(Choices{{0}, {1}, {0}, {2}, {1}, {0}}).trace), 20u);
  // As often as each other: in turn.
  EXPECT_EQ(fetched("moe-infinity", {}, Layer(Choices{{0}, {1}, {2}}).trace), 30u);
}

// foresight keeps 0, which is chosen most, and one of the others; belady as an oracle does, too.
TEST(ForesightExperts, KeepsWhatIsChosenMost) {
  const Trace trace = Layer(Choices{{0}, {1}, {0}, {2}, {0}, {1}, {0}, {2}}).trace;
  EXPECT_EQ(fetched("foresight", {}, trace), 40u);
  EXPECT_EQ(fetched("belady", {{"oracle", "true"}}, trace), 40u);
}

std::string devices(const std::string& policy, const Settings& settings, const Trace& trace, Bytes gpu = 1000) {
  const MachineSpec machine = small_machine(gpu);
  const MadePolicy made = make_policy(policy, settings);
  const Program program = lower(trace, *made.policy, machine);
  std::string result;
  for (const Op& op : program.trace.ops) result += op.device == Device::cpu ? 'c' : 'g';
  EXPECT_TRUE(simulate(program, machine, *made.policy, {.max_iterations = 3}).fits);
  return result;
}

// Expert 0 is on the GPU. A copy and the op take 20 ns, the CPU 15 or 25.
TEST(Fiddler, CopiesOrComputes) {
  const Choices choices = {{0, 1}, {1, 2}};
  EXPECT_EQ(devices("fiddler", {{"resident", "1"}}, Layer(choices, 0, 15).trace), "ggcgcc");
  EXPECT_EQ(devices("fiddler", {{"resident", "1"}}, Layer(choices, 0, 25).trace), "gggggg");
  // Of two that are missing: one each, 25 and 20 ns at the same time, is over before 40 or 50.
  EXPECT_EQ(devices("fiddler", {{"resident", "1"}, {"objective", "max"}}, Layer(choices, 0, 25).trace), "ggggcg");
  // By default as many as fit beside x and a buffer: 2 + 10 + 10 of 22.
  EXPECT_EQ(devices("fiddler", {}, Layer(choices, 0, 15).trace, 22), "ggcgcc");
  EXPECT_EQ(devices("fiddler", {}, Layer(choices, 0, 15).trace, 42), "gggggg");
}

// Each of 70 that a prompt chooses.
TEST(Fiddler, DecidesForEveryExpert) {
  Choices choices(1);
  for (std::size_t i = 0; i < 70; ++i) choices[0].push_back(1 + i % 2);
  EXPECT_EQ(devices("fiddler", {{"resident", "1"}}, Layer(choices, 1, 15).trace), "g" + std::string(70, 'c'));
}

// A copy and the op take 20 ns, the CPU 15 or 25.
TEST(ForesightExperts, CopiesOrComputes) {
  // Beside x and room for a copy there is room for 0 and 1, 2 + 10 + 20 of 32. Of two that are there the CPU takes one:
  // 15 and 10 ns at the same time, not 20. Of 1 and 2 it takes 2: 10 and 15 ns, and not 10 + 10 with the copy of 2
  // beside the first.
  const Choices choices = {{0, 1}, {1, 2}};
  EXPECT_EQ(devices("foresight", {}, Layer(choices, 0, 15).trace, 32), "gcgggc");
  // One on the CPU takes 25 ns, longer than both on the GPU, a copy included.
  EXPECT_EQ(devices("foresight", {}, Layer(choices, 0, 25).trace, 32), "gggggg");
}

// Room for 0, 2 + 10 + 10 of 22. Of 1 and 2 one is copied, 20 ns, and the other one computed, 15. Then 1 is there, for
// which more was computed than for 0.
TEST(ForesightExperts, KeepsWhatMostWasComputedFor) {
  EXPECT_EQ(devices("foresight", {}, Layer(Choices{{1, 2}, {0}, {1}}, 1, 15).trace, 22), "ggcgcgg");
}

// A trace whose ops may not move, or a machine that does not say how fast its CPU is.
TEST(ExpertPlaces, SayWhyTheCpuComputesNothing) {
  const auto notes = [](const std::string& policy, const Trace& trace) {
    const MachineSpec machine = small_machine(1000);
    const MadePolicy made = make_policy(policy);
    simulate(lower(trace, *made.policy, machine), machine, *made.policy, {.max_iterations = 2});
    std::vector<std::string> list;
    made.policy->notes(list);
    return list;
  };
  Trace fixed = Layer(Choices{{0}}, 0, 15).trace;
  for (Op& op : fixed.ops) op.placeable = false;
  const std::string start = "experts that the GPU lacks are copied there: ";
  for (const std::string policy : {"fiddler", "ktransformers"}) {
    EXPECT_THAT(notes(policy, Layer(Choices{{0}}, 0, 15).trace), ElementsAre());
    EXPECT_THAT(notes(policy, fixed), ElementsAre(start + "the trace does not let their ops move to the CPU; generate "
                                                          "it with --placeable all"));
  }
  EXPECT_THAT(notes("fiddler", Layer(Choices{{0}}).trace),
              ElementsAre(start + "the machine does not state cpu.tflops and cpu.bandwidth"));
}

TEST(Ktransformers, PlacesAShare) {
  const Choices choices = {{0, 1, 2}, {2}, {0}, {2}};
  EXPECT_EQ(devices("ktransformers", {}, Layer(choices, 2, 15).trace), "gcccgcgcgc");
  EXPECT_EQ(devices("ktransformers", {{"gpu_experts", "0.34"}}, Layer(choices, 2, 15).trace), "ggccgcgggc");
  EXPECT_EQ(devices("ktransformers", {{"gpu_experts", "1"}}, Layer(choices, 2, 15).trace), "gggggggggg");
  // The prompt chose 2 twice: from the first new token on it is there in place of 0.
  EXPECT_EQ(devices("ktransformers", {{"gpu_experts", "0.34"}, {"placement", "dynamic"}}, Layer(choices, 2, 15).trace),
            "ggccgcgcgg");
  // Of equal ones those that are there: 0.
  EXPECT_EQ(devices("ktransformers", {{"gpu_experts", "0.34"}, {"placement", "dynamic"}},
                    Layer(Choices{{0, 1, 2}, {1}, {0}}, 1, 15).trace),
            "ggccgcgg");
  const std::string drawn = devices("ktransformers", {{"gpu_experts", "0.34"}, {"placement", "random"}},
                                    Layer(Choices{{0}, {1}, {2}}, 0, 15).trace);
  EXPECT_EQ(std::ranges::count(drawn, 'c'), 2);
}

// By the profile of other requests 1 is the most popular, then 2.
TEST(Ktransformers, PlacesWhatOtherRequestsChoseMost) {
  Trace trace = Layer(Choices{{0, 1, 2}, {0}}, 1, 15).trace;
  const Settings settings = {{"gpu_experts", "0.34"}, {"placement", "frequency"}};
  EXPECT_THAT([&] { devices("ktransformers", settings, trace); },
              testing::ThrowsMessage<Error>(HasSubstr("placement=frequency needs a profile, and the trace has none; "
                                                      "generate it with --routing-profile 10000")));
  trace.tensors[2].profiled_uses = 7;
  trace.tensors[3].profiled_uses = 5;
  EXPECT_EQ(devices("ktransformers", settings, trace), "gcgcgc");
  EXPECT_EQ(devices("ktransformers", {{"gpu_experts", "0.67"}, {"placement", "frequency"}}, trace), "gcgggc");
  // Where the prompt chose each once, they stay.
  EXPECT_EQ(devices("ktransformers", {{"gpu_experts", "0.34"}, {"placement", "dynamic"}}, trace), "gcgcgc");
}

TEST(Ktransformers, AShareIsAtMostOne) {
  try {
    make_policy("ktransformers", {{"gpu_experts", "30"}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("gpu_experts is a share, at most 1"));
  }
}

// Nobody says who chooses the experts.
TEST(ExpertPolicies, RefuseExpertsWithoutAGate) {
  Trace trace;
  const TensorId expert = trace.add_tensor("mlp.experts.0.w", 10, Role::expert, true);
  add_op(trace, 10, {expert}, {});
  for (const std::string policy : {"expert-lru", "moe-infinity", "fiddler", "ktransformers"}) {
    const MachineSpec machine = small_machine(100);
    const MadePolicy made = make_policy(policy);
    try {
      simulate(lower(trace, *made.policy, machine), machine, *made.policy);
      FAIL() << policy;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()),
                "policy '" + policy +
                    "': op 'op0' reads expert 'mlp.experts.0.w', and the trace does not say which op chooses it: give "
                    "the op `revealed_by`, the id of its gate");
    }
  }
}

// Programs without gates run, too.
TEST(ExpertPolicies, RunWithoutExperts) {
  for (const std::string policy : {"expert-lru", "moe-infinity", "fiddler", "ktransformers"}) {
    const MachineSpec machine = small_machine(100);
    const MadePolicy made = make_policy(policy);
    EXPECT_TRUE(simulate(lower(five_layers(10, 20), *made.policy, machine), machine, *made.policy).fits) << policy;
  }
}

}  // namespace
}  // namespace tencache
