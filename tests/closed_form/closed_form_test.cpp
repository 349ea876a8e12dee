// Cases whose answer is a formula, written above each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <type_traits>

#include "tests/small_cases.h"

namespace tencache {
namespace {

using testing::HasSubstr;

Nanoseconds stall(const RunResult& result, StallCause cause) { return result.window.stall_ns[cause]; }

// bytes / bandwidth, then the op: ready at 100, not at 99.
TEST(ClosedFormTest, OneTensorOverOneLink) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::parameter, true);
  add_op(trace, 50, {a}, {});
  const SmallRun run = run_small(small_machine(1000), trace);
  EXPECT_EQ(run.transfers.at(0).end_ns, 100);
  EXPECT_EQ(run.ops.at(0).start_ns, 100);
  EXPECT_EQ(run.result.first_iteration_ns, 150);
  EXPECT_EQ(stall(run.result, StallCause::h2d), 100);
}

// latency + bytes / bandwidth; 101 bytes at 3 GB/s are 33.67 ns, rounded up once.
TEST(ClosedFormTest, LatencyAndRounding) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 101, Role::parameter, true);
  add_op(trace, 0, {a}, {});
  MachineSpec machine = small_machine(1000);
  machine.links[0].bandwidth = 3 * byte_per_ns;
  machine.links[0].latency_ns = 10;
  EXPECT_EQ(run_small(machine, trace).result.first_iteration_ns, 10 + 34);
}

Trace two_tensors(Bytes first, Bytes second) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", first, Role::parameter, true);
  const TensorId b = trace.add_tensor("b", second, Role::optimizer_state, true);
  add_op(trace, 5, {a, b}, {});
  return trace;
}

Layout from_cpu_and_nvme() {
  Layout layout = whole_tensors();
  layout.initial[static_cast<std::size_t>(Role::optimizer_state)] = 2;
  return layout;
}

// Two links run at once: max(100, 120) + 5.
TEST(ClosedFormTest, TwoLinksOverlap) {
  EXPECT_EQ(
      run_small(small_machine(1000, true), two_tensors(100, 120), 1, from_cpu_and_nvme()).result.first_iteration_ns,
      125);
}

// One resource of 1 GB/s for both: half each until the 50 bytes are over at 100; the other's last 50 at full rate: 150.
TEST(ClosedFormTest, SharedResource) {
  MachineSpec machine = small_machine(1000, true);
  machine.resources = {{"bus", byte_per_ns}};
  machine.links[0].uses = machine.links[2].uses = {0};
  const SmallRun run = run_small(machine, two_tensors(100, 50), 1, from_cpu_and_nvme());
  EXPECT_EQ(run.transfers.at(0).end_ns, 100);
  EXPECT_EQ(run.transfers.at(1).end_ns, 150);
}

// The bus of 1 GB/s, the second link only 0.25 GB/s: max-min gives it 0.25 and the first 0.75: 300 bytes take 400 ns.
TEST(ClosedFormTest, MaxMinGivesWhatASlowLinkLeaves) {
  MachineSpec machine = small_machine(1000, true);
  machine.resources = {{"bus", byte_per_ns}};
  machine.links[0].uses = machine.links[2].uses = {0};
  machine.links[2].bandwidth = byte_per_ns / 4;
  const SmallRun run = run_small(machine, two_tensors(300, 100), 1, from_cpu_and_nvme());
  EXPECT_EQ(run.transfers.at(0).end_ns, 400);
  EXPECT_EQ(run.transfers.at(1).end_ns, 400);
}

// x is under way when the op asks for z at 10; z goes before y. With two copies handed to the link at once, y is ahead.
TEST(ClosedFormTest, DemandOvertakesAQueuedPrefetch) {
  for (const std::uint32_t in_flight : {1u, 2u}) {
    Trace trace;
    const TensorId x = trace.add_tensor("x", 100, Role::parameter, true);
    const TensorId y = trace.add_tensor("y", 100, Role::parameter, true);
    const TensorId z = trace.add_tensor("z", 100, Role::parameter, true);
    add_op(trace, 5, {z}, {}, Device::gpu, 10);
    MachineSpec machine = small_machine(1000);
    machine.copies_in_flight = in_flight;
    const SmallRun run =
        run_small(machine, trace, 1, whole_tensors(), [&](const Event& event, const View&, Actions& actions) {
          if (event.kind != EventKind::iteration_begin) return;
          actions.fetch(x);
          actions.fetch(y);
        });
    EXPECT_EQ(run.ops.at(0).start_ns, in_flight == 1 ? 200 : 300);
    EXPECT_EQ(run.result.window.gap_ns, 10);
  }
}

