// The engine as a live program drives it, on a simulated machine: what is left after it was told that memory is out.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "core/error.h"
#include "policies/registry.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

// The next copies fail, or there are no pages.
class FailingMachine final : public OtherMachine {
 public:
  using OtherMachine::OtherMachine;
  void map(TensorId, ChunkId, Bytes, Bytes, Place, MappedFor) override {
    if (no_pages) throw Error("no pages");
  }
  bool wait(Completion& completion) override {
    const bool any = OtherMachine::wait(completion);
    if (any && completion.status == CompletionStatus::done && failures > 0 && failures-- > 0) {
      completion.status = CompletionStatus::failed;
    }
    return any;
  }
  int failures = 0;
  bool no_pages = false;
};

class LiveProgram {
 public:
  explicit LiveProgram(const MachineSpec& spec, ScriptedPolicy::Script script = {}, Layout layout = whole_tensors())
      : LiveProgram(spec, std::make_unique<ScriptedPolicy>(std::move(layout), std::move(script))) {}
  LiveProgram(const MachineSpec& spec, std::unique_ptr<Policy> policy)
      : spec_(spec),
        policy_(std::move(policy)),
        simulated_(spec_),
        machine(simulated_),
        engine(spec_, machine, *policy_, nullptr) {}

  TensorId create(Bytes bytes) { return engine.create(bytes, Role::activation, false, machine.now()); }
  void begin(const std::vector<Use>& uses) { engine.begin(none, uses, machine.now()); }
  // Throws OutOfMemory.
  void wait() {
    while (!engine.ready()) step();
  }
  void run(const std::vector<Use>& uses) {
    begin(uses);
    wait();
    engine.end(machine.now());
  }
  TensorId make(Bytes bytes) {
    const TensorId tensor = create(bytes);
    run({{tensor, false, true}});
    return tensor;
  }
  void step() {
    Completion completion;
    if (machine.wait(completion)) {
      engine.handle(completion);
    } else {
      engine.check_progress();
    }
  }

 private:
  MachineSpec spec_;
  std::unique_ptr<Policy> policy_;
  SimMachine simulated_;

 public:
  FailingMachine machine;
  Engine engine;
};

Program one_op() {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 150, Role::activation, false);
  add_op(trace, 50, {}, {a});
  return {std::move(trace), {}};
}

MachineSpec small(Bytes gpu, Bytes cpu) {
  MachineSpec spec = small_machine(gpu);
  spec.tiers[1].capacity = cpu;
  return spec;
}

MachineSpec moving(Bytes gpu_units) {
  MachineSpec spec = small(gpu_units * movable_unit, gpu_units * movable_unit);
  spec.tiers[0].allocator = AllocatorKind::movable;
  spec.tiers[0].bandwidth = byte_per_ns;
  return spec;
}

// b := a, for which the GPU has no room: a's old content lies on the CPU, and what it is to become already has its room
// on the GPU. With that it must not be given up to let x leave, since the program goes on without the op.
TEST(EngineLiveTest, WhatAnAbandonedOpWouldHaveOverwrittenIsStillThere) {
  LiveProgram program(small(160, 200));
  const TensorId a = program.make(80), b = program.make(120), x = program.make(80);
  program.begin({{b, true, false}, {a, false, true}});
  EXPECT_THROW(program.wait(), OutOfMemory);
  program.engine.abandon(program.machine.now());
  for (const TensorId tensor : {a, x}) EXPECT_NO_THROW(program.run({{tensor, true, false}})) << tensor;
}

// Of three tensors two leave the GPU. A tier below the CPU's has no room for both, and the CPU's for one: a second one
// leaves only once there is more.
TEST(EngineLiveTest, ATierThatGrowsTakesWhatItHadNoRoomFor) {
  LiveProgram program(small(200, 100));
  program.make(100);
  program.make(100);
  program.make(100);
  const TensorId last = program.create(100);
  program.begin({{last, false, true}});
  EXPECT_THROW(program.wait(), OutOfMemory);
  program.engine.abandon(program.machine.now());
  program.engine.set_capacity(1, 200, program.machine.now());
  EXPECT_NO_THROW(program.run({{last, false, true}}));
  EXPECT_EQ(program.engine.memory().used(1), 200u);
  EXPECT_EQ(program.engine.memory().free(1), 0u);
  program.engine.set_capacity(1, 250, program.machine.now());
  EXPECT_EQ(program.engine.memory().free(1), 50u);
}

