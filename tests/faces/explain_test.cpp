// Where the time goes, on traces whose stalls can be worked out on paper, and identities on a recording.
#include "studies/explain.h"

#include <cmath>
#include <iterator>
#include <sstream>

#include "configs/machine_yaml.h"
#include "core/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "policies/registry.h"
#include "tests/in_process.h"
#include "tests/small_cases.h"
#include "traces/file/trace_file.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double block_seconds = 16 * MiB / 1e9;  // a chunk of 16 MiB over a link of 1 GB/s: 16.8 ms

// Links of 1 GB/s without latency; storage has a way of its own to the GPU.
MachineSpec machine(Bytes gpu, Bytes cpu, BytesPerSecond storage = byte_per_ns) {
  MachineSpec machine = three_tiers(gpu, cpu, GiB);
  machine.links = {make_link("h2d", 1, 0), make_link("d2h", 0, 1), make_link("read", 2, 0, storage),
                   make_link("write", 0, 2, storage)};
  machine.validate();
  return machine;
}

OpIndex add_op(Trace& trace, const char* module, std::vector<TensorId> reads, std::vector<TensorId> writes,
               Device device = Device::gpu) {
  Op op;
  op.name = trace.names.intern("op");
  op.module = trace.names.intern(module);
  op.device = device;
  op.duration_ns = 10'000'000;
  return trace.add_op(op, reads, writes);
}

Trace three_blocks(bool written) {
  Trace trace;
  for (TensorId i = 0; i < 3; ++i) {
    trace.add_tensor("w" + std::to_string(i), 16 * MiB, Role::parameter, true);
    add_op(trace, i == 2 ? "layers.1.mlp" : "layers.0.mlp", {i},
           written ? std::vector<TensorId>{i} : std::vector<TensorId>{});
  }
  return trace;
}

Explanation explain_lru(const Trace& trace, const MachineSpec& machine, std::vector<std::string> others = {}) {
  ExplainRequest request;
  request.trace = &trace;
  request.machine = &machine;
  request.policy = "lru";
  request.other_policies = std::move(others);
  return explain(request);
}

const ExplainedCause& cause_named(const Explanation& explanation, StallCause cause) {
  for (const ExplainedCause& candidate : explanation.causes) {
    if (candidate.cause == cause) return candidate;
  }
  throw std::runtime_error("no such cause");
}

// Room for two blocks of three: under lru each op waits for its own to come in, 16.8 ms. Without h2d all of that is
// gone.
TEST(Explain, AllThatOneLinkCostsIsConfirmed) {
  const Trace trace = three_blocks(false);
  const Explanation explanation = explain_lru(trace, machine(32 * MiB, GiB), {"ideal", "lru", "belady"});
  EXPECT_NEAR(explanation.run.iteration_seconds, 0.03 + 3 * block_seconds, 1e-9);
  ASSERT_EQ(explanation.causes.size(), 1u);
  const ExplainedCause& cause = explanation.causes[0];
  EXPECT_EQ(cause.cause, StallCause::h2d);
  EXPECT_NEAR(cause.attributed_seconds, 3 * block_seconds, 1e-9);
  EXPECT_NEAR(cause.confirmed_seconds, 3 * block_seconds, 1e-6);
  EXPECT_NEAR(cause.still_seconds, 0, 1e-6);
  EXPECT_NEAR(cause.moved_seconds, 0, 1e-6);
  EXPECT_NEAR(explanation.in_turn.remainder_seconds, 0, 1e-6);
  // A third of it each: ops, tensors; layer 0 has two of the ops.
  ASSERT_EQ(explanation.ops.size(), 3u);
  ASSERT_EQ(explanation.tensors.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(explanation.ops[i].seconds, block_seconds, 1e-9);
    EXPECT_NEAR(explanation.tensors[i].seconds, block_seconds, 1e-9);
    // Its own way in is gone; the byte that is left keeps the other two from being there at once.
    ASSERT_TRUE(explanation.tensors[i].without);
    EXPECT_NEAR(explanation.tensors[i].without->iteration_seconds, 0.03 + 2 * block_seconds, 1e-6);
  }
  ASSERT_EQ(explanation.layers.size(), 2u);
  EXPECT_EQ(explanation.layers[0].layer, "layers.0");
  EXPECT_NEAR(explanation.layers[0].seconds, 2 * block_seconds, 1e-9);
  // Twice the GPU memory holds all; twice the links halve the wait; the policy itself and ideal are no alternatives.
  const auto then = [&](const std::string& what) {
    for (const ExplainedChange& change : explanation.changes) {
      if (change.change == what) return change.iteration_seconds;
    }
    return -1.0;
  };
  EXPECT_NEAR(then("gpu_memory × 2"), 0.03, 1e-9);
  EXPECT_NEAR(then("pcie × 2"), 0.03 + 1.5 * block_seconds, 1e-6);
  EXPECT_NEAR(then("gpu_speed × 2"), 0.015 + 3 * block_seconds, 1e-6);
  EXPECT_GT(then("policy belady"), 0);
  EXPECT_EQ(then("policy lru"), -1);
  EXPECT_EQ(then("policy ideal"), -1);
}

