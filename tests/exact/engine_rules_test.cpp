// Rules that were broken once: each case is the smallest that showed it.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "sim/simulate.h"
#include "tests/property/auditor_machine.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

// Op 0 of the next iteration is issued while op 1 runs and writes the tensor that dies with op 1.
TEST(EngineRulesTest, ATensorRebornAheadIsNotFreed) {
  for (const FreeDead free_dead : {FreeDead::now, FreeDead::when_victim, FreeDead::never}) {
    Trace trace;
    const TensorId a = trace.add_tensor("a", 100, Role::activation, false);
    add_op(trace, 50, {}, {a});
    add_op(trace, 50, {a}, {});
    const Program program{trace, {}};
    MachineSpec machine = small_machine(150);
    machine.issue_ahead = 2;
    Layout layout = whole_tensors();
    layout.free_dead = free_dead;
    ScriptedPolicy policy(layout);
    SimMachine simulated(machine);
    AuditorMachine auditor(simulated, machine, program.trace, layout);
    Engine engine(machine, auditor, policy, &program);
    const RunResult result = engine.run({.max_iterations = 4, .until_steady = false});
    EXPECT_TRUE(result.fits);
    EXPECT_EQ(auditor.violation(), "");
    EXPECT_EQ(engine.counters().time_ns, 400);
  }
}

// A policy in a new state with each look at it: 30 iterations, or 8 where these are two million ops.
TEST(EngineRulesTest, ALargeRunThatIsNeverSteadyEndsSooner) {
  class Restless final : public Policy {
   public:
    Layout layout(const MachineSpec&, const Program*) const override { return whole_tensors(); }
    void on(const Event&, const View&, Actions&) override {}
    std::uint64_t fingerprint() const override { return ++looks_; }

   private:
    mutable std::uint64_t looks_ = 0;
  };
  const auto iterations = [](int ops) {
    Trace trace;
    const TensorId a = trace.add_tensor("a", 1, Role::activation, false);
    for (int i = 0; i < ops; ++i) add_op(trace, 1, {}, {a});
    const Program program{trace, {}};
    const MachineSpec machine = small_machine(10);
    Restless policy;
    SimMachine simulated(machine);
    return Engine(machine, simulated, policy, &program).run({}).iteration_ns.size();
  };
  EXPECT_EQ(iterations(1000), 30u);
  EXPECT_EQ(iterations(200'000), 10u);
  EXPECT_EQ(iterations(600'000), 4u);
}

// a is needed no more after op 1, whether its room goes at once or with the next victim; a new iteration revives it.
TEST(EngineRulesTest, PoliciesSeeWhatIsDead) {
  for (const FreeDead free_dead : {FreeDead::now, FreeDead::when_victim}) {
    Trace trace;
    const TensorId a = trace.add_tensor("a", 100, Role::activation, false);
    add_op(trace, 50, {}, {a});
    add_op(trace, 50, {a}, {});
    add_op(trace, 50, {}, {});
    Layout layout = whole_tensors();
    layout.free_dead = free_dead;
    std::vector<bool> dead;  // when an op is ready
    run_small(small_machine(150), trace, 2, layout, [&](const Event& event, const View& view, Actions&) {
      if (event.kind == EventKind::op_ready) dead.push_back(view.dead(a));
    });
    EXPECT_EQ(dead, (std::vector<bool>{false, false, true, false, false, true}));
  }
}

// w is read by ops 0 and 1 and written anew by op 3: its value dies with op 1 where the policy forgets what is
// overwritten. What the iteration leaves behind is kept, though op 0 of the next one writes it without reading it: z.
TEST(EngineRulesTest, OverwrittenValuesDieIfThePolicyForgetsThem) {
  for (const bool forgets : {false, true}) {
    Trace trace;
    const TensorId w = trace.add_tensor("w", 100, Role::parameter, true),
                   z = trace.add_tensor("z", 10, Role::workspace, true);
    add_op(trace, 50, {w}, {z});
    add_op(trace, 50, {w, z}, {});
    add_op(trace, 50, {}, {});
    add_op(trace, 50, {}, {w});
    Layout layout = whole_tensors();
    layout.forgets_overwritten = forgets;
    std::vector<bool> held;
    run_small(small_machine(150), trace, 2, layout, [&](const Event& event, const View& view, Actions&) {
      if (event.kind != EventKind::op_ready || event.op != 2) return;
      held.push_back(view.memory.resident(w, 0) || view.memory.resident(w, 1));
      EXPECT_TRUE(view.memory.resident(z, 0));
    });
    EXPECT_EQ(held, std::vector<bool>(2, !forgets));
  }
}

// By chunk, in both tiers, in one, and, where nothing is said or there is no room, as the machine says.
TEST(EngineRulesTest, TensorsStartWhereTheLayoutSays) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::parameter, true),
                 b = trace.add_tensor("b", 100, Role::parameter, true);
  add_op(trace, 50, {a, b}, {});
  Layout layout = whole_tensors();
  layout.chunk_bytes = 50;
  layout.start = {3, 1, 0, 1};
  std::vector<std::vector<bool>> seen;  // by chunk: on the GPU, on the CPU
  run_small(small_machine(250), trace, 1, layout, [&](const Event& event, const View& view, Actions&) {
    if (event.kind != EventKind::iteration_begin) return;
    for (ChunkId chunk = 0; chunk < 4; ++chunk)
      seen.push_back({view.memory.valid(chunk, 0), view.memory.valid(chunk, 1)});
  });
  EXPECT_EQ(seen, (std::vector<std::vector<bool>>{{true, true}, {true, false}, {false, true}, {true, false}}));
}

// Clocks of real machines do not begin at 0 with the program.
class StartedLongAgo final : public OtherMachine {
 public:
  using OtherMachine::OtherMachine;
  Nanoseconds now() const override { return OtherMachine::now() + before; }
  bool wait(Completion& completion) override {
    const bool any = OtherMachine::wait(completion);
    completion.start_ns += before;
    completion.end_ns += before;
    return any;
  }
  static constexpr Nanoseconds before = 12345;
};

TEST(EngineRulesTest, WhatWasBeforeTheProgramCountsForNothing) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::parameter, true);
  add_op(trace, 50, {a}, {});
  const Program program{trace, {}};
  const MachineSpec machine = small_machine(150);
  ScriptedPolicy policy(whole_tensors());
  SimMachine simulated(machine);
  StartedLongAgo late(simulated);
  Engine engine(machine, late, policy, &program);
  const RunResult result = engine.run({.max_iterations = 2, .until_steady = false});
  EXPECT_EQ(result.iteration_ns, (std::vector<Nanoseconds>{150, 50}));
  EXPECT_EQ(engine.counters().gap_ns, 0);
  EXPECT_EQ(engine.counters().compute_ns, 100);
}

