// Several ranks on one clock. Cases whose answer is a formula have it above them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "core/error.h"
#include "sim/simulate.h"
#include "tests/small_cases.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Programs, machines, policies and timelines of the ranks of a trace.
class Cluster {
 public:
  Cluster(const Trace& trace, std::vector<MachineSpec> machines, const Layout& layout = whole_tensors())
      : machines_(std::move(machines)) {
    for (Trace& part : split_ranks(trace)) {
      part.validate();
      programs_.push_back({std::move(part), {}});
    }
    timelines_.resize(programs_.size());
    for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
      policies_.push_back(std::make_unique<ScriptedPolicy>(layout));
      runs_.push_back({.program = &programs_[rank],
                       .machine = &machines_[rank],
                       .policy = policies_[rank].get(),
                       .options = {.timeline = &timelines_[rank], .log = nullptr, .on_iteration = {}}});
    }
  }
  Cluster(const Cluster&) = delete;

  RanksResult run(std::uint64_t iterations = 1) {
    return simulate_ranks(runs_, {.max_iterations = iterations, .until_steady = false});
  }
  RanksResult run_until_steady() { return simulate_ranks(runs_, {}); }
  std::vector<Span> spans(std::size_t rank, SpanKind kind) const {
    std::vector<Span> result;
    for (const Span& span : timelines_[rank].spans) {
      if (span.kind == kind) result.push_back(span);
    }
    return result;
  }

 private:
  std::vector<MachineSpec> machines_;
  std::vector<Program> programs_;
  std::vector<Timeline> timelines_;
  std::vector<std::unique_ptr<ScriptedPolicy>> policies_;
  std::vector<RankRun> runs_;
};

OpIndex add_rank_op(Trace& trace, std::uint16_t rank, Nanoseconds duration_ns, std::vector<TensorId> reads,
                    const std::string& rendezvous = "") {
  const OpIndex op = add_op(trace, duration_ns, std::move(reads), {});
  trace.ops[op].rank = rank;
  trace.ops[op].rendezvous = rendezvous.empty() ? 0 : trace.names.intern(rendezvous);
  return op;
}

// The machine's h2d link goes through the switch that all ranks share.
MachineSpec behind_switch(BytesPerSecond link, BytesPerSecond through_switch) {
  MachineSpec machine = small_machine(100'000);
  machine.resources = {{"switch", through_switch, 7}};
  machine.links[0].bandwidth = link;
  machine.links[0].uses = {0};
  return machine;
}

Nanoseconds stall(const RunResult& result, StallCause cause) { return result.window.stall_ns[cause]; }

// Hosts that run ahead: each has launched all of its ops at 0, and the GPUs meet at max(100, 300).
TEST(RanksTest, OpsMeetOnTheDevicesWhereHostsRunAhead) {
  Trace trace;
  for (std::uint16_t rank = 0; rank < 2; ++rank) {
    add_rank_op(trace, rank, rank == 0 ? 100 : 300, {});
    add_rank_op(trace, rank, 50, {}, "all-reduce");
    add_rank_op(trace, rank, 10, {});
  }
  MachineSpec machine = small_machine(1000);
  machine.run_ahead.ops = 8;
  Cluster cluster(trace, {machine, machine});
  const RanksResult once = cluster.run();
  EXPECT_EQ(once.ranks[0].iteration_ns.front(), 360);
  EXPECT_EQ(once.ranks[1].iteration_ns.front(), 360);
  EXPECT_EQ(stall(once.ranks[0], StallCause::collective), 200);
  EXPECT_EQ(cluster.spans(1, SpanKind::op)[1].start_ns, 300);
  Cluster again(trace, {machine, machine});
  const RanksResult steady = again.run_until_steady();
  for (const RunResult& rank : steady.ranks) {
    EXPECT_TRUE(rank.steady);
    EXPECT_EQ(rank.window.time_ns, 360 * static_cast<Nanoseconds>(rank.period));
  }
}

// Two unequal ranks, one PCIe switch of S = 1 B/ns. Rank 0 has a link of a = 1 B/ns and fetches A = 1200 bytes, rank 1
// one of b = 0.25 B/ns and B = 500 bytes; then each computes for c = 10 ns.
// Max-min: rank 1 gets min(b, S/2) = 0.25, rank 0 what is left up to its own link, S - 0.25 = 0.75, until one is done:
//   rank 0 at A / 0.75 = 1600 ns, rank 1 at B / 0.25 = 2000 ns (nobody takes from it): min(b, S) before and after.
TEST(RanksTest, TwoUnequalRanksBehindOneSwitchAgreeWithTheFormula) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 1200, Role::parameter, true);
  const TensorId b = trace.add_tensor("b", 500, Role::parameter, true);
  add_rank_op(trace, 0, 10, {a});
  add_rank_op(trace, 1, 10, {b});
  Cluster cluster(trace, {behind_switch(byte_per_ns, byte_per_ns), behind_switch(byte_per_ns / 4, byte_per_ns)});
  const RanksResult result = cluster.run();
  EXPECT_EQ(result.ranks[0].first_iteration_ns, 1600 + 10);
  EXPECT_EQ(result.ranks[1].first_iteration_ns, 2000 + 10);
  EXPECT_EQ(result.slowest, 1U);
  EXPECT_EQ(stall(result.ranks[0], StallCause::h2d), 1600);
}