// Twice the PCIe is twice each direction: 1 GB/s in, a quarter of it out.
TEST(Explain, UnevenDirectionsKeepTheirRatio) {
  const Trace trace = three_blocks(true);
  MachineSpec uneven = machine(32 * MiB, GiB);
  uneven.links[1].bandwidth = 250'000'000;
  const Explanation explanation = explain_lru(trace, uneven);
  EXPECT_NEAR(explanation.run.iteration_seconds, 0.03 + 15 * block_seconds, 1e-6);
  for (const ExplainedChange& change : explanation.changes) {
    if (change.change != "pcie × 2") continue;
    EXPECT_NEAR(change.iteration_seconds, 0.03 + 7.5 * block_seconds, 1e-6);
  }
}

// Written in place: a block has to leave (16.8 ms) before the next may come in (16.8 ms). Each way alone is half of it.
TEST(Explain, BothWaysHaveTheirOwnShare) {
  const Trace trace = three_blocks(true);
  const Explanation explanation = explain_lru(trace, machine(32 * MiB, GiB));
  EXPECT_NEAR(explanation.run.iteration_seconds, 0.03 + 6 * block_seconds, 1e-9);
  for (const StallCause cause : {StallCause::h2d, StallCause::d2h}) {
    EXPECT_NEAR(cause_named(explanation, cause).attributed_seconds, 3 * block_seconds, 1e-9);
    EXPECT_NEAR(cause_named(explanation, cause).confirmed_seconds, 3 * block_seconds, 1e-6);
  }
  ASSERT_EQ(explanation.in_turn.steps.size(), 2u);
  EXPECT_NEAR(explanation.in_turn.steps[0].seconds, 3 * block_seconds, 1e-6);
  EXPECT_NEAR(explanation.in_turn.steps[1].seconds, 3 * block_seconds, 1e-6);
  EXPECT_NEAR(explanation.in_turn.remainder_seconds, 0, 1e-6);
}