// p and q are written only, and wait for a's room: fetching them is not the policy's affair. a leaves until 180 + 50.
TEST(EngineRulesTest, AFetchOfAWaitingOpsOutputIsRefused) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 120, Role::parameter, true);
  const TensorId p = trace.add_tensor("p", 60, Role::parameter, true);
  const TensorId q = trace.add_tensor("q", 60, Role::parameter, true);
  add_op(trace, 50, {}, {a});
  add_op(trace, 50, {}, {p, q});
  const SmallRun run =
      run_small(small_machine(120), trace, 1, whole_tensors(), [](const Event& event, const View&, Actions& actions) {
        if (event.kind != EventKind::op_issued) return;
        for (const Use& use : event.uses) actions.fetch(use.tensor);
      });
  EXPECT_TRUE(run.result.fits) << run.result.misfit;
  EXPECT_EQ(run.ops.at(1).start_ns, 50 + 120);
  EXPECT_GT(run.result.window.refusals, 0U);
}

// GPU of 100 with x of 60: the policy's urgent fetch of 80 finds no room and is the first of its link. y, which op 1
// waits for, would fit and is behind it: nothing else being under way, y passes, from 60 + 10 until 110.
TEST(EngineRulesTest, DemandPassesAnUrgentFetchThatFindsNoRoom) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 60, Role::parameter, true);
  const TensorId y = trace.add_tensor("y", 40, Role::parameter, true);
  const TensorId large = trace.add_tensor("large", 80, Role::parameter, true);
  add_op(trace, 10, {x}, {});
  add_op(trace, 10, {x, y}, {});
  const SmallRun run = run_small(small_machine(100), trace, 1, whole_tensors(),
                                 [large](const Event& event, const View&, Actions& actions) {
                                   if (event.kind != EventKind::op_issued || event.op != 0) return;
                                   actions.push({.verb = Verb::fetch, .tier = 0, .urgent = true, .tensor = large});
                                 });
  EXPECT_TRUE(run.result.fits) << run.result.misfit;
  ASSERT_EQ(run.ops.size(), 2U);
  EXPECT_EQ(run.ops.at(1).start_ns, 110);
}

