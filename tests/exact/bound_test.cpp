// The lower bound: its terms on traces worked by hand, and that no simulated run is ever faster.
#include "studies/bound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/recompute.h"
#include "sim/simulate.h"
#include "tests/property/random_case.h"
#include "tests/small_cases.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using testing::HasSubstr;

// The bound in nanoseconds.
double bound_ns(const Trace& trace, const MachineSpec& machine, const std::string& term) {
  trace.validate();
  const Bound bound = lower_bound_of(trace, machine);
  EXPECT_EQ(bound.term, term);
  EXPECT_EQ(bound.misfit, "");
  return bound.seconds * 1e9;
}

// Nothing has to move: ten kernels of 50 ns. So it is without a policy's help, too.
TEST(BoundTest, ComputeWhereEverythingFits) {
  const Trace trace = five_layers(50, 100);
  EXPECT_DOUBLE_EQ(bound_ns(trace, small_machine(600), "compute"), 500);
  EXPECT_DOUBLE_EQ(run_small(small_machine(600), trace, 4).result.iteration_seconds(), 500e-9);
}

// Both ops may move, and wait for nothing: a takes 10 ns on the GPU and 30 on the CPU, b 10 on either. With b on the
// CPU both devices take 10. With a fixed op of 4 ns that is 14 and 10; if a tenth of a could go as well, 13 and 13, for
// w = 1/4. A run that is not steady may have had all of the CPU's ops before.
TEST(BoundTest, LanesOfAGenerationThatMayMove) {
  Trace trace;
  const auto add_placeable = [&](const char* name, Nanoseconds cpu_ns) {
    const TensorId made = trace.add_tensor(name, 8, Role::activation, false);
    Op op = make_op(trace, name, name, Phase::decode, 10);
    op.placeable = true;
    op.detail = trace.add_detail({.cpu_duration_ns = cpu_ns});
    trace.add_op(op, {}, std::vector{made});
  };
  add_placeable("a", 30);
  add_placeable("b", 10);
  EXPECT_NEAR(bound_ns(trace, small_machine(100), "lanes"), 10, 1e-6);
  trace.add_op(make_op(trace, "c", "c", Phase::decode, 4), {},
               std::vector{trace.add_tensor("c", 8, Role::activation, false)});
  EXPECT_NEAR(bound_ns(trace, small_machine(100), "lanes"), 13, 1e-6);
  const Bound bound = lower_bound_of(trace, small_machine(100));
  EXPECT_NEAR(least_seconds(bound, true, 1) * 1e9, 13, 1e-6);
  EXPECT_NEAR(least_seconds(bound, false, 4) * 1e9, 4, 1e-6);
}

// Three tensors of 100 bytes are read, 150 bytes may be there from before: 150 bytes at a byte a nanosecond.
TEST(BoundTest, FetchesWhatMemoryDoesNotHold) {
  Trace trace;
  for (int i = 0; i < 3; ++i) {
    const TensorId tensor = trace.add_tensor(std::string("p").append(std::to_string(i)), 100, Role::parameter, true);
    add_op(trace, 10, {tensor}, {});
  }
  EXPECT_NEAR(bound_ns(trace, small_machine(150), "fetch"), 150, 1e-6);
}

// f0 … f4 make 500 bytes that b4 … b0 read; 250 fit: 250 ns to get the others out, 250 ns to get them back in.
TEST(BoundTest, WindowsAddUp) {
  const Trace trace = five_layers(1, 100);
  const Bound bound = lower_bound_of(trace, small_machine(250));
  EXPECT_NEAR(bound.seconds * 1e9, 500, 1e-6);
  ASSERT_EQ(bound.windows.size(), 2u);
  EXPECT_EQ(std::min(bound.windows[0].last, bound.windows[1].last), 4u);
  EXPECT_NEAR(bound.windows[0].bytes, 250, 1e-6);
}

