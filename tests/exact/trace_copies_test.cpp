// What makes one trace out of another keeps kernels, details and stored sizes: of ops that stay, and with `revealed_by`
// naming the same op wherever it is now.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "tests/small_cases.h"
#include "traces/transform/edits.h"
#include "traces/transform/fold_updates.h"
#include "traces/transform/lower.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

using ::testing::HasSubstr;

const Kernel matmul{.kind = KernelKind::matmul, .shape = {1, 2, 3, 4}};

// Ops 0 … n-1 of 100 ns each, which read one tensor that is stored in half its size.
Trace chain(std::size_t ops) {
  Trace trace;
  const TensorId tensor = trace.add_tensor("w", 400, Role::expert, true);
  trace.tensors[tensor].stored_bytes = 200;
  for (std::size_t i = 0; i < ops; ++i) add_op(trace, 100, {tensor}, {});
  return trace;
}

void set(Trace& trace, OpIndex op, const Kernel& kernel, const OpDetail& detail) {
  trace.ops[op].kernel = trace.kernels.intern(kernel);
  trace.ops[op].detail = trace.add_detail(detail);
}

TEST(TraceCopies, WithoutNames) {
  Trace trace = chain(2);
  set(trace, 1, matmul, {.step = 3, .revealed_by = 0, .cpu_duration_ns = 7});
  trace.header.stack = "vllm";
  const Trace stripped = strip_names(trace);
  EXPECT_EQ(stripped.header.stack, "vllm");
  EXPECT_EQ(stripped.tensors[0].stored_bytes, 200u);
  EXPECT_EQ(stripped.name(stripped.tensors[0]), "expert.0");
  EXPECT_EQ(stripped.kernel(stripped.ops[0]), Kernel{});
  EXPECT_EQ(stripped.kernel(stripped.ops[1]), matmul);
  EXPECT_EQ(stripped.detail(stripped.ops[1]), (OpDetail{.step = 3, .revealed_by = 0, .cpu_duration_ns = 7}));
}

// Times on the CPU and stored sizes go with the others, and neither becomes 0, which would mean "not known".
TEST(TraceCopies, ScaledAndJittered) {
  Trace trace = chain(2);
  set(trace, 1, matmul, {.step = 1, .cpu_duration_ns = 80});
  Trace scaled = trace;
  scale_trace(scaled, 0.25, 0.5);
  EXPECT_EQ(scaled.tensors[0].bytes, 100u);
  EXPECT_EQ(scaled.tensors[0].stored_bytes, 50u);
  EXPECT_EQ(scaled.kernel(scaled.ops[1]), matmul) << "shapes stay";
  EXPECT_EQ(scaled.detail(scaled.ops[1]), (OpDetail{.step = 1, .cpu_duration_ns = 40}));
  EXPECT_EQ(scaled.detail(scaled.ops[0]), OpDetail{});
  scale_trace(scaled, 0, 0);
  EXPECT_EQ(scaled.tensors[0].stored_bytes, 1u);
  EXPECT_EQ(scaled.detail(scaled.ops[1]).cpu_duration_ns, 1);
  const Trace varied = jittered(trace, 0.5, 1);
  EXPECT_EQ(varied.kernel(varied.ops[1]), matmul);
  EXPECT_EQ(varied.detail(varied.ops[1]), trace.detail(trace.ops[1]));
}

// Ops 0 2 are of rank 0, ops 1 3 of rank 1, with tensors of their own.
Trace two_ranks() {
  Trace trace;
  for (const char* name : {"a", "b"}) trace.tensors[trace.add_tensor(name, 400, Role::expert, true)].stored_bytes = 200;
  for (const TensorId tensor : {0u, 1u, 0u, 1u}) {
    trace.ops[add_op(trace, 100, {tensor}, {})].rank = static_cast<std::uint16_t>(tensor);
  }
  return trace;
}

TEST(TraceCopies, SplitByRank) {
  Trace trace = two_ranks();
  set(trace, 1, matmul, {.step = 1});
  set(trace, 2, {}, {.revealed_by = 0});
  set(trace, 3, {.launches = 2}, {.step = 1, .revealed_by = 1, .cpu_duration_ns = 9});
  const std::vector<Trace> ranks = split_ranks(trace);
  ASSERT_EQ(ranks.size(), 2u);
  for (const Trace& rank : ranks) {
    rank.validate();
    EXPECT_EQ(rank.tensors[0].stored_bytes, 200u);
  }
  EXPECT_EQ(ranks[0].kernel(ranks[0].ops[0]), Kernel{});
  EXPECT_EQ(ranks[0].detail(ranks[0].ops[1]), (OpDetail{.revealed_by = 0}));
  EXPECT_EQ(ranks[1].kernel(ranks[1].ops[0]), matmul);
  EXPECT_EQ(ranks[1].kernel(ranks[1].ops[1]), (Kernel{.launches = 2}));
  EXPECT_EQ(ranks[1].detail(ranks[1].ops[0]), (OpDetail{.step = 1}));
  EXPECT_EQ(ranks[1].detail(ranks[1].ops[1]), (OpDetail{.step = 1, .revealed_by = 0, .cpu_duration_ns = 9}));
  set(trace, 3, {}, {.revealed_by = 2});
  try {
    split_ranks(trace);
    ADD_FAILURE() << "an op of another rank cannot reveal it";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("op 'op3' of rank 1 is revealed by op 'op2' of rank 0"));
  }
}