// Demand for a prefetch that is deferred to an op that never comes, without `promote`.
TEST(EngineRulesTest, DemandReleasesADeferredPrefetch) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::parameter, true);
  add_op(trace, 50, {a}, {}, Device::gpu, 10);
  Layout layout = whole_tensors();
  layout.promote = false;
  const SmallRun run =
      run_small(small_machine(200), trace, 1, layout, [a](const Event& event, const View&, Actions& actions) {
        if (event.kind == EventKind::iteration_begin) actions.fetch(a, 0, 77);
      });
  EXPECT_EQ(run.ops.at(0).start_ns, 110);
}

// A hold on what nobody brings does not stop the op; one on what is on its way does.
TEST(EngineRulesTest, AHoldLastsWhileTheTensorIsOnItsWay) {
  for (const bool fetched : {false, true}) {
    Trace trace;
    const TensorId a = trace.add_tensor("a", 100, Role::parameter, true);
    add_op(trace, 50, {}, {});
    const SmallRun run = run_small(small_machine(200), trace, 1, whole_tensors(),
                                   [&](const Event& event, const View&, Actions& actions) {
                                     if (event.kind != EventKind::iteration_begin) return;
                                     actions.hold(0, a);
                                     if (fetched) actions.fetch(a);
                                   });
    EXPECT_EQ(run.ops.at(0).start_ns, fetched ? 100 : 0);
  }
}

// A hold names the tier that it watches, and CPU ops are held like GPU ops: here while a tensor leaves the CPU, 100 ns.
TEST(EngineRulesTest, AHoldStopsCpuOpsToo) {
  for (const bool held : {false, true}) {
    Trace trace;
    const TensorId a = trace.add_tensor("a", 100, Role::parameter, true);
    add_op(trace, 50, {}, {});
    const OpIndex update = add_op(trace, 50, {}, {}, Device::cpu);
    MachineSpec machine = small_machine(200, true);
    machine.links.push_back({"cpu_write", 1, 2, byte_per_ns, 0, {}});
    const SmallRun run =
        run_small(machine, trace, 1, whole_tensors(), [&](const Event& event, const View&, Actions& actions) {
          if (event.kind != EventKind::iteration_begin) return;
          actions.evict(a, 2, 1);
          if (held) actions.hold(update, a, 2);
        });
    for (const Span& op : run.ops) {
      if (op.op == update) {
        EXPECT_EQ(op.start_ns, held ? 100 : 0);
      }
    }
    EXPECT_EQ(run.ops.size(), 2U);
  }
}

// A CPU op that nothing of the next iteration depends on: with a blocking step it is waited for all the same.
TEST(EngineRulesTest, ABlockingStepEndsBeforeTheNextIteration) {
  for (const bool blocking : {false, true}) {
    Trace trace;
    const TensorId a = trace.add_tensor("a", 100, Role::activation, false);
    add_op(trace, 50, {}, {});
    add_op(trace, 30, {}, {a}, Device::cpu);
    Layout layout = whole_tensors();
    layout.blocking_step = blocking;
    const SmallRun run = run_small(small_machine(200), trace, 2, layout);
    // The CPU op begins at once; a second one of 80 would not change it.
    EXPECT_EQ(run.result.iteration_ns.at(0), 50);
    Trace longer = trace;
    longer.ops[1].duration_ns = 80;
    EXPECT_EQ(run_small(small_machine(200), longer, 2, layout).result.iteration_ns.at(0), blocking ? 80 : 50);
  }
}

// Best fit, GPU of 100: four of 25 in a row, clean, of which 0 and 2 are the coldest. Both go for 50 bytes, but are no
// neighbours: 1 goes too, 3 stays.
TEST(EngineRulesTest, FragmentationGivesUpNoMoreThanItMust) {
  Trace trace;
  std::vector<TensorId> small;
  for (int i = 0; i < 4; ++i)
    small.push_back(trace.add_tensor(std::string("s").append(std::to_string(i)), 25, Role::parameter, true));
  const TensorId large = trace.add_tensor("large", 50, Role::activation, false);
  for (const int i : {0, 1, 2, 3, 1, 3}) add_op(trace, 10, {small[static_cast<std::size_t>(i)]}, {});
  add_op(trace, 10, {}, {large});
  Layout layout = whole_tensors();
  layout.allocators.resize(2);
  layout.allocators[0].kind = AllocatorKind::best_fit;
  const Program program{trace, {}};
  ScriptedPolicy policy(layout);
  const MachineSpec machine = small_machine(100);
  SimMachine simulated(machine);
  Engine engine(machine, simulated, policy, &program);
  const RunResult result = engine.run({.max_iterations = 1, .until_steady = false});
  EXPECT_TRUE(result.fits) << result.misfit;
  EXPECT_TRUE(engine.memory().resident(small[3], 0)) << "the warmest was given up although there was a hole without it";
  // All is full for six ops. The second of the victims leaves 50 bytes in two holes: once there is room without a
  // place.
  EXPECT_EQ(result.window.tiers[0].placeless, 1U);
  EXPECT_EQ(result.allocators[0], AllocatorKind::best_fit);
  EXPECT_EQ(result.window.tiers[0].padding_byte_ns, 0U);
}

