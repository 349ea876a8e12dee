// A host that runs ahead (sim/ordered_machine.h), with times that can be worked out on paper: links move a byte in a
// nanosecond. Seeds against a naive one: tests/differential/.
#include "sim/ordered_machine.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "sim/simulate.h"
#include "sim/simulated_rank.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

MachineSpec ahead(MachineSpec machine, std::uint32_t ops = 8, Nanoseconds time_ns = 10'000) {
  machine.run_ahead = {.ops = ops, .time_ns = time_ns};
  machine.validate();
  return machine;
}

struct AheadRun {
  RunResult result;
  std::vector<Span> ops, transfers;  // in order of their end
  Nanoseconds stall(StallCause cause) const { return result.window.stall_ns[cause]; }
};

AheadRun run(const MachineSpec& machine, const Trace& trace, const Layout& layout = whole_tensors(),
             std::uint64_t iterations = 1) {
  trace.validate();
  const Program program{trace, {}};
  ScriptedPolicy policy(layout);
  SimulatedRank simulated(machine);
  Timeline timeline;
  Engine engine(machine, simulated.port(), policy, &program,
                {.timeline = &timeline, .log = nullptr, .on_iteration = {}});
  simulated.look_at(engine.memory());
  AheadRun run;
  run.result = engine.run({.max_iterations = iterations, .until_steady = false});
  for (const Span& span : timeline.spans) {
    if (span.kind == SpanKind::op) run.ops.push_back(span);
    if (span.kind == SpanKind::transfer) run.transfers.push_back(span);
  }
  return run;
}

// Each op but the first begins when the one before is over: the host passed its gap meanwhile.
TEST(OrderedMachineTest, TheHostPassesGapsWhileTheGpuWorks) {
  Trace trace;
  for (int i = 0; i < 3; ++i) add_op(trace, 100, {}, {}, Device::gpu, 60);
  EXPECT_EQ(run(small_machine(1000), trace).result.iteration_ns.front(), 3 * 160);
  const AheadRun made = run(ahead(small_machine(1000)), trace);
  EXPECT_EQ(made.result.iteration_ns.front(), 60 + 3 * 100);
  EXPECT_EQ(made.result.window.gap_ns, 60);
  EXPECT_EQ(made.result.window.compute_ns, 300);
}

// Gaps longer than the ops: then the GPU waits for the host, 160 for each op.
TEST(OrderedMachineTest, TheGpuWaitsForASlowHost) {
  Trace trace;
  for (int i = 0; i < 3; ++i) add_op(trace, 100, {}, {}, Device::gpu, 160);
  const AheadRun made = run(ahead(small_machine(1000)), trace);
  EXPECT_EQ(made.result.iteration_ns.front(), 3 * 160 + 100);
  EXPECT_EQ(made.result.window.gap_ns, 160 + 2 * 60);
}

// The fetch for the second op begins as the first is launched, and the second waits for it on the GPU.
TEST(OrderedMachineTest, AMissIsWaitedForOnTheDevice) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 150, Role::parameter, true);
  add_op(trace, 100, {}, {});
  add_op(trace, 40, {x}, {});
  const AheadRun made = run(ahead(small_machine(1000)), trace);
  ASSERT_EQ(made.transfers.size(), 1u);
  EXPECT_EQ(made.transfers[0].start_ns, 0);
  EXPECT_EQ(made.transfers[0].end_ns, 150);
  EXPECT_EQ(made.ops[1].start_ns, 150);
  EXPECT_EQ(made.result.iteration_ns.front(), 190);
  EXPECT_EQ(made.stall(StallCause::h2d), 50);
  EXPECT_EQ(made.result.window.links[0].busy_ns, 150);
  EXPECT_EQ(made.result.window.links[0].bytes, 150u);
}

// The third op is issued, and its fetch begins, when the second is launched. With a window of one op that is when the
// first is over.
TEST(OrderedMachineTest, TheWindowHoldsTheHostBack) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 150, Role::parameter, true);
  add_op(trace, 100, {}, {});
  add_op(trace, 30, {}, {});
  add_op(trace, 40, {x}, {});
  EXPECT_EQ(run(ahead(small_machine(1000)), trace).ops[2].start_ns, 150);
  EXPECT_EQ(run(ahead(small_machine(1000), 1), trace).ops[2].start_ns, 250);
}