// Two chunks of 100 through staging buffers, store and forward. One buffer: 4 x 100. Two: the chunks overlap, 3 x 100.
TEST(ClosedFormTest, StagingStoresAndForwards) {
  for (const std::uint32_t buffers : {1u, 2u}) {
    MachineSpec machine = small_machine(1000, true);
    machine.links[2] = {"read", 2, 1, byte_per_ns, 0, {}};
    machine.links[3] = {"write", 1, 2, byte_per_ns, 0, {}};
    machine.staging = {1, buffers, 100};
    machine.initial_tier = 2;
    Trace trace;
    const TensorId a = trace.add_tensor("a", 200, Role::parameter, true);
    add_op(trace, 0, {a}, {});
    Layout layout;
    layout.chunk_bytes = 100;
    const SmallRun run = run_small(machine, trace, 1, layout);
    EXPECT_EQ(run.result.first_iteration_ns, buffers == 1 ? 400 : 300);
    EXPECT_EQ(stall(run.result, StallCause::nvme_read) + stall(run.result, StallCause::h2d),
              run.result.first_iteration_ns);
  }
}

// A chunk of 250 by way of two buffers of 50: pieces of 100, 100 and 50, each over both links before the next begins.
TEST(ClosedFormTest, StagingPassesLargeChunksInPieces) {
  MachineSpec machine = small_machine(1000, true);
  machine.links[2] = {"read", 2, 1, byte_per_ns, 0, {}};
  machine.links[3] = {"write", 1, 2, byte_per_ns, 0, {}};
  machine.staging = {1, 2, 50};
  machine.initial_tier = 2;
  Trace trace;
  const TensorId a = trace.add_tensor("a", 250, Role::parameter, true);
  add_op(trace, 0, {a}, {});
  const SmallRun run = run_small(machine, trace, 1, whole_tensors());
  EXPECT_EQ(run.result.first_iteration_ns, 2 * 250);
  ASSERT_EQ(run.transfers.size(), 6U);
  for (const std::size_t last : {4U, 5U}) EXPECT_EQ(run.transfers[last].bytes, 50U);
  EXPECT_EQ(run.transfers[2].start_ns, 200);
  EXPECT_EQ(run.transfers[3].start_ns, 300);
}

// GPU of 100: op 0 uses a (100), op 1 needs b (100). Fetch a 100, op 0 50, then
//   a clean: dropped at once, fetch b 100: op 1 at 250; a dirty: out 100, in 100: op 1 at 350;
//   a dirty, chunks of 50: out 50, then out and in at once 50, in 50: op 1 at 300.
TEST(ClosedFormTest, DirtyAndCleanVictims) {
  const auto start_of_second = [](bool dirty, Bytes chunk_bytes) {
    Trace trace;
    const TensorId a = trace.add_tensor("a", 100, Role::parameter, true);
    const TensorId b = trace.add_tensor("b", 100, Role::parameter, true);
    add_op(trace, 50, {a}, dirty ? std::vector<TensorId>{a} : std::vector<TensorId>{});
    add_op(trace, 50, {b}, {});
    Layout layout;
    layout.chunk_bytes = chunk_bytes;
    return run_small(small_machine(100), trace, 1, layout).ops.at(1).start_ns;
  };
  EXPECT_EQ(start_of_second(false, 0), 250);
  EXPECT_EQ(start_of_second(true, 0), 350);
  EXPECT_EQ(start_of_second(true, 50), 300);
}