// The same in 128 units of 512 where chunks move, of which one is spare. Each of the four takes 31, from the low end
// up, and comes in 15,872 ns. 0 and 2 go, and 1 moves from unit 31 to where 2 was, which takes twice its bytes at 2
// bytes a nanosecond.
TEST(EngineRulesTest, WhereChunksMoveAHoleIsMade) {
  constexpr Bytes small_bytes = 31 * movable_unit;
  Trace trace;
  std::vector<TensorId> small;
  for (int i = 0; i < 4; ++i)
    small.push_back(trace.add_tensor(std::string("s").append(std::to_string(i)), small_bytes, Role::parameter, true));
  const TensorId large = trace.add_tensor("large", 2 * small_bytes, Role::activation, false);
  for (const int i : {0, 1, 2, 3, 1, 3}) add_op(trace, 10, {small[static_cast<std::size_t>(i)]}, {});
  add_op(trace, 10, {}, {large});
  Layout layout = whole_tensors();
  layout.chunk_bytes = 1000;  // does not count
  MachineSpec machine = small_machine(128 * movable_unit);
  machine.tiers[0].allocator = AllocatorKind::movable;
  machine.tiers[0].bandwidth = 2 * byte_per_ns;
  const Program program{trace, {}};
  ScriptedPolicy policy(layout);
  SimMachine simulated(machine);
  Timeline timeline;
  Engine engine(machine, simulated, policy, &program, {.timeline = &timeline, .log = nullptr, .on_iteration = {}});
  const RunResult result = engine.run({.max_iterations = 1, .until_steady = false});
  ASSERT_TRUE(result.fits) << result.misfit;
  EXPECT_EQ(result.allocators[0], AllocatorKind::movable);
  EXPECT_TRUE(engine.memory().resident(small[1], 0));
  EXPECT_TRUE(engine.memory().resident(small[3], 0));
  EXPECT_EQ(engine.memory().offset(small[1], 0), 62 * movable_unit);
  const TierCounters& gpu = result.window.tiers[0];
  EXPECT_EQ(gpu.holes, 1U);
  EXPECT_EQ(gpu.moved_bytes, small_bytes);
  EXPECT_EQ(gpu.moving_ns, 15'872);
  EXPECT_EQ(gpu.placeless, 0U);
  EXPECT_EQ(result.window.stall_ns[StallCause::memory], 15'872);
  EXPECT_EQ(result.iteration_ns.at(0), 4 * 15'882 + 2 * 10 + 15'872 + 10);
  const auto move = std::ranges::find(timeline.spans, SpanKind::move, &Span::kind);
  ASSERT_NE(move, timeline.spans.end());
  EXPECT_EQ(move->tensor, small[1]);
  EXPECT_EQ(move->lane, gpu_lane);
  EXPECT_EQ(move->start_ns, 4 * 15'882 + 2 * 10);
  EXPECT_EQ(move->end_ns - move->start_ns, 15'872);
}

// The same, but where it comes from is another link's copy: that begins later.
TEST(EngineRulesTest, ACopyWaitsForTheMovesThatItNeeds) {
  constexpr Bytes small_bytes = 31 * movable_unit;
  Trace trace;
  std::vector<TensorId> small;
  for (int i = 0; i < 4; ++i)
    small.push_back(trace.add_tensor(std::string("s").append(std::to_string(i)), small_bytes, Role::parameter, true));
  const TensorId large = trace.add_tensor("large", 2 * small_bytes, Role::parameter, true);
  for (const int i : {0, 1, 2, 3, 1, 3}) add_op(trace, 10, {small[static_cast<std::size_t>(i)]}, {});
  add_op(trace, 10, {large}, {});
  MachineSpec machine = small_machine(128 * movable_unit);
  machine.tiers[0].allocator = AllocatorKind::movable;
  machine.tiers[0].bandwidth = 2 * byte_per_ns;
  const SmallRun run = run_small(machine, trace, 1, whole_tensors());
  ASSERT_TRUE(run.result.fits) << run.result.misfit;
  const Span& last = run.transfers.back();
  EXPECT_EQ(last.tensor, large);
  EXPECT_EQ(last.start_ns, 4 * 15'882 + 2 * 10 + 15'872);
  EXPECT_EQ(last.end_ns - last.start_ns, 31'744);
}

class NeverSteady final : public Policy {
 public:
  Layout layout(const MachineSpec&, const Program*) const override { return whole_tensors(); }
  void on(const Event&, const View&, Actions&) override {}
  std::uint64_t fingerprint() const override { return ++calls_; }

 private:
  mutable std::uint64_t calls_ = 0;
};

// What the second op writes is copied out in 10 and read by the CPU for 90, beside the first op of the next iteration.
// The end of the run waits for it, unless it is where another iteration would begin.
TEST(EngineRulesTest, WhereChunksMoveTheLastIterationEndsAsTheOthers) {
  Trace trace;
  const TensorId gradient = trace.add_tensor("gradient", 10, Role::gradient, false);
  add_op(trace, 200, {}, {});
  add_op(trace, 10, {}, {gradient});
  add_op(trace, 90, {gradient}, {}, Device::cpu);
  MachineSpec machine = small_machine(128 * movable_unit);
  machine.tiers[0].bandwidth = 2 * byte_per_ns;
  const Program program{trace, {}};
  for (const bool movable : {false, true}) {
    if (movable) machine.tiers[0].allocator = AllocatorKind::movable;
    for (const bool as_others : {false, true}) {
      NeverSteady policy;
      const RunResult result = simulate(program, machine, policy, {.max_iterations = 6, .ends_as_others = as_others});
      ASSERT_TRUE(result.fits) << result.misfit;
      EXPECT_FALSE(result.steady);
      EXPECT_EQ(result.period, 3U);
      EXPECT_EQ(result.iteration_ns,
                (std::vector<Nanoseconds>{210, 210, 210, 210, 210, movable && as_others ? 210 : 310}));
    }
  }
}

TEST(EngineRulesTest, ChunksDoNotMoveWhereNothingIsKnownOfIt) {
  const Program program{five_layers(10, 100), {}};
  ScriptedPolicy policy(whole_tensors());
  MachineSpec machine = small_machine(4096);
  machine.tiers[0].allocator = AllocatorKind::movable;
  SimMachine simulated(machine);
  EXPECT_THROW(Engine(machine, simulated, policy, &program), Error) << "the memory's bandwidth";
  machine.tiers[0].bandwidth = byte_per_ns;
  EXPECT_NO_THROW(Engine(machine, simulated, policy, &program));
  class Unmoving final : public OtherMachine {
   public:
    using OtherMachine::OtherMachine;
    bool moves() const override { return false; }
  } unmoving(simulated);
  EXPECT_THROW(Engine(machine, unmoving, policy, &program), Error);
  Layout layout = whole_tensors();
  layout.allocators.resize(2);
  layout.allocators[1].kind = AllocatorKind::movable;
  ScriptedPolicy elsewhere(layout);
  EXPECT_THROW(Engine(machine, simulated, elsewhere, &program), Error);
}

class FailingOps final : public OtherMachine {
 public:
  using OtherMachine::OtherMachine;
  bool wait(Completion& completion) override {
    const bool any = OtherMachine::wait(completion);
    completion.status = CompletionStatus::failed;
    return any;
  }
};

// Refuses the first requests for room.
class RefusingRoom final : public OtherMachine {
 public:
  RefusingRoom(Machine& inner, int refusals) : OtherMachine(inner), left_(refusals) {}
  void map(TensorId, ChunkId, Bytes, Bytes, Place, MappedFor) override {
    if (left_ > 0 && left_-- > 0) throw Error("no room just now");
  }

 private:
  int left_;
};

TEST(EngineRulesTest, AFailedOpIsAnError) {
  Trace trace;
  add_op(trace, 50, {}, {});
  const Program program{trace, {}};
  ScriptedPolicy policy(whole_tensors());
  const MachineSpec machine = small_machine(100);
  SimMachine simulated(machine);
  FailingOps failing(simulated);
  Engine engine(machine, failing, policy, &program);
  EXPECT_THROW(engine.run({}), Error);
}

// Thrice in a row is too often (engine.h); twice is not.
TEST(EngineRulesTest, RoomThatIsRefusedIsAskedForAgain) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::activation, false);
  add_op(trace, 50, {}, {a});
  const Program program{trace, {}};
  const MachineSpec machine = small_machine(100);
  for (const int refusals : {2, 3}) {
    ScriptedPolicy policy(whole_tensors());
    SimMachine simulated(machine);
    RefusingRoom refusing(simulated, refusals);
    Engine engine(machine, refusing, policy, &program);
    try {
      EXPECT_TRUE(engine.run({.max_iterations = 2, .until_steady = false}).fits);
      EXPECT_EQ(refusals, 2);
    } catch (const Error& error) {
      EXPECT_EQ(refusals, 3) << error.what();
      EXPECT_NE(std::string(error.what()).find("refused 3 times in a row: no room just now"), std::string::npos);
    }
  }
}

// What is not there is neither evicted nor dropped, and the policy is told each time; to fetch what is there is no
// fault.
TEST(EngineRulesTest, WhatCannotBeDoneIsRefused) {
  Trace trace;
  const TensorId here = trace.add_tensor("here", 50, Role::parameter, true);
  const TensorId elsewhere = trace.add_tensor("elsewhere", 50, Role::parameter, true);
  add_op(trace, 50, {here}, {});
  add_op(trace, 50, {here}, {});
  std::vector<Refusal> refusals;
  const SmallRun run =
      run_small(small_machine(50), trace, 1, whole_tensors(), [&](const Event& event, const View&, Actions& actions) {
        if (event.kind == EventKind::refused) refusals.push_back(event.refusal);
        if (event.kind != EventKind::op_issued || event.op != 1) return;
        actions.fetch(here);
        actions.evict(elsewhere);
        actions.drop(elsewhere);
      });
  EXPECT_TRUE(run.result.fits) << run.result.misfit;
  EXPECT_EQ(refusals, std::vector<Refusal>(2, Refusal::stale));
  EXPECT_EQ(run.result.window.refusals, 2U);
}

// From the second iteration on both parameters are there as it begins; the result is of the second half of four.
TEST(EngineRulesTest, TensorsHeldAreThoseOfTheWindow) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 40, Role::parameter, true);
  const TensorId b = trace.add_tensor("b", 40, Role::parameter, true);
  add_op(trace, 50, {a, b}, {});
  const SmallRun run = run_small(small_machine(100), trace, 4);
  ASSERT_EQ(run.result.period, 2U);
  EXPECT_EQ(run.result.window.tensors, 4U);
  EXPECT_EQ(run.result.window.tensors_held, 4U);
}

// Buffers of which there are none stage nothing.
TEST(EngineRulesTest, ATierNeedsAWayToTheGpu) {
  MachineSpec machine = small_machine(100, true);
  machine.links[2] = make_link("read", 2, 1);
  machine.staging = {.tier = 1, .count = 0, .bytes = 10};
  EXPECT_THROW(machine.validate(), Error);
  machine.staging.count = 1;
  EXPECT_NO_THROW(machine.validate());
}

class KeepsForPrefetches final : public Policy {
 public:
  explicit KeepsForPrefetches(std::vector<TensorId> fetched) : fetched_(std::move(fetched)) {}
  Layout layout(const MachineSpec&, const Program*) const override {
    Layout layout = whole_tensors();
    layout.promote = false;
    return layout;
  }
  void on(const Event& event, const View&, Actions& actions) override {
    if (event.kind != EventKind::op_issued || event.op != 0) return;
    for (const TensorId tensor : fetched_) actions.fetch(tensor);
  }
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (!request.prefetch) coldest_victims(request, view, victims);
  }

 private:
  std::vector<TensorId> fetched_;
};