// Its content lies on the CPU from the beginning: it is copied in for the op that reads it. Once it is written, that copy
// is stale and its room free.
TEST(EngineLiveTest, WhatIsStoredIsFetchedWhenItIsRead) {
  LiveProgram program(small(100, 200));
  const TensorId a = program.create(100);
  program.engine.stored(a, 1, program.machine.now());
  EXPECT_EQ(program.engine.memory().used(1), 100u);
  EXPECT_FALSE(program.engine.memory().resident(a, 0));
  program.run({{a, true, false}});
  EXPECT_TRUE(program.engine.memory().resident(a, 0));
  EXPECT_EQ(program.engine.counters().links[0].bytes, 100u);
  program.run({{a, true, true}});
  EXPECT_EQ(program.engine.memory().used(1), 0u);
}

// An op that runs asks for one output more than there is room for, and goes on without it.
TEST(EngineLiveTest, AnAllocationThatIsGivenUpLeavesNothingBehind) {
  LiveProgram program(small(100, 200));
  const TensorId a = program.create(100), b = program.create(100);
  program.begin({{a, false, true}});
  program.wait();
  program.engine.allocate(b, program.machine.now());
  EXPECT_THROW(program.wait(), OutOfMemory);
  program.engine.abandon(program.machine.now());
  program.engine.end(program.machine.now());
  program.run({{b, false, true}});
  program.run({{a, true, false}});
  program.run({{b, true, false}});
}

// Room that an op waited for is the prefetches' again as soon as the op is given up, not when something else is over.
TEST(EngineLiveTest, WhatWaitedBehindAnAbandonedOpBeginsAtOnce) {
  TensorId a = none;
  bool asked = false;
  LiveProgram program(small(200, 400), [&](const Event& event, const View&, Actions& actions) {
    if (event.kind == EventKind::op_issued && asked) actions.fetch(a);
  });
  a = program.make(50);
  const TensorId x = program.make(150), b = program.create(150);
  program.run({{x, true, false}});
  program.engine.pin(x);
  const TensorId y = program.make(50);  // a leaves
  ASSERT_FALSE(program.engine.memory().resident(a, 0));
  program.engine.destroy(y, program.machine.now());
  asked = true;
  program.begin({{b, false, true}});
  asked = false;
  const Nanoseconds given_up = program.machine.now();
  program.engine.abandon(given_up);
  Completion completion;
  ASSERT_TRUE(program.machine.wait(completion));
  EXPECT_EQ(completion.start_ns, given_up);
  program.engine.handle(completion);
  EXPECT_TRUE(program.engine.memory().resident(a, 0));
}

TEST(EngineLiveTest, RoomWithoutPagesIsNotTaken) {
  LiveProgram program(small(100, 200));
  const TensorId a = program.create(100);
  program.machine.no_pages = true;
  EXPECT_THROW(program.begin({{a, false, true}}), Error);
  EXPECT_EQ(program.engine.memory().used(0), 0);
  program.machine.no_pages = false;
  program.engine.abandon(program.machine.now());
  program.run({{a, false, true}});
}