// The third op is launched, and the host passes the 200 before the fourth, at 0 if the second, which is behind the one
// that runs, takes less than the window; else when the first is over, or the copy, without which time does not count.
TEST(OrderedMachineTest, TheWindowIsOfTimeWhileCopiesAreUnderWay) {
  struct Case {
    Bytes copy = 0;
    Nanoseconds window_ns = 0, start_ns = 0;
  };
  for (const Case& at : {Case{120, 31, 200}, {120, 30, 300}, {120, 1, 300}, {50, 30, 250}, {0, 1, 200}}) {
    Trace trace;
    add_op(trace, 100, {}, {});
    add_op(trace, 30, {}, {});
    std::vector<TensorId> copied;
    if (at.copy > 0) copied = {trace.add_tensor("x", at.copy, Role::parameter, true)};
    add_op(trace, 40, copied, {});
    add_op(trace, 40, {}, {}, Device::gpu, 200);
    const AheadRun made = run(ahead(small_machine(1000), 8, at.window_ns), trace);
    EXPECT_EQ(made.ops[2].start_ns, 130) << at.copy << ' ' << at.window_ns;
    EXPECT_EQ(made.ops[3].start_ns, at.start_ns) << at.copy << ' ' << at.window_ns;
  }
}

// Memory for one tensor: the eviction is handed over as the op that writes a is launched, and its room is free. The
// addresses are in order: written until 10, read until 110, filled until 210.
TEST(OrderedMachineTest, RoomChangesOwnersInOrder) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::activation, true);
  const TensorId b = trace.add_tensor("b", 100, Role::parameter, true);
  add_op(trace, 10, {}, {a});
  add_op(trace, 10, {b}, {});
  Layout layout = whole_tensors();
  layout.allocators = {{AllocatorKind::best_fit, {}}, {AllocatorKind::best_fit, {}}};
  const AheadRun made = run(ahead(small_machine(100)), trace, layout);
  ASSERT_EQ(made.transfers.size(), 2u);
  EXPECT_EQ(made.transfers[0].start_ns, 10);
  EXPECT_EQ(made.transfers[0].end_ns, 110);
  EXPECT_EQ(made.transfers[1].start_ns, 110);
  EXPECT_EQ(made.ops[1].start_ns, 210);
  EXPECT_EQ(made.stall(StallCause::h2d), 200);
  EXPECT_EQ(made.result.iteration_ns.front(), 220);
}

// Without addresses each chunk is its own memory: the fetch does not wait for the one that leaves.
TEST(OrderedMachineTest, WithoutAddressesRoomHasNoPast) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::activation, true);
  const TensorId b = trace.add_tensor("b", 100, Role::parameter, true);
  add_op(trace, 10, {}, {a});
  add_op(trace, 10, {b}, {});
  const AheadRun made = run(ahead(small_machine(100)), trace);
  EXPECT_EQ(made.ops[1].start_ns, 100);
}

// What the CPU's op reads has left the GPU when the copy is over, which the op waits for on its thread.
TEST(OrderedMachineTest, ThreadsWaitForStreams) {
  Trace trace;
  const TensorId gradient = trace.add_tensor("gradient", 100, Role::gradient, false);
  add_op(trace, 50, {}, {gradient});
  add_op(trace, 20, {gradient}, {}, Device::cpu);
  const AheadRun made = run(ahead(small_machine(1000)), trace);
  ASSERT_EQ(made.ops.size(), 2u);
  EXPECT_EQ(made.transfers[0].start_ns, 50);
  EXPECT_EQ(made.ops[1].lane, cpu_lane);
  EXPECT_EQ(made.ops[1].start_ns, 150);
  EXPECT_EQ(made.result.iteration_ns.front(), 170);
}

// Each of two copies costs the host 30 before the launch of the op that they are for, and nothing of the GPU's time.
TEST(OrderedMachineTest, CopiesCostTheHostsTime) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 10, Role::parameter, true);
  const TensorId y = trace.add_tensor("y", 10, Role::parameter, true);
  add_op(trace, 100, {}, {});
  add_op(trace, 40, {x, y}, {});
  MachineSpec machine = ahead(small_machine(1000));
  machine.host.per_transfer_ns = 30;
  EXPECT_EQ(run(machine, trace).ops[1].start_ns, 100);
  machine.host.per_transfer_ns = 70;
  EXPECT_EQ(run(machine, trace).ops[1].start_ns, 140);
}

