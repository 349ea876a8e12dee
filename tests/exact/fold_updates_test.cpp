#include "traces/transform/fold_updates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "policies/updates.h"

namespace tencache {
namespace {

using Ids = std::vector<TensorId>;

// Two parameters of 400 and 800 bytes, their gradients and two moments: tensors 0 to 7.
class AdamTrace {
 public:
  Trace trace;
  Ids parameters, gradients, first, second;

  AdamTrace() {
    for (const auto& [name, bytes] : {std::pair("a.weight", Bytes{400}), std::pair("b.weight", Bytes{800})}) {
      const std::string text = name;
      parameters.push_back(trace.add_tensor(text, bytes, Role::parameter, true));
      gradients.push_back(trace.add_tensor(text + ".grad", bytes, Role::gradient, false));
      first.push_back(trace.add_tensor(text + ".exp_avg", bytes, Role::optimizer_state, true));
      second.push_back(trace.add_tensor(text + ".exp_avg_sq", bytes, Role::optimizer_state, true));
    }
    op("backward", Phase::backward, parameters, gradients);
    op("clip", Phase::optimizer, gradients, gradients);
  }
  Ids temporaries(const Ids& like) {
    Ids made;
    for (const TensorId id : like) {
      made.push_back(trace.add_tensor("temporary", trace.tensors[id].bytes, Role::activation, false));
    }
    return made;
  }
  void op(const char* name, Phase phase, Ids reads, const Ids& writes, const Ids& more_reads = {}) {
    reads.insert(reads.end(), more_reads.begin(), more_reads.end());
    Op op;
    op.name = trace.names.intern(name);
    op.phase = phase;
    op.duration_ns = 100;
    op.gap_before_ns = 7;
    trace.add_op(op, reads, writes);
  }
  // The kernels of AdamW for these tensors, all of a kind at once.
  void step(const Ids& p, const Ids& g, const Ids& m, const Ids& v) {
    op("mul_", Phase::optimizer, p, p);
    op("lerp_", Phase::optimizer, m, m, g);
    op("addcmul_", Phase::optimizer, v, v, g);
    const Ids root = temporaries(p);
    op("sqrt", Phase::optimizer, v, root);
    const Ids denominator = temporaries(p);
    op("div", Phase::optimizer, root, denominator);
    Ids both = m;
    both.insert(both.end(), denominator.begin(), denominator.end());
    op("addcdiv_", Phase::optimizer, p, p, both);
  }
};

Nanoseconds total(const Trace& trace) {
  return std::accumulate(trace.ops.begin(), trace.ops.end(), Nanoseconds{0},
                         [](Nanoseconds sum, const Op& op) { return sum + op.duration_ns + op.gap_before_ns; });
}

void expect_two_updates(const AdamTrace& made, const Trace& before, Bytes workspaces) {
  const Trace& trace = made.trace;
  ASSERT_EQ(trace.ops.size(), 4u);
  EXPECT_EQ(trace.name(trace.ops[1]), "clip");
  for (const std::size_t i : {0u, 1u}) {
    const Op& op = trace.ops[2 + i];
    EXPECT_EQ(trace.name(op), "update");
    EXPECT_EQ(trace.module(op), i == 0 ? "a" : "b");
    EXPECT_TRUE(op.placeable && op.reorderable && op.group == 0 && is_update(trace, op));
    Ids reads(trace.reads(op).begin(), trace.reads(op).end());
    std::ranges::sort(reads);
    const TensorId base = static_cast<TensorId>(4 * i);
    EXPECT_EQ(reads, (Ids{base, base + 1, base + 2, base + 3}));
    const auto writes = trace.writes(op);
    ASSERT_EQ(writes.size(), 4u);
    EXPECT_EQ(Ids(writes.begin(), writes.begin() + 3), (Ids{base, base + 2, base + 3}));
    EXPECT_EQ(trace.tensors[writes[3]].role, Role::workspace);
    EXPECT_EQ(trace.tensors[writes[3]].bytes, workspaces * (i + 1));
  }
  // b has twice the bytes of a, so that it has two thirds of the time.
  EXPECT_NEAR(static_cast<double>(trace.ops[3].duration_ns) / static_cast<double>(trace.ops[2].duration_ns), 2, 0.02);
  EXPECT_EQ(total(trace), total(before));
}

TEST(FoldUpdates, KernelsOfOneParameterAfterTheOtherAreItsUpdate) {
  AdamTrace made;
  for (const std::size_t i : {0u, 1u}) {
    made.step({made.parameters[i]}, {made.gradients[i]}, {made.first[i]}, {made.second[i]});
  }
  const Trace before = made.trace;
  const FoldedUpdates folded = fold_updates(made.trace);
  EXPECT_EQ(folded.kernels, 12u);
  EXPECT_EQ(folded.updates, 2u);
  EXPECT_EQ(folded.to_string(), "the optimizer's 12 kernels are simulated as 2 updates");
  expect_two_updates(made, before, 800);  // root and denominator are there at once
}

// Gradients live until `zero_grad`, after the last update.
TEST(FoldUpdates, TheLastUpdateFreesWhatTheKernelsDid) {
  AdamTrace made;
  for (const std::size_t i : {0u, 1u}) {
    made.step({made.parameters[i]}, {made.gradients[i]}, {made.first[i]}, {made.second[i]});
  }
  const Op last = made.trace.ops.back();
  made.trace.ops.pop_back();
  made.trace.add_op(last, made.trace.reads(last), made.trace.writes(last), made.gradients);
  EXPECT_EQ(fold_updates(made.trace).updates, 2u);
  EXPECT_TRUE(made.trace.frees(made.trace.ops[2]).empty());
  const auto frees = made.trace.frees(made.trace.ops[3]);
  EXPECT_EQ(Ids(frees.begin(), frees.end()), (Ids{1, 5}));
}

// A Python variable of the optimizer's keeps one of its temporaries alive.
TEST(FoldUpdates, TemporariesThatAreFreedLaterAreGoneAllTheSame) {
  AdamTrace made;
  made.step(made.parameters, made.gradients, made.first, made.second);
  const TensorId temporary = made.trace.writes(made.trace.ops[5]).front();
  ASSERT_EQ(made.trace.name(made.trace.tensors[temporary]), "temporary");
  made.op("backward", Phase::backward, made.parameters, {});
  const Op after = made.trace.ops.back();
  made.trace.ops.pop_back();
  made.trace.add_op(after, made.trace.reads(after), made.trace.writes(after), std::vector{temporary});
  EXPECT_EQ(fold_updates(made.trace).updates, 2u);
  EXPECT_TRUE(made.trace.frees(made.trace.ops.back()).empty());
}

TEST(FoldUpdates, KernelsOverListsAreTakenApart) {
  AdamTrace made;
  made.step(made.parameters, made.gradients, made.first, made.second);
  const Trace before = made.trace;
  const FoldedUpdates folded = fold_updates(made.trace);
  EXPECT_EQ(folded.kernels, 6u);
  EXPECT_EQ(folded.updates, 2u);
  expect_two_updates(made, before, 800);
}

TEST(FoldUpdates, AFusedKernelHasTwoStatesOfEachParameter) {
  AdamTrace made;
  Ids rest = made.gradients;
  for (const Ids* list : {&made.first, &made.second}) rest.insert(rest.end(), list->begin(), list->end());
  Ids writes = made.parameters;
  for (const Ids* list : {&made.first, &made.second}) writes.insert(writes.end(), list->begin(), list->end());
  made.op("_fused_adamw_", Phase::optimizer, made.parameters, writes, rest);
  const FoldedUpdates folded = fold_updates(made.trace);
  EXPECT_EQ(folded.updates, 2u);
  const auto reads = made.trace.reads(made.trace.ops[2]);
  EXPECT_EQ(Ids(reads.begin(), reads.end()), (Ids{0, 1, 2, 3}));
}

TEST(FoldUpdates, AnUpdateMayBeginWithATemporary) {
  AdamTrace made;
  for (const std::size_t i : {0u, 1u}) {
    const Ids noise = made.temporaries({made.parameters[i]});
    made.op("randn_like", Phase::optimizer, {}, noise);
    made.op("add_", Phase::optimizer, {made.parameters[i]}, {made.parameters[i]}, {made.gradients[i], noise[0]});
  }
  const FoldedUpdates folded = fold_updates(made.trace);
  EXPECT_EQ(folded.updates, 2u);
  const Op& last = made.trace.ops.back();
  EXPECT_EQ(made.trace.module(last), "b");
  EXPECT_EQ(made.trace.writes(last)[0], made.parameters[1]);
}

TEST(FoldUpdates, WhatIsUpdatesAlreadyStays) {
  AdamTrace made;
  made.step(made.parameters, made.gradients, made.first, made.second);
  for (const auto change : {0, 1, 2}) {
    Trace trace = made.trace;
    if (change == 0) trace.ops.back().placeable = true;
    if (change == 1) trace.ops.back().group = 3;
    if (change == 2) trace.ops[4].phase = Phase::backward;  // the optimizer does not run in one piece
    const std::size_t ops = trace.ops.size();
    EXPECT_EQ(fold_updates(trace).updates, 0u) << change;
    EXPECT_EQ(trace.ops.size(), ops) << change;
  }
  Trace without;
  Op op;
  const TensorId id = without.add_tensor("a", 4, Role::parameter, true);
  without.add_op(op, std::span(&id, 1), {});
  EXPECT_EQ(fold_updates(without).updates, 0u);
}

TEST(FoldUpdates, StatesWithoutAParameterAreNotGuessedAt) {
  AdamTrace made;
  made.op("mul_", Phase::optimizer, {made.first[0]}, {made.first[0]});
  made.op("add_", Phase::optimizer, {made.parameters[0]}, {made.parameters[0]}, {made.gradients[0]});
  const FoldedUpdates folded = fold_updates(made.trace);
  EXPECT_EQ(folded.updates, 0u);
  EXPECT_THAT(folded.to_string(), testing::HasSubstr("2 kernels could not be told apart"));
  EXPECT_EQ(made.trace.ops.size(), 4u);
}

}  // namespace
}  // namespace tencache