// The same with a way out half as fast: 500 ns there, 250 ns back. No term alone is as large: together they take 750,
// and the way out takes most of that, in its own window.
TEST(BoundTest, NamesTheTermThatBindsInWindows) {
  MachineSpec machine = small_machine(250);
  machine.links[1].bandwidth = byte_per_ns / 2;
  const Bound bound = lower_bound_of(five_layers(1, 100), machine);
  EXPECT_NEAR(bound.seconds * 1e9, 750, 1e-6);
  for (const BoundTerm& term : bound.terms) EXPECT_LT(term.seconds, bound.seconds) << term.name;
  EXPECT_EQ(bound.term, "evict");
  EXPECT_EQ(bound.binding.name, "evict");
  EXPECT_EQ(bound.binding.links, std::vector<LinkId>{1});
  ASSERT_EQ(bound.binding.windows.size(), 1u);
  EXPECT_EQ(bound.binding.windows[0].first, 0u);
  EXPECT_EQ(bound.binding.windows[0].last, 4u);
  EXPECT_NEAR(bound.binding.windows[0].seconds * 1e9, 500, 1e-6);
  ASSERT_EQ(bound.windows.size(), 2u);
  EXPECT_EQ(bound.windows[0].term, "evict");
  EXPECT_EQ(bound.windows[1].term, "fetch");
  const Bound compute = lower_bound_of(five_layers(50, 100), small_machine(600));
  EXPECT_EQ(compute.binding.name, "compute");
  EXPECT_TRUE(compute.binding.links.empty());
}

// Of a0 … a4, which b4 … b0 read, the ends have 200 bytes each and the others 100; 300 fit. As recorded 700 bytes are
// there between the passes: 400 go out in f0 … f4 and come in in b4 … b0, at a byte a nanosecond: 800 ns. The layer
// of f1 … f3 may run again before b3: the bound of any choice knows a0 and a4 only, 400 bytes, of which 100 go each
// way: 200 ns. The program that runs it again drops a1 … a3. On demand it waits 200 ns for a0 to go out, and twice as
// long for it to come back, before f1 again and before b0: with a nanosecond for each of 13 ops 613 ns, less than as
// recorded.
TEST(BoundTest, WhatMayBeRecomputedIsOnlyInTheRecordedBound) {
  Trace trace = five_layers(1, 100);
  trace.tensors[0].bytes = trace.tensors[4].bytes = 200;
  RecomputeChoice choice{.module = trace.names.intern("layer"), .before = 6, .again = {}};
  choice.again.back() = {1, 2, 3};
  trace.choices.push_back(choice);
  trace.validate();
  const MachineSpec machine = small_machine(300);
  EXPECT_NEAR(recorded_bound_seconds(trace, machine).value() * 1e9, 800, 1e-6);
  EXPECT_NEAR(bound_ns(trace, machine, "fetch"), 200, 1e-6);
  const Trace program = with_levels(trace, std::vector{RecomputeLevel::block});
  const double again_ns = run_small(machine, program, 4).result.iteration_seconds() * 1e9;
  EXPECT_NEAR(again_ns, 613, 1e-6);
  EXPECT_EQ(recorded_bound_seconds(program, machine), std::nullopt);
}

// 300 bytes are read, GPU and CPU hold 50 + 100. In by both links 250 bytes take 125 ns, from the SSD 150 bytes 150 ns.
TEST(BoundTest, NvmeBeyondBothMemories) {
  Trace trace;
  for (int i = 0; i < 6; ++i) {
    const TensorId tensor = trace.add_tensor(std::string("p").append(std::to_string(i)), 50, Role::parameter, true);
    add_op(trace, 1, {tensor}, {});
  }
  MachineSpec machine = small_machine(50, true);
  machine.tiers[1].capacity = 100;
  EXPECT_NEAR(bound_ns(trace, machine, "nvme_read"), 150, 1e-6);
}

// f makes a, 150 bytes, for b; u updates s, 200 bytes; 250 fit. From b to the end 100 bytes come in: with f 110 ns.
// From b over the iteration's end to the next b, u has written s and f has made a: 100 bytes go out, at half a byte a
// nanosecond. In four measured iterations that never get steady, three times at least.
TEST(BoundTest, WindowOverTheIterationsEnd) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 150, Role::activation, false);
  const TensorId s = trace.add_tensor("s", 200, Role::optimizer_state, true);
  add_op(trace, 10, {}, {a});
  add_op(trace, 10, {a}, {});
  add_op(trace, 10, {s}, {s});
  MachineSpec machine = small_machine(250);
  machine.links[1].bandwidth = byte_per_ns / 2;
  EXPECT_NEAR(bound_ns(trace, machine, "evict+round"), 200, 1e-6);
  const Bound bound = lower_bound_of(trace, machine);
  EXPECT_NEAR(bound.any_run_seconds * 1e9, 110, 1e-6);
  EXPECT_EQ(bound.binding.name, "evict+round");
  ASSERT_EQ(bound.binding.windows.size(), 1u);
  EXPECT_EQ(bound.binding.windows[0].first, 1u);
  EXPECT_EQ(bound.binding.windows[0].last, 0u);
  EXPECT_NEAR(least_seconds(bound, false, 4) * 1e9, 150, 1e-6);
  const auto round = std::find_if(bound.terms.begin(), bound.terms.end(),
                                  [](const BoundTerm& term) { return term.name == "evict+round"; });
  ASSERT_NE(round, bound.terms.end());
  EXPECT_EQ(round->windows.at(0).first, 1u);
  EXPECT_EQ(round->windows.at(0).last, 0u);
  EXPECT_NEAR(round->windows.at(0).bytes, 100, 1e-6);
  const RunResult run = run_small(machine, trace, 12).result;
  EXPECT_GE(run.iteration_seconds() * 1e9, least_seconds(bound, run.steady, run.period) * 1e9);
}