// Dead data costs nothing, outputs need no transfer: 50 + 50 although each fills the GPU.
TEST(ClosedFormTest, DeadDataIsDropped) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::activation, false);
  const TensorId b = trace.add_tensor("b", 100, Role::activation, false);
  add_op(trace, 50, {}, {a});
  add_op(trace, 50, {}, {b});
  const SmallRun run = run_small(small_machine(100), trace, 3);
  EXPECT_EQ(run.result.iteration_ns, (std::vector<Nanoseconds>{100, 100, 100}));
  EXPECT_TRUE(run.transfers.empty());
}

// What the program holds until op 1 is over has to leave for its output, and op 2's has room at once.
TEST(ClosedFormTest, WhatIsFreedLaterIsHeld) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::gradient, false);
  const TensorId b = trace.add_tensor("b", 100, Role::activation, false);
  const TensorId c = trace.add_tensor("c", 100, Role::activation, false);
  add_op(trace, 50, {}, {a});
  trace.add_op(trace.ops[0], {}, std::vector{b}, std::vector{a});
  add_op(trace, 50, {}, {c});
  const SmallRun run = run_small(small_machine(100), trace, 3);
  EXPECT_EQ(run.result.iteration_ns, (std::vector<Nanoseconds>{250, 250, 250}));
  ASSERT_EQ(run.transfers.size(), 3U);
  EXPECT_EQ(run.transfers[0].bytes, 100U);
}

// A CPU op frees what the GPU writes anew: the next iteration's op 0 waits for it.
TEST(ClosedFormTest, WhatACpuOpFreesIsMadeAnewAfterIt) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::gradient, false);
  const TensorId x = trace.add_tensor("x", 10, Role::parameter, true);
  add_op(trace, 50, {}, {a});
  add_op(trace, 20, {a}, {});
  Op op = trace.ops[0];
  op.device = Device::cpu;
  op.duration_ns = 300;
  trace.add_op(op, std::vector{x}, std::vector{x}, std::vector{a});
  const SmallRun run = run_small(small_machine(1000), trace, 3);
  EXPECT_EQ(run.ops.at(3).start_ns, 50 + 300);  // the CPU's op waits for the GPU's that makes what it frees
  EXPECT_EQ(run.result.iteration_ns.at(1), 350);
}

// The GPU's op 1 needs what the CPU's op takes 200 ns for; op 0 runs meanwhile: 150 ns of cpu_compute, then the
// fetch.
TEST(ClosedFormTest, CpuOpsRunBesideTheGpu) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 100, Role::parameter, true);
  add_op(trace, 200, {x}, {x}, Device::cpu);
  add_op(trace, 50, {}, {});
  add_op(trace, 10, {x}, {});
  const SmallRun run = run_small(small_machine(1000), trace);
  EXPECT_EQ(run.result.first_iteration_ns, 200 + 100 + 10);
  EXPECT_EQ(stall(run.result, StallCause::cpu_compute), 150);
  EXPECT_EQ(stall(run.result, StallCause::h2d), 100);
  EXPECT_EQ(run.result.window.compute_ns, 60);
}

// The CPU rests for 30 ns between its two ops: of the 180 ns that the GPU waits for it, it computes 50 and 100.
TEST(ClosedFormTest, OfWaitingForTheCpuItsComputingIsCounted) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 100, Role::parameter, true);
  add_op(trace, 100, {x}, {x}, Device::cpu);
  add_op(trace, 100, {x}, {x}, Device::cpu, 30);
  for (Op& op : trace.ops) op.phase = Phase::optimizer;
  add_op(trace, 50, {}, {});
  add_op(trace, 10, {x}, {});
  const SmallRun run = run_small(small_machine(1000), trace);
  EXPECT_EQ(stall(run.result, StallCause::cpu_optimizer), 180);
  EXPECT_EQ(run.result.window.cpu_wait_compute_ns, 150);
}

// Memory that is not page-locked is copied at its own rate, that of the role.
TEST(ClosedFormTest, PageableMemoryIsCopiedMoreSlowly) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 100, Role::parameter, true);
  const TensorId y = trace.add_tensor("y", 100, Role::input, true);
  add_op(trace, 10, {x}, {});
  add_op(trace, 10, {y}, {});
  MachineSpec machine = small_machine(1000);
  machine.links[0].pageable_bandwidth = byte_per_ns / 4;
  Layout layout = whole_tensors();
  layout.copy_memory[static_cast<std::size_t>(Role::input)] = CopyMemory::pageable;
  const SmallRun run = run_small(machine, trace, 1, layout);
  EXPECT_EQ(run.result.first_iteration_ns, 100 + 10 + 400 + 10);
}