// GPU of 100, full of what op 0 writes. p, then b are to be prefetched from NVMe and no victims are given for them. Op
// 1 needs b, which stays behind p, which may not take the room that b needs: a standstill, and b is lifted. Its
// victim's way out is the second link, which had its turn when the third, b's, asked for room.
TEST(EngineRulesTest, AVictimLeavesAtOnceWhateverItsLink) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::activation, false);
  const TensorId b = trace.add_tensor("b", 100, Role::parameter, true);
  const TensorId p = trace.add_tensor("p", 100, Role::parameter, true);
  add_op(trace, 50, {}, {a});
  add_op(trace, 50, {b}, {});
  add_op(trace, 50, {p}, {});
  add_op(trace, 50, {a}, {});
  const Program program{trace, {}};
  MachineSpec machine = small_machine(100, true);
  machine.initial_tier = 2;
  KeepsForPrefetches policy({p, b});
  SimMachine simulated(machine);
  Timeline timeline;
  Engine engine(machine, simulated, policy, &program, {.timeline = &timeline, .log = nullptr, .on_iteration = {}});
  const RunResult result = engine.run({.max_iterations = 1, .until_steady = false});
  ASSERT_TRUE(result.fits) << result.misfit;
  std::vector<Span> ops;
  for (const Span& span : timeline.spans) {
    if (span.kind == SpanKind::op) ops.push_back(span);
  }
  EXPECT_EQ(ops.at(1).start_ns, 50 + 100 + 100);
}

