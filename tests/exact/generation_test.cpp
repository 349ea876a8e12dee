// Generated text generations against closed forms: flops and bytes of a step, what the KV cache holds, the order of a
// block.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "configs/generate_settings.h"
#include "core/error.h"
#include "tests/generate_cases.h"
#include "traces/generate/generate.h"
#include "traces/generate/kernel_model.h"

namespace tencache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two micro-batches of three requests, prompts of 20 tokens, five new ones each.
GenerateOptions block(const std::string& model, BlockOrder order = BlockOrder::zigzag) {
  GenerateOptions options = small(model);
  options.model.layers = 2;
  options.batch = 6;
  options.micro_batches = 2;
  options.sequence_lengths = {20};
  options.forward_only = true;
  options.generation = TextGeneration{.new_tokens = 5, .order = order};
  return options;
}

Count step_of(const Trace& trace, const Op& op) { return trace.detail(op).step; }

Count flops_of_step(const Trace& trace, Count step) {
  Count flops = 0;
  for (const Op& op : trace.ops) flops += step_of(trace, op) == step ? op.flops : 0;
  return flops;
}

std::vector<const Tensor*> cache_of(const Trace& trace) {
  std::vector<const Tensor*> pieces;
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.role == Role::kv_cache) pieces.push_back(&tensor);
  }
  return pieces;
}

// A step i of T = 6 tokens: 2·T multiply-adds for each number of a linear layer's weight, 4·T·(s + i)·h for attention;
// the prompt's 120 tokens go through the layers, six through the head, and causal attention counts half of the scores.
TEST(TextGeneration, TakesTheFlopsOfItsSteps) {
  const GenerateOptions options = block("llama-3-8b");
  const ModelDescription& m = options.model;
  const Trace trace = generate(options);
  const Count width = m.heads * m.head_dimension, keys = m.key_value_heads * m.head_dimension;
  const Count layer = m.hidden * (2 * width + 2 * keys + 3 * m.intermediate);
  const Count head = m.hidden * m.vocabulary;
  EXPECT_EQ(flops_of_step(trace, 0), 2 * (120 * m.layers * layer + 6 * head) + m.layers * 2 * 120 * 20 * width);
  for (Count i = 1; i < 5; ++i) {
    EXPECT_EQ(flops_of_step(trace, i), 2 * 6 * (m.layers * layer + head) + m.layers * 4 * 6 * (20 + i) * width) << i;
  }
}

// In the prompt's 20 tokens' two pages of 16 there is room for all five; a page of 7 bytes of keys is one token; whole: 25.
TEST(TextGeneration, KeepsKeysAndValuesInPieces) {
  GenerateOptions options = block("llama-3-8b");
  const Bytes token = 2 * options.model.key_value_heads * options.model.head_dimension * 2;  // keys and values, 16 bits
  const auto tokens = [&] {
    std::map<Count, int> sizes;  // how many pieces have room for so many tokens
    const Trace trace = generate(options);
    for (const Tensor* piece : cache_of(trace)) ++sizes[piece->bytes / (3 * token)];
    return sizes;
  };
  EXPECT_THAT(tokens(), ElementsAre(std::pair(32, 4)));
  options.generation->page_tokens = 11;
  EXPECT_THAT(tokens(), ElementsAre(std::pair(11, 4), std::pair(22, 4)));  // the 23rd and 24th token begin a third page
  options.generation->page_tokens = 0;
  EXPECT_THAT(tokens(), ElementsAre(std::pair(25, 4)));
  options.generation->page_bytes = token / 2;  // of keys: one token
  EXPECT_THAT(tokens(), ElementsAre(std::pair(1, 16), std::pair(20, 4)));
}

// Eight of the 20 tokens have keys and values before the block begins, once for all six requests in each of two layers:
// the other twelve go through the layers and see them, and new tokens see as many as ever.
TEST(TextGeneration, SharesAPrefix) {
  GenerateOptions options = block("llama-3-8b");
  const ModelDescription& m = options.model;
  const Trace alone = generate(options);
  options.generation->shared_prefix = 8;
  const Trace trace = generate(options);
  const Count width = m.heads * m.head_dimension, keys = m.key_value_heads * m.head_dimension;
  const Count layer = m.hidden * (2 * width + 2 * keys + 3 * m.intermediate), head = m.hidden * m.vocabulary;
  EXPECT_EQ(flops_of_step(trace, 0),
            2 * (6 * 12 * m.layers * layer + 6 * head) + m.layers * 2 * 6 * (20 * 20 - 8 * 8) * width);
  for (Count i = 1; i < 5; ++i) EXPECT_EQ(flops_of_step(trace, i), flops_of_step(alone, i)) << i;
  Bytes shared = 0;
  std::map<TensorId, int> readers;
  for (TensorId id = 0; id < trace.tensors.size(); ++id) {
    if (!trace.tensors[id].persistent || trace.tensors[id].role != Role::kv_cache) continue;
    shared += trace.tensors[id].bytes;
    readers[id] = 0;
  }
  for (const Op& op : trace.ops) {
    for (const TensorId id : trace.reads(op)) {
      if (readers.contains(id)) ++readers[id];
    }
    for (const TensorId id : trace.writes(op)) EXPECT_FALSE(readers.contains(id));
  }
  EXPECT_EQ(shared, m.layers * 8 * 2 * keys * 2);
  for (const auto& [id, count] : readers) EXPECT_EQ(count, 2 * 5) << id;  // of two micro-batches, each step once
  const std::string prefix = "--shared-prefix: ";
  options.generation->shared_prefix = 20;
  EXPECT_THAT(error_of(options), HasSubstr(prefix + "20 tokens are no beginning of a prompt of 20; take fewer"));
  options.generation->shared_prefix = 8;
  options.attention = AttentionKind::materialised;
  EXPECT_THAT(error_of(options), HasSubstr(prefix + "is modelled with fused kernels only"));
  options = block("deepseek-v2-lite");
  options.generation->shared_prefix = 8;
  EXPECT_THAT(error_of(options), HasSubstr(prefix + "is not modelled for latent attention and sliding windows"));
}