// The first op needs `a` from CPU memory and `b` from storage of half the bandwidth, over links that run side by side:
// it waits 33.6 ms, for the latter. Without storage's time it still waits 16.8 ms, for the former: of what was
// attributed to reads half is confirmed and half moves to h2d.
TEST(Explain, WhatBindsNextIsNamed) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 16 * MiB, Role::parameter, true);
  const TensorId c = trace.add_tensor("c", 32 * MiB, Role::parameter, true);
  const TensorId b = trace.add_tensor("b", 16 * MiB, Role::parameter, true);
  add_op(trace, "first", {a, b}, {});
  add_op(trace, "second", {c}, {});
  const Explanation explanation = explain_lru(trace, machine(32 * MiB, 48 * MiB, 500'000'000));
  const ExplainedCause& read = cause_named(explanation, StallCause::nvme_read);
  EXPECT_NEAR(read.attributed_seconds, 2 * block_seconds, 1e-9);
  EXPECT_NEAR(read.confirmed_seconds, block_seconds, 1e-6);
  EXPECT_NEAR(read.still_seconds, 0, 1e-6);
  EXPECT_NEAR(read.moved_seconds, block_seconds, 1e-6);
  EXPECT_NEAR(read.without.stall_seconds[StallCause::h2d], 3 * block_seconds, 1e-6);
  EXPECT_NEAR(explanation.in_turn.remainder_seconds, 0, 1e-6);
  // By tensor: b for the first op; c's second half ends the wait of the second.
  ASSERT_EQ(explanation.tensors.size(), 2u);
  for (const CostlyTensor& tensor : explanation.tensors) {
    EXPECT_EQ(tensor.tensor, tensor.stall_seconds[StallCause::nvme_read] > 0 ? b : c);
    EXPECT_NEAR(tensor.seconds, 2 * block_seconds, 1e-9);
  }
}

// The CPU's op takes 10 ms between two ops of the GPU that depend on it.
TEST(Explain, TheCpusTimeIsConfirmed) {
  Trace trace;
  const TensorId t = trace.add_tensor("t", 1000, Role::parameter, true);
  add_op(trace, "forward", {t}, {});
  add_op(trace, "update", {t}, {t}, Device::cpu);
  const Explanation explanation = explain_lru(trace, machine(32 * MiB, GiB));
  const ExplainedCause& cpu = cause_named(explanation, StallCause::cpu_compute);
  EXPECT_NEAR(cpu.attributed_seconds, 0.01, 1e-5);
  EXPECT_NEAR(cpu.confirmed_seconds, 0.01, 1e-5);
  EXPECT_NEAR(explanation.in_turn.remainder_seconds, 0, 1e-6);
}

// On each of two ranks all three blocks come in on demand, as above, and the ranks meet at the end of every iteration:
// with one block gone on one rank only, the other would still be waited for.
TEST(Explain, ATensorIsTakenAwayOnAllRanks) {
  Trace trace = three_blocks(false);
  for (TensorId i = 0; i < 3; ++i) {
    const TensorId id = trace.add_tensor("w" + std::to_string(i), 16 * MiB, Role::parameter, true);
    Op op = trace.ops[i];
    op.rank = 1;
    const TensorId ids[] = {id};
    trace.add_op(op, ids, {});
  }
  for (const OpIndex last : {2u, 5u}) trace.ops[last].rendezvous = trace.names.intern("end");
  MachineSpec two = machine(32 * MiB, GiB);
  two.other_ranks = {machine(32 * MiB, GiB)};
  const Explanation explanation = explain_lru(trace, two);
  EXPECT_NEAR(explanation.run.iteration_seconds, 0.03 + 3 * block_seconds, 1e-6);
  ASSERT_EQ(explanation.tensors.size(), 3u);
  for (const CostlyTensor& tensor : explanation.tensors) {
    ASSERT_TRUE(tensor.without);
    EXPECT_NEAR(tensor.without->iteration_seconds, 0.03 + 2 * block_seconds, 1e-6);
  }
}

// Rank 0 waits for its blocks; without that rank 1, which computes for 60 ms, is the slowest.
TEST(Explain, SaysWhichRankIsThenTheSlowest) {
  Trace trace = three_blocks(false);
  const TensorId id = trace.add_tensor("v", MiB, Role::parameter, true);
  Op op = trace.ops[0];
  op.rank = 1;
  op.duration_ns = 60'000'000;
  const TensorId ids[] = {id};
  trace.add_op(op, ids, {});
  MachineSpec two = machine(32 * MiB, GiB);
  two.other_ranks = {machine(32 * MiB, GiB)};
  const Explanation explanation = explain_lru(trace, two);
  EXPECT_EQ(explanation.run.rank, 0u);
  ASSERT_EQ(explanation.causes.size(), 1u);
  EXPECT_EQ(explanation.causes[0].without.rank, 1u);
  EXPECT_NEAR(explanation.causes[0].without.compute_seconds, 0.06, 1e-6);
}

