// Contexts that are trained chunk by chunk, and oomb, which moves what earlier chunks leave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "configs/gpu_yaml.h"
#include "configs/model_yaml.h"
#include "core/error.h"
#include "policies/registry.h"
#include "sim/simulate.h"
#include "tests/small_cases.h"
#include "traces/generate/generate.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t layers = 3, chunk = 256;

GenerateOptions context(std::uint64_t tokens, std::uint64_t pages = 0) {
  GenerateOptions options;
  options.model = read_model("qwen2.5-7b");
  options.model.layers = layers;
  options.gpu = read_gpu("h200");
  options.sequence_lengths = {tokens};
  options.context.tokens = chunk;
  options.context.pages = pages;
  options.recompute = Recompute::block;
  return options;
}

std::vector<TensorId> of_role(const Trace& trace, std::span<const TensorId> ids, Role role) {
  std::vector<TensorId> list;
  for (const TensorId id : ids) {
    if (trace.tensors[id].role == role && trace.name(trace.tensors[id]).find(".kv") != std::string::npos)
      list.push_back(id);
  }
  return list;
}

// 1000 tokens are chunks of 256, 256, 256 and 232.
TEST(ContextChunks, EveryChunkAttendsToAllBeforeIt) {
  const Trace trace = generate(context(1000));
  std::map<std::string, std::vector<std::size_t>> seen;  // pieces that the ops of a kind read, in order, in layer 0
  for (const Op& op : trace.ops) {
    if (trace.module(op) != "model.layers.0.self_attn") continue;
    seen[std::string(trace.name(op))].push_back(of_role(trace, trace.reads(op), Role::kv_cache).size());
  }
  using testing::ElementsAre;
  EXPECT_THAT(seen["context_attention"], ElementsAre(1, 2, 3, 4, 4, 4, 3, 3, 2, 2, 1, 1)) << "pass 1; 2, twice each";
  EXPECT_THAT(seen["context_attention_backward"], ElementsAre(4, 3, 2, 1));
  EXPECT_EQ(seen["kv_append"].size(), 12u);
  EXPECT_EQ(seen["kv_grad_clear"].size(), 4u);
}

// A chunk's backward pass adds to the gradients of all chunks before it, and reads its own.
TEST(ContextChunks, GradientsOfKeysAndValuesAddUp) {
  const Trace trace = generate(context(1024));
  std::set<TensorId> taken;
  for (const Op& op : trace.ops) {
    if (trace.name(op) != "context_attention_backward") continue;
    const auto read = of_role(trace, trace.reads(op), Role::gradient);
    const auto written = of_role(trace, trace.writes(op), Role::gradient);
    ASSERT_EQ(read.size(), written.size() + 1);
    for (const TensorId id : written) EXPECT_TRUE(std::ranges::count(read, id) == 1 && !taken.contains(id));
    taken.insert(read.back());
  }
  EXPECT_EQ(taken.size(), layers * 4);
}

// All of a step's keys, values and gradients: 114,688 bytes a token in all 28 layers of Qwen2.5-7B.
TEST(ContextChunks, TakeTheBytesThatAreStated) {
  const Trace trace = generate(context(1000));
  Bytes bytes = 0;
  for (const Tensor& tensor : trace.tensors) {
    const std::string_view name = trace.name(tensor);
    if (name.find(".kv") != name.npos && !tensor.persistent && name.find("proj") == name.npos) bytes += tensor.bytes;
  }
  EXPECT_EQ(bytes * 28, 1000 * 114688 * layers);
}

// Of attention: as many as in one piece, but that the second pass runs forward again.
TEST(ContextChunks, AttentionTakesTheFlopsOfTheWholeSequence) {
  const auto flops = [](const Trace& trace, std::string_view name) {
    std::uint64_t sum = 0;
    for (const Op& op : trace.ops) sum += trace.name(op) == name ? op.flops : 0;
    return sum;
  };
  GenerateOptions whole = context(1024);
  whole.context.tokens = 0;
  const Trace one = generate(whole), cut = generate(context(1024));
  EXPECT_EQ(flops(cut, "context_attention") * 2, flops(one, "flash_attention") * 3) << "three passes instead of two";
  EXPECT_EQ(flops(cut, "context_attention_backward"), flops(one, "flash_attention_backward"));
}

// Pages of 128 tokens: the fourth chunk has six before it and may take two for each of its two pages of queries.
TEST(ContextChunks, SparseAttentionReadsThePagesThatItDrew) {
  const Trace trace = generate(context(1024, 2));
  std::vector<std::vector<TensorId>> reads;
  for (const Op& op : trace.ops) {
    if (trace.name(op) != "context_attention" || trace.module(op) != "model.layers.1.self_attn") continue;
    reads.push_back(of_role(trace, trace.reads(op), Role::kv_cache));
  }
  ASSERT_EQ(reads.size(), 12u);
  EXPECT_EQ(reads[1].size(), 4u) << "two pages before it are all taken";
  EXPECT_GE(reads[3].size(), 4u);
  EXPECT_LE(reads[3].size(), 6u);
  EXPECT_EQ(reads[3], reads[4]) << "the same in the second pass";
  EXPECT_EQ(reads[2], reads[7]);
}

std::string refusal_of(const GenerateOptions& options) {
  try {
    check_generate_options(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ContextChunks, TooLongOnesSayWhatTheyWouldTake) {
  GenerateOptions options = context(1 << 22);
  options.model.layers = 28;
  options.context.tokens = 4096;
  const std::string too_fine = refusal_of(options);
  EXPECT_THAT(too_fine, HasSubstr("481 GB) of page-locked CPU memory, 114688 bytes a token"));
  EXPECT_THAT(too_fine, HasSubstr("take larger chunks"));
  options.context.tokens = 1 << 15;
  const std::string too_much = refusal_of(options);
  EXPECT_THAT(too_much, HasSubstr("2^61"));
  EXPECT_THAT(too_much, HasSubstr("481 GB)"));
  options = context(1000);
  options.micro_batches = options.batch = 2;
  EXPECT_THAT(refusal_of(options), HasSubstr("--context-chunk"));
  options = context(1000);
  options.context.tokens = 0;
  options.context.pages = 4;
  EXPECT_THAT(refusal_of(options), HasSubstr("--context-pages"));
}

// With memory for weights, gradients and two layers' pieces it runs; every piece that leaves is copied out.
TEST(Oomb, KeepsALayerAheadOnTheGpu) {
  GenerateOptions options = context(4096);
  options.optimizer = Optimizer::lomo;
  const Trace trace = generate(options);
  MachineSpec machine = three_tiers(64 * GiB, 64 * GiB, GiB);
  machine.links = {make_link("h2d", 1, 0, 50 * byte_per_ns), make_link("d2h", 0, 1, 50 * byte_per_ns)};
  const auto run = [&](const std::string& policy) {
    const MadePolicy made = make_policy(policy);
    return simulate(lower(trace, *made.policy, machine), machine, *made.policy, {});
  };
  const RunResult oomb = run("oomb"), ideal = run("ideal");
  ASSERT_TRUE(oomb.fits);
  const Bytes layer = 4096 * 114688 / 28;  // of one layer at the end of the first pass
  EXPECT_LE(oomb.peak_bytes[0] + (layers - 2) * layer / 2, ideal.peak_bytes[0]);
  EXPECT_GE(oomb.peak_bytes[1], (layers - 2) * layer);
  EXPECT_GT(oomb.window.links[1].bytes, layers * layer) << "what has left once leaves again";
}

}  // namespace
}  // namespace tencache
