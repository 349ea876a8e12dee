// What users ask of a text generation, of hand-made blocks whose times can be worked out on paper.
#include <gtest/gtest.h>

#include "studies/generation.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

// Ops of one block, each with the weight `w` of 30 bytes, which starts in CPU memory and comes in 30 ns.
class Block {
 public:
  Block() {
    trace.header.batch = 4;
    trace.header.sequence_length = 3;
    weight_ = trace.add_tensor("w", 30, Role::parameter, true);
  }
  TensorId add_cache(Bytes bytes) { return trace.add_tensor("kv", bytes, Role::kv_cache, false); }
  void prefill(Nanoseconds duration_ns, std::vector<TensorId> writes = {}) {
    add(Phase::prefill, 0, duration_ns, {}, std::move(writes));
  }
  void decode(std::uint32_t step, Nanoseconds duration_ns, std::vector<TensorId> reads = {}) {
    add(Phase::decode, step, duration_ns, std::move(reads), {});
  }

  Trace trace;

 private:
  void add(Phase phase, std::uint32_t step, Nanoseconds duration_ns, std::vector<TensorId> reads,
           std::vector<TensorId> writes) {
    Op op = make_op(trace, "op", "layer", phase, duration_ns);
    op.detail = trace.add_detail({.step = step});
    reads.push_back(weight_);
    trace.add_op(op, reads, writes);
  }

  TensorId weight_ = none;
};

// Two micro-batches of two requests, three tokens each, one after the other: prompts of 100 and 140 ns, and two kernels
// of 10 ns per step.
Block rows() {
  Block block;
  for (const Nanoseconds prompt_ns : {100, 140}) {
    block.prefill(prompt_ns);
    for (const std::uint32_t step : {1, 1, 2, 2}) block.decode(step, 10);
  }
  return block;
}

// The same by turns.
Block zigzag() {
  Block block;
  for (const Nanoseconds prompt_ns : {100, 140}) block.prefill(prompt_ns);
  for (const std::uint32_t step : {1, 1, 1, 1, 2, 2, 2, 2}) block.decode(step, 10);
  return block;
}

TEST(GenerationFigures, CountPassesAndSteps) {
  const Generation row = generation_of(rows().trace).value();
  EXPECT_EQ(row.requests, 4u);
  EXPECT_EQ(row.new_tokens, 3u);
  EXPECT_EQ(row.tokens, 12u);
  EXPECT_EQ(row.passes, 2u);
  EXPECT_EQ(row.decode_steps, 4u);
  const Generation turns = generation_of(zigzag().trace).value();
  EXPECT_EQ(turns.passes, 1u);
  EXPECT_EQ(turns.decode_steps, 2u);
  EXPECT_FALSE(generation_of(rows().trace, 1));  // no such rank
  EXPECT_FALSE(generation_of(five_layers(10, 10)));
}

// The weight comes in 30 ns in the first iteration and stays: (30 + 100 + 140) / 2 until the first token, 2 × 10 per
// token after it, and 2 × 4 such tokens in 2 × 40 ns.
TEST(GenerationFigures, OfMicroBatchesThatFollowEachOtherAreMeans) {
  const Trace trace = rows().trace;
  const RunResult result = run_small(small_machine(1000), trace).result;
  const Generation generation = generation_of(trace).value();
  EXPECT_DOUBLE_EQ(*time_to_first_token_seconds(generation, result), 135e-9);
  EXPECT_DOUBLE_EQ(*time_per_output_token_seconds(generation, result), 20e-9);
  EXPECT_DOUBLE_EQ(*decode_tokens_per_second(generation, result), 8 / 80e-9);
}

// All four requests have their first token after both prompts, and a further one every 40 ns.
TEST(GenerationFigures, OfMicroBatchesByTurnsAreThoseOfTheBlock) {
  const Trace trace = zigzag().trace;
  const RunResult result = run_small(small_machine(1000), trace).result;
  const Generation generation = generation_of(trace).value();
  EXPECT_DOUBLE_EQ(*time_to_first_token_seconds(generation, result), 270e-9);
  EXPECT_DOUBLE_EQ(*time_per_output_token_seconds(generation, result), 40e-9);
  EXPECT_DOUBLE_EQ(*decode_tokens_per_second(generation, result), 8 / 80e-9);
}

// Of four iterations the last two count, in which the weight is there.
TEST(GenerationFigures, AreOfTheWindow) {
  const Trace trace = zigzag().trace;
  const RunResult result = run_small(small_machine(1000), trace, 4).result;
  EXPECT_EQ(result.period, 2u);
  EXPECT_DOUBLE_EQ(*time_to_first_token_seconds(generation_of(trace).value(), result), 240e-9);
}

// What decode waits for is its own: 50 bytes of the cache leave while the prompt's second kernel runs, and come back for
// the first step.
TEST(GenerationFigures, CountWaitsForTheCache) {
  Block block;
  const TensorId cache = block.add_cache(50);
  block.prefill(100, {cache});
  block.prefill(100);
  block.decode(1, 10, {cache});
  block.decode(2, 10, {cache});
  const auto leave = [&](const Event& event, const View&, Actions& actions) {
    if (event.kind == EventKind::op_done && event.op == 0) actions.evict(cache, 1);
  };
  const RunResult result = run_small(small_machine(1000), block.trace, 1, whole_tensors(), leave).result;
  const Generation generation = generation_of(block.trace).value();
  EXPECT_DOUBLE_EQ(*time_to_first_token_seconds(generation, result), 230e-9);
  EXPECT_DOUBLE_EQ(*time_per_output_token_seconds(generation, result), (50 + 10 + 10) / 2 * 1e-9);
  const AccessCounters& of_cache = result.window.accesses_of(Role::kv_cache);
  EXPECT_EQ(of_cache.accesses, 2u);
  EXPECT_EQ(of_cache.hits, 1u);
  EXPECT_EQ(of_cache.access_bytes, 100u);
  EXPECT_EQ(of_cache.hit_bytes, 50u);
}

// One token each: there is no time per further token.
TEST(GenerationFigures, OfOneTokenHaveNoDecode) {
  Block block;
  block.trace.header.sequence_length = 1;
  block.prefill(100);
  const RunResult result = run_small(small_machine(1000), block.trace).result;
  const Generation generation = generation_of(block.trace).value();
  EXPECT_EQ(generation.new_tokens, 1u);
  EXPECT_DOUBLE_EQ(*time_to_first_token_seconds(generation, result), 130e-9);
  EXPECT_FALSE(time_per_output_token_seconds(generation, result));
  EXPECT_FALSE(decode_tokens_per_second(generation, result));
}

}  // namespace
}  // namespace tencache
