// kvpr: how it splits a prompt's keys and values between copying and computing, and what that gains, against the paper's
// formula; and what a generation with choices looks like.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/recompute.h"
#include "policies/registry.h"
#include "sim/simulate.h"
#include "tests/generate_cases.h"
#include "tests/small_cases.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using testing::HasSubstr;

// Two layers, prompts in pieces of 64 tokens.
GenerateOptions generation(const std::string& model, Count requests, Count prompt, Count new_tokens) {
  GenerateOptions options = small(model);
  options.model.layers = 2;
  options.batch = requests;
  options.sequence_lengths = {prompt};
  options.forward_only = true;
  options.recompute = Recompute::choose;
  options.launch_gap_ns = 0;
  options.generation = TextGeneration{.new_tokens = new_tokens, .page_tokens = 64};
  return options;
}

// One layer's new token on a machine whose link takes 1.6 ms for the inputs of a piece's 64 tokens and 3.2 ms for their
// keys and values, and whose products of a piece take `product_ns`; nothing else takes time.
constexpr BytesPerSecond link_bandwidth = 25'000'000'000;
Trace timed(Trace trace, double flops_per_second) {
  for (Op& op : trace.ops) {
    const bool makes = trace.name(op) == "kv_project";
    op.duration_ns = makes ? static_cast<Nanoseconds>(static_cast<double>(op.flops) / flops_per_second * 1e9) : 0;
  }
  return trace;
}

