// Whole timelines of three generated workloads, each of another kind, under the policies that plan most: a drift of the
// generator, of a policy, of the engine or of the simulated machine shows here as a diff of simulated times.
//
// After a wanted change: TENCACHE_UPDATE_GOLDENS=1 rewrites the files, and the tests fail so that the diff gets looked
// at.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "policies/registry.h"
#include "sim/simulate.h"
#include "tests/generate_cases.h"
#include "tests/golden/golden_run.h"
#include "traces/transform/lower.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

// The model's shape with one layer, small enough to be read line by line.
GenerateOptions tiny(const std::string& name) {
  GenerateOptions options = small(name);
  ModelDescription& model = options.model;
  model.layers = 1;
  model.hidden = 64;
  model.key_value_heads = model.key_value_heads == model.heads ? 4 : 2;
  model.heads = 4;
  model.head_dimension = 16;
  model.intermediate = 128;
  model.vocabulary = 256;
  if (model.positions > 0) model.positions = 32;
  if (model.experts > 0) model.experts = 4;
  options.batch = 2;
  options.sequence_lengths = {16};
  options.clip = Clip::off;
  return options;
}

// CPU memory and an SSD that hold everything; the CPU's Adam takes 28 bytes a nanosecond.
MachineSpec tiny_machine(Bytes gpu_bytes) {
  MachineSpec machine = small_machine(gpu_bytes, true);
  machine.tiers[1].capacity = machine.tiers[2].capacity = 100'000'000;
  machine.links.push_back({"in", 2, 1, byte_per_ns, 0, {}});
  machine.links.push_back({"out", 1, 2, byte_per_ns, 0, {}});
  machine.cpu.adam_parameters_per_second = 1e9;
  return machine;
}

// The last iteration, in which the steady state shows.
void expect_last_iteration(const std::string& golden, const GoldenRun& run, const Program& program,
                           const MachineSpec& machine, const std::string& title) {
  ASSERT_TRUE(run.result.fits) << run.result.misfit;
  ASSERT_TRUE(run.result.steady);
  expect_golden(golden, render(run, program, machine, title, run.result.iterations - 1));
}

void expect_timeline(const std::string& golden, const std::string& policy, const Settings& settings, const Trace& trace,
                     const MachineSpec& machine) {
  const MadePolicy made = make_policy(policy, settings);
  const Program program = lower(trace, *made.policy, machine);
  expect_last_iteration(golden, run_golden(policy, settings, trace, machine), program, machine, policy);
}

TEST(GoldenTimelineTest, DecoderUnderTenCache) {
  expect_timeline("timeline_decoder_10cache", "10cache", {{"free_gpu", "100000"}}, generate(tiny("gpt2")),
                  tiny_machine(200'000));
}

TEST(GoldenTimelineTest, MixtureOfExpertsUnderG10) {
  GenerateOptions options = tiny("mixtral-8x7b");
  options.lora_rank = 4;
  options.weights = find_weight_format("nf4");
  expect_timeline("timeline_experts_g10", "g10", {{"chunk", "whole"}}, generate(options), tiny_machine(150'000));
}

// ZeRO-3 on two ranks that share one link from the CPU; the first of them.
TEST(GoldenTimelineTest, TwoRanksUnderZeroInfinity) {
  GenerateOptions options = tiny("bert-base-uncased");
  options.data_parallel = 2;
  options.zero = 3;
  options.recompute = Recompute::block;
  const std::vector<Trace> traces = split_ranks(generate(options));
  ASSERT_EQ(traces.size(), 2U);
  MachineSpec machine = tiny_machine(300'000);
  machine.resources.push_back({.name = "switch", .bandwidth = byte_per_ns, .shared = 0});
  machine.links[h2d].uses = {0};
  std::vector<MadePolicy> policies;
  std::vector<Program> programs;
  std::vector<Timeline> timelines(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    policies.push_back(make_policy("zero-infinity", {}));
    programs.push_back(lower(traces[rank], *policies[rank].policy, machine));
  }
  std::vector<RankRun> runs(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    runs[rank].program = &programs[rank];
    runs[rank].machine = &machine;
    runs[rank].policy = policies[rank].policy.get();
    runs[rank].options.timeline = &timelines[rank];
  }
  RanksResult result = simulate_ranks(runs, {.max_iterations = 8, .until_steady = true});
  GoldenRun run;
  run.result = std::move(result.ranks[0]);
  run.timeline = std::move(timelines[0]);
  expect_last_iteration("timeline_ranks_zero_infinity", run, programs[0], machine, "zero-infinity, rank 0 of 2");
}

}  // namespace
}  // namespace tencache