// What a step attends is what was written before, in its own layer and micro-batch, and nothing else is kept.
TEST(TextGeneration, ReadsWhatItWrote) {
  GenerateOptions options = block("opt-125m");
  options.generation->page_tokens = 1;
  const Trace trace = generate(options);
  for (const Op& op : trace.ops) {
    if (trace.name(op) != "decode_attention") continue;
    Count pieces = 0;
    for (const TensorId id : trace.reads(op)) {
      if (trace.tensors[id].role != Role::kv_cache) continue;
      ++pieces;
      EXPECT_THAT(std::string(trace.name(trace.tensors[id])), HasSubstr(std::string(trace.module(op))));
    }
    EXPECT_EQ(pieces, 1 + step_of(trace, op));
    const Count width = options.model.heads * options.model.head_dimension;
    EXPECT_EQ(op.bytes, 2 * 3 * width * 2 * (20 + step_of(trace, op)) + 2 * 3 * width * 2);
    EXPECT_EQ(op.phase, Phase::decode);
  }
}

// Names of layers as they come, "0" or "1", each with its micro-batch, which the name of its cache's writer's rank tells
// by turns.
TEST(TextGeneration, RunsInItsOrder) {
  const auto order = [](BlockOrder kind) {
    const Trace trace = generate(block("opt-125m", kind));
    std::string text;
    std::map<TensorId, int> micro_batch;  // by tensor of the cache
    std::map<std::string, int> seen;
    for (const Op& op : trace.ops) {
      if (trace.name(op) != "kv_write") continue;
      const TensorId piece = trace.writes(op)[0];
      const std::string module(trace.module(op));
      if (!micro_batch.contains(piece)) micro_batch[piece] = seen[module]++;
      text +=
          std::string(module.find("layers.0") != module.npos ? "a" : "b") + std::to_string(micro_batch[piece]) + " ";
    }
    return text;
  };
  EXPECT_EQ(order(BlockOrder::zigzag), "a0 a1 b0 b1 a0 a1 b0 b1 a0 a1 b0 b1 a0 a1 b0 b1 a0 a1 b0 b1 ");
  EXPECT_EQ(order(BlockOrder::row), "a0 b0 a0 b0 a0 b0 a0 b0 a0 b0 a1 b1 a1 b1 a1 b1 a1 b1 a1 b1 ");
}

TEST(TextGeneration, SaysInTheHeaderWhatComesOut) {
  const Trace trace = generate(block("gpt2"));
  EXPECT_EQ(trace.header.tokens_per_iteration(), 6u * 5u);
  EXPECT_EQ(trace.ops.front().phase, Phase::prefill);
  EXPECT_EQ(trace.name(trace.ops.back()), "sample");
  EXPECT_EQ(step_of(trace, trace.ops.back()), 4u);
}

// Ranks that share each layer: each has its heads' part of the cache.
TEST(TextGeneration, IsShared) {
  GenerateOptions options = block("llama-3-8b");
  const auto bytes = [&options] {
    const Trace trace = generate(options);
    Bytes sum = 0;
    for (const Tensor* piece : cache_of(trace)) sum += piece->bytes;
    return sum;
  };
  const Bytes alone = bytes();
  options.tensor_parallel = 2;
  EXPECT_EQ(bytes(), alone);
}

// ---- Mixtures of experts. -------------------------------------------------------------------------------------------

// Experts that run, by the op that decided it: how many, and their tokens together.
struct Routed {
  Count experts = 0, tokens = 0;
};
std::map<OpIndex, Routed> routed(const Trace& trace, const std::string& up) {
  std::map<OpIndex, Routed> found;
  for (const Op& op : trace.ops) {
    const OpIndex decision = trace.detail(op).revealed_by;
    if (decision == none || trace.name(op) != up) continue;
    ++found[decision].experts;
    found[decision].tokens += trace.kernel(op).shape[1];
  }
  return found;
}

// Each token goes to two experts; an op reads a routed expert's weight exactly where the router decided that it runs,
// and all weights that are read are products of the experts' tokens.
TEST(MixtureOfExperts, RunsTheExpertsThatItsTokensChose) {
  const GenerateOptions options = block("mixtral-8x7b");
  const ModelDescription& m = options.model;
  const Trace trace = generate(options);
  Bytes experts = 0;
  for (const Tensor& tensor : trace.tensors) experts += tensor.role == Role::expert ? tensor.bytes : 0;
  EXPECT_EQ(experts, 2 * m.layers * m.experts * 3 * m.hidden * m.intermediate);
  for (const Op& op : trace.ops) {
    bool reads_expert = false;
    for (const TensorId id : trace.reads(op)) reads_expert |= trace.tensors[id].role == Role::expert;
    const OpIndex decision = trace.detail(op).revealed_by;
    if (reads_expert) {
      ASSERT_NE(decision, none);
    }
    if (decision == none) continue;
    EXPECT_EQ(trace.name(trace.ops[decision]), "softmax_top_k");
    EXPECT_THAT(std::string(trace.module(op)), HasSubstr(std::string(trace.module(trace.ops[decision])) + ".experts."));
    EXPECT_EQ(trace.detail(op).step, trace.detail(trace.ops[decision]).step);
  }
  const auto found = routed(trace, "w3");
  EXPECT_EQ(found.size(), m.layers * options.micro_batches * 5);
  for (const auto& [decision, what] : found) {
    EXPECT_EQ(what.tokens, 2u * (step_of(trace, trace.ops[decision]) == 0 ? 3 * 20 : 3));
    EXPECT_LE(what.experts, m.experts);
  }
}