// An op of the CPU whose operand lies where no link leads from is not short of memory, and is not said to be.
TEST(EngineRulesTest, AnOperandWithoutAWayIsNamed) {
  Trace trace;
  const TensorId p = trace.add_tensor("p", 8, Role::parameter, true);
  Op op = make_op(trace, "update", "m", Phase::forward, 10);
  op.device = Device::cpu;
  add_op(trace, 10, {}, {});
  trace.add_op(op, std::vector{p}, std::vector<TensorId>{});
  MachineSpec machine = small_machine(100, true);  // NVMe and CPU memory are not joined
  machine.initial_tier = 2;
  const SmallRun run = run_small(machine, trace, 1, whole_tensors());
  EXPECT_FALSE(run.result.fits);
  EXPECT_NE(run.result.misfit.find("operand of 8 B is in tier '" + machine.tiers[2].name + "', from where no link"),
            std::string::npos)
      << run.result.misfit;
}

// p is asked for when op 0 is issued and arrives at 100. Op 1 reads p and runs from 50 on beside its arrival, to the
// later of both ends; q, which nobody asked for before, is waited for.
TEST(EngineRulesTest, ComputeOverlapsArrivalsThatWereNotDemanded) {
  Layout layout = whole_tensors();
  layout.overlap_faults = true;
  for (const bool promote : {false, true}) {
    layout.promote = promote;
    for (const Nanoseconds duration_ns : {30, 80}) {
      for (const bool demands : {false, true}) {
        Trace trace;
        const TensorId p = trace.add_tensor("p", 100, Role::parameter, true);
        const TensorId q = trace.add_tensor("q", 100, Role::parameter, true);
        add_op(trace, 50, {}, {});
        add_op(trace, duration_ns, demands ? std::vector{p, q} : std::vector{p}, {});
        const SmallRun run =
            run_small(small_machine(200), trace, 1, layout, [p](const Event& event, const View&, Actions& actions) {
              if (event.kind == EventKind::op_issued && event.op == 0) actions.fetch(p);
            });
        const Nanoseconds start_ns = demands ? 200 : 50;
        const Nanoseconds end_ns = std::max<Nanoseconds>(start_ns + duration_ns, 100);
        EXPECT_EQ(run.ops.at(1).start_ns, start_ns);
        EXPECT_EQ(run.ops.at(1).end_ns, start_ns + duration_ns);
        EXPECT_EQ(run.result.window.time_ns, end_ns);
        const Counters& counters = run.result.window;
        EXPECT_EQ(counters.stall_ns[StallCause::h2d], end_ns - 50 - duration_ns);
        EXPECT_EQ(counters.compute_ns, 50 + duration_ns);
      }
    }
  }
}