// A policy that has no use for links so fast: the first step is refused, and that is said.
class SlowLinksOnly : public Policy {
 public:
  explicit SlowLinksOnly(Options&) {}
  Layout layout(const MachineSpec& machine, const Program* program) const override {
    if (machine.links[0].bandwidth > 1'000'000'000'000) throw Error("such a link is too fast");
    return Policy::layout(machine, program);
  }
};

TEST(Explain, SaysWhyTheStepsEnd) {
  constexpr PolicyEntry entry{"slow-links-only", "for this test", "none", make_policy_of<SlowLinksOnly>};
  register_policies({&entry, 1}, "explain_test");
  const Trace trace = three_blocks(true);
  ExplainRequest request;
  const MachineSpec box = machine(32 * MiB, GiB);
  request.trace = &trace;
  request.machine = &box;
  request.policy = "slow-links-only";
  const Explanation explanation = explain(request);
  ASSERT_TRUE(explanation.in_turn.refused);
  EXPECT_EQ(explanation.in_turn.refused->cause, StallCause::h2d);
  EXPECT_THAT(explanation.in_turn.refused->reason, HasSubstr("too fast"));
  EXPECT_NEAR(explanation.in_turn.remainder_seconds, sum_of(explanation.run.stall_seconds), 1e-9);
}

TEST(Explain, SaysNothingOfWhatDoesNotFit) {
  const Trace trace = three_blocks(false);
  const Explanation explanation = explain_lru(trace, machine(8 * MiB, GiB));
  EXPECT_FALSE(explanation.run.fits);
  EXPECT_THAT(explanation.run.reason.value_or(""), HasSubstr("op"));
  EXPECT_TRUE(explanation.causes.empty());
}

// For any policy: attributed = confirmed + still + moved, the steps and the remainder are all stalls, and ops, layers
// and tensors are a breakdown of them.
TEST(Explain, AddsUpOnARecording) {
  const Trace trace = read_trace(TENCACHE_SOURCE_DIR "/traces/samples/gpt-small.trace.jsonl.zst");
  MachineSpec small = read_machine("demo-small-gpu");
  small.tiers[0].capacity = 60 * MiB;
  for (const char* policy : {"on-demand", "10cache", "layer-streaming", "zero-infinity"}) {
    SCOPED_TRACE(policy);
    ExplainRequest request;
    request.trace = &trace;
    request.machine = &small;
    request.policy = policy;
    request.tensors_confirmed = 0;
    const Explanation explanation = explain(request);
    if (!explanation.run.fits) continue;
    const double stalls = sum_of(explanation.run.stall_seconds);
    EXPECT_GT(stalls, 0);
    EXPECT_NEAR(explanation.run.compute_seconds + explanation.run.gap_seconds + stalls,
                explanation.run.iteration_seconds, 1e-9);
    double attributed = 0, steps = 0, ops = 0, layers = 0, tensors = explanation.stalls_of_no_tensor_seconds;
    for (const ExplainedCause& cause : explanation.causes) {
      attributed += cause.attributed_seconds;
      EXPECT_NEAR(cause.confirmed_seconds + cause.still_seconds + cause.moved_seconds, cause.attributed_seconds, 1e-9);
    }
    for (const ExplainedStep& step : explanation.in_turn.steps) steps += step.seconds;
    for (const CostlyOp& op : explanation.ops) ops += op.seconds;
    for (const CostlyLayer& layer : explanation.layers) layers += layer.seconds;
    for (const CostlyTensor& tensor : explanation.tensors) tensors += tensor.seconds;
    EXPECT_NEAR(attributed, stalls, 1e-9);
    EXPECT_NEAR(steps + explanation.in_turn.remainder_seconds, stalls, 1e-9);
    EXPECT_NEAR(ops, stalls, 1e-9);
    EXPECT_NEAR(layers, stalls, 1e-9);
    EXPECT_NEAR(tensors, stalls, 1e-9);
    // Without links and the CPU's time there is next to nothing left to wait for.
    EXPECT_LT(std::fabs(explanation.in_turn.remainder_seconds), 0.02 * explanation.run.iteration_seconds);
  }
}