// Router, and two experts a token: 2·T·(h·E + 2·3·h·f) beside attention.
TEST(MixtureOfExperts, TakesTheFlopsOfTheExpertsOfItsTokens) {
  const GenerateOptions options = block("mixtral-8x7b");
  const ModelDescription& m = options.model;
  const Trace trace = generate(options);
  const Count width = m.heads * m.head_dimension, keys = m.key_value_heads * m.head_dimension;
  const Count layer = m.hidden * (2 * width + 2 * keys + m.experts + 2 * 3 * m.intermediate);
  for (Count i = 1; i < 5; ++i) {
    EXPECT_EQ(flops_of_step(trace, i),
              2 * 6 * (m.layers * layer + m.hidden * m.vocabulary) + m.layers * 4 * 6 * (20 + i) * width);
  }
}

// b independent tokens that choose k of E equally popular experts each touch E·(1 - (1 - k/E)^b) of them.
TEST(MixtureOfExperts, TouchesAsManyExpertsAsIndependentTokensDo) {
  for (const Count b : {1u, 4u, 8u, 16u}) {
    GenerateOptions options = block("mixtral-8x7b");
    options.model.layers = 8;
    options.batch = b;
    options.micro_batches = 1;
    options.sequence_lengths = {1};
    options.generation->new_tokens = 100;
    options.generation->routing.popularity = 0;
    double experts = 0, draws = 0;
    for (const auto& [decision, what] : routed(generate(options), "w3")) {
      experts += static_cast<double>(what.experts);
      ++draws;
    }
    ASSERT_EQ(draws, 800);
    const double expected = 8 * (1 - std::pow(1 - 2.0 / 8, static_cast<double>(b)));
    // Its variance is below that of E independent coins, E/4: five standard errors.
    EXPECT_NEAR(experts / draws, expected, b == 1 ? 0 : 5 * std::sqrt(2 / draws)) << b;
  }
}

// Tokens of other requests, counted: each chooses 2 of 8 experts. The trace is else as it is without a profile.
TEST(MixtureOfExperts, HasAProfileOfOtherRequests) {
  GenerateOptions options = block("mixtral-8x7b");
  const Trace without = generate(options);
  options.generation->routing.profile = 4000;
  options.generation->routing.popularity = 1;
  const Trace skewed = generate(options);
  options.generation->routing.popularity = ExpertRouting{}.popularity;
  const Trace with = generate(options);
  EXPECT_EQ(with.accesses, without.accesses);
  std::map<std::string, std::map<std::string, Count>> uses;  // by layer, and expert
  for (const Tensor& tensor : skewed.tensors) {
    if (tensor.role != Role::expert) {
      EXPECT_EQ(tensor.profiled_uses, 0);
      continue;
    }
    const std::string name(skewed.name(tensor));
    const std::size_t expert = name.find("experts.") + 8, end = name.find('.', expert);
    Count& count = uses[name.substr(0, expert)].try_emplace(name.substr(expert, end - expert), 0).first->second;
    EXPECT_TRUE(count == 0 || count == tensor.profiled_uses) << name;  // all weights of an expert alike
    count = tensor.profiled_uses;
  }
  EXPECT_EQ(uses.size(), options.model.layers);
  for (const auto& [layer, experts] : uses) {
    Count sum = 0, most = 0;
    for (const auto& [expert, count] : experts) sum += count, most = std::max(most, count);
    EXPECT_EQ(sum, 2 * 4000u) << layer;
    // By Zipf's law the first is chosen by 1/2.72 at once, and by 0.31 of the rest after another.
    EXPECT_GT(most, 4000 / 2u) << layer;
  }
}

// Kernels that compute all experts of a layer start once: an op says so for each layer and token, and the experts' own
// ops are shorter by it.
TEST(MixtureOfExperts, GroupedKernelsStartOnce) {
  GenerateOptions options = block("mixtral-8x7b");
  const Trace separate = generate(options);
  options.generation->grouped_experts = true;
  const Trace grouped = generate(options);
  const KernelModel kernels(options.gpu, options.precision);
  const Nanoseconds product = kernels.start_ns({.kind = KernelKind::matmul});
  ASSERT_GT(product, 0);
  const auto named = [](const Trace& trace, std::string_view name) {
    std::vector<Nanoseconds> durations;
    for (const Op& op : trace.ops) {
      if (trace.name(op) == name) durations.push_back(op.duration_ns);
    }
    return durations;
  };
  const std::vector<Nanoseconds> starts = named(grouped, "grouped_experts");
  EXPECT_EQ(starts.size(), named(grouped, "permute").size());
  for (const Nanoseconds start : starts) {
    EXPECT_EQ(start, 2 * product + kernels.start_ns({.kind = KernelKind::elementwise}));
  }
  EXPECT_THAT(named(separate, "grouped_experts"), IsEmpty());
  const std::vector<Nanoseconds> before = named(separate, "w3"), after = named(grouped, "w3");
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i], std::max<Nanoseconds>(1, before[i] - product));
  EXPECT_EQ(named(separate, "gate"), named(grouped, "gate"));
}

// A request that prefers few experts to the rest chooses these again and again, and others prefer others.
TEST(MixtureOfExperts, RequestsHaveTopics) {
  const auto touched = [](double topic, Count requests) {
    GenerateOptions options = block("mixtral-8x7b");
    options.model.experts = 64;
    options.batch = requests;
    options.micro_batches = 1;
    options.sequence_lengths = {1};
    options.generation->new_tokens = 20;
    options.generation->routing.popularity = 0;
    options.generation->routing.topic = topic;
    std::map<std::string, int> modules;
    const Trace trace = generate(options);
    for (const Op& op : trace.ops) {
      if (trace.name(op) == "w3") ++modules[std::string(trace.module(op))];
    }
    return static_cast<double>(modules.size()) / static_cast<double>(options.model.layers);
  };
  // 20 tokens of two experts each: without a topic 64·(1 − (62/64)^20) = 30.1 of 64.
  EXPECT_NEAR(touched(0, 1), 30.1, 3);
  EXPECT_LT(touched(2, 1), 15);
  // 16 requests with topics of their own touch far more than one.
  EXPECT_GT(touched(2, 16), 45);
}

