// Cases whose answer is a formula, written above each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/small_cases.h"

namespace tencache {
namespace {

using testing::HasSubstr;

Nanoseconds stall(const RunResult& result, StallCause cause) {
  return result.window.stall_ns[static_cast<std::size_t>(cause)];
}

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

// The GPU's op 1 needs what the CPU's op takes 200 ns for; op 0 runs meanwhile: 150 ns of cpu_optimizer, then the
// fetch.
TEST(ClosedFormTest, CpuOpsRunBesideTheGpu) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 100, Role::parameter, true);
  add_op(trace, 200, {x}, {x}, Device::cpu);
  add_op(trace, 50, {}, {});
  add_op(trace, 10, {x}, {});
  const SmallRun run = run_small(small_machine(1000), trace);
  EXPECT_EQ(run.result.first_iteration_ns, 200 + 100 + 10);
  EXPECT_EQ(stall(run.result, StallCause::cpu_optimizer), 150);
  EXPECT_EQ(stall(run.result, StallCause::h2d), 100);
  EXPECT_EQ(run.result.window.compute_ns, 60);
}

// Reads alone count: the first misses 100 bytes, the second hits them, the write is none.
TEST(ClosedFormTest, HitRates) {
  Trace trace;
  const TensorId x = trace.add_tensor("x", 100, Role::parameter, true);
  const TensorId y = trace.add_tensor("y", 30, Role::activation, false);
  add_op(trace, 10, {x}, {y});
  add_op(trace, 10, {x, y}, {});
  const Counters window = run_small(small_machine(1000), trace).result.window;
  EXPECT_EQ(window.accesses, 3U);
  EXPECT_EQ(window.hits, 2U);
  EXPECT_EQ(window.access_bytes, 230U);
  EXPECT_EQ(window.hit_bytes, 130U);
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
  EXPECT_THAT(result.misfit, HasSubstr("130 bytes"));
}

// The second iteration finds all that it reads: 150, then 50.
TEST(ClosedFormTest, FirstIterationAgainstTheNext) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 100, Role::parameter, true);
  add_op(trace, 50, {a}, {});
  EXPECT_EQ(run_small(small_machine(1000), trace, 3).result.iteration_ns, (std::vector<Nanoseconds>{150, 50, 50}));
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

}  // namespace
}  // namespace tencache