// p arrives at 100, the op that reads it runs beside that from 50 to 80. A hold given meanwhile comes too late for it.
TEST(EngineRulesTest, AnOpThatRunsBesideArrivalsIsNotHeld) {
  Trace trace;
  const TensorId p = trace.add_tensor("p", 100, Role::parameter, true);
  const TensorId q = trace.add_tensor("q", 100, Role::parameter, true);
  add_op(trace, 50, {}, {});
  add_op(trace, 30, {p}, {});
  Layout layout = whole_tensors();
  layout.overlap_faults = true;
  const SmallRun run =
      run_small(small_machine(200), trace, 1, layout, [&](const Event& event, const View&, Actions& actions) {
        if (event.kind == EventKind::op_issued && event.op == 0) actions.fetch(p);
        if (event.kind != EventKind::op_ready || event.op != 1) return;
        actions.fetch(q);  // arrives at 200
        actions.hold(1, q);
      });
  ASSERT_EQ(run.ops.size(), 2U);
  EXPECT_EQ(run.result.window.time_ns, 100);
}

// The GPU holds one of two. a, made by op 0, must leave for b; a prefetch of it into CPU memory that waits for an op
// which never comes does not keep it: the eviction takes the prefetch's place.
TEST(EngineRulesTest, ADeferredPrefetchDoesNotKeepAVictim) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::activation, false);
  const TensorId b = trace.add_tensor("b", 100, Role::activation, false);
  add_op(trace, 50, {}, {a});
  add_op(trace, 50, {}, {b});
  add_op(trace, 50, {a}, {});
  const SmallRun run =
      run_small(small_machine(100), trace, 1, whole_tensors(), [a](const Event& event, const View&, Actions& actions) {
        if (event.kind == EventKind::op_done && event.op == 0) actions.fetch(a, 1, 77);
      });
  ASSERT_TRUE(run.result.fits) << run.result.misfit;
  ASSERT_EQ(run.ops.size(), 3U);
  EXPECT_EQ(run.ops.at(1).start_ns, 150);
}