// The same with links that the switch binds: a = 1, b = 0.8, S = 1 B/ns, A = 300, B = 1000 bytes. Each has S/2 until
// rank 0 is done at t = 2 A / S = 600 ns; rank 1 then has B - A = 700 bytes left at b: 600 + 700 / 0.8 = 1475 ns.
TEST(RanksTest, WhatOneRankLeavesTheOtherTakes) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 300, Role::parameter, true);
  const TensorId b = trace.add_tensor("b", 1000, Role::parameter, true);
  add_rank_op(trace, 0, 10, {a});
  add_rank_op(trace, 1, 10, {b});
  Cluster cluster(trace, {behind_switch(byte_per_ns, byte_per_ns), behind_switch(byte_per_ns / 5 * 4, byte_per_ns)});
  const RanksResult result = cluster.run();
  EXPECT_EQ(result.ranks[0].first_iteration_ns, 600 + 10);
  EXPECT_EQ(result.ranks[1].first_iteration_ns, 1475 + 10);
}

// Without a number in common the switches are two: each at its own link's speed.
TEST(RanksTest, ResourcesOfRanksAreTheirOwnUnlessShared) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 300, Role::parameter, true);
  const TensorId b = trace.add_tensor("b", 1000, Role::parameter, true);
  add_rank_op(trace, 0, 10, {a});
  add_rank_op(trace, 1, 10, {b});
  MachineSpec machine = behind_switch(byte_per_ns, byte_per_ns);
  machine.resources[0].shared = none;
  Cluster cluster(trace, {machine, machine});
  const RanksResult result = cluster.run();
  EXPECT_EQ(result.ranks[0].first_iteration_ns, 310);
  EXPECT_EQ(result.ranks[1].first_iteration_ns, 1010);
}

// Ranks compute 100 and 250 ns, then meet, reduce for 30 ns, and rank 0 goes on for 5 more: it waits 150 ns.
TEST(RanksTest, OpsWithARendezvousStartTogether) {
  Trace trace;
  add_rank_op(trace, 0, 100, {});
  add_rank_op(trace, 1, 250, {});
  add_rank_op(trace, 0, 30, {}, "reduce");
  add_rank_op(trace, 1, 30, {}, "reduce");
  add_rank_op(trace, 0, 5, {});
  Cluster cluster(trace, {small_machine(1000), small_machine(1000)});
  const RanksResult result = cluster.run(3);
  EXPECT_EQ(cluster.spans(0, SpanKind::op)[1].start_ns, 250);
  EXPECT_EQ(cluster.spans(1, SpanKind::op)[1].start_ns, 250);
  // Rank 0 is 5 ns later from the second iteration on, and still waits for the other: 5 + 100 < 250.
  EXPECT_EQ(result.ranks[0].iteration_ns, (std::vector<Nanoseconds>{285, 280, 280}));
  EXPECT_EQ(result.ranks[1].iteration_ns, (std::vector<Nanoseconds>{280, 280, 280}));
  const Counters& window = result.ranks[0].window;
  EXPECT_EQ(stall(result.ranks[0], StallCause::collective), 145);  // of the last one
  EXPECT_EQ(window.compute_ns + window.gap_ns + stall(result.ranks[0], StallCause::collective), window.time_ns);
  EXPECT_EQ(stall(result.ranks[1], StallCause::collective), 0);
}