TEST(TraceCopies, RanksAreAlikeOnlyWithTheSameKernelsDetailsAndStoredSizes) {
  const auto first_alike = [](const Trace& trace) { return alike_ranks(split_ranks(trace))[1]; };
  EXPECT_EQ(first_alike(two_ranks()), 0u);
  Trace trace = two_ranks();
  for (const OpIndex op : {2u, 3u}) set(trace, op, matmul, {.step = 1, .revealed_by = op - 2});
  EXPECT_EQ(first_alike(trace), 0u);
  Trace other = trace;
  set(other, 3, {.kind = KernelKind::matmul, .shape = {1, 2, 3, 5}}, {.step = 1, .revealed_by = 1});
  EXPECT_EQ(first_alike(other), 1u);
  other = trace;
  set(other, 3, matmul, {.step = 2, .revealed_by = 1});
  EXPECT_EQ(first_alike(other), 1u);
  other = trace;
  other.tensors[1].stored_bytes = 100;
  EXPECT_EQ(first_alike(other), 1u);
}

// backward; clip; four kernels of SGD with momentum, which are one update; then two ops of the next micro-batch, of
// which one is revealed by the backward pass and one by the last of the folded kernels.
TEST(TraceCopies, WithFoldedUpdates) {
  Trace trace;
  const TensorId parameter = trace.add_tensor("a.weight", 400, Role::parameter, true);
  const TensorId gradient = trace.add_tensor("a.weight.grad", 400, Role::gradient, false);
  const TensorId momentum = trace.add_tensor("a.weight.momentum", 400, Role::optimizer_state, true);
  trace.tensors[momentum].stored_bytes = 100;
  add_op(trace, 100, {parameter}, {gradient});
  add_op(trace, 100, {gradient}, {gradient});
  add_op(trace, 100, {momentum, gradient}, {momentum});
  add_op(trace, 100, {momentum}, {momentum});
  add_op(trace, 100, {parameter, momentum}, {parameter});
  add_op(trace, 100, {parameter}, {parameter});
  for (OpIndex op = 1; op < 6; ++op) trace.ops[op].phase = Phase::optimizer;
  add_op(trace, 100, {parameter}, {});
  add_op(trace, 100, {parameter}, {});
  set(trace, 0, matmul, {});
  set(trace, 6, {.kind = KernelKind::copy}, {.revealed_by = 0});
  set(trace, 7, {.kind = KernelKind::norm}, {.step = 1, .revealed_by = 5});
  const auto check = [](const Trace& folded, const Kernel& of_update, std::uint32_t step) {
    ASSERT_EQ(folded.ops.size(), 5u);
    EXPECT_EQ(folded.name(folded.ops[2]), "update");
    EXPECT_EQ(folded.tensors[2].stored_bytes, 100u);
    EXPECT_EQ(folded.kernel(folded.ops[0]), matmul);
    EXPECT_EQ(folded.kernel(folded.ops[2]), of_update);
    EXPECT_EQ(folded.kernel(folded.ops[3]).kind, KernelKind::copy);
    EXPECT_EQ(folded.kernel(folded.ops[4]).kind, KernelKind::norm);
    EXPECT_EQ(folded.detail(folded.ops[2]), (OpDetail{.step = step}));
    EXPECT_EQ(folded.detail(folded.ops[3]), (OpDetail{.revealed_by = 0}));
    EXPECT_EQ(folded.detail(folded.ops[4]), (OpDetail{.step = 1, .revealed_by = 2}));
  };
  Trace unknown = trace;
  EXPECT_EQ(fold_updates(unknown).updates, 1u);
  check(unknown, Kernel{}, 0);
  for (OpIndex op = 1; op < 6; ++op) set(trace, op, {.kind = KernelKind::elementwise}, {.step = 4});
  EXPECT_EQ(fold_updates(trace).updates, 1u);
  check(trace, {.kind = KernelKind::optimizer}, 4);
}

class Reversing final : public Policy {
 public:
  void order(const Trace&, const MachineSpec&, std::vector<std::int32_t>& groups) const override {
    std::reverse(groups.begin(), groups.end());
  }
};

// Two groups of one op each, put the other way round, and an op after them that the first has revealed.
TEST(TraceCopies, InThePolicysOrder) {
  Trace trace = chain(3);
  for (const OpIndex op : {0u, 1u}) {
    trace.ops[op].group = static_cast<std::int32_t>(op);
    trace.ops[op].reorderable = true;
  }
  set(trace, 0, matmul, {});
  set(trace, 2, {}, {.revealed_by = 0});
  const Trace lowered = lower(trace, Reversing(), small_machine(1000)).trace;
  lowered.validate();
  EXPECT_EQ(lowered.kernel(lowered.ops[1]), matmul);
  EXPECT_EQ(lowered.name(lowered.ops[lowered.detail(lowered.ops[2]).revealed_by]), "op0");
  set(trace, 1, {}, {.revealed_by = 0});
  try {
    lower(trace, Reversing(), small_machine(1000));
    ADD_FAILURE() << "op1 cannot run before the op that reveals it";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the policy orders op 'op1' before op 'op0', which decides whether it runs"));
  }
}

}  // namespace
}  // namespace tencache
