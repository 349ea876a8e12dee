// The rules of foresight (the head of policies/foresight.cpp) on hand-worked traces; timelines in tests/goldens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "policies/foresight/coarse.h"
#include "policies/foresight/flow.h"
#include "policies/foresight/placement.h"
#include "policies/foresight/spill.h"
#include "policies/registry.h"
#include "sim/rehearse.h"
#include "sim/simulate.h"
#include "tests/golden/golden_run.h"
#include "tests/property/random_case.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

GoldenRun run_foresight(const Trace& trace, Bytes gpu_bytes, const Settings& settings = {}) {
  return run_golden("foresight", settings, trace, small_machine(gpu_bytes));
}

std::vector<Nanoseconds> starts(const GoldenRun& run, LinkId link) {
  std::vector<Nanoseconds> list;
  for (const Span& span : run.timeline.spans) {
    if (span.kind == SpanKind::transfer && span.lane == first_link_lane + link) list.push_back(span.start_ns);
  }
  return list;
}

// Four activations of 100 bytes, made by ops 0-3 and read back by ops 4-7, last made first; the GPU holds three.
//   The plan counts on 95 % of the GPU, on two of them, while op 3 or op 4 runs: on D and C, whose period is the
//   shortest. A and B will have to leave.
//   100: A is made. It goes to the CPU at once, 100-200, beside op 1, then B; both stay until their room is needed.
//   300: op 3 needs room for D. A is clean and needed last: it is dropped, and op 3 runs without a wait.
//   400: op 4 reads D, the horizon is at op 7, which needs A: D's room is free at 500, when D is dead.
//   500: A comes back, 500-600, and op 7 runs at 700: the iteration takes its 800 ns of compute. B never had to go.
TEST(ForesightTest, CleansAheadSoThatRoomIsFree) {
  Trace trace;
  std::vector<TensorId> made;
  for (const char* name : {"A", "B", "C", "D"}) made.push_back(trace.add_tensor(name, 100, Role::activation, false));
  for (const TensorId tensor : made) add_op(trace, 100, {}, {tensor});
  for (std::size_t i = 4; i-- > 0;) add_op(trace, 100, {made[i]}, {});
  const GoldenRun run = run_foresight(trace, 300);
  EXPECT_THAT(run.waits(0), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(run.result.iteration_ns.back(), 800);
  EXPECT_EQ(starts(run, d2h).front(), 100);
  EXPECT_EQ(starts(run, h2d).front(), 500);
  EXPECT_TRUE(run.result.steady);
  expect_golden("foresight_cleans_ahead", run.text);
}

// Ten ops of 70 ns read A A A B C B D A C D (100 bytes, copies take 100 ns, the GPU holds three): see
// tests/exact/classic_policies_test.cpp, where the same rules of prefetching give belady the same times.
TEST(ForesightTest, FetchesInOrderIntoTheRoomOfTheFarthest) {
  Trace trace;
  for (const char* name : {"A", "B", "C", "D"}) trace.add_tensor(name, 100, Role::parameter, true);
  for (const char name : std::string("AAABCBDACD")) add_op(trace, 70, {static_cast<TensorId>(name - 'A')}, {});
  const GoldenRun run = run_foresight(trace, 300);
  EXPECT_THAT(run.waits(0), ElementsAre(100, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(run.waits(1), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(starts(run, h2d), ElementsAre(0, 100, 200, 310, 450, 550, 730, 830, 1010, 1150, 1250));
  EXPECT_TRUE(run.result.steady);
  expect_golden("foresight_ordered", run.text);
}

// One period of three is spilled where two fit, the longest; and a weight that is only read is worth a copy once.
TEST(ForesightTest, SpillsTheLongestPeriods) {
  Trace trace;
  for (const char* name : {"A", "B", "C"}) trace.add_tensor(name, 100, Role::parameter, true);
  for (const char name : std::string("ABCCBA")) add_op(trace, 10, {static_cast<TensorId>(name - 'A')}, {});
  const Schedule schedule(trace);
  const std::vector<Device> devices(trace.ops.size(), Device::gpu);
  const std::vector<Nanoseconds> clock = {0, 10, 20, 30, 40, 50, 60};
  const Seen seen{trace, schedule, devices, clock, true, false};
  // After ops 0 … 5. A is unused in ops 1-4, B in 2-3 and (round the end) 5-0, C from 4 round to 1. With room for two,
  // B's short ones are kept; then at each op one more fits only where B is the one in use.
  EXPECT_THAT(spilled(seen, 200), ElementsAre(1, 0, 0, 1, 0, 0));
  EXPECT_THAT(spilled(seen, 300), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(spilled(seen, 100), ElementsAre(1, 1, 0, 1, 1, 0));
  EXPECT_EQ(moved_by(seen, spilled(seen, 200)).all_up(), 200U);
  EXPECT_EQ(moved_by(seen, spilled(seen, 200)).all_down(), 0U);  // nothing is ever written
}

// W is read by op 0 and overwritten by op 3, X is read by ops 1 and 4, T is there in op 2 only.
Trace overwritten_weight() {
  Trace trace;
  const TensorId w = trace.add_tensor("W", 100, Role::parameter, true),
                 x = trace.add_tensor("X", 100, Role::optimizer_state, true),
                 t = trace.add_tensor("T", 100, Role::activation, false);
  add_op(trace, 10, {w}, {});
  add_op(trace, 10, {x}, {});
  add_op(trace, 10, {}, {t});
  add_op(trace, 10, {}, {w});
  add_op(trace, 10, {x}, {x});
  return trace;
}

// The period of X is as long as that of W, but W need not come back.
TEST(ForesightTest, WhatIsOverwrittenNextIsSpilledFirst) {
  const Trace trace = overwritten_weight();
  const Schedule schedule(trace);
  const std::vector<Device> devices(trace.ops.size(), Device::gpu);
  const std::vector<Nanoseconds> clock = {0, 10, 20, 30, 40, 50};
  const Seen seen{trace, schedule, devices, clock, true, false};
  // After W in op 0, X in op 1, T, W in op 3, X in op 4; room for two while T is there.
  EXPECT_THAT(spilled(seen, 200), ElementsAre(1, 0, 0, 0, 0));
  EXPECT_EQ(moved_by(seen, spilled(seen, 200)).all_up(), 0U);
  EXPECT_EQ(moved_by(seen, spilled(seen, 200)).all_down(), 100U);
  // Where the value of W is forgotten after op 0, it takes no room until op 3 writes another, and is copied nowhere.
  const Seen forgets{trace, schedule, devices, clock, true, true};
  EXPECT_THAT(spilled(forgets, 200), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_EQ(moved_by(forgets, spilled(forgets, 200)).all_down(), 0U);
}

// Ops 0-2 make A, B and C in 10 ns each, op 3 makes D of 200 bytes, which has room when two of them have left the GPU
// of 300; then they are read. At 30, when op 3 asks, A is on its way to CPU memory, which takes 100 ns, and B is next.
// These two make room for D; nothing goes to storage, which has a link of its own.
TEST(ForesightTest, WaitsForWhatIsOnItsWayOut) {
  Trace trace;
  std::vector<TensorId> made;
  for (const char* name : {"A", "B", "C"}) made.push_back(trace.add_tensor(name, 100, Role::activation, false));
  for (const TensorId tensor : made) add_op(trace, 10, {}, {tensor});
  const TensorId d = trace.add_tensor("D", 200, Role::activation, false);
  add_op(trace, 10, {}, {d});
  add_op(trace, 10, {d}, {});
  for (const TensorId tensor : made) add_op(trace, 10, {tensor}, {});
  const GoldenRun run = run_golden("foresight", {}, trace, small_machine(300, true));
  constexpr LinkId write = 3;
  EXPECT_THAT(starts(run, write), ElementsAre());
  EXPECT_GE(starts(run, d2h).size(), 2 * run.result.iteration_ns.size());
}

// The GPU holds two of W, X and T. W dies with op 0, as op 3 overwrites it, so T finds room and nothing is ever moved.
TEST(ForesightTest, ForgetsWhatIsOverwritten) {
  const Trace trace = overwritten_weight();
  const GoldenRun run = run_foresight(trace, 250);
  EXPECT_EQ(run.result.iteration_ns.back(), 50);
  EXPECT_EQ(starts(run, d2h).size(), 0U);
}

// What planning simulates has the same work, tensors and updates, and what is said of its chunks can be said of the
// run's.
TEST(ForesightTest, ACoarseTraceDoesTheSameWork) {
  Random random(3);
  Trace trace;
  std::vector<TensorId> states;
  for (int layer = 0; layer < 200; ++layer) {
    const std::string name = "layer" + std::to_string(layer);
    states.push_back(trace.add_tensor(name + ".w", random.between(100, 400), Role::parameter, true));
    states.push_back(trace.add_tensor(name + ".m", random.between(100, 400), Role::optimizer_state, true));
  }
  TensorId before = trace.add_tensor("x", 10, Role::input, true);
  for (std::size_t i = 0; i < states.size(); i += 2) {
    const TensorId inner = trace.add_tensor("inner", 50, Role::activation, false);
    const TensorId after = trace.add_tensor("after", 50, Role::activation, false);
    add_op(trace, 10, {states[i], before}, {inner});
    add_op(trace, 10, {inner}, {after});
    before = after;
  }
  for (std::size_t i = 0; i < states.size(); i += 2) {
    trace.add_op(make_op(trace, "adamw", "m", Phase::optimizer, 10), std::vector{states[i + 1]},
                 std::vector{states[i], states[i + 1]});
  }
  MachineSpec machine = small_machine(100'000);
  const CoarseTrace coarse(trace, machine, 50, 60);
  coarse.trace().validate();
  EXPECT_LT(coarse.trace().ops.size(), trace.ops.size() / 4);
  EXPECT_GT(coarse.chunk_bytes(), 50U);
  const auto sums = [](const Trace& of) {
    std::array<std::uint64_t, 3> sum{};
    for (const Op& op : of.ops) sum[op.phase == Phase::optimizer ? 1 : 0] += static_cast<std::uint64_t>(op.duration_ns);
    for (const Tensor& tensor : of.tensors) sum[2] += tensor.persistent ? tensor.bytes : 0;
    return sum;
  };
  EXPECT_EQ(sums(coarse.trace()), sums(trace));

  std::size_t chunks = 0, coarse_chunks = 0;
  for (const Tensor& tensor : trace.tensors) chunks += (tensor.bytes + 49) / 50;
  for (const Tensor& tensor : coarse.trace().tensors) {
    coarse_chunks += (tensor.bytes + coarse.chunk_bytes() - 1) / coarse.chunk_bytes();
  }
  const std::vector<std::uint8_t> everywhere(coarse_chunks, 3);
  const std::vector<std::uint8_t> refined = coarse.refined(everywhere);
  ASSERT_EQ(refined.size(), chunks);
  EXPECT_EQ(refined.front(), 3);
  const std::vector<std::uint8_t> again = coarse.coarsened(refined);
  EXPECT_EQ(again.front(), 3);
  EXPECT_LE(again.size(), coarse_chunks);
  const CoarseTrace fine(trace, machine, 50, 10'000);
  EXPECT_EQ(fine.trace().ops.size(), trace.ops.size());
  EXPECT_EQ(fine.chunk_bytes(), 50U);
}

// What is on the shelf is found from the farthest on, round the iteration's end; clean bytes are counted by op.
TEST(ForesightTest, FindsWhatIsNeededFarthest) {
  Shelf shelf;
  shelf.reset(10);
  EXPECT_EQ(shelf.farthest(Shelf::clean, 4), none);
  for (const std::uint32_t op : {1U, 4U, 7U}) shelf.put(op, Shelf::clean, op, 100);
  EXPECT_EQ(shelf.farthest(Shelf::clean, 4), 4U);  // a round ahead
  EXPECT_EQ(shelf.nearer(Shelf::clean, 4, 4), 1U);
  EXPECT_EQ(shelf.nearer(Shelf::clean, 1, 4), 7U);
  EXPECT_EQ(shelf.nearer(Shelf::clean, 7, 4), none);
  EXPECT_EQ(shelf.nearest(Shelf::clean, 4), 7U);
  EXPECT_EQ(shelf.nearest(Shelf::clean, 7), 1U);
  EXPECT_EQ(shelf.clean_beyond(4, 7, false), 200U);
  EXPECT_EQ(shelf.clean_beyond(4, 1, false), 100U);
  EXPECT_EQ(shelf.clean_beyond(4, 4, true), 0U);
  shelf.put(20, Shelf::clean, shelf.never(), 50);
  EXPECT_EQ(shelf.farthest(Shelf::clean, 4), shelf.never());
  EXPECT_EQ(shelf.nearer(Shelf::clean, shelf.never(), 4), 4U);
  shelf.take(4);
  EXPECT_EQ(shelf.clean_beyond(4, 4, true), 50U);
}

// Updates that the links would make slow go to the CPU, so far as it is fast enough; all of them where told to.
TEST(ForesightTest, SharesUpdatesOut) {
  Trace trace;
  const TensorId gradient = trace.add_tensor("gradient", 10, Role::gradient, false);
  add_op(trace, 100, {}, {gradient});
  for (int i = 0; i < 8; ++i) {
    const TensorId state = trace.add_tensor("state" + std::to_string(i), 1'000, Role::optimizer_state, true);
    trace.add_op(make_op(trace, "adamw", "m", Phase::optimizer, 10), std::vector{state, gradient}, std::vector{state});
  }
  MachineSpec machine = small_machine(2'500);
  const auto on_cpu = [&](const std::string& updates) {
    const Program program = lower(trace, *make_policy("foresight", {{"updates", updates}}).policy, machine);
    return std::count_if(program.trace.ops.begin(), program.trace.ops.end(),
                         [](const Op& op) { return op.device == Device::cpu; });
  };
  EXPECT_EQ(on_cpu("auto"), 0);                                       // the machine does not say how fast its CPU is
  machine.cpu.adam_parameters_per_second = 1e9 * 2'010 / 28 / 1'000;  // 1 µs for one of them, as long as a copy
  EXPECT_EQ(on_cpu("gpu"), 0);
  EXPECT_EQ(on_cpu("cpu"), 8);
  EXPECT_GT(on_cpu("auto"), 1);
  EXPECT_LT(on_cpu("auto"), 6);
}

// The share of updates on the CPU is planned before the program is made, which then has it.
TEST(ForesightTest, PlansTheShareOfUpdates) {
  std::size_t changed = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Trace trace;
    std::vector<TensorId> gradients;
    for (int i = 0; i < 8; ++i) {
      gradients.push_back(trace.add_tensor("g" + std::to_string(i), random.between(50, 200), Role::gradient, false));
      add_op(trace, static_cast<Nanoseconds>(random.between(50, 500)), {}, {gradients.back()});
    }
    for (const TensorId gradient : gradients) {
      const TensorId state = trace.add_tensor("m", 1'000, Role::optimizer_state, true);
      trace.add_op(make_op(trace, "adamw", "m", Phase::optimizer, 10), std::vector{state, gradient},
                   std::vector{state});
    }
    MachineSpec machine = small_machine(random.between(3'000, 6'000));
    machine.cpu.adam_parameters_per_second = 1e9 * 2'000 / 28 / static_cast<double>(random.between(300, 3'000));
    std::string notes;
    const auto run = [&](bool planned) {
      const MadePolicy made = make_policy("foresight", {{"chunk", "100"}, {"plan_events", planned ? "100000" : "0"}});
      if (planned) prepare(trace, *made.policy, machine, rehearse);
      const Program program = lower(trace, *made.policy, machine);
      const RunResult result = simulate(program, machine, *made.policy);
      EXPECT_TRUE(result.fits);
      notes.clear();
      for (const std::string& note : result.policy_notes) notes += note + "\n";
      return std::pair(static_cast<double>(result.window.time_ns) / static_cast<double>(result.period),
                       std::ranges::count_if(program.trace.ops, [](const Op& op) { return op.device == Device::cpu; }));
    };
    const auto [by_estimate, ops_by_estimate] = run(false);
    const auto [planned, ops_planned] = run(true);
    EXPECT_LE(planned, by_estimate * 1.1) << notes;  // a run may settle for long after the few iterations tried
    const std::string share = "it runs with cpu_share=";
    ASSERT_NE(notes.find(share), std::string::npos) << notes;
    const double said = std::stod(notes.substr(notes.find(share) + share.size()));
    EXPECT_NEAR(static_cast<double>(ops_planned), 8 * said, 0.6) << notes;
    changed += ops_planned != ops_by_estimate ? 1 : 0;
  }
  EXPECT_GT(changed, 0U);
}

// Passes over weights and back, then updates of the weights in place: what a training step does, at random sizes.
Trace random_step(Random& random) {
  Trace trace;
  const std::size_t layers = random.between(4, 12);
  std::vector<TensorId> weights, activations;
  for (std::size_t i = 0; i < layers; ++i) {
    weights.push_back(trace.add_tensor("w" + std::to_string(i), random.between(50, 400), Role::parameter, true));
    activations.push_back(trace.add_tensor("a" + std::to_string(i), random.between(50, 400), Role::activation, false));
  }
  const auto duration = [&] { return static_cast<Nanoseconds>(random.between(20, 400)); };
  for (std::size_t i = 0; i < layers; ++i) {
    std::vector<TensorId> reads = {weights[i]};
    if (i > 0) reads.push_back(activations[i - 1]);
    add_op(trace, duration(), reads, {activations[i]});
  }
  for (std::size_t i = layers; i-- > 0;) add_op(trace, duration(), {weights[i], activations[i]}, {});
  for (std::size_t i = 0; i < layers; ++i) add_op(trace, duration(), {weights[i]}, {weights[i]});
  return trace;
}

// A live program asks where an update is to run before anything else of it is known: a trace of this op alone.
TEST(ForesightTest, PlacesAnUpdateAlone) {
  Trace trace;
  const TensorId parameter = trace.add_tensor("w", 100, Role::parameter, true);
  const TensorId moments = trace.add_tensor("m", 200, Role::optimizer_state, true);
  Op update;
  update.name = trace.names.intern("adamw");
  update.phase = Phase::optimizer;
  update.device = Device::cpu;
  update.placeable = true;
  update.duration_ns = 10;
  const std::vector<TensorId> updated = {parameter, moments};
  trace.add_op(update, updated, updated);
  MachineSpec machine = small_machine(1000);
  machine.cpu.adam_parameters_per_second = 1e9;
  const MadePolicy made = make_policy("foresight");
  for (const Device recorded : {Device::cpu, Device::gpu}) {
    trace.ops[0].device = recorded;
    std::vector<Device> devices = {recorded};
    made.policy->place(trace, machine, devices);
    EXPECT_THAT(devices, ElementsAre(recorded));
  }
}

// Step 4: what leaves for a prefetch is clean, and needed after what comes in its place.
TEST(ForesightTest, NothingLeavesForWhatIsNeededLater) {
  std::size_t seen = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const Program program{random_step(random), {}};
    const MachineSpec machine = small_machine(random.between(1'600, 2'400), random.one_in(2));
    const auto policy = make_policy("foresight", {{"chunk", "100"}, {"plan_events", "0"}}).policy;
    EngineOptions options;
    options.on_decision = [&](const Decision& decision, const View& view) {
      const bool leaves = decision.kind == Decision::Kind::drop || decision.kind == Decision::Kind::evict;
      if (!leaves || decision.from != 0 || decision.why.reason != Reason::room || !decision.why.prefetch) return;
      ++seen;
      EXPECT_EQ(decision.kind, Decision::Kind::drop) << "seed " << seed;
      EXPECT_GT(view.distance_to_next_use(view.memory.tensor_of(decision.chunk)),
                view.distance_to_next_use(view.memory.tensor_of(decision.why.chunk)))
          << "seed " << seed;
    };
    ASSERT_TRUE(simulate(program, machine, *policy, {}, options).fits) << "seed " << seed;
  }
  EXPECT_GT(seen, 1'000U);
}

struct Planned {
  RunResult result;
  std::uint64_t events = 0;  // of all rehearsals
  std::size_t rehearsals = 0, of_others = 0;
};

Planned run_planned(const Program& program, const MachineSpec& machine, std::uint64_t plan_events) {
  Planned planned;
  const auto policy = make_policy("foresight", {{"chunk", "100"}, {"plan_events", std::to_string(plan_events)}}).policy;
  const Policy& own = *policy;
  EngineOptions options;
  options.rehearse = [&](const Program& p, const MachineSpec& m, Policy& candidate, const RehearsalLimits& most) {
    planned.of_others += typeid(candidate) == typeid(own) ? 0 : 1;
    ++planned.rehearsals;
    Rehearsal told = rehearse(p, m, candidate, most);
    planned.events += told.events;
    return told;
  };
  planned.result = simulate(program, machine, *policy, {}, options);
  return planned;
}

// Step 8: no slower than without a plan, within the budget of events, writing little more to storage, the same each
// time, and nobody but itself is rehearsed.
TEST(ForesightTest, PlansWithinItsBudgets) {
  std::size_t faster = 0;
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Program program{random_step(random), {}};
    MachineSpec machine = small_machine(random.between(1'300, 2'000), true);
    machine.tiers[1].capacity = random.between(500, 3'000);
    const Planned without = run_planned(program, machine, 0);
    const Planned planned = run_planned(program, machine, 20'000);
    const Planned again = run_planned(program, machine, 20'000);
    EXPECT_EQ(without.rehearsals, 0U);
    EXPECT_EQ(planned.of_others, 0U);
    EXPECT_LE(planned.events, 20'000U);
    EXPECT_EQ(planned.result.policy_notes, again.result.policy_notes);
    EXPECT_EQ(planned.result.iteration_ns, again.result.iteration_ns);
    ASSERT_TRUE(planned.result.fits);
    ASSERT_GE(planned.result.policy_notes.size(), 2U);
    const auto iteration = [](const RunResult& r) {
      return static_cast<double>(r.window.time_ns) / static_cast<double>(r.period);
    };
    EXPECT_LE(iteration(planned.result), iteration(without.result) * 1.01);
    faster += iteration(planned.result) < iteration(without.result) * 0.999 ? 1 : 0;
    constexpr LinkId write = 3;  // of small_machine
    const auto written = [](const RunResult& r) {
      return static_cast<double>(r.window.links[write].bytes) / static_cast<double>(r.period);
    };
    EXPECT_LE(written(planned.result), written(without.result) * 1.1 + 1);
  }
  EXPECT_GT(faster, 5U);
}

// What fits into the rest of a budget may be a part of a run, and look fast.
TEST(ForesightTest, ARehearsalThatIsCutOffCountsForNothing) {
  Random random(1);
  const Program program{random_step(random), {}};
  const auto policy = make_policy("foresight", {{"chunk", "100"}}).policy;
  std::size_t rehearsals = 0;
  EngineOptions options;
  options.rehearse = [&](const Program& p, const MachineSpec& m, Policy& candidate, const RehearsalLimits& most) {
    Rehearsal told = rehearse(p, m, candidate, most);
    if (++rehearsals > 1) {
      told.complete = false;
      told.iteration_ns = 1;
    }
    return told;
  };
  const RunResult result = simulate(program, small_machine(1'300, true), *policy, {}, options);
  EXPECT_GT(rehearsals, 1U);
  ASSERT_EQ(result.policy_notes.size(), 3U) << "before planning, why it stopped, and what it runs with";
  EXPECT_THAT(result.policy_notes[0], HasSubstr("before planning"));
}

// Frozen weights: read in each pass, written by nobody, so nothing would bring them from storage into CPU memory.
TEST(ForesightTest, WhatIsNeverWrittenStartsInCpuMemoryIfItFits) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 300, Role::parameter, true),
                 b = trace.add_tensor("b", 300, Role::parameter, true),
                 s = trace.add_tensor("s", 10, Role::optimizer_state, true);
  add_op(trace, 10, {a}, {});
  add_op(trace, 10, {b}, {});
  add_op(trace, 10, {s}, {s});
  MachineSpec machine = small_machine(400, true);
  machine.initial_tier = 2;
  const Program program{trace, {}};
  const auto start_of = [&](Role role) {
    return make_policy("foresight").policy->layout(machine, &program).initial[static_cast<std::size_t>(role)];
  };
  EXPECT_EQ(start_of(Role::parameter), 1);
  EXPECT_EQ(start_of(Role::optimizer_state), no_tier) << "where the machine says";
  machine.tiers[1].capacity = 500;
  EXPECT_EQ(start_of(Role::parameter), no_tier);
}

// Twelve weights of 100 bytes in turn, of which the GPU and CPU memory hold eight: four an iteration have to come from
// storage, and one or two more where memory is needed for what is on its way. Where each keeps what it likes, what one
// has the other has too.
TEST(ForesightTest, ExclusiveMemoriesHoldMoreTogether) {
  Trace trace;
  for (int i = 0; i < 12; ++i) {
    const TensorId weight = trace.add_tensor("w" + std::to_string(i), 100, Role::parameter, true);
    add_op(trace, 10, {weight}, {});
  }
  MachineSpec machine = small_machine(400, true);
  machine.tiers[1].capacity = 400;
  machine.links[2].to = machine.links[3].from = 1;  // storage is reached through CPU memory
  machine.staging = {1, 2, 100};
  machine.validate();
  constexpr LinkId nvme_read = 2;
  const auto reads = [&](const char* exclusive) {
    const GoldenRun run = run_golden("foresight", {{"plan_events", "0"}, {"exclusive", exclusive}}, trace, machine);
    return run.transfers(run.result.iteration_ns.size() - 1, nvme_read);
  };
  EXPECT_LE(reads("gpu"), 6U);
  EXPECT_LT(reads("gpu"), reads("none"));
  EXPECT_EQ(reads("auto"), reads("gpu")) << "nothing writes the weights";
}

// In storage weights lie already; keys and values would have to be written there first.
TEST(ForesightTest, StoresWhatNeedNotBeWrittenFirst) {
  Trace trace;
  const TensorId weight = trace.add_tensor("W", 100, Role::parameter, true),
                 keys = trace.add_tensor("K", 100, Role::kv_cache, false),
                 other = trace.add_tensor("X", 100, Role::activation, false);
  add_op(trace, 10, {}, {keys});
  add_op(trace, 10, {weight}, {});
  add_op(trace, 10, {}, {other});
  add_op(trace, 10, {other}, {});
  add_op(trace, 10, {keys}, {});
  add_op(trace, 10, {weight}, {});
  const Schedule schedule(trace);
  const std::vector<Device> devices(trace.ops.size(), Device::gpu);
  const std::vector<Nanoseconds> clock = {0, 10, 20, 30, 40, 50, 60};
  // K and W are unused for as long; beside X there is room for one of them.
  const Seen both{trace, schedule, devices, clock, false, true};
  EXPECT_EQ(moved_by(both, spilled(both, 200)).all_down(), 0U);
  EXPECT_EQ(moved_by(both, spilled(both, 200)).all_up(), 100U);
}

// A copy of 16 MiB takes 671 us at 25 GB/s, of which 10 us are little; at 350 GB/s they are a fifth.
TEST(ForesightTest, ChunksAreLargeWhereCopiesCostMuchByThemselves) {
  MachineSpec machine = small_machine(96 * GiB);
  const auto chunk = [&](BytesPerSecond bandwidth, Bytes gpu_bytes) {
    machine.tiers[0].capacity = gpu_bytes;
    for (Link& link : machine.links) {
      link.bandwidth = bandwidth;
      link.latency_ns = 10'000;
    }
    return make_policy("foresight").policy->layout(machine, nullptr).chunk_bytes;
  };
  EXPECT_EQ(chunk(25'000'000'000, 96 * GiB), 16 * MiB);
  EXPECT_EQ(chunk(350'000'000'000, 96 * GiB), 256 * MiB);
  EXPECT_EQ(chunk(350'000'000'000, 8 * GiB), 64 * MiB) << "128 of them fit";
  EXPECT_EQ(chunk(350'000'000'000, 1 * GiB), 16 * MiB);
}

// The sub-group that the next forward pass needs first is updated first.
TEST(ForesightTest, OrdersSubGroupsByTheNextForwardPass) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 10, Role::parameter, true),
                 b = trace.add_tensor("b", 10, Role::parameter, true);
  add_op(trace, 10, {a}, {});
  add_op(trace, 10, {b}, {});
  for (const auto& [tensor, group] : {std::pair{b, 0}, std::pair{a, 1}}) {
    Op op = make_op(trace, "adamw", "m", Phase::optimizer, 10);
    op.group = group;
    op.reorderable = true;
    trace.add_op(op, std::vector{tensor}, std::vector{tensor});
  }
  std::vector<std::int32_t> groups = {0, 1};
  make_policy("foresight").policy->order(trace, small_machine(100), groups);
  EXPECT_THAT(groups, ElementsAre(1, 0));
}

}  // namespace
}  // namespace tencache