MachineSpec machine() {
  MachineSpec spec = small_machine(200'000'000'000);
  spec.tiers[1].capacity = 200'000'000'000;
  for (Link& link : spec.links) link.bandwidth = link_bandwidth;
  return spec;
}

std::vector<RecomputeLevel> levels_of(const Trace& trace, const MachineSpec& spec) {
  std::vector<RecomputeLevel> levels(trace.choices.size(), RecomputeLevel::keep);
  make_policy("kvpr", {}).policy->recompute(trace, spec, levels);
  return levels;
}

Nanoseconds iteration(const Trace& trace, const MachineSpec& spec, const std::vector<RecomputeLevel>& levels) {
  const MadePolicy made = make_policy("kvpr", {});
  const RunResult result =
      simulate({with_levels(trace, levels), {}}, spec, *made.policy, {.max_iterations = 3, .until_steady = false});
  EXPECT_TRUE(result.fits) << result.misfit;
  return result.iteration_ns.back();
}

// Each new token has, in each layer, a choice for each of the prompt's pieces (100 tokens: 64 and 36), which makes the
// same keys and values of a piece of the layer's input.
TEST(KvChoices, AreOfEachTokenLayerAndPiece) {
  const GenerateOptions options = generation("opt-1.3b", 3, 100, 4);
  const Trace trace = generate(options);
  trace.validate("t");
  ASSERT_EQ(trace.choices.size(), 3u * 2 * 2);
  const Count h = options.model.hidden;
  for (const RecomputeChoice& choice : trace.choices) {
    const std::vector<OpIndex>& again = choice.again[static_cast<std::size_t>(RecomputeLevel::block)];
    ASSERT_EQ(again.size(), 1u);
    const Op& made = trace.ops[again.front()];
    const Count tokens = 3 * (trace.name(trace.tensors[trace.writes(made).front()]).ends_with("kv.0") ? 64 : 36);
    EXPECT_EQ(made.flops, 4 * tokens * h * h);
    EXPECT_EQ(trace.tensors[trace.reads(made).front()].bytes, tokens * h * 2);
    EXPECT_EQ(trace.tensors[trace.writes(made).front()].bytes, tokens * h * 4);
    EXPECT_EQ(trace.name(trace.ops[choice.before]), "decode_attention");
  }
  GenerateOptions plain = options;
  plain.recompute = Recompute::none;
  const auto flops_of = [](const Trace& of) { return flops(of, Phase::prefill) + flops(of, Phase::decode); };
  EXPECT_EQ(flops_of(trace), flops_of(generate(plain)));
}

// Of two layers' tokens the first one alone is made anew: later ones read what the prompt left.
TEST(KvChoices, HoldForTheirTokenAlone) {
  const Trace trace = generate(generation("opt-1.3b", 3, 64, 3));
  std::vector<RecomputeLevel> levels(trace.choices.size(), RecomputeLevel::keep);
  levels[0] = RecomputeLevel::block;
  const Trace lowered = with_levels(trace, levels);
  lowered.validate("t");
  ASSERT_EQ(lowered.ops.size(), trace.ops.size() + 1);
  const OpIndex again = trace.choices[0].before;
  EXPECT_EQ(lowered.name(lowered.ops[again]), "kv_project");
  EXPECT_EQ(lowered.ops[again].phase, Phase::decode);
  EXPECT_EQ(lowered.detail(lowered.ops[again]).step, 1u);
  const TensorId copy = lowered.writes(lowered.ops[again]).front();
  int readers = 0;
  for (const Op& op : lowered.ops) readers += std::ranges::count(lowered.reads(op), copy) > 0 ? 1 : 0;
  EXPECT_EQ(readers, 1);
}

// OPT-30B, 32 requests of 1024 tokens, 25 GB/s, 200 TFLOP/s. A piece of 64: inputs 1.17 ms, keys and values 2.35 ms, products
// 2.10 ms; new tokens have one more piece, which is copied. t(m) = 1.17 m + max(2.10 m, 2.35 (17 − m)) is least where the
// two are equal, at 0.53 of s' = 17 pieces (m* = s' p v_gpu / (2 h v_com + p v_gpu)): 8.97, of whole pieces 9.
TEST(Kvpr, SplitsAsThePaperSolves) {
  const Trace trace = timed(generate(generation("opt-30b", 32, 1024, 3)), 200e12);
  const std::vector<RecomputeLevel> levels = levels_of(trace, machine());
  ASSERT_EQ(levels.size(), 2u * 2 * 16);
  for (std::size_t i = 0; i < levels.size(); ++i) {
    EXPECT_EQ(levels[i], i % 16 < 9 ? RecomputeLevel::block : RecomputeLevel::keep) << i;
  }
}

// Finer pieces of 16 tokens, 65 of them: copying all takes 65 × 0.587 = 38.2 ms a layer. Where 34 are computed again, their
// inputs and the others take 34 × 0.294 + 31 × 0.587 = 28.2 ms: 1.35 times as fast (the paper's formula: 1.36, without
// the new tokens). Prompts, and what they leave on its way to the CPU, are alike in both runs: four tokens more are four
// tokens' time in two layers.
TEST(Kvpr, GainsWhatThePaperSays) {
  const auto decode = [](bool computes) {
    const auto takes = [&](Count new_tokens) {
      GenerateOptions options = generation("opt-30b", 32, 1024, new_tokens);
      options.generation->page_tokens = 16;
      const Trace trace = timed(generate(options), 200e12);
      std::vector<RecomputeLevel> levels(trace.choices.size(), RecomputeLevel::keep);
      if (computes) levels = levels_of(trace, machine());
      return iteration(trace, machine(), levels);
    };
    return to_seconds(takes(8) - takes(4)) / (4 * 2);
  };
  const double copied = decode(false), split = decode(true);
  EXPECT_NEAR(copied, 38.2e-3, 0.2e-3);
  EXPECT_NEAR(copied / split, 1.36, 0.02);
}

// Eight query heads share one of keys and values in Llama-3-70B: the input is four times as large as what it makes.
TEST(Kvpr, RefusesGroupedQueries) {
  const Trace trace = generate(generation("llama-3-70b", 2, 64, 2));
  EXPECT_THAT([&] { levels_of(trace, machine()); },
              testing::ThrowsMessage<Error>(
                  AllOf(HasSubstr("policy 'kvpr'"), HasSubstr("cannot pay"), HasSubstr("grouped queries"))));
}

// A slow GPU or a fast link: nothing is computed; the other way round: all of it. With weights in CPU memory, too.
TEST(Kvpr, ComputesAllOrNothingAtTheExtremes) {
  const Trace trace = generate(generation("opt-1.3b", 8, 256, 2));
  const auto computed = [&](double flops_per_second) {
    const std::vector<RecomputeLevel> levels = levels_of(timed(trace, flops_per_second), machine());
    return std::ranges::count(levels, RecomputeLevel::block);
  };
  EXPECT_EQ(computed(1e12), 0);
  EXPECT_EQ(computed(1e18), 2 * 4);
  const MadePolicy made = make_policy("kvpr", {{"weights", "cpu"}});
  const RunResult result =
      simulate(lower(trace, *made.policy, machine()), machine(), *made.policy, {.max_iterations = 3});
  EXPECT_TRUE(result.fits) << result.misfit;
}

TEST(Kvpr, SaysWhenTheTraceLeavesNothingOpen) {
  GenerateOptions options = generation("opt-1.3b", 2, 64, 2);
  options.recompute = Recompute::none;
  const Trace trace = generate(options);
  const MadePolicy made = make_policy("kvpr", {});
  made.policy->prepare(trace, machine(), {});
  std::vector<std::string> notes;
  made.policy->notes(notes);
  EXPECT_THAT(notes, testing::ElementsAre(HasSubstr("--recompute choose")));
}

TEST(KvChoices, AreRefusedWhereTheyMeanNothing) {
  GenerateOptions options = generation("gpt2", 2, 64, 2);
  EXPECT_THAT(error_of(options),
              HasSubstr("--recompute: with --new-tokens 'choose' is for models with a product each"));
  options = generation("opt-1.3b", 2, 64, 2);
  options.generation->attention = Device::cpu;
  EXPECT_THAT(error_of(options), HasSubstr("computes on the GPU; leave --attention-on out"));
  options = generation("opt-1.3b", 2, 64, 2);
  options.generation->shared_prefix = 16;
  EXPECT_THAT(error_of(options), HasSubstr("leave --shared-prefix out"));
  options = generation("opt-1.3b", 2, 64, 2);
  options.recompute = Recompute::block;
  EXPECT_THAT(error_of(options), HasSubstr("with --new-tokens take choose"));
}

}  // namespace
}  // namespace tencache