// The same step in its phases. Begun with the backward pass, the updates and the next forward pass are one window: u
// writes s, f makes a, and of the 350 bytes 250 stay, so that it takes 200 ns; the backward pass takes its 10 before it.
TEST(BoundTest, ATurnedIterationHasWindowsOverTheEnd) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 150, Role::activation, false);
  const TensorId s = trace.add_tensor("s", 200, Role::optimizer_state, true);
  add_op(trace, 10, {}, {a});
  trace.add_op(make_op(trace, "b", "m", Phase::backward, 10), std::vector{a}, std::vector<TensorId>{});
  trace.add_op(make_op(trace, "u", "m", Phase::optimizer, 10), std::vector{s}, std::vector{s});
  MachineSpec machine = small_machine(250);
  machine.links[1].bandwidth = byte_per_ns / 2;
  const Bound bound = lower_bound_of(trace, machine);
  EXPECT_NEAR(bound.seconds * 1e9, 210, 1e-6);
  EXPECT_EQ(bound.term, "evict+turned");
  ASSERT_EQ(bound.binding.windows.size(), 1u);
  EXPECT_EQ(bound.binding.windows[0].first, 2u);
  EXPECT_EQ(bound.binding.windows[0].last, 0u);
  EXPECT_NEAR(bound.binding.windows[0].bytes, 100, 1e-6);
  EXPECT_NEAR(bound.any_run_seconds * 1e9, 110, 1e-6);  // for it need not be steady
  const RunResult run = run_small(machine, trace, 12).result;
  EXPECT_GE(run.iteration_seconds() * 1e9, least_seconds(bound, run.steady, run.period) * 1e9);
}

// The links carry 1 + 1 bytes a nanosecond, the bus that they share 1.5: 250 bytes take 167 ns.
TEST(BoundTest, LinksThatShareAResource) {
  Trace trace;
  for (int i = 0; i < 3; ++i) {
    const TensorId tensor = trace.add_tensor(std::string("p").append(std::to_string(i)), 100, Role::parameter, true);
    add_op(trace, 10, {tensor}, {});
  }
  MachineSpec machine = small_machine(100, true);
  EXPECT_NEAR(bound_ns(trace, machine, "fetch"), 100, 1e-6);
  machine.resources = {{"bus", byte_per_ns * 3 / 2}};
  machine.links[0].uses = machine.links[2].uses = {0};
  EXPECT_NEAR(bound_ns(trace, machine, "fetch"), 200 / 1.5, 1e-6);
}

// forward 10 ns reads p, backward 20 ns makes g, the CPU's Adam 30 ns reads g and writes p: 60 ns round. Where
// `forward` does not read p it is one with the next forward pass, until g is written anew: 50 ns.
TEST(BoundTest, DependenciesThroughTheCpu) {
  const auto trace = [](bool reads) {
    Trace made;
    const TensorId p = made.add_tensor("p", 8, Role::parameter, true),
                   g = made.add_tensor("g", 8, Role::gradient, false);
    add_op(made, 10, reads ? std::vector<TensorId>{p} : std::vector<TensorId>{}, {});
    add_op(made, 20, {}, {g});
    add_op(made, 30, {p, g}, {p}, Device::cpu);
    return made;
  };
  EXPECT_DOUBLE_EQ(bound_ns(trace(true), small_machine(100), "dependencies"), 60);
  EXPECT_DOUBLE_EQ(bound_ns(trace(false), small_machine(100), "dependencies"), 50);
}