// The same choices in both orders and on every rank; others with another seed; a token that always keeps the experts of
// the one before it never changes them.
TEST(MixtureOfExperts, ChoosesBySeedAlone) {
  const auto choices = [](const GenerateOptions& options) {
    const Trace trace = generate(options);
    std::map<std::string, std::vector<Count>> tokens;  // of an expert, by rank and micro-batch's cache, in its order
    for (const Op& op : trace.ops) {
      if (trace.name(op) != "w3") continue;
      tokens[std::to_string(op.rank) + std::string(trace.module(op)) + std::to_string(step_of(trace, op))].push_back(
          trace.kernel(op).shape[1]);
    }
    return tokens;
  };
  GenerateOptions options = block("mixtral-8x7b");
  options.micro_batches = 1;
  const auto once = choices(options);
  EXPECT_EQ(once, choices(options));
  options.generation->order = BlockOrder::row;
  EXPECT_EQ(once, choices(options));
  options.generation->routing.seed = 2;
  EXPECT_NE(once, choices(options));
  options.tensor_parallel = 2;
  auto ranks = choices(options);
  for (const auto& [name, tokens] : ranks) EXPECT_EQ(tokens, ranks.at("1" + name.substr(1))) << name;

  options = block("mixtral-8x7b");
  options.generation->routing.repeat = 1;
  options.batch = options.micro_batches = 1;
  const auto fixed = routed(generate(options), "w3");
  for (const auto& [decision, what] : fixed) EXPECT_EQ(what.experts, 2u);
}

// Fiddler (Kamahori et al. 2024) places 56 and 125 of Mixtral's 256 experts on the GPU. In the best placement, that of
// the most popular experts of each layer, 25.2 and 53.0 % of the choices find their expert there.
TEST(MixtureOfExperts, AreAboutAsPopularAsFiddlerMeasured) {
  GenerateOptions options = block("mixtral-8x7b");
  options.model.layers = 8;
  options.batch = options.micro_batches = 1;
  options.sequence_lengths = {4000};
  options.generation->new_tokens = 1;
  const Trace trace = generate(options);
  std::map<std::string, std::vector<double>> of_layer;
  for (const Op& op : trace.ops) {
    const std::string module(trace.module(op));
    if (trace.name(op) == "w3") {
      of_layer[module.substr(0, module.find(".experts"))].push_back(static_cast<double>(trace.kernel(op).shape[1]) /
                                                                    (2 * 4000));
    }
  }
  ASSERT_EQ(of_layer.size(), 8u);
  double best_56 = 0, best_125 = 0;  // shares of a layer's 1.75 and 3.906 most popular experts
  for (auto& [layer, shares] : of_layer) {
    std::sort(shares.rbegin(), shares.rend());
    best_56 += (shares[0] + 0.75 * shares[1]) / 8;
    best_125 += (shares[0] + shares[1] + shares[2] + 0.90625 * shares[3]) / 8;
  }
  EXPECT_NEAR(best_56, 0.252, 0.01);
  EXPECT_NEAR(best_125, 0.530, 0.01);
}

TEST(MixtureOfExperts, OfQwenAndGptOssTakesTheFlopsOfItsTokens) {
  // gpt-oss: gate and up are one product, every second layer sees the last 8 tokens only.
  for (const char* name : {"qwen3-30b-a3b", "gpt-oss-20b"}) {
    GenerateOptions options = block(name);
    ModelDescription& m = options.model;
    const bool windows = m.sliding_window != 0;
    if (windows) m.sliding_window = 8;
    const Trace trace = generate(options);
    const Count width = m.heads * m.head_dimension, keys = m.key_value_heads * m.head_dimension;
    const Count layer = m.hidden * (2 * width + 2 * keys + m.experts + m.experts_per_token * 3 * m.expert_width());
    const Count head = m.hidden * m.vocabulary;
    const Count prompt_scores = windows ? 20 * 20 + (20 * 20 - 12 * 12) : 2 * 20 * 20;  // twice those of both layers
    EXPECT_EQ(flops_of_step(trace, 0), 2 * (120 * 2 * layer + 6 * head) + 2 * 6 * prompt_scores * width) << name;
    for (Count i = 1; i < 5; ++i) {
      const Count seen = 20 + i + (windows ? 8 : 20 + i);
      EXPECT_EQ(flops_of_step(trace, i), 2 * 6 * (2 * layer + head) + 4 * 6 * seen * width) << name << " " << i;
    }
  }
}