// A layer of two experts; the recorded step chose the first. The policy sees that the op reads one, not which, until it
// hears that this step's gate chose the second.
TEST(EngineLiveTest, WhatTheRecordedGateChoseIsNotShown) {
  Program recorded;
  const TensorId x = recorded.trace.add_tensor("x", 50, Role::activation, true);
  const TensorId first = recorded.trace.add_tensor("mlp.experts.0.up", 50, Role::expert, true);
  const TensorId second = recorded.trace.add_tensor("mlp.experts.1.up", 50, Role::expert, true);
  recorded.trace.add_op(make_op(recorded.trace, "gate", "mlp", Phase::forward, 10), std::vector{x}, {});
  Op up = make_op(recorded.trace, "up", "mlp.experts.0", Phase::forward, 10);
  up.detail = recorded.trace.add_detail({.revealed_by = 0});
  recorded.trace.add_op(up, std::vector{x, first}, {});
  std::vector<TensorId> reads, revealed, known;
  LiveProgram program(small(200, 400), [&](const Event& event, const View& view, Actions&) {
    if (event.kind == EventKind::profile_ready) {
      const Trace& trace = view.program->trace;
      reads.assign(trace.reads(trace.ops[1]).begin(), trace.reads(trace.ops[1]).end());
      EXPECT_EQ(trace.detail(trace.ops[1]).expert_bytes, 50u);
      EXPECT_TRUE(view.revealed_uses(1).empty());
    }
    if (event.kind != EventKind::revealed) return;
    EXPECT_EQ(event.op, 0u);
    for (const Use& use : event.uses) revealed.push_back(use.tensor);
    for (const Use& use : view.revealed_uses(1)) known.push_back(use.tensor);
    EXPECT_EQ(view.distance_to_next_use(event.uses.front().tensor), 1u);
  });
  program.make(10);  // ids of the memory differ from those of the program
  const std::vector<TensorId> here = {program.make(50), program.make(50), program.make(50)};
  std::vector<TensorId> to_program(here.back() + std::size_t{1}, none);
  for (TensorId tensor = 0; tensor < 3; ++tensor) to_program[here[tensor]] = tensor;
  program.engine.set_profile(recorded, here, to_program, program.machine.now());
  program.engine.iteration_boundary(program.machine.now());
  EXPECT_EQ(reads, std::vector{x});
  const auto run = [&](OpIndex op, std::vector<Use> uses) {
    program.engine.begin(op, uses, program.machine.now());
    program.wait();
    program.engine.end(program.machine.now());
  };
  for (int step = 0; step < 2; ++step) {
    revealed.clear();
    known.clear();
    run(0, {{here[x], true, false}});
    EXPECT_TRUE(revealed.empty());
    program.engine.reveal(0, {1}, program.machine.now());
    EXPECT_EQ(revealed, std::vector{here[second]});
    EXPECT_EQ(known, std::vector{second});
    run(1, {{here[x], true, false}, {here[second], true, false}});
    program.engine.iteration_boundary(program.machine.now());
  }
  program.engine.schedule_deviated(program.machine.now());
  revealed.clear();
  program.engine.reveal(0, {1}, program.machine.now());
  EXPECT_TRUE(revealed.empty()) << "off the schedule";
}

// Evictions that nobody can take are none, also where they are counted.
TEST(EngineLiveTest, EvictionsWithoutAPlaceToGoAreNotCounted) {
  LiveProgram program(small(100, 50));
  program.make(60);
  const TensorId b = program.create(60);
  program.begin({{b, false, true}});
  EXPECT_THROW(program.wait(), OutOfMemory);
  EXPECT_EQ(program.engine.counters().fallback_evictions, 0);
}

TEST(EngineLiveTest, WhatARunningOpHasMayBeDestroyed) {
  LiveProgram program(small(200, 400));
  const TensorId a = program.make(50), b = program.create(50);
  program.begin({{a, true, false}, {b, false, true}});
  program.wait();
  for (const TensorId tensor : {a, b}) program.engine.destroy(tensor, program.machine.now());
  program.engine.end(program.machine.now());
  EXPECT_EQ(program.engine.memory().used(0), 0);
  // Those that get their numbers may leave when others need the room.
  const TensorId c = program.make(50), d = program.make(50), x = program.make(200);
  for (const TensorId tensor : {c, d, x}) program.run({{tensor, true, false}});
}