// 100 bytes that are 30 outside the GPU: copied as 30, expanded at a byte in 2 ns, and 30 when they leave for the other's
// sake. CPU memory holds both.
TEST(ClosedFormTest, StoredInAnotherFormat) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 100, Role::parameter, true);
  const TensorId y = trace.add_tensor("y", 100, Role::parameter, true);
  trace.tensors[x].stored_bytes = 30;
  trace.tensors[y].stored_bytes = 40;
  add_op(trace, 10, {x}, {x});
  add_op(trace, 10, {y}, {y});
  MachineSpec machine = small_machine(150);
  machine.tiers[1].capacity = 70;
  machine.tiers[0].expand_bandwidth = byte_per_ns / 2;
  const SmallRun run = run_small(machine, trace, 2, whole_tensors());
  ASSERT_TRUE(run.result.fits) << run.result.misfit;
  EXPECT_EQ(run.result.first_iteration_ns, (30 + 200) + 10 + 30 + (40 + 200) + 10);
  EXPECT_EQ(run.result.peak_bytes[0], 100u);
  EXPECT_EQ(run.result.peak_bytes[1], 70u);
  EXPECT_EQ(run.result.window.links[0].bytes, run.result.period * (30u + 40));
}

// Reads alone count: the first misses 100 bytes, the second hits them, the write is none.
TEST(ClosedFormTest, HitRates) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 100, Role::parameter, true);
  const TensorId y = trace.add_tensor("y", 30, Role::activation, false);
  add_op(trace, 10, {x}, {y});
  add_op(trace, 10, {x, y}, {});
  const Counters window = run_small(small_machine(1000), trace).result.window;
  const AccessCounters all = window.all_accesses(), of_parameters = window.accesses_of(Role::parameter);
  EXPECT_EQ(all.accesses, 3U);
  EXPECT_EQ(all.hits, 2U);
  EXPECT_EQ(all.access_bytes, 230U);
  EXPECT_EQ(all.hit_bytes, 130U);
  EXPECT_EQ(of_parameters.accesses, 2U);
  EXPECT_EQ(of_parameters.hits, 1U);
  EXPECT_EQ(of_parameters.access_bytes, 200U);
  EXPECT_EQ(of_parameters.hit_bytes, 100U);
}

// 60 + 70 bytes on a GPU of 100.
TEST(ClosedFormTest, OutOfMemoryNamesTheOpAndTheBytes) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 60, Role::activation, false);
  const TensorId b = trace.add_tensor("b", 70, Role::activation, false);
  add_op(trace, 10, {}, {a, b});
  const RunResult result = run_small(small_machine(100), trace).result;
  EXPECT_FALSE(result.fits);
  EXPECT_EQ(result.misfit_op, "op0");
  EXPECT_EQ(result.misfit_bytes, 30U);
  EXPECT_THAT(result.misfit, HasSubstr("needs 130 B in tier"));
}

// The second iteration finds all that it reads: 150, then 50.
TEST(ClosedFormTest, FirstIterationAgainstTheNext) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::parameter, true);
  add_op(trace, 50, {a}, {});
  EXPECT_EQ(run_small(small_machine(1000), trace, 3).result.iteration_ns, (std::vector<Nanoseconds>{150, 50, 50}));
}

// An op of 100 ns on the communication stream after one of 10, beside one of 60; the last, of 5, reads what it writes.
// 10 + 100 + 5, and 40 of waiting for it. A copy that the last one needs as well, of 130 ns, begins at its issue.
Trace beside_a_kernel(TensorId& sum) {
  Trace trace;
  const TensorId gradient = trace.add_tensor("gradient", 10, Role::gradient, false);
  sum = trace.add_tensor("sum", 10, Role::gradient, false);
  const TensorId other = trace.add_tensor("other", 10, Role::activation, false);
  add_op(trace, 10, {}, {gradient});
  trace.ops[add_op(trace, 100, {gradient}, {sum})].stream = OpStream::communication;
  add_op(trace, 60, {}, {other});
  add_op(trace, 5, {sum}, {});
  return trace;
}