// A layer with a window of 8 tokens keeps no more of the prompt, and reads the pages that hold some of the last eight.
TEST(TextGeneration, KeepsWhatAWindowSees) {
  GenerateOptions options = block("gpt-oss-20b");
  options.model.sliding_window = 8;
  options.batch = options.micro_batches = 1;
  options.generation->page_tokens = 4;
  options.generation->new_tokens = 10;
  const Trace trace = generate(options);
  const Bytes token = 2 * options.model.key_value_heads * options.model.head_dimension * 2;
  std::map<std::string, std::vector<Count>> pieces;  // tokens of each, by layer
  std::vector<Count> read;                           // pieces of layer 0, by step
  for (const Tensor* piece : cache_of(trace)) {
    pieces[std::string(trace.name(*piece)).substr(0, 14)].push_back(piece->bytes / token);
  }
  for (const Op& op : trace.ops) {
    if (trace.name(op) != "decode_attention" || trace.module(op) != "model.layers.0.self_attn") continue;
    Count count = 0;
    bool sinks = false;
    for (const TensorId id : trace.reads(op)) {
      count += trace.tensors[id].role == Role::kv_cache;
      sinks |= trace.name(trace.tensors[id]) == "model.layers.0.self_attn.sinks";
    }
    EXPECT_TRUE(sinks);
    read.push_back(count);
    EXPECT_EQ(trace.kernel(op).shape[4], 8u);
  }
  // 20 + 9 tokens: the prompt's last eight, then pages of four.
  EXPECT_THAT(pieces.at("model.layers.0"), ElementsAre(8, 4, 4, 4));
  EXPECT_THAT(pieces.at("model.layers.1"), ElementsAre(20, 4, 4, 4));
  EXPECT_THAT(read, ElementsAre(2, 2, 2, 2, 3, 3, 3, 2, 3));
  options.generation->page_tokens = 0;  // room for a window, in which tokens take the places of earlier ones
  pieces.clear();
  const Trace whole = generate(options);
  for (const Tensor* piece : cache_of(whole)) {
    pieces[std::string(whole.name(*piece)).substr(0, 14)].push_back(piece->bytes / token);
  }
  EXPECT_THAT(pieces.at("model.layers.0"), ElementsAre(8));
  EXPECT_THAT(pieces.at("model.layers.1"), ElementsAre(30));
}

// The narrow vector and the rotated part of the key; a token's query is multiplied with the weight that would expand
// the cache (h_k·r numbers a head), its context with the rest of it.
TEST(LatentAttention, CachesAndReadsTheNarrowVectors) {
  for (const char* name : {"deepseek-v3", "deepseek-v2-lite"}) {
    GenerateOptions options = block(name);
    ModelDescription& m = options.model;
    m.dense_layers = 1;  // of the two
    options.generation->page_tokens = 1;
    const Trace trace = generate(options);
    const Count width = m.key_value_rank + m.rope_dimension, plain = m.head_dimension - m.rope_dimension;
    Bytes cache = 0;
    for (const Tensor* piece : cache_of(trace)) cache += piece->bytes;
    EXPECT_EQ(cache, 6 * m.layers * 24 * width * 2) << name;
    const Count query = m.query_rank != 0 ? m.query_rank * (m.hidden + m.heads * m.head_dimension)
                                          : m.hidden * m.heads * m.head_dimension;
    const Count around = query + m.hidden * width + m.heads * m.value_dimension * m.hidden;
    const Count expand = m.key_value_rank * m.heads * (plain + m.value_dimension);  // or absorb: as much
    const Count dense = 3 * m.hidden * m.intermediate;
    const Count sparse =
        m.hidden * m.experts + 3 * m.hidden * m.expert_width() * (m.experts_per_token + m.shared_experts);
    const Count weights = 2 * (around + expand) + dense + sparse, head = m.hidden * m.vocabulary;
    EXPECT_EQ(flops_of_step(trace, 0),
              2 * (120 * weights + 6 * head) + 2 * 120 * 20 * m.heads * (m.head_dimension + m.value_dimension))
        << name;
    for (Count i = 1; i < 5; ++i) {
      EXPECT_EQ(flops_of_step(trace, i),
                2 * 6 * (weights + head) + 2 * 2 * 6 * (20 + i) * m.heads * (width + m.key_value_rank))
          << name;
    }
    for (const Op& op : trace.ops) {
      if (trace.name(op) != "decode_attention") continue;
      EXPECT_EQ(op.bytes, 3 * ((20 + step_of(trace, op)) * width + m.heads * (width + m.key_value_rank)) * 2);
    }
  }
}

// Published: 0.098 MB for Qwen3-30B-A3B and 0.070 MB for DeepSeek-V3, in 16 bits.
TEST(TextGeneration, KeepsThePublishedBytesOfAToken) {
  for (const auto& [name, megabytes] : {std::pair("qwen3-30b-a3b", 0.0983), std::pair("deepseek-v3", 0.0703)}) {
    GenerateOptions options = small(name);
    options.batch = 1;
    options.sequence_lengths = {1};
    options.forward_only = true;
    options.generation = TextGeneration{.new_tokens = 1, .page_tokens = 1};
    Bytes cache = 0;
    const Trace trace = generate(options);
    for (const Tensor* piece : cache_of(trace)) cache += piece->bytes;
    EXPECT_NEAR(static_cast<double>(cache) / 1e6, megabytes, 0.0001) << name;
  }
}

// Heads are shared, the narrow vector is whole on every rank; experts are cut.
TEST(LatentAttention, IsSharedByHeads) {
  GenerateOptions options = block("deepseek-v2-lite");
  options.model.dense_layers = 1;
  const Trace alone = generate(options);
  options.tensor_parallel = 2;
  const Trace shared = generate(options);
  const auto sizes = [](const Trace& trace, const std::string& name) {
    std::vector<Bytes> sizes;
    for (const Tensor& tensor : trace.tensors) {
      if (std::string(trace.name(tensor)).ends_with(name)) sizes.push_back(tensor.bytes);
    }
    return sizes;
  };
  for (const char* name :
       {"layers.0.self_attn.q_proj.weight", "layers.0.self_attn.kv_b_proj.weight", "layers.0.self_attn.o_proj.weight",
        "layers.1.mlp.experts.5.down_proj.weight", "layers.1.mlp.shared_experts.up_proj.weight"}) {
    const Bytes whole = sizes(alone, name).at(0);
    EXPECT_THAT(sizes(shared, name), ElementsAre(whole / 2, whole / 2)) << name;
  }
  for (const char* name : {"layers.0.self_attn.kv_a_proj_with_mqa.weight", "layers.1.mlp.gate.weight"}) {
    const Bytes whole = sizes(alone, name).at(0);
    EXPECT_THAT(sizes(shared, name), ElementsAre(whole, whole)) << name;
  }
  Bytes one = 0, two = 0;
  for (const Tensor* piece : cache_of(alone)) one += piece->bytes;
  for (const Tensor* piece : cache_of(shared)) two += piece->bytes;
  EXPECT_EQ(two, 2 * one);
}

