// deepum on small traces, worked out by hand from the rules at the head of policies/deepum.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "policies/registry.h"
#include "tests/golden/golden_run.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

using testing::ElementsAre;

constexpr Nanoseconds kernel_ns = 100;
constexpr Bytes tensor_bytes = 40;

// Ten kernels of 100 ns: f0 … f4, b4 … b0. f(i) reads a(i-1) and writes a(i), b(i) reads a(i).
Trace five_layers() {
  Trace trace;
  std::vector<TensorId> a;
  for (int i = 0; i < 5; ++i) {
    a.push_back(trace.add_tensor(std::string("a").append(std::to_string(i)), tensor_bytes, Role::activation, false));
  }
  for (std::size_t i = 0; i < 5; ++i) {
    add_op(trace, kernel_ns, i == 0 ? std::vector<TensorId>{} : std::vector{a[i - 1]}, {a[i]});
  }
  for (std::size_t i = 5; i-- > 0;) add_op(trace, kernel_ns, {a[i]}, {});
  return trace;
}

// GPU of 130, 2 kernels ahead; a copy takes 40 ns.
//   op 1: a1, a2, a3 need 120, 90 are free, and all there is to evict, a0, is in use.
//   op 2: a2, a3, a4 need 120, 50 are free; a0 is used by none of ops 2, 3, 4: it leaves, 200 to 240.
//   op 3: a3, a4 need 80, 50 are free; a1 leaves, 300 to 340. Every output finds its room when its op is issued.
//   op 6 (600) fetches a1 for op 8, op 7 (700) a0 for op 9: both are there in time.
TEST(DeepUmTest, Golden) {
  const GoldenRun run = run_golden("deepum", {{"lookahead", "2"}}, five_layers(), small_machine(130));
  EXPECT_THAT(run.waits(0), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(run.transfers(1, d2h), 2U);
  EXPECT_EQ(run.transfers(1, h2d), 2U);
  EXPECT_TRUE(run.result.steady);
  expect_golden("deepum", run.text);
}

// The same, but room is made when an output needs it: op 3 waits for a0 to leave, op 4 for a1.
TEST(DeepUmTest, WithoutPreEvictionOutputsWait) {
  const GoldenRun run =
      run_golden("deepum", {{"lookahead", "2"}, {"pre_evict", "false"}}, five_layers(), small_machine(130));
  EXPECT_THAT(run.waits(0), ElementsAre(0, 0, 0, 40, 40, 0, 0, 0, 0, 0));
}

// x, y, z are written by ops 0, 1, 2 and read by ops 3, 4, 5; two of them fit. When op 2 needs room for z, x is the
// least recently used, but op 3 needs it: y leaves (40). On demand, x does.
TEST(DeepUmTest, WhatTheNextKernelsNeedStays) {
  Trace trace;
  std::vector<TensorId> tensors;
  for (const char* name : {"x", "y", "z"}) {
    tensors.push_back(trace.add_tensor(name, tensor_bytes, Role::activation, false));
  }
  for (const TensorId tensor : tensors) add_op(trace, kernel_ns, {}, {tensor});
  for (const TensorId tensor : tensors) add_op(trace, kernel_ns, {tensor}, {});
  const GoldenRun run = run_golden("deepum", {{"lookahead", "1"}, {"pre_evict", "false"}}, trace, small_machine(90));
  EXPECT_THAT(run.waits(0), ElementsAre(0, 0, 40, 0, 0, 0));
  const GoldenRun on_demand = run_golden("on-demand", {}, trace, small_machine(90));
  EXPECT_THAT(on_demand.waits(0), ElementsAre(0, 0, 40, 80, 40, 0));
}

TEST(DeepUmTest, FurtherThanOnceRoundIsOnceRound) {
  const auto timeline = [](const char* lookahead) {
    const std::string text = run_golden("deepum", {{"lookahead", lookahead}}, five_layers(), small_machine(130)).text;
    return text.substr(text.find('\n'));  // the first line names the options
  };
  EXPECT_EQ(timeline("100000000"), timeline("10"));
  EXPECT_EQ(timeline("18446744073709551615"), timeline("10"));
}

TEST(DeepUmTest, LooksAheadByOneKernelAtLeast) { EXPECT_THROW(make_policy("deepum", {{"lookahead", "0"}}), Error); }

}  // namespace
}  // namespace tencache