// A policy's wish at an announcement is on its way before the program goes on.
TEST(EngineLiveTest, WhatAnAnnouncementBringsAboutBeginsAtOnce) {
  using Announce = std::function<void(Engine&, Nanoseconds)>;
  const Program profile = one_op();
  TensorId a = none, y = none;
  const std::vector<std::pair<EventKind, Announce>> cases{
      {EventKind::module_begin, [](Engine& engine, Nanoseconds now) { engine.module_begin(0, now); }},
      {EventKind::module_end, [](Engine& engine, Nanoseconds now) { engine.module_end(0, now); }},
      {EventKind::schedule_deviated, [](Engine& engine, Nanoseconds now) { engine.schedule_deviated(now); }},
      {EventKind::iteration_begin, [](Engine& engine, Nanoseconds now) { engine.iteration_boundary(now); }},
      {EventKind::profile_ready, [&](Engine& engine, Nanoseconds now) { engine.set_profile(profile, {a}, {0}, now); }},
      {EventKind::op_issued,
       [&y](Engine& engine, Nanoseconds now) {
         engine.begin(none, std::vector<Use>{{y, true, false}}, now);
       }},
      {EventKind::op_done,
       [&y](Engine& engine, Nanoseconds now) {
         engine.begin(none, std::vector<Use>{{y, true, false}}, now);
         engine.end(now);
       }},
      {EventKind::tensor_freed, [&y](Engine& engine, Nanoseconds now) { engine.destroy(y, now); }}};
  for (const auto& [kind, announce] : cases) {
    bool asked = false;
    LiveProgram program(small(200, 400), [&, kind = kind](const Event& event, const View&, Actions& actions) {
      if (event.kind == kind && asked) actions.fetch(a);
    });
    a = program.make(150), y = program.make(50);
    const TensorId x = program.make(150);
    program.engine.destroy(x, program.machine.now());
    asked = true;
    announce(program.engine, program.machine.now());
    Completion completion;
    EXPECT_TRUE(program.machine.wait(completion)) << static_cast<int>(kind);
    program.engine.handle(completion);
    EXPECT_TRUE(program.engine.memory().resident(a, 0)) << static_cast<int>(kind);
  }
}

// In the middle of an op; what it waits is no computing.
TEST(EngineLiveTest, RoomForAnAllocationIsMadeAtOnce) {
  LiveProgram program(small(150, 400));
  program.make(100);
  const TensorId a = program.create(50), b = program.create(100);
  program.begin({{a, false, true}});
  program.wait();
  program.engine.allocate(b, program.machine.now());
  Completion completion;
  ASSERT_TRUE(program.machine.wait(completion)) << "what lies in the way leaves";
  program.engine.handle(completion);
  EXPECT_TRUE(program.engine.ready());
  program.engine.end(program.machine.now() + 5);
  EXPECT_EQ(program.engine.counters().stall_ns[StallCause::d2h], 100);
  EXPECT_EQ(program.engine.counters().compute_ns, 5);
}

TEST(EngineLiveTest, WaitingForTasksIsTheOptimizers) {
  LiveProgram program(small(100, 200));
  program.engine.iteration_boundary(0);
  program.engine.waited_for_tasks(10, 30);
  const Counters& counters = program.engine.counters();
  EXPECT_EQ(counters.gap_ns, 10);
  EXPECT_EQ(counters.stall_ns[StallCause::cpu_optimizer], 20);
  EXPECT_EQ(counters.time_ns, 30);
}

// y is on the CPU: x has to leave, then y comes, 100 ns each, and then the op computes until the program says so.
TEST(EngineLiveTest, WaitingForContentIsNoComputing) {
  LiveProgram program(small(100, 200));
  const TensorId y = program.make(100);
  program.make(100);
  const Counters before = program.engine.counters();
  program.begin({{y, true, false}});
  program.wait();
  program.engine.end(program.machine.now() + 5);
  const Counters passed = program.engine.counters() - before;
  EXPECT_EQ(passed.stall_ns[StallCause::d2h], 100);
  EXPECT_EQ(passed.stall_ns[StallCause::h2d], 100);
  EXPECT_EQ(passed.compute_ns, 5);
}