// ---- Formats of weights and caches. ---------------------------------------------------------------------------------

GenerateOptions stored_as(const std::string& model, const char* format) {
  GenerateOptions options = small(model);
  options.batch = 1;
  options.sequence_lengths = {1};
  options.forward_only = true;
  options.generation = TextGeneration{.new_tokens = 2};
  options.weights = find_weight_format(format);
  return options;
}

Bytes weight_bytes(const Trace& trace) {
  return bytes_of_role(trace, Role::parameter, true) + bytes_of_role(trace, Role::expert, true);
}

// Published sizes: of the GGUF files of Llama-3 in Q4_K_M (4.92 and 42.5 GB), of gpt-oss' checkpoints (12.8 and 60.8
// GiB, its model card).
TEST(WeightFormats, HaveThePublishedSizes) {
  EXPECT_NEAR(static_cast<double>(weight_bytes(generate(stored_as("llama-3-8b", "q4_k_m")))) / 1e9, 4.92, 0.01 * 4.92);
  EXPECT_NEAR(static_cast<double>(weight_bytes(generate(stored_as("llama-3-70b", "q4_k_m")))) / 1e9, 42.5, 0.01 * 42.5);
  constexpr double gib = GiB;
  EXPECT_NEAR(static_cast<double>(weight_bytes(generate(stored_as("gpt-oss-20b", "mxfp4")))) / gib, 12.8, 0.1);
  EXPECT_NEAR(static_cast<double>(weight_bytes(generate(stored_as("gpt-oss-120b", "mxfp4")))) / gib, 60.8, 0.1);
}

struct Stored {
  const char* format;
  Bytes up;  // of up_proj of layer 0, 14336 × 4096
  bool expanded;
};

// A product reads the stored weight, or a dense copy that an op makes of it before each use; norms stay as they are.
TEST(WeightFormats, AreReadPackedOrExpanded) {
  constexpr Count rows = 14336, columns = 4096, n = rows * columns;
  const Stored cases[] = {
      {"int8", n + 4 * rows, false},                           // a scale a row
      {"int8-expanded", n + 4 * rows, true},                   //
      {"nf4", n / 2 + n / 64 + 4 * n / 64 / 256, true},        //
      {"awq", n / 2 + n / 128 * 5 / 2, false},                 // a scale of two bytes and a zero of half a byte
      {"gptq", n / 2 + n / 128 * 5 / 2 + 4 * columns, false},  // and the group of each input
      {"q4_k_m", n * 9 / 16, false},                           // 4.5 bits
      {"int4-g64", n * 9 / 16, true},                          // 0.5625 bytes
      {"sparse50", n * 9 / 8, true},                           // 0.5625 of two bytes
  };
  const auto decode_ns = [](const Trace& trace, const std::string& name) {
    Nanoseconds sum = 0;
    for (const Op& op : trace.ops) sum += op.phase == Phase::decode && trace.name(op) == name ? op.duration_ns : 0;
    return sum;
  };
  GenerateOptions dense = stored_as("llama-3-8b", "none");
  dense.model.layers = 2;
  const Nanoseconds dense_ns = decode_ns(generate(dense), "up_proj");
  for (const Stored& one : cases) {
    GenerateOptions options = stored_as("llama-3-8b", one.format);
    options.model.layers = 2;
    const Trace trace = generate(options);
    Count products = 0, expansions = 0;
    for (const Op& op : trace.ops) {
      if (trace.name(op) == "up_proj_dequantize") {
        ++expansions;
        EXPECT_EQ(trace.tensors[trace.reads(op)[0]].role, Role::parameter);
        EXPECT_EQ(op.bytes, trace.tensors[trace.reads(op)[0]].bytes + 2 * n);
        EXPECT_EQ(trace.tensors[trace.writes(op)[0]].bytes, 2 * n);
      }
      if (trace.name(op) != "up_proj") continue;
      ++products;
      const Tensor& weight = trace.tensors[trace.reads(op)[1]];
      EXPECT_EQ(weight.role, one.expanded ? Role::workspace : Role::parameter) << one.format;
      EXPECT_EQ(weight.bytes, one.expanded ? 2 * n : one.up) << one.format;
      EXPECT_EQ(op.bytes, 2 * (columns + rows) + weight.bytes);
    }
    EXPECT_EQ(products, 4u);
    EXPECT_EQ(expansions, one.expanded ? 4u : 0u) << one.format;
    for (const Tensor& tensor : trace.tensors) {
      if (trace.name(tensor) == "model.layers.0.mlp.up_proj.weight") {
        EXPECT_EQ(tensor.bytes, one.up) << one.format;
      }
      if (trace.name(tensor) == "model.norm.weight") {
        EXPECT_EQ(tensor.bytes, 2 * columns);
      }
    }
    // One token's products wait for memory.
    const double ratio = static_cast<double>(decode_ns(trace, "up_proj")) / static_cast<double>(dense_ns);
    const double stored = static_cast<double>(one.up) / (2.0 * n);
    EXPECT_NEAR(ratio, one.expanded ? 1 : stored, one.expanded ? 0.0 : 0.1) << one.format;
  }
}