TEST(ClosedFormTest, CommunicationRunsBesideKernels) {
  TensorId sum = none;
  const SmallRun run = run_small(small_machine(1000), beside_a_kernel(sum), 2);
  EXPECT_EQ(run.result.iteration_ns, (std::vector<Nanoseconds>{115, 115}));
  EXPECT_EQ(stall(run.result, StallCause::collective), 40);
  EXPECT_EQ(run.result.window.compute_ns, 75);
  EXPECT_EQ(run.result.window.communication_ns, 100);
}

// What it reads and writes stays until it is over: three tensors of 10 bytes do not fit into 25.
TEST(ClosedFormTest, CommunicationKeepsItsMemory) {
  TensorId sum = none;
  EXPECT_EQ(run_small(small_machine(30), beside_a_kernel(sum)).result.first_iteration_ns, 115);
  const RunResult result = run_small(small_machine(25), beside_a_kernel(sum)).result;
  ASSERT_TRUE(result.fits);  // the third op waits until the gradient is dead
  EXPECT_EQ(result.first_iteration_ns, 10 + 100 + 60 + 5);
  EXPECT_EQ(stall(result, StallCause::memory), 100);
}

// The next iteration's first op does not wait for what it does not touch; the last iteration ends with all of its ops.
TEST(ClosedFormTest, CommunicationReachesIntoTheNextIteration) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 10, Role::gradient, true);
  const TensorId b = trace.add_tensor("b", 10, Role::gradient, true);
  add_op(trace, 50, {b}, {});
  trace.ops[add_op(trace, 40, {}, {a})].stream = OpStream::communication;
  Layout layout = whole_tensors();
  layout.initial.fill(0);
  const RunResult result = run_small(small_machine(1000), trace, 3, layout).result;
  EXPECT_EQ(result.iteration_ns, (std::vector<Nanoseconds>{50, 50, 90}));
}

// What an iteration reports is the difference of two states, of every counter.
TEST(ClosedFormTest, AnIterationIsTheDifferenceOfItsBoundaries) {
  const auto each = [](auto& c, auto&& visit) {
    for (auto* value :
         {&c.time_ns, &c.compute_ns, &c.gap_ns, &c.cpu_compute_ns, &c.communication_ns, &c.cpu_wait_compute_ns}) {
      visit(*value);
    }
    for (auto* value :
         {&c.tensors, &c.tensors_held, &c.completions, &c.refusals, &c.fallback_evictions, &c.evictions}) {
      visit(*value);
    }
    for (auto& role : c.accesses_by_role) {
      for (auto* value : {&role.accesses, &role.hits, &role.access_bytes, &role.hit_bytes}) visit(*value);
    }
    for (auto& value : c.stall_ns) visit(value);
    for (auto& value : c.phase_ns) visit(value);
    for (auto& link : c.links) {
      visit(link.bytes);
      visit(link.busy_ns);
    }
    for (auto& tier : c.tiers) {
      for (auto* value :
           {&tier.occupancy_byte_ns, &tier.free_byte_ns, &tier.scattered_byte_ns, &tier.padding_byte_ns}) {
        visit(*value);
      }
      visit(tier.placeless);
    }
  };
  Counters begin, end;
  int number = 0;
  each(begin, [&](auto& value) { value = static_cast<std::remove_reference_t<decltype(value)>>(++number); });
  number = 0;
  each(end, [&](auto& value) { value = static_cast<std::remove_reference_t<decltype(value)>>(3 * ++number); });
  const Counters difference = end - begin;
  number = 0;
  each(difference, [&](const auto& value) { EXPECT_EQ(static_cast<int>(value), 2 * ++number); });
}