// Of three ranks, two meet under one key; the third has nothing to do with it.
TEST(RanksTest, OnlyRanksThatHaveTheKeyMeet) {
  Trace trace;
  add_rank_op(trace, 0, 10, {}, "pair");
  add_rank_op(trace, 1, 1000, {});
  add_rank_op(trace, 2, 70, {});
  add_rank_op(trace, 2, 10, {}, "pair");
  Cluster cluster(trace, {small_machine(1000), small_machine(1000), small_machine(1000)});
  const RanksResult result = cluster.run();
  EXPECT_EQ(result.ranks[0].first_iteration_ns, 80);
  EXPECT_EQ(result.ranks[1].first_iteration_ns, 1000);
  EXPECT_EQ(result.ranks[2].first_iteration_ns, 80);
  EXPECT_EQ(result.slowest, 1U);
}

// A pipeline of two stages and two micro-batches: F = 40 ns a stage, the send takes 10 ns on both ends.
//   rank 0: F0 0..40, send 40..50, F1 50..90, send 90..100; rank 1: receive 40..50, F0 50..90, receive 90..100, F1 to
//   140.
TEST(RanksTest, PipelineStagesMeetAtSends) {
  Trace trace;
  for (const char* key : {"send 0", "send 1"}) {
    add_rank_op(trace, 0, 40, {});
    add_rank_op(trace, 0, 10, {}, key);
    add_rank_op(trace, 1, 10, {}, key);
    add_rank_op(trace, 1, 40, {});
  }
  Cluster cluster(trace, {small_machine(1000), small_machine(1000)});
  const RanksResult result = cluster.run();
  EXPECT_EQ(result.ranks[0].first_iteration_ns, 100);
  EXPECT_EQ(result.ranks[1].first_iteration_ns, 140);
  EXPECT_EQ(stall(result.ranks[1], StallCause::collective), 40);
}

TEST(RanksTest, TheJointStateRecursAndEndsTheRun) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 300, Role::parameter, true);
  add_rank_op(trace, 0, 100, {a});
  add_rank_op(trace, 0, 10, {}, "reduce");
  add_rank_op(trace, 1, 50, {});
  add_rank_op(trace, 1, 10, {}, "reduce");
  Cluster cluster(trace, {small_machine(1000), small_machine(1000)});
  const RanksResult result = cluster.run_until_steady();
  for (const RunResult& rank : result.ranks) {
    EXPECT_TRUE(rank.steady);
    EXPECT_EQ(rank.period, 1U);
    EXPECT_EQ(rank.window.time_ns, 110);
    EXPECT_LT(rank.iterations, 5U);
  }
  EXPECT_EQ(result.ranks[0].first_iteration_ns, 410);
}

TEST(RanksTest, OneRankGivesWhatASingleSimulationGives) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 300, Role::parameter, true);
  const TensorId b = trace.add_tensor("b", 300, Role::parameter, true);
  add_rank_op(trace, 0, 100, {a}, "alone");
  add_rank_op(trace, 0, 100, {b});
  Cluster cluster(trace, {small_machine(400)});
  const RanksResult result = cluster.run_until_steady();
  ScriptedPolicy policy(whole_tensors());
  const RunResult single = simulate({trace, {}}, small_machine(400), policy);
  EXPECT_EQ(result.ranks[0].iteration_ns, single.iteration_ns);
  EXPECT_EQ(result.ranks[0].window.time_ns, single.window.time_ns);
  EXPECT_EQ(result.ranks[0].steady, single.steady);
}

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(RanksTest, ARendezvousThatNeverComesNamesOpsAndRanks) {
  Trace trace;
  const OpIndex first = add_rank_op(trace, 0, 10, {}, "x");
  add_rank_op(trace, 0, 10, {}, "y");
  add_rank_op(trace, 1, 10, {}, "y");
  add_rank_op(trace, 1, 10, {}, "x");
  ASSERT_EQ(first, 0U);
  Cluster cluster(trace, {small_machine(1000), small_machine(1000)});
  EXPECT_THAT(error_of([&] { cluster.run(); }),
              AllOf(HasSubstr("rank 0 waits at op 'op0' (op 0 of the rank) for rank 1"),
                    HasSubstr("rank 1 waits at op 'op2' (op 0 of the rank) for rank 0")));
}