// f0 … f2 make a block each, which b2 … b0 read; two fit. On demand a0 goes out before f2 and comes back before b0,
// each in 16.8 ms: 60 ms + 33.6 ms. If f0 runs again before b0, nothing moves: 70 ms.
Trace three_results() {
  Trace trace;
  for (TensorId i = 0; i < 3; ++i) {
    trace.add_tensor("a" + std::to_string(i), 16 * MiB, Role::activation, false);
    add_op(trace, ("layers." + std::to_string(i) + ".mlp").c_str(), {}, {i});
  }
  for (TensorId i = 3; i-- > 0;) {
    const OpIndex op = add_op(trace, ("layers." + std::to_string(i) + ".mlp").c_str(), {i}, {});
    trace.ops[op].phase = Phase::backward;
  }
  RecomputeChoice choice{.module = trace.names.intern("layers.0"), .before = 5, .again = {}};
  choice.again.back() = {0};
  trace.choices.push_back(choice);
  trace.validate();
  return trace;
}

TEST(Explain, WhatRecomputationWouldGain) {
  const Trace trace = three_results();
  const Explanation explanation = explain_lru(trace, machine(32 * MiB, GiB));
  EXPECT_NEAR(explanation.run.iteration_seconds, 0.06 + 2 * block_seconds, 1e-9);
  ASSERT_TRUE(explanation.recomputation);  // lru recomputes nothing
  EXPECT_EQ(explanation.recomputation->seconds, 0);
  EXPECT_TRUE(explanation.recomputation->layers.empty());
  ASSERT_EQ(explanation.recomputation->others.size(), 1u);
  const OtherRecomputation& all = explanation.recomputation->others[0];
  EXPECT_EQ(all.level, RecomputeLevel::block);
  EXPECT_NEAR(all.then.iteration_seconds, 0.07, 1e-9);
  EXPECT_NEAR(all.gained_seconds, 0.01 - 2 * block_seconds, 1e-9);
  EXPECT_FALSE(explain_lru(three_blocks(false), machine(32 * MiB, GiB)).recomputation);
}

// The choice takes 10 ms of compute, and gains what keeping would wait for, less these.
TEST(Explain, WhatRecomputationTakesAndGains) {
  const Trace trace = three_results();
  const MachineSpec small = machine(32 * MiB, GiB);
  ExplainRequest request;
  request.trace = &trace;
  request.machine = &small;
  request.policy = "foresight";
  const Explanation explanation = explain(request);
  ASSERT_TRUE(explanation.recomputation);
  const ExplainedRecomputation& recomputation = *explanation.recomputation;
  EXPECT_NEAR(explanation.run.iteration_seconds, 0.07, 1e-9);
  EXPECT_NEAR(recomputation.seconds, 0.01, 1e-9);
  ASSERT_EQ(recomputation.layers.size(), 1u);
  const RecomputedLayer& layer = recomputation.layers[0];
  EXPECT_EQ(layer.layer, "layers.0");
  EXPECT_NEAR(layer.seconds, 0.01, 1e-9);
  ASSERT_TRUE(layer.kept);
  ASSERT_EQ(recomputation.others.size(), 1u);  // every layer is the choice
  const OtherRecomputation& nothing = recomputation.others[0];
  EXPECT_EQ(nothing.level, RecomputeLevel::keep);
  EXPECT_NEAR(nothing.then.busy_seconds(), 0.06, 1e-9);
  EXPECT_GT(nothing.then.stalled_seconds(), 0.01);
  EXPECT_NEAR(nothing.gained_seconds, nothing.then.stalled_seconds() - 0.01, 1e-9);
  EXPECT_EQ(layer.kept->iteration_seconds, nothing.then.iteration_seconds);
  EXPECT_EQ(layer.gained_seconds, nothing.gained_seconds);
}