// 128 units, one of them to spare: a has 30 in the middle, and leaves 68 below it and 30 above; x may have 40 of those.
// Once the op that reads it runs a stays there: what the op makes, 80 units, has no hole then.
TEST(EngineLiveTest, WhatAnOpWillMakeHasItsHoleBeforeTheOpStarts) {
  constexpr Bytes unit = movable_unit;
  struct Case {
    bool known, crowded;
    Bytes foretold;
    bool fits;
  };
  for (const Case& is : {Case{false, false, 80, false}, Case{true, false, 80, true}, Case{true, true, 80, true},
                         Case{true, false, 100, false}}) {
    Trace trace;
    const TensorId known_a = trace.add_tensor("a", 30 * unit, Role::activation, false);
    const TensorId known_b = trace.add_tensor("b", is.foretold * unit, Role::activation, false);
    add_op(trace, 10, {}, {known_a});
    add_op(trace, 10, {known_a}, {known_b});
    const Program profile{trace, {}};
    LiveProgram program(moving(128));
    const TensorId above = program.make(30 * unit), a = program.make(30 * unit);
    const TensorId x = is.crowded ? program.make(40 * unit) : none;
    program.engine.destroy(above, program.machine.now());
    ASSERT_EQ(program.engine.memory().offset(a, 0), 68 * unit);
    std::vector<TensorId> to_program(a + std::size_t{1}, none);
    to_program[a] = known_a;
    program.engine.set_profile(profile, {a, none}, to_program, program.machine.now());
    program.engine.begin(is.known ? OpIndex{1} : none, std::vector<Use>{{a, true, false}}, program.machine.now());
    EXPECT_EQ(program.engine.ready(), !is.crowded && is.foretold == 80) << "x leaves first, and 100 are never there";
    EXPECT_NO_THROW(program.wait());
    EXPECT_FALSE(is.crowded && program.engine.memory().resident(x, 0));
    const TensorId b = program.create(80 * unit);
    program.engine.allocate(b, program.machine.now());
    EXPECT_EQ(program.engine.ready(), is.fits);
    if (!is.fits) {
      EXPECT_THROW(program.wait(), OutOfMemory);
      program.engine.abandon(program.machine.now());
    }
    program.engine.end(program.machine.now());
    EXPECT_EQ(program.engine.memory().offset(a, 0) == 68 * unit, !is.fits) << "it went out of the way";
  }
}

// From above: 40 units free, d with 6, one pinned, eight small ones, 68 pinned, 5 free. The output needs 44, which are
// free, and d can only leave to where six of the small ones were; each request gives up one.
TEST(EngineLiveTest, APolicyIsAskedUntilThereIsAHole) {
  constexpr Bytes unit = movable_unit;
  Layout layout = whole_tensors();
  layout.fallback_eviction = false;
  LiveProgram program(moving(128), {}, layout);
  const auto stored = [&program](Bytes units) {
    const TensorId tensor = program.create(units * unit);
    program.engine.stored(tensor, 1, program.machine.now());
    program.run({{tensor, true, false}});
    return tensor;
  };
  const TensorId above = program.make(40 * unit), d = stored(6), pin = program.make(unit);
  program.engine.pin(pin);
  std::vector<TensorId> small;
  for (int i = 0; i < 8; ++i) small.push_back(stored(1));
  program.engine.pin(program.make(68 * unit));
  program.run({{d, true, false}});
  program.engine.destroy(above, program.machine.now());
  const TensorId output = program.create(44 * unit);
  program.begin({{output, false, true}});
  EXPECT_TRUE(program.engine.ready());
  for (std::size_t i = 0; i < small.size(); ++i) EXPECT_EQ(program.engine.memory().resident(small[i], 0), i >= 6) << i;
  EXPECT_TRUE(program.engine.memory().resident(d, 0));
  EXPECT_EQ(program.engine.counters().tiers[0].holes, 1u);
}