// On a machine with real data the op would read what is not there.
TEST(EngineRulesTest, OverlappedArrivalsAreForSimulationsOnly) {
  Trace trace;
  add_op(trace, 50, {}, {});
  const Program program{trace, {}};
  Layout layout = whole_tensors();
  layout.overlap_faults = true;
  ScriptedPolicy policy(layout);
  const MachineSpec machine = small_machine(100);
  SimMachine simulated(machine);
  FailingOps real(simulated);
  EXPECT_THROW(Engine(machine, real, policy, &program), Error);
}

// The policy holds the op while x is on its way, and copies it to and fro for ever. Without a limit the run never ends.
TEST(EngineRulesTest, APolicyThatKeepsCopyingCannotHoldAnOpForEver) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 100, Role::parameter, true);
  add_op(trace, 50, {x}, {x});
  add_op(trace, 50, {x}, {});
  const SmallRun run = run_small(small_machine(200), trace, 1, whole_tensors(),
                                 [x](const Event& event, const View& view, Actions& actions) {
                                   if (event.op != 1) return;
                                   if (event.kind == EventKind::op_issued) actions.hold(1, x, 1);
                                   if (event.kind != EventKind::op_issued && event.kind != EventKind::transfer_done)
                                     return;
                                   if (view.memory.valid(view.memory.first_chunk(x), 1)) actions.drop(x, 1);
                                   actions.clean(x, 1);
                                 });
  EXPECT_TRUE(run.result.fits) << run.result.misfit;
  EXPECT_GT(run.result.simulated_events, 1000U) << "the policy did not get as far as to annoy";
  EXPECT_GT(run.result.window.refusals, 0U);
}

// Every op waits for a copy, and no copy ends while an op runs: that is no annoyance, however often it happens.
TEST(EngineRulesTest, PatienceEndsWithTheOpThatWaited) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 100, Role::parameter, true);
  const TensorId y = trace.add_tensor("y", 100, Role::parameter, true);
  add_op(trace, 50, {x}, {});
  add_op(trace, 50, {y}, {});
  const SmallRun run = run_small(small_machine(100), trace, 600, whole_tensors(),
                                 [x, y](const Event& event, const View&, Actions& actions) {
                                   if (event.kind == EventKind::op_ready) actions.fetch(event.op == 0 ? x : y);
                                 });
  EXPECT_TRUE(run.result.fits) << run.result.misfit;
  EXPECT_EQ(run.transfers.size(), 1200U);
  EXPECT_EQ(run.result.window.refusals, 0U);
}

TEST(EngineRulesTest, AsManyOpsWriteATensorAsAreIssuedAhead) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 100, Role::parameter, true);
  for (int i = 0; i < 300; ++i) add_op(trace, 1, {}, {x});
  MachineSpec machine = small_machine(100);
  machine.issue_ahead = 300;
  EXPECT_TRUE(run_small(machine, trace, 2).result.fits);
}

// Times are 64-bit nanoseconds: what would not fit is refused, not wrapped around.
TEST(EngineRulesTest, TimesBeyondTheClockAreErrors) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 50, Role::parameter, true);
  add_op(trace, Nanoseconds{1} << 60, {a}, {});
  EXPECT_THROW(run_small(small_machine(100), trace, 30), Error);

  Trace large;
  const TensorId b = large.add_tensor("b", Bytes{1} << 49, Role::parameter, true);
  add_op(large, 50, {b}, {});
  MachineSpec machine = small_machine(Bytes{1} << 50);
  machine.tiers[1].capacity = Bytes{1} << 50;
  for (Link& link : machine.links) link.bandwidth = 1;
  EXPECT_THROW(run_small(machine, large, 1), Error);
}

}  // namespace
}  // namespace tencache