TEST(ExplainCommand, SaysWhatRecomputationTakesAndGains) {
  const std::string trace = ::testing::TempDir() + "/recompute.trace.jsonl";
  write_trace(three_results(), trace);
  std::vector<std::string> words = {"explain", trace, "-m",        "small-host", "--gpu-memory",
                                    "32MiB",   "-p",  "foresight", "--policies", "none"};
  const InProcessAnswer answer = run_in_process(words);
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, AllOf(HasSubstr("recomputation takes 10.00 ms of compute and gaps\n"),
                                HasSubstr("as chosen    70.00 ms          70.00 ms"), HasSubstr("\nnothing "),
                                HasSubstr("\nlayers.0    10.00 ms")));
  words.push_back("--json");
  const auto json = nlohmann::json::parse(run_in_process(words).out)["recomputation"];
  EXPECT_EQ(json["seconds"], 0.01);
  EXPECT_EQ(json["others"][0]["level"], "keep");
  EXPECT_EQ(json["layers"][0]["kept"], json["others"][0]["then"]);
}

// Stage 1, with the head, computes longer than stage 0, which waits longer: without waits it is the slowest.
TEST(ExplainCommand, NamesTheRankThatTheRemainderIsOf) {
  std::istringstream text(
      "explain --model gpt2 --batch 4 --seq 128 --micro-batches 2 --pipeline-parallel 2 -m g5.12xlarge "
      "--gpu-memory 1GiB -p lru --policies none --top 0");
  const InProcessAnswer answer = run_in_process(std::vector<std::string>(std::istream_iterator<std::string>(text), {}));
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr(" %): rank 1 is then the slowest, which computes "));
}

TEST(ExplainCommand, PrintsAttributedBesideConfirmed) {
  const std::string trace = ::testing::TempDir() + "/explain.trace.jsonl";
  write_trace(three_blocks(true), trace);
  const std::vector<std::string> words = {"explain", trace, "-m", "small-host", "--gpu-memory", "32MiB", "-p", "lru"};
  const InProcessAnswer answer = run_in_process(words);
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out,
              AllOf(HasSubstr("attributed"), HasSubstr("confirmed"), HasSubstr("remainder"), HasSubstr("h2d"),
                    HasSubstr("binds"), HasSubstr("gpu_memory × 2"), HasSubstr("policy on-demand")));
  std::vector<std::string> small = words;
  small[5] = "8MiB";
  EXPECT_EQ(run_in_process(small).code, 1);
  std::vector<std::string> two = words;
  two[7] = "lru,belady";
  EXPECT_EQ(run_in_process(two).code, 2);
  const InProcessAnswer refused =
      run_in_process({"explain", "--model", "llama-3-8b", "--batch", "1", "--seq", "2048", "-m", "g5.xlarge", "-p",
                      "zero-infinity", "--set", "offload_param=nvme", "--json"});
  EXPECT_EQ(refused.code, 1) << refused.err;
  EXPECT_THAT(refused.out, AllOf(HasSubstr("\"fits\": false"), HasSubstr("raise buffer_size")));
  std::vector<std::string> option = words;
  option.insert(option.end(), {"--set", "no_such_option=1"});
  EXPECT_EQ(run_in_process(option).code, 2);
  two[7] = "best";
  EXPECT_THAT(run_in_process(two).err, HasSubstr("`tencache policies` lists all"));
}

}  // namespace
}  // namespace tencache
