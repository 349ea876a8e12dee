// The textbook policies on one string of ten accesses, worked out by hand from each rule in the comment above its test;
// the timeline is compared with tests/goldens/<name>.txt (golden_run.h).
//
// Ten ops of 70 ns read one tensor each: A A A B C B D A C D. Every tensor has 100 bytes and lies on the CPU, a copy
// takes 100 ns, the GPU holds three. Nothing is written, so whoever leaves is dropped at once and a miss costs 100 ns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "policies/layers.h"
#include "tests/golden/golden_run.h"

namespace tencache {
namespace {

using testing::ElementsAre;

constexpr Nanoseconds compute_ns = 10 * 70;

Trace ten_accesses() {
  Trace trace;
  for (const char* name : {"A", "B", "C", "D"}) trace.add_tensor(name, 100, Role::parameter, true);
  for (const char name : std::string("AAABCBDACD")) {
    add_op(trace, 70, {static_cast<TensorId>(name - 'A')}, {});
  }
  return trace;
}

GoldenRun run_classic(const std::string& policy, const Settings& settings = {}) {
  return run_golden(policy, settings, ten_accesses(), small_machine(300));
}

// In parentheses who is on the GPU, the least recently used first.
//   A miss (A), A, A, B miss (A B), C miss (A B C), B (A C B), D miss: A leaves (C B D), A miss: C leaves (B D A),
//   C miss: B leaves (D A C), D (A C D).
//   Again: A A A (C D A), B miss: C leaves (D A B), C miss: D leaves (A B C), B (A C B): as in the first time from
//   here.
TEST(ClassicPoliciesTest, Lru) {
  const GoldenRun run = run_classic("lru");
  EXPECT_THAT(run.waits(0), ElementsAre(100, 0, 0, 100, 100, 0, 100, 100, 100, 0));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 100, 100, 0, 100, 100, 100, 0));
  EXPECT_THAT(run.result.iteration_ns, ElementsAre(compute_ns + 600, compute_ns + 500));
  EXPECT_TRUE(run.result.steady);
  expect_golden("lru", run.text);
}

// The victims of on-demand, which differs in its unit.
TEST(ClassicPoliciesTest, LruInChunksIsOnDemand) {
  const auto body = [](const std::string& text) { return text.substr(text.find('\n')); };
  EXPECT_EQ(body(run_classic("lru", {{"chunk", "30"}}).text), body(run_classic("on-demand", {{"chunk", "30"}}).text));
}

// While an op runs, the next one's tensor comes in: 30 ns of its 100 remain when the op is over, a miss costs 30. The
// victims are the same, but one op earlier: at the second B (from 510) D takes A's place, at D (from 580) A is asked
// for and comes when D is there (610), for C; at A (from 680) C, for B (710).
TEST(ClassicPoliciesTest, LruWithAWindowOfOne) {
  const GoldenRun run = run_classic("lru", {{"window", "1"}});
  EXPECT_THAT(run.waits(0), ElementsAre(100, 0, 0, 30, 30, 0, 30, 30, 30, 0));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 30, 30, 0, 30, 30, 30, 0));
  EXPECT_TRUE(run.result.steady);
  expect_golden("lru_window", run.text);
}

// In parentheses who is on the GPU, in order of arrival.
//   A miss, A, A, B miss, C miss (A B C), B, D miss: A leaves (B C D), A miss: B leaves (C D A), C, D.
//   Again: A A A, B miss: C leaves (D A B), C miss: D leaves (A B C), B, D miss: A leaves (B C D), A miss: B leaves
//   (C D A), C, D: as before.
TEST(ClassicPoliciesTest, Fifo) {
  const GoldenRun run = run_classic("fifo");
  EXPECT_THAT(run.waits(0), ElementsAre(100, 0, 0, 100, 100, 0, 100, 100, 0, 0));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 100, 100, 0, 100, 100, 0, 0));
  EXPECT_THAT(run.result.iteration_ns, ElementsAre(compute_ns + 500, compute_ns + 400));
  EXPECT_TRUE(run.result.steady);
  expect_golden("fifo", run.text);
}

