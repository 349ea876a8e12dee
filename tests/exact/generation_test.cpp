// Generated text generations against closed forms: flops and bytes of a step, what the KV cache holds, the order of a
// block.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "tests/generate_cases.h"
#include "traces/generate/generate.h"

namespace tencache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
    for (const Tensor* piece : cache_of(generate(options))) ++sizes[piece->bytes / (3 * token)];
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
  Bytes alone = 0, shared = 0;
  for (const Tensor* piece : cache_of(generate(options))) alone += piece->bytes;
  options.tensor_parallel = 2;
  for (const Tensor* piece : cache_of(generate(options))) shared += piece->bytes;
  EXPECT_EQ(shared, alone);
}

TEST(TextGeneration, RefusesWhatIsNone) {
  GenerateOptions options = block("gpt2");
  options.sequence_lengths = {1020};
  EXPECT_THAT(error_of(options), HasSubstr("--new-tokens: a prompt of 1020 and 5 new tokens are longer than the 1024"));
  options = block("mixtral-8x7b");
  EXPECT_THAT(error_of(options), HasSubstr("routing of mixtral-8x7b's experts is not modelled yet"));
  options = block("bert-base-uncased");
  EXPECT_THAT(error_of(options), HasSubstr("bert-base-uncased generates no text"));
  options = block("gpt2");
  options.data_parallel = 2;
  options.batch = 12;
  EXPECT_THAT(error_of(options), HasSubstr("--data-parallel: a generation runs on tensor-parallel ranks only"));
}

}  // namespace
}  // namespace tencache