// x makes y while its op runs; y is read and freed, p of 60 is read, and z of 80 drives it out. With 100 p has no room
// before y is gone: fetched into what y will need, it would have to leave for y and to come twice a step.
TEST(EngineLiveTest, ForesightFetchesNothingIntoTheRoomOfWhatAnOpWillMake) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 10, Role::parameter, true);
  const TensorId p = trace.add_tensor("p", 60, Role::parameter, true);
  const TensorId y = trace.add_tensor("y", 50, Role::activation, false);
  const TensorId z = trace.add_tensor("z", 80, Role::activation, false);
  add_op(trace, 10, {x}, {y});
  add_op(trace, 10, {y}, {});
  add_op(trace, 10, {p}, {});
  add_op(trace, 10, {x}, {z});
  add_op(trace, 10, {z}, {});
  const Program profile{trace, {}};
  LiveProgram program(small(100, 200), make_policy("foresight", {}).policy);
  Engine& engine = program.engine;
  std::vector<TensorId> to_memory(4, none), to_program;
  for (const TensorId tensor : {x, p}) {
    to_memory[tensor] = program.create(trace.tensors[tensor].bytes);
    engine.stored(to_memory[tensor], 1, program.machine.now());
    to_program.push_back(tensor);
  }
  engine.set_profile(profile, to_memory, to_program, program.machine.now());
  constexpr std::uint64_t steps = 6;
  for (std::uint64_t step = 0; step < steps; ++step) {
    TensorId made = none;
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      const TensorId read = op == 2 ? to_memory[p] : op == 0 || op == 3 ? to_memory[x] : made;
      engine.begin(op, std::vector<Use>{{read, true, false}}, program.machine.now());
      program.wait();
      if (op == 0 || op == 3) {
        const TensorId born = op == 0 ? y : z;
        made = program.create(trace.tensors[born].bytes);
        engine.set_program_tensor(made, born);
        engine.allocate(made, program.machine.now());
        program.wait();
      }
      engine.end(program.machine.now());
      if (read == made) engine.destroy(made, program.machine.now());
    }
    engine.iteration_boundary(program.machine.now());
  }
  EXPECT_LT(engine.counters().links[0].bytes, steps * 2 * 60);
}

// An update on the CPU waits for the op that has its tensor, and for no other.
TEST(EngineLiveTest, TasksWaitForOpsThatUseTheirTensors) {
  for (const bool same : {false, true}) {
    LiveProgram program(small(1000, 1000));
    const TensorId a = program.make(100), b = program.make(100);
    program.begin({{a, true, false}});
    program.wait();
    const std::vector<Use> uses{{same ? a : b, true, true}};
    program.engine.task(1, none, 0, uses, 5, program.machine.now());
    const auto finish = [&program] {
      for (Completion completion; program.machine.wait(completion);) program.engine.handle(completion);
    };
    finish();
    EXPECT_EQ(program.engine.counters().cpu_compute_ns, same ? 0 : 5);
    program.engine.end(program.machine.now());
    finish();
    EXPECT_EQ(program.engine.counters().cpu_compute_ns, 5);
  }
}

TEST(EngineLiveTest, WhatIsPinnedStays) {
  LiveProgram program(small(100, 200));
  const TensorId a = program.make(100), x = program.create(100);
  program.engine.pin(a);
  program.begin({{x, false, true}});
  EXPECT_THROW(program.wait(), OutOfMemory);
  program.engine.abandon(program.machine.now());
  program.engine.unpin(a);
  program.run({{x, false, true}});
  EXPECT_FALSE(program.engine.memory().resident(a, 0));
}