// In parentheses who is on the GPU, with the number of its uses.
//   A miss, A, A, B miss, C miss (A3 B1 C1), B (A3 B2 C1), D miss: C leaves (A3 B2 D1), A (A4 B2 D1),
//   C miss: D leaves, C's second use (A4 B2 C2), D miss: B and C have 2, B's are longer ago: B leaves (A4 C2 D2).
//   Again: A A A (A7 C2 D2), B miss: C leaves (A7 D2 B3), C miss: D leaves (A7 B3 C3), B (A7 B4 C3), D miss: C leaves
//   (A7 B4 D3), A, C miss: D leaves (A8 B4 C4), D miss: B leaves (A8 C4 D4).
// A, which lru and fifo send away, stays for ever. B, C and D have 2 uses an iteration, A 4: their order is settled
// from iteration 2 / (4 - 2) + 1 = 2 on, so that the third repeats the second.
TEST(ClassicPoliciesTest, Lfu) {
  const GoldenRun run = run_classic("lfu");
  EXPECT_THAT(run.waits(0), ElementsAre(100, 0, 0, 100, 100, 0, 100, 0, 100, 100));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 100, 100, 0, 100, 0, 100, 100));
  EXPECT_THAT(run.result.iteration_ns, ElementsAre(compute_ns + 600, compute_ns + 500, compute_ns + 500));
  EXPECT_TRUE(run.result.steady);
  expect_golden("lfu", run.text);
}

// In parentheses who is on the GPU, with the number of the access that needs it next; those of the second iteration
// are 10 to 19.
//   A miss, A, A, B miss, C miss, B, D (6) miss: (A7 B13 C8), B leaves; A, C, D.
//   Again: A A A, B (13) miss: (A17 C14 D16), A leaves; C, B, D, A (17) miss: (B23 C18 D19), B leaves; C, D.
// Four misses and then two, where lru has six and five. (The third repeats the second to the order of the CPU's list.)
TEST(ClassicPoliciesTest, Belady) {
  const GoldenRun run = run_classic("belady");
  EXPECT_THAT(run.waits(0), ElementsAre(100, 0, 0, 100, 100, 0, 100, 0, 0, 0));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 100, 0, 0, 0, 100, 0, 0));
  EXPECT_THAT(run.result.iteration_ns, ElementsAre(compute_ns + 400, compute_ns + 200, compute_ns + 200));
  EXPECT_TRUE(run.result.steady);
  expect_golden("belady", run.text);
}

// Fetched in trace order, one after the other: A (0-100), B (-200), C (-300). Op i runs from 100 + 70 i.
//   D, for op 6, has no room at 300: A is in use, B and C are needed before. At 310 A's third use is over, its next is
//   op 7's: A leaves, D comes in (310-410).
//   A, for op 7: B is needed at 5, D at 6, C is in use by op 4 until 450, and then not before 8: C leaves, A comes in
//   (450-550).
//   C, for op 8: B is not needed before 13 from 520 on: B leaves, C comes in (550-650).
//   B, for op 13: only when op 8 is over, at 730, is there one that is needed later: C, at 14; B comes in (730-830).
// In the second iteration, which begins at 800, C (for 14) takes D's place at 830, D (for 16) A's at 1010, and from
// there all is as before, 700 ns later. The GPU waits for the first tensor and never again.
TEST(ClassicPoliciesTest, BeladyOrdered) {
  const GoldenRun run = run_classic("belady", {{"prefetch", "ordered"}});
  EXPECT_THAT(run.waits(0), ElementsAre(100, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(run.result.iteration_ns, ElementsAre(compute_ns + 100, compute_ns));
  std::vector<Nanoseconds> starts;
  for (const Span& span : run.timeline.spans) {
    if (span.kind == SpanKind::transfer) starts.push_back(span.start_ns);
  }
  EXPECT_THAT(starts, ElementsAre(0, 100, 200, 310, 450, 550, 730, 830, 1010, 1150, 1250));
  EXPECT_TRUE(run.result.steady);
  expect_golden("belady_ordered", run.text);
}

// What l2l and layer-streaming call a layer, in names of Hugging Face and of plain models.
TEST(ClassicPoliciesTest, LayerOfModule) {
  EXPECT_EQ(layer_of_module("model.decoder.layers.0.self_attn.q_proj"), "model.decoder.layers.0");
  EXPECT_EQ(layer_of_module("model.layers.12.mlp.experts.3"), "model.layers.12");
  EXPECT_EQ(layer_of_module("transformer.h.7"), "transformer.h.7");
  EXPECT_EQ(layer_of_module("model.embed_tokens"), "model.embed_tokens");
  EXPECT_EQ(layer_of_module("layer0"), "layer0");
  EXPECT_EQ(layer_of_module(""), "");
}

}  // namespace
}  // namespace tencache