// The last iteration ends with its ops: a prefetch that nobody needs is not waited for.
TEST(ClosedFormTest, TheLastIterationEndsWithItsOps) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 1000, Role::parameter, true);
  add_op(trace, 50, {}, {});
  const SmallRun run =
      run_small(small_machine(2000), trace, 2, whole_tensors(), [&](const Event& event, const View&, Actions& actions) {
        if (event.kind == EventKind::iteration_begin) actions.fetch(a);
      });
  EXPECT_EQ(run.result.iteration_ns, (std::vector<Nanoseconds>{50, 50}));
}

// Both directions at once at 1 B/ns each, PCIe's duplex factor 1.5: a resource of 1.5 B/ns that both use. `a` is dirty
// and leaves in two chunks of 150 while `b` comes: out 150 alone; then out and in at 0.75 B/ns: 200; then in 150 alone.
TEST(ClosedFormTest, DuplexFactor) {
  const auto start_of_second = [](bool duplex) {
    MachineSpec machine = small_machine(300);
    if (duplex) {
      machine.resources = {{"duplex", byte_per_ns / 2 * 3}};
      machine.links[0].uses = machine.links[1].uses = {0};
    }
    Trace trace;
    const TensorId a = trace.add_tensor("a", 300, Role::parameter, true);
    const TensorId b = trace.add_tensor("b", 300, Role::parameter, true);
    add_op(trace, 50, {a}, {a});
    add_op(trace, 50, {b}, {});
    Layout layout;
    layout.chunk_bytes = 150;
    return run_small(machine, trace, 1, layout).ops.at(1).start_ns;
  };
  EXPECT_EQ(start_of_second(false), 300 + 50 + 150 + 150 + 150);
  EXPECT_EQ(start_of_second(true), 300 + 50 + 150 + 200 + 150);
}

// 600 bytes from NVMe in chunks of 100, SSD and PCIe 1 B/ns each, DRAM of D = 1 B/ns.
//   direct (cut-through): one link that uses SSD and PCIe: 600 ns, DRAM or not;
//   two hops through DRAM, store and forward: the first chunk 100, then reads and copies to the GPU run side by side,
//   each with D/2: 5 x 200, then the last chunk alone 100: 1200. With D = 2 B/ns: 100 + 5 x 100 + 100 = 700.
TEST(ClosedFormTest, TwoHopsThroughMemoryAgainstTheDirectPath) {
  const auto iteration_ns = [](bool direct, BytesPerSecond dram) {
    MachineSpec machine = small_machine(1000, true);
    machine.resources = {{"ssd", byte_per_ns}, {"pcie", byte_per_ns}, {"dram", dram}};
    machine.links[0].uses = {1, 2};
    if (direct) {
      machine.links[2].uses = {0, 1};
    } else {
      machine.links.resize(2);
      machine.links.push_back({"read", 2, 1, byte_per_ns, 0, {0, 2}});
      machine.staging = {1, 4, 100};
    }
    machine.initial_tier = 2;
    Trace trace;
    const TensorId a = trace.add_tensor("a", 600, Role::parameter, true);
    add_op(trace, 0, {a}, {});
    Layout layout;
    layout.chunk_bytes = 100;
    return run_small(machine, trace, 1, layout).result.first_iteration_ns;
  };
  EXPECT_EQ(iteration_ns(true, byte_per_ns), 600);
  EXPECT_EQ(iteration_ns(false, byte_per_ns), 1200);
  EXPECT_EQ(iteration_ns(false, 2 * byte_per_ns), 700);
}

// The direct path still occupies what it uses: while it reads 600 bytes of NVMe over PCIe, 300 come from the CPU: half
// of PCIe each until the 300 are over at 600, then the rest of the 600 alone: 900 in all.
TEST(ClosedFormTest, CutThroughOccupiesBothResources) {
  MachineSpec machine = small_machine(1000, true);
  machine.resources = {{"ssd", byte_per_ns}, {"pcie", byte_per_ns}};
  machine.links[0].uses = {1};
  machine.links[2].uses = {0, 1};
  EXPECT_EQ(run_small(machine, two_tensors(300, 600), 1, from_cpu_and_nvme()).result.first_iteration_ns, 900 + 5);
}