// llama.cpp gives Q6_K to the output and, in half of the layers, to value and down projections; Q5_K to the other
// values of the 70B model. A row that is no multiple of 256 numbers falls back to blocks of 32.
TEST(WeightFormats, MixesKQuantsAsLlamaCppDoes) {
  const auto bits = [](const std::string& model, const std::string& name) {
    GenerateOptions options = stored_as(model, "q4_k_m");
    const Trace trace = generate(options);
    Count elements = 0;
    for (const ParameterShape& shape : parameters_of(options.model, options.head)) {
      if (shape.name == name) elements = shape.elements();
    }
    for (const Tensor& tensor : trace.tensors) {
      if (trace.name(tensor) == name) return 8.0 * static_cast<double>(tensor.bytes) / static_cast<double>(elements);
    }
    return 0.0;
  };
  EXPECT_EQ(bits("llama-3-8b", "lm_head.weight"), 6.5625);
  EXPECT_EQ(bits("llama-3-8b", "model.embed_tokens.weight"), 4.5);
  EXPECT_EQ(bits("llama-3-8b", "model.layers.3.mlp.down_proj.weight"), 6.5625);
  EXPECT_EQ(bits("llama-3-8b", "model.layers.4.mlp.down_proj.weight"), 4.5);
  EXPECT_EQ(bits("llama-3-8b", "model.layers.6.self_attn.v_proj.weight"), 6.5625);
  EXPECT_EQ(bits("llama-3-70b", "model.layers.10.self_attn.v_proj.weight"), 5.5);
  EXPECT_EQ(bits("llama-3-70b", "model.layers.10.self_attn.k_proj.weight"), 4.5);
  EXPECT_EQ(bits("deepseek-v2-lite", "model.layers.0.mlp.down_proj.weight"), 8.5);  // 10944 numbers
  EXPECT_EQ(bits("deepseek-v2-lite", "model.layers.1.mlp.gate.weight"), 16);
  EXPECT_EQ(bits("gpt2", "transformer.wte.weight"), 6.5625);  // tied: the output
}

// FlexGen's: groups of 64 with a minimum and a scale, 0.5625 bytes a value, expanded before each attention.
TEST(WeightFormats, OfACacheAreExpandedBeforeAttention) {
  GenerateOptions options = block("llama-3-8b");
  options.generation->cache_packing = &int4_g64;
  const Trace trace = generate(options);
  const Count width = 2 * options.model.key_value_heads * options.model.head_dimension;
  for (const Tensor* piece : cache_of(trace)) EXPECT_EQ(piece->bytes, 3 * 32 * width * 9 / 16);
  Count expanded = 0;
  for (const Op& op : trace.ops) {
    if (trace.name(op) == "kv_write" && step_of(trace, op) == 0) {
      EXPECT_EQ(op.bytes, 3 * 20 * (width * 2 + width * 9 / 16));
    }
    if (trace.name(op) == "kv_dequantize") {
      ++expanded;
      const Count tokens = 3 * (20 + step_of(trace, op));
      EXPECT_EQ(op.bytes, tokens * (width * 2 + width * 9 / 16));
      EXPECT_EQ(trace.tensors[trace.writes(op)[0]].bytes, tokens * width * 2);
    }
    if (trace.name(op) != "decode_attention") continue;
    for (const TensorId id : trace.reads(op)) EXPECT_NE(trace.tensors[id].role, Role::kv_cache);
  }
  EXPECT_EQ(expanded, 4 * options.micro_batches * options.model.layers);
}

// ---- Pipeline stages. -----------------------------------------------------------------------------------------------

// Every stage has its layers, and all together do what one rank does: the same flops in every step, the same cache.
// Each transfer has a sender and a receiver, and no stage waits for ever.
TEST(GenerationStages, DoTogetherWhatOneRankDoes) {
  for (const BlockOrder order : {BlockOrder::row, BlockOrder::zigzag}) {
    for (const Count stages : {2u, 3u, 4u}) {
      for (const Count micro_batches : {1u, 2u, 3u, 6u}) {
        for (const Count tensor : {1u, 2u}) {
          GenerateOptions options = block("mixtral-8x7b", order);
          options.model.layers = 6;
          options.micro_batches = micro_batches;
          options.tensor_parallel = tensor;
          const Trace alone = generate(options);
          options.pipeline_parallel = stages;
          const Trace trace = generate(options);
          for (Count step = 0; step < 5; ++step) EXPECT_EQ(flops_of_step(trace, step), flops_of_step(alone, step));
          EXPECT_EQ(bytes_of_role(trace, Role::kv_cache, false), bytes_of_role(alone, Role::kv_cache, false));
          EXPECT_EQ(weight_bytes(trace), weight_bytes(alone));
          EXPECT_EQ(waits_for_ever(trace), "") << stages << " stages, " << micro_batches << " micro-batches";
          std::map<NameId, std::vector<const Op*>> transfers;
          for (const Op& op : trace.ops) {
            if (trace.module(op) == "pipeline") transfers[op.rendezvous].push_back(&op);
          }
          // Of each step and micro-batch: between the stages, and the tokens back but the last ones.
          EXPECT_EQ(transfers.size(), tensor * micro_batches * (5 * (stages - 1) + 4));
          for (const auto& [key, ops] : transfers) {
            ASSERT_EQ(ops.size(), 2u);
            EXPECT_EQ(ops[0]->bytes, ops[1]->bytes);
          }
        }
      }
    }
  }
}

// While a stage has one micro-batch, the next stage has the one before: between two steps of its own micro-batch, the
// first stage of two works on the other one, and waits for nothing but it.
TEST(GenerationStages, TakeTurns) {
  GenerateOptions options = block("opt-125m", BlockOrder::row);
  options.model.layers = 4;
  options.pipeline_parallel = 2;
  const Trace trace = generate(options);
  std::string order;
  for (const Op& op : trace.ops) {
    if (op.rank != 0) continue;
    if (trace.name(op) == "embed_tokens") order += std::to_string(step_of(trace, op));
    if (trace.name(op) == "receive_tokens") order += "<";
    if (trace.name(op) == "send_activations") order += ">";
  }
  EXPECT_EQ(order, "0>0><1><1><2><2><3><3><4><4>");
}

// ---- Lengths from recorded requests. --------------------------------------------------------------------------------