TEST(RanksTest, UnequallyOftenIsAnError) {
  Trace trace;
  add_rank_op(trace, 0, 10, {}, "x");
  add_rank_op(trace, 0, 10, {}, "x");
  add_rank_op(trace, 1, 10, {}, "x");
  Cluster cluster(trace, {small_machine(1000), small_machine(1000)});
  EXPECT_THAT(error_of([&] { cluster.run(); }),
              AllOf(HasSubstr("'x'"), HasSubstr("2 times in rank 0 and 1 times in rank 1")));
}

TEST(RanksTest, ATensorOfTwoRanksIsAnError) {
  Trace trace;
  const TensorId a = trace.add_tensor("shared one", 300, Role::parameter, true);
  add_rank_op(trace, 0, 10, {a});
  add_rank_op(trace, 1, 10, {a});
  EXPECT_THAT(error_of([&] { split_ranks(trace); }),
              AllOf(HasSubstr("'shared one'"), HasSubstr("rank 0"), HasSubstr("rank 1")));
}

TEST(RanksTest, SharedResourcesMustAgree) {
  Trace trace;
  add_rank_op(trace, 0, 10, {});
  add_rank_op(trace, 1, 10, {});
  Cluster cluster(trace, {behind_switch(byte_per_ns, 1000), behind_switch(byte_per_ns, 2000)});
  EXPECT_THAT(error_of([&] { cluster.run(); }), HasSubstr("'switch' is shared between ranks"));
}

// Rank 1 has 100 bytes too little; its op and rank are named, and the run is none for rank 0 either.
TEST(RanksTest, ARankThatDoesNotFitIsNamed) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 300, Role::parameter, true);
  add_rank_op(trace, 0, 10, {});
  add_rank_op(trace, 1, 10, {a});
  Cluster cluster(trace, {small_machine(1000), small_machine(200)});
  const RanksResult result = cluster.run();
  EXPECT_EQ(result.slowest, 1U);
  EXPECT_FALSE(result.ranks[0].fits);
  EXPECT_EQ(result.ranks[1].misfit_op, "op1");
  EXPECT_EQ(result.ranks[1].misfit_bytes, 100U);
  EXPECT_THAT(result.ranks[1].misfit, HasSubstr("rank 1: out of memory"));
}

// Ids are the rank's own, in order; names and keys stay.
TEST(RanksTest, SplittingKeepsOrderAndNames) {
  Trace trace;
  const TensorId unused = trace.add_tensor("unused", 5, Role::parameter, true);
  const TensorId b = trace.add_tensor("b", 10, Role::parameter, true);
  const TensorId a = trace.add_tensor("a", 20, Role::parameter, true);
  const TensorId c = trace.add_tensor("c", 30, Role::parameter, true);
  ASSERT_EQ(unused, 0U);
  add_rank_op(trace, 1, 1, {c, b}, "key");
  add_rank_op(trace, 0, 2, {a}, "key");
  const std::vector<Trace> ranks = split_ranks(trace);
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(ranks[0].tensors.size(), 2U);
  EXPECT_EQ(ranks[0].name(ranks[0].tensors[1]), "a");
  EXPECT_EQ(ranks[0].reads(ranks[0].ops[0])[0], 1U);
  EXPECT_EQ(ranks[1].reads(ranks[1].ops[0])[0], 1U);  // c
  EXPECT_EQ(ranks[1].reads(ranks[1].ops[0])[1], 0U);  // b
  EXPECT_EQ(ranks[1].name(ranks[1].ops[0]), "op0");
  EXPECT_EQ(ranks[0].ops[0].rendezvous, ranks[1].ops[0].rendezvous);
}

// An expert that is never chosen is in its own rank's memory.
TEST(RanksTest, WhatNoOpUsesGoesWithTheTensorBeforeIt) {
  Trace trace;
  const TensorId first = trace.add_tensor("first", 10, Role::parameter, true);
  trace.add_tensor("of rank 0", 1, Role::expert, true);
  const TensorId second = trace.add_tensor("second", 10, Role::parameter, true);
  trace.add_tensor("of rank 1", 2, Role::expert, true);
  add_rank_op(trace, 0, 1, {first});
  add_rank_op(trace, 1, 1, {second});
  const std::vector<Trace> ranks = split_ranks(trace);
  ASSERT_EQ(ranks[0].tensors.size(), 2U);
  ASSERT_EQ(ranks[1].tensors.size(), 2U);
  EXPECT_EQ(ranks[0].name(ranks[0].tensors[1]), "of rank 0");
  EXPECT_EQ(ranks[1].name(ranks[1].tensors[1]), "of rank 1");
}

}  // namespace
}  // namespace tencache