// CPU memory in two tiers: 300 bytes pinned at 2 B/ns, the rest pageable at 0.5 B/ns. Of `a` (300) and `b` (200), b
// spills: 150 and 400 ns, side by side. What the CPU computes on is the pinned tier.
TEST(ClosedFormTest, PageableMemoryIsAFurtherTier) {
  MachineSpec machine = small_machine(1000);
  machine.tiers[1].capacity = 300;
  machine.tiers.push_back({"pageable", TierKind::cpu, 1000, 1, {}});
  machine.links[0].bandwidth = 2 * byte_per_ns;
  machine.links.push_back({"h2d_pageable", 2, 0, byte_per_ns / 2, 0, {}});
  machine.links.push_back({"d2h_pageable", 0, 2, byte_per_ns / 2, 0, {}});
  EXPECT_EQ(machine.tier_of(Device::cpu), 1);
  const SmallRun run = run_small(machine, two_tensors(300, 200));
  EXPECT_EQ(run.transfers.at(0).end_ns, 150);
  EXPECT_EQ(run.transfers.at(1).end_ns, 400);
  EXPECT_EQ(run.result.first_iteration_ns, 405);
  EXPECT_EQ(stall(run.result, StallCause::h2d), 400);
}

// Fresh memory for each copy into the GPU: 50 ns a call, and 2 B/ns of the size rounded up to 128: 50 + 64 + 100.
TEST(ClosedFormTest, AllocationIsPaidWhereMemoryIsTakenAfresh) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::parameter, true);
  add_op(trace, 10, {a}, {});
  MachineSpec machine = small_machine(1000);
  machine.tiers[0].allocation = {.per_call_ns = 50, .bandwidth = 2 * byte_per_ns, .power_of_two = true};
  EXPECT_EQ(run_small(machine, trace).result.first_iteration_ns, 110);
  Layout layout = whole_tensors();
  layout.allocate_each[0] = true;
  const SmallRun run = run_small(machine, trace, 1, layout);
  EXPECT_EQ(run.result.first_iteration_ns, 224);
  EXPECT_EQ(stall(run.result, StallCause::h2d), 214);
}

// Chunks of 50 at 1 B/ns, latency 100, depth 4: 100 bytes flow in a latency, so the link gets the first chunk and two
// behind it, and the fourth at 150 when the first is over: 100 + 3 x 50, then 150 + 100 + 50. Depth 1: 4 x 150.
TEST(ClosedFormTest, AQueueIsKeptAsFullAsTheLatencyNeeds) {
  const auto iteration_ns = [](std::uint32_t depth) {
    MachineSpec machine = small_machine(1000);
    machine.links[0].latency_ns = 100;
    machine.links[0].queue_depth = depth;
    Trace trace;
    const TensorId a = trace.add_tensor("a", 200, Role::parameter, true);
    add_op(trace, 0, {a}, {});
    Layout layout;
    layout.chunk_bytes = 50;
    return run_small(machine, trace, 1, layout).result.first_iteration_ns;
  };
  EXPECT_EQ(iteration_ns(4), 300);
  EXPECT_EQ(iteration_ns(1), 600);
}

// CPU Adam beside a copy, DRAM of 1.5 B/ns: the update of 100 ns has 200 bytes of traffic, 2 B/ns, so it alone takes
// 200 / 1.5 = 133.3 ns; beside the GPU's fetch of 60 bytes at 1 B/ns they have 0.75 each: the fetch takes 80 ns, in
// which the update moves 60; its other 140 take 93.3: 174 ns.
TEST(ClosedFormTest, CpuAdamAndCopiesShareMemory) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 100, Role::parameter, true);
  const TensorId y = trace.add_tensor("y", 60, Role::parameter, true);
  const OpIndex update = add_op(trace, 100, {x}, {x}, Device::cpu);
  trace.ops[update].bytes = 200;
  add_op(trace, 10, {y}, {});
  MachineSpec machine = small_machine(1000);
  machine.resources = {{"dram", byte_per_ns / 2 * 3}};
  machine.links[0].uses = {0};
  machine.lane_uses[1] = {0};
  const SmallRun run = run_small(machine, trace);
  EXPECT_EQ(run.transfers.at(0).end_ns, 80);
  EXPECT_EQ(run.ops.at(1).end_ns, 174);
}

}  // namespace
}  // namespace tencache