// Handed over are two copies, or what flows in a time; the third may be cancelled.
TEST(OrderedMachineTest, WhatIsHandedOverIsNotCancelled) {
  MachineSpec spec = ahead(small_machine(1000));
  spec.run_ahead.copies_ns = 10;
  SimulatedRank rank(spec);
  Residency memory(spec, std::vector<AllocatorSpec>(2), 0, false);
  memory.add_tensor(100, Role::parameter, true, 0);
  rank.look_at(memory);
  CopyCommand copy{.link = 0, .chunk = 0, .bytes = 100, .from = {1, 0}, .to = {0, 0}};
  std::vector<Fence> fences;
  for (Tag tag = 1; tag <= 3; ++tag) fences.push_back(rank.port().submit(copy, tag));
  for (const Fence fence : fences) rank.port().cancel(fence);
  std::vector<std::pair<CompletionStatus, Nanoseconds>> seen;
  for (Completion completion; rank.port().wait(completion);) seen.emplace_back(completion.status, completion.end_ns);
  using enum CompletionStatus;
  EXPECT_EQ(seen, (std::vector<std::pair<CompletionStatus, Nanoseconds>>{
                      {done, 0}, {done, 0}, {cancelled, 0}, {observed, 100}, {observed, 200}}));
}

// Both clocks recur, so the period is exact: a long run goes on with the same iterations.
TEST(OrderedMachineTest, ASteadyStateIsOneOfBothClocks) {
  Trace trace;
  std::vector<TensorId> tensors;
  for (const char* name : {"a", "b", "c"}) {
    tensors.push_back(trace.add_tensor(name, 100, Role::parameter, true));
    add_op(trace, 70, {tensors.back()}, {tensors.back()}, Device::gpu, 20);
  }
  add_op(trace, 50, {tensors[0]}, {});
  const MachineSpec machine = ahead(small_machine(200));
  const Program program{trace, {}};
  ScriptedPolicy policy(whole_tensors());
  const RunResult steady = simulate(program, machine, policy);
  ASSERT_TRUE(steady.steady);
  Nanoseconds sum = steady.window.compute_ns + steady.window.gap_ns;
  for (const Nanoseconds stall : steady.window.stall_ns) sum += stall;
  EXPECT_EQ(sum, steady.window.time_ns);
  EXPECT_GT(steady.window.links[0].busy_ns, 0);
  EXPECT_GT(steady.window.links[1].busy_ns, 0);
  ScriptedPolicy again(whole_tensors());
  const RunResult lasting = simulate(program, machine, again, {.max_iterations = 400, .until_steady = false});
  ASSERT_EQ(lasting.iteration_ns.size(), 400u);
  for (std::size_t i = steady.iterations; i < 400; ++i) {
    EXPECT_EQ(lasting.iteration_ns[i], lasting.iteration_ns[i - steady.period]) << i;
  }
}

// A GPU cannot go on after a copy that failed on it.
TEST(OrderedMachineTest, ACopyThatFailsAfterItWasHandedOverEndsTheRun) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 100, Role::parameter, true);
  add_op(trace, 100, {x}, {});
  const Program program{trace, {}};
  ScriptedPolicy policy(whole_tensors());
  const FaultPlan plan = parse_fault_plan("seed=1,copy_error=1");
  SimulatedFaults faults{.plan = &plan};
  try {
    simulate(program, ahead(small_machine(1000)), policy, {}, {}, &faults);
    FAIL() << "it went on";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("failed after it was handed over"), std::string::npos) << error.what();
  }
}

// Iterations end with their last op on the GPU, though the host was done with them before: 300 each, and the first has
// the gap before its first op.
TEST(OrderedMachineTest, IterationsEndOnTheGpu) {
  Trace trace;
  for (int i = 0; i < 3; ++i) add_op(trace, 100, {}, {}, Device::gpu, 20);
  const AheadRun made = run(ahead(small_machine(1000)), trace, whole_tensors(), 3);
  EXPECT_EQ(made.result.iteration_ns, (std::vector<Nanoseconds>{320, 300, 300}));
}

// Memory of 128 units, all but one of which may be used: four tensors of 31 fill it. 0 and 2 go without a copy, and 1
// moves to where 2 was.
struct MovingCase {
  static constexpr Bytes small_bytes = 31 * 512;
  Trace trace;
  std::vector<TensorId> small;
  MachineSpec machine = small_machine(128 * Bytes{512});

  MovingCase() {
    for (int i = 0; i < 4; ++i)
      small.push_back(trace.add_tensor(std::string("s").append(std::to_string(i)), small_bytes, Role::parameter, true));
    for (const int i : {0, 1, 2, 3, 1, 3}) add_op(trace, 10, {small[static_cast<std::size_t>(i)]}, {});
    machine.tiers[0].allocator = AllocatorKind::movable;
    machine.tiers[0].bandwidth = 2 * byte_per_ns;
  }
};