std::string written(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

GenerateOptions drawn(const std::string& file, GenerateSettings more = {}) {
  GenerateSettings settings = {{"model", "opt-125m"}, {"requests", file}, {"block", "2x3"}};
  settings.insert(settings.end(), more.begin(), more.end());
  return parse_generate_settings(settings);
}

std::string refused(const std::string& text, const GenerateSettings& more = {}) {
  try {
    drawn(written("requests", text), more);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// A micro-batch's prompt is its longest one, the block's new tokens the longest output: with one request in the file,
// that one; with two, one of two.
TEST(Requests, GiveLengths) {
  const std::string csv = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,40,7\n";
  const std::string json = "{\"timestamp\": 0, \"input_length\": 50, \"output_length\": 9, \"hash_ids\": [1, 2]}\n";
  GenerateOptions options = drawn(written("azure.csv", csv));
  EXPECT_THAT(options.sequence_lengths, ElementsAre(40, 40, 40));
  EXPECT_EQ(options.generation->new_tokens, 7u);
  EXPECT_EQ(options.batch, 6u);
  options = drawn(written("mooncake.jsonl", json), {{"new-tokens", "3"}});
  EXPECT_THAT(options.sequence_lengths, ElementsAre(50, 50, 50));
  EXPECT_EQ(options.generation->new_tokens, 3u);
  const std::string both = written("both.jsonl", json + "{\"input_length\": 30, \"output_length\": 1}\n\n");
  std::set<std::vector<Count>> seen;
  for (int seed = 1; seed <= 20; ++seed) {
    const GenerateSettings settings = {{"request-seed", std::to_string(seed)}};
    options = drawn(both, settings);
    EXPECT_EQ(options.sequence_lengths, drawn(both, settings).sequence_lengths);
    for (const Count length : options.sequence_lengths) EXPECT_TRUE(length == 30 || length == 50);
    seen.insert(options.sequence_lengths);
  }
  EXPECT_GT(seen.size(), 2u);
}

TEST(Requests, AreRefusedWithTheirLine) {
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  EXPECT_THAT(refused("TIMESTAMP,ContextTokens\n1,2\n"),
              HasSubstr("requests:1: column 'GeneratedTokens' is missing; the file has TIMESTAMP, ContextTokens"));
  EXPECT_THAT(refused(header + "0,5,6\n0,-5,6\n"),
              HasSubstr("requests:3: ContextTokens: '-5' is not a whole number of tokens from 1 to 16777216"));
  EXPECT_THAT(refused(header + "0,5,many\n"), HasSubstr("requests:2: GeneratedTokens: 'many' is not"));
  EXPECT_THAT(refused(header), HasSubstr("there are no requests in the file"));
  EXPECT_THAT(refused("{\"input_length\": 5}\n"), HasSubstr("requests:1: key 'output_length' is missing"));
  EXPECT_THAT(refused("{\"input_length\": 5, \"output_length\": 1}\n{\"input_length\": -5, \"output_length\": 1}\n"),
              HasSubstr("requests:2: input_length: '-5' is not"));
  EXPECT_THAT(refused("{\"input_length\": \"5\", \"output_length\": 1}\n"),
              HasSubstr("requests:1: input_length: '\"5\"'"));
  EXPECT_THAT(refused("{\"input_length\": 5,\n"), HasSubstr("requests:1: the line is no JSON object"));
  EXPECT_THAT(refused(header + "0,5,6\n", {{"prompt", "4"}}), HasSubstr("--prompt and --requests exclude each other"));
  const std::string good = written("long.csv", header + "0,5000,6\n");
  EXPECT_THAT(error_of(drawn(good)), HasSubstr("--prompt: 5000 is longer than the 2048 tokens that opt-125m takes"));
  EXPECT_THAT(error_of(drawn(written("sum.csv", header + "0,2000,60\n"))),
              HasSubstr("a prompt of 2000 and 60 new tokens are longer than the 2048"));
}

TEST(TextGeneration, RefusesWhatIsNone) {
  GenerateOptions options = block("gpt2");
  options.sequence_lengths = {1020};
  EXPECT_THAT(error_of(options), HasSubstr("--new-tokens: a prompt of 1020 and 5 new tokens are longer than the 1024"));
  options = block("mixtral-8x7b");
  options.generation->routing.popularity = -1;
  EXPECT_THAT(error_of(options), HasSubstr("--routing-popularity: -1.000000 is not an exponent from 0 to 16"));
  options.generation->routing.popularity = 0;
  options.generation->routing.repeat = 1.5;
  EXPECT_THAT(error_of(options), HasSubstr("--routing-repeat: 1.500000 is not a probability from 0 to 1"));
  options.generation->routing.repeat = 0;
  options.generation->routing.topic = 3;
  EXPECT_THAT(error_of(options), HasSubstr("--routing-topic: 3.000000 is not an exponent from 0 to 2"));
  options = block("deepseek-v2-lite");
  options.attention = AttentionKind::materialised;
  EXPECT_THAT(error_of(options), HasSubstr("--attention: latent attention is modelled with fused kernels only"));
  EXPECT_THAT(error_of(small("gpt-oss-120b")),
              HasSubstr("family are not modelled; give --new-tokens, or --forward-only"));
  options = block("bert-base-uncased");
  EXPECT_THAT(error_of(options), HasSubstr("bert-base-uncased generates no text"));
  options = block("gpt2");
  options.data_parallel = 2;
  options.batch = 12;
  EXPECT_THAT(error_of(options), HasSubstr("--data-parallel: replicas of a generation are runs of their own"));
  options = block("gpt2");
  options.pipeline_parallel = options.pipeline_chunks = 2;
  options.model.layers = 4;
  EXPECT_THAT(error_of(options), HasSubstr("--pipeline-chunks: interleaves a training step"));
}

}  // namespace
}  // namespace tencache