// What the pin's owner may still write is no source of a copy, however the policy wishes for one.
TEST(EngineLiveTest, WhatIsPinnedForWritingIsNotCopied) {
  for (const bool written : {false, true}) {
    TensorId a = none;
    bool asked = false;
    LiveProgram program(small(200, 300), [&](const Event& event, const View&, Actions& actions) {
      if (event.kind == EventKind::op_done && asked) actions.clean(a);
    });
    a = program.make(100);
    const TensorId b = program.make(50);
    program.begin({{a, true, true}});
    program.wait();
    program.engine.pin(a, written);
    program.engine.end(program.machine.now());
    const auto copied = [&] {
      asked = true;
      program.run({{b, true, false}});
      asked = false;
      for (Completion completion; program.machine.wait(completion);) program.engine.handle(completion);
      return program.engine.memory().valid(*program.engine.memory().chunks_of(a).begin(), 1);
    };
    EXPECT_EQ(copied(), !written);
    program.engine.unpin(a, written);
    EXPECT_TRUE(copied());
  }
}

// An op that turns out to write what it was to read: the copy that others kept is not what there is any more.
TEST(EngineLiveTest, AWriteThatBecomesKnownLateIsOne) {
  for (const bool late : {false, true}) {
    LiveProgram program(small(100, 300));
    const TensorId a = program.make(100), x = program.make(100);  // a leaves, its copy stays behind when it comes back
    program.begin({{a, true, false}});
    program.wait();
    if (late) program.engine.late_write(a);
    program.engine.end(program.machine.now());
    const Bytes before = program.engine.counters().links[1].bytes;
    program.run({{x, true, false}});
    EXPECT_EQ(program.engine.counters().links[1].bytes - before, late ? 100 : 0);
  }
}

// Whoever announces reads the clock before it is its turn: what is older than the engine's time happens now.
TEST(EngineLiveTest, AnAnnouncementMayBeLate) {
  const Program profile = one_op();
  for (const bool late : {false, true}) {
    LiveProgram program(small(1000, 1000));
    Engine& engine = program.engine;
    TensorId a = none, b = none;
    Nanoseconds time = 1000;
    engine.module_begin(0, time);
    const std::vector<std::function<void(Nanoseconds)>> calls{
        [&](Nanoseconds now) { a = engine.create(100, Role::activation, false, now); },
        [&](Nanoseconds now) { b = engine.create(100, Role::activation, false, now); },
        [&](Nanoseconds now) { engine.iteration_boundary(now); },
        [&](Nanoseconds now) { engine.module_begin(0, now); },
        [&](Nanoseconds now) {
          engine.begin(none, std::vector<Use>{{a, false, true}}, now);
        },
        [&](Nanoseconds now) { engine.allocate(b, now); },
        [&](Nanoseconds now) { engine.end(now); },
        [&](Nanoseconds now) { engine.module_end(0, now); },
        [&](Nanoseconds now) { engine.waited_for_tasks(now, now); },
        [&](Nanoseconds now) { engine.schedule_deviated(now); },
        [&](Nanoseconds now) { engine.set_profile(profile, {a}, {0}, now); },
        [&](Nanoseconds now) { engine.task(1, none, 0, {}, 5, now); },
        [&](Nanoseconds now) { engine.abandon(now); },
        [&](Nanoseconds now) { engine.destroy(a, now); },
        [&](Nanoseconds now) { engine.iteration_boundary(now); }};
    for (std::size_t i = 0; i < calls.size(); ++i) {
      calls[i](late ? 10 : ++time);
      EXPECT_EQ(engine.counters().time_ns, time) << i;
    }
  }
}

// A tensor that is new has no failures behind it, though it has the number of one that had.
TEST(EngineLiveTest, FailuresAreForgottenWithTheirTensor) {
  LiveProgram program(small(100, 200));
  const TensorId a = program.make(100), b = program.create(100);
  program.machine.failures = 2;
  program.begin({{b, false, true}});
  while (program.machine.failures > 0) program.step();
  program.engine.abandon(program.machine.now());
  program.engine.destroy(a, program.machine.now());
  program.run({{b, false, true}});
  ASSERT_EQ(program.make(100), a) << "the number is to be used again";
  program.machine.failures = 1;
  EXPECT_NO_THROW(program.run({{b, true, false}}));
}

}  // namespace
}  // namespace tencache