// Everything is launched and handed over at 0. The lane moves 1, which takes 15,872, when the ops before are over.
TEST(OrderedMachineTest, AnOpWaitsForItsMovesOnTheDevice) {
  MovingCase made;
  const TensorId large = made.trace.add_tensor("large", 2 * MovingCase::small_bytes, Role::activation, false);
  add_op(made.trace, 10, {}, {large});
  const AheadRun moved = run(ahead(made.machine), made.trace);
  ASSERT_TRUE(moved.result.fits) << moved.result.misfit;
  EXPECT_EQ(moved.result.window.tiers[0].holes, 1u);
  EXPECT_EQ(moved.result.window.tiers[0].moving_ns, 15'872);
  EXPECT_EQ(moved.ops.back().start_ns, 4 * 15'872 + 3 * 10 + 15'872);
  EXPECT_EQ(moved.stall(StallCause::memory), 15'872);
  EXPECT_EQ(moved.stall(StallCause::h2d), 4 * 15'872 - 3 * 10);
  EXPECT_EQ(moved.result.iteration_ns.front(), 5 * 15'872 + 4 * 10);
}

// The link moves 1 as soon as it has arrived: the ops that read it only hold back the copy that takes its former place.
TEST(OrderedMachineTest, ALinkMovesBeforeTheCopyThatNeedsIt) {
  MovingCase made;
  const TensorId large = made.trace.add_tensor("large", 2 * MovingCase::small_bytes, Role::parameter, true);
  add_op(made.trace, 10, {large}, {});
  add_op(made.trace, 10, {made.small[1]}, {});
  const AheadRun moved = run(ahead(made.machine), made.trace);
  ASSERT_TRUE(moved.result.fits) << moved.result.misfit;
  EXPECT_EQ(moved.result.window.tiers[0].holes, 1u);
  EXPECT_EQ(moved.transfers.back().start_ns, 5 * 15'872);
  EXPECT_EQ(moved.transfers.back().end_ns, 7 * 15'872);
  EXPECT_EQ(moved.stall(StallCause::memory), 0);
  EXPECT_EQ(moved.result.iteration_ns.front(), 7 * 15'872 + 20);
}

// The move of a link begins at 63,488 and flows at 2 bytes/ns over the memory, which has 3. From 63,518 on an op does,
// too, and each gets 1.5: the 31,684 bytes left take 21,123. Then the op has 95,291.5 bytes left for its 2 bytes/ns.
TEST(OrderedMachineTest, AMoveSlowsOpsDown) {
  MovingCase made;
  made.machine.resources.push_back({"hbm", 3 * byte_per_ns, none});
  made.machine.lane_uses[gpu_lane] = {0};
  const TensorId large = made.trace.add_tensor("large", 2 * MovingCase::small_bytes, Role::parameter, true);
  add_op(made.trace, 63'488, {made.small[3]}, {});
  made.trace.ops.back().bytes = 2 * 63'488;
  add_op(made.trace, 10, {large}, {});
  const AheadRun moved = run(ahead(made.machine, 8, 1'000'000), made.trace);
  ASSERT_TRUE(moved.result.fits) << moved.result.misfit;
  EXPECT_EQ(moved.result.window.tiers[0].holes, 1u);
  EXPECT_EQ(moved.transfers.back().start_ns, 63'518 + 21'123);
  EXPECT_EQ(moved.ops[6].start_ns, 63'518);
  EXPECT_EQ(moved.ops[6].end_ns, 63'518 + 21'123 + 47'646);
}

// The host's time for an op that a trace states apart from the device's gaps, where there is one.
TEST(OrderedMachineTest, AHostThatRunsAheadTakesItsOwnTime) {
  Trace trace;
  for (int i = 0; i < 3; ++i) {
    add_op(trace, 100, {}, {}, Device::gpu, 10);
    trace.ops.back().issue_ns = i == 2 ? 0 : 150;
  }
  EXPECT_EQ(run(small_machine(1000), trace).result.iteration_ns.front(), 3 * 110);
  const AheadRun made = run(ahead(small_machine(1000)), trace);
  EXPECT_EQ(made.result.iteration_ns.front(), 2 * 150 + 2 * 100);
}

}  // namespace
}  // namespace tencache