// An update takes 100 ns on the GPU, or 50 ns on the CPU (1400 bytes, 28 bytes/ns), beside 10 ns of other work that
// makes its gradient, and makes it anew in the next iteration. The GPU takes 10 + 100 (1 - x), if x of the update is
// moved, and from the gradient on the CPU takes 10 + 50 x until the next begins: 43.3 ns where both are the same.
TEST(BoundTest, UpdatesOnEitherDevice) {
  MachineSpec machine = small_machine(10'000);
  machine.cpu.adam_parameters_per_second = 1e9;
  Trace trace;
  const TensorId g = trace.add_tensor("g", 200, Role::gradient, false);
  const TensorId state = trace.add_tensor("m", 600, Role::optimizer_state, true);
  add_op(trace, 10, {}, {g});
  const Op update = make_op(trace, "adam", "", Phase::optimizer, 100);
  trace.add_op(update, std::vector<TensorId>{g, state}, std::vector<TensorId>{state});
  EXPECT_NEAR(bound_ns(trace, machine, "compute"), 10 + 100 / 3.0, 1e-6);
  machine.cpu.adam_parameters_per_second = 0;  // it stays
  EXPECT_NEAR(bound_ns(trace, machine, "compute"), 110, 1e-6);
}

// What no policy can run.
TEST(BoundTest, SaysThatNothingFits) {
  EXPECT_THAT(lower_bound_of(five_layers(1, 100), small_machine(150)).misfit, HasSubstr("op1"));
  EXPECT_EQ(lower_bound_of(five_layers(1, 100), small_machine(200)).misfit, "");
}

struct Tally {
  std::uint64_t runs = 0, beyond_compute = 0, steady = 0, moved = 0, tight = 0;
};

void check(std::uint64_t seed, const CaseOptions& options, Tally& tally) {
  const SeedOnAbort at_abort(seed);
  RandomCase made = random_case(seed, options);
  const Trace recorded = made.program.trace;
  const Bound bound = lower_bound_of(recorded, made.machine);
  const std::unique_ptr<Policy> policy = made.make();
  made.program = lower(recorded, *policy, made.machine);
  if (seed % 3 == 0) made.limits = {.max_iterations = 12, .until_steady = true};
  RunResult result;
  try {
    result = simulate(made.program, made.machine, *policy, made.limits);
  } catch (const Error&) {
    return;  // the policy refuses the machine, or the optimizer took every GPU op
  }
  if (!result.fits) return;
  const bool unlimited_gpu = policy->layout(made.machine, &made.program).unlimited_gpu;
  if (!unlimited_gpu) {
    ASSERT_EQ(bound.misfit, "") << made.describe();
  }
  const double least = unlimited_gpu ? bound.compute_seconds : least_seconds(bound, result.steady, result.period);
  ASSERT_GE(result.iteration_seconds(), least * (1 - 1e-9))
      << "faster than " << (unlimited_gpu ? bound.compute_term : bound.term) << " allows, window of " << result.period
      << (result.steady ? ", steady\n" : "\n") << made.describe();
  ++tally.runs;
  tally.beyond_compute += bound.seconds > bound.compute_seconds * 1.001 ? 1 : 0;
  tally.steady += result.steady ? 1 : 0;
  tally.moved += made.program.changes.empty() ? 0 : 1;
  tally.tight += result.iteration_seconds() < least * 1.05 ? 1 : 0;
}

void check_all(std::uint64_t first_seed, std::uint64_t count, const CaseOptions& options, Tally& tally) {
  for (std::uint64_t seed = first_seed; seed < first_seed + case_count(count); ++seed) {
    check(seed, options, tally);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(BoundTest, NoRunIsFaster) {
  Tally tally;
  check_all(20'000'000, 6000, {.optimizer = true}, tally);
  check_all(21'000'000, 3000, {.policy = "random", .optimizer = true}, tally);
  check_all(22'000'000, 1000, {.policy = "foresight", .optimizer = true}, tally);
  // Else it would prove little.
  EXPECT_GT(tally.runs, case_count(5000));
  EXPECT_GE(tally.beyond_compute, tally.runs / 5);
  EXPECT_GT(tally.steady, tally.runs / 20);
  EXPECT_GT(tally.moved, tally.runs / 50);
  EXPECT_GT(tally.tight, tally.runs / 60);  // what a program holds for longer than its last use is not in the bound
}

TEST(BoundTest, NoRunThatRunsAheadIsFaster) {
  Tally tally;
  check_all(24'000'000, 3000, {.run_ahead = true, .optimizer = true}, tally);
  check_all(25'000'000, 1500, {.run_ahead = true, .policy = "random", .optimizer = true}, tally);
  EXPECT_GT(tally.runs, case_count(2000));
  EXPECT_GT(tally.tight, tally.runs / 100);
}

}  // namespace
}  // namespace tencache
