// zero-infinity on one small trace whose timeline follows from the rules at the head of policies/zero_infinity.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "policies/registry.h"
#include "sim/simulate.h"
#include "tests/golden/golden_run.h"
#include "tests/small_cases.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;

// Nine ops in three modules: f0 f1 f2 (150 ns each), b2 b1 b0 (300), and on the CPU u0 u1 u2 (200). Module i has a
// parameter p, a gradient g and a state s of 100 bytes: 25 elements of fp32. f(i) and b(i) read p(i), b(i) writes g(i),
// u(i) reads p(i), g(i), s(i) and writes p(i), s(i).
Trace three_modules() {
  Trace trace;
  trace.header.precision = "fp32";
  std::array<TensorId, 3> p{}, g{}, s{};
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string number = std::to_string(i);
    p[i] = trace.add_tensor("p" + number, 100, Role::parameter, true);
    g[i] = trace.add_tensor("g" + number, 100, Role::gradient, false);
    s[i] = trace.add_tensor("s" + number, 100, Role::optimizer_state, true);
  }
  const auto add = [&](char kind, std::size_t i, Phase phase, Nanoseconds duration_ns, std::vector<TensorId> reads,
                       std::vector<TensorId> writes) {
    Op op;
    op.name = trace.names.intern(kind + std::to_string(i));
    op.module = phase == Phase::optimizer ? 0 : trace.names.intern("module" + std::to_string(i));
    op.phase = phase;
    op.placeable = phase == Phase::optimizer;
    op.group = phase == Phase::optimizer ? static_cast<std::int32_t>(i) : -1;
    op.duration_ns = duration_ns;
    trace.add_op(op, reads, writes);
  };
  for (std::size_t i = 0; i < 3; ++i) add('f', i, Phase::forward, 150, {p[i]}, {});
  for (std::size_t i = 3; i-- > 0;) add('b', i, Phase::backward, 300, {p[i]}, {g[i]});
  for (std::size_t i = 0; i < 3; ++i) add('u', i, Phase::optimizer, 50, {p[i], g[i], s[i]}, {p[i], s[i]});
  return trace;
}

// Links move a byte in a nanosecond. The 500 bytes of an update take the CPU 200 ns (500 / (28 x 0.089285)).
MachineSpec machine_of(Bytes gpu_bytes) {
  MachineSpec machine = small_machine(gpu_bytes);
  machine.tiers.push_back({"nvme", TierKind::nvme, 1'000'000, 1, {}});
  machine.links.push_back({"read", 2, 1, byte_per_ns, 0, {}});
  machine.links.push_back({"write", 1, 2, byte_per_ns, 0, {}});
  machine.staging = {.tier = 1, .count = 4, .bytes = 100};
  machine.cpu.adam_parameters_per_second = 89'285'000;
  machine.validate();
  return machine;
}

// Its rules alone: nothing persists, nothing is kept for reuse, a bucket holds one gradient, no prefetch.
Settings bare() {
  return {{"persistence_threshold", "0"}, {"max_reuse_distance", "0"}, {"reduce_bucket", "25"},
          {"prefetch_bucket", "0"},       {"minimum_swap", "1"},       {"max_in_cpu", "0"}};
}

struct Steps {
  RunResult result;
  std::vector<std::string> ops, copies;  // of the last iteration: "name start-end", times from the iteration's start

  Nanoseconds stall(StallCause cause) const { return result.window.stall_ns[cause]; }
};

Steps replay(const Settings& changes, std::uint64_t iterations, Bytes gpu_bytes = 1000,
             const Trace& trace = three_modules(), const Staging& staging = {.tier = 1, .count = 4, .bytes = 100}) {
  MachineSpec machine = machine_of(gpu_bytes);
  machine.staging = staging;
  Settings settings = bare();
  for (const auto& [option, value] : changes) settings[option] = value;
  const MadePolicy made = make_policy("zero-infinity", settings);
  const Program program = lower(trace, *made.policy, machine);
  program.trace.validate();
  Timeline timeline;
  Steps steps;
  steps.result = simulate(program, machine, *made.policy, {.max_iterations = iterations, .until_steady = false},
                          {.timeline = &timeline, .log = nullptr, .on_iteration = {}});
  Nanoseconds begin_ns = 0;
  for (std::size_t i = 0; i + 1 < steps.result.iteration_ns.size(); ++i) begin_ns += steps.result.iteration_ns[i];
  for (const Span& span : timeline.spans) {
    const std::string times =
        " " + std::to_string(span.start_ns - begin_ns) + "-" + std::to_string(span.end_ns - begin_ns);
    if (span.start_ns < begin_ns) continue;
    if (span.kind == SpanKind::op) steps.ops.push_back(program.trace.name(program.trace.ops[span.op]) + times);
    if (span.kind == SpanKind::transfer) {
      steps.copies.push_back(machine.links[span.lane - first_link_lane].name + " " +
                             program.trace.name(program.trace.tensors[span.tensor]) + times);
    }
  }
  return steps;
}

std::string refusal_of(const Settings& changes) {
  try {
    replay(changes, 1);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

// The first iteration only records: each module waits 100 ns for its parameter, which leaves at the module's end, also
// p2 between f2 and b2. With a bucket of one, g2 leaves when g1 is there, at 1550; g1 and g0 at the end of backward,
// 1950, g0 first because u0 waits for it: until 2050. The step is over when all updates are.
TEST(ZeroInfinityTest, TheFirstIterationRecords) {
  const Steps first = replay({{"prefetch_bucket", "25"}}, 1);
  EXPECT_THAT(first.ops, ElementsAre("f0 100-250", "f1 350-500", "f2 600-750", "b2 850-1150", "b1 1250-1550",
                                     "b0 1650-1950", "u0 2050-2250", "u1 2250-2450", "u2 2450-2650"));
  EXPECT_THAT(first.copies,
              ElementsAre("h2d p0 0-100", "h2d p1 250-350", "h2d p2 500-600", "h2d p2 750-850", "h2d p1 1150-1250",
                          "h2d p0 1550-1650", "d2h g2 1550-1650", "d2h g0 1950-2050", "d2h g1 2050-2150"));
  EXPECT_EQ(first.result.iteration_ns.at(0), 2650);
}

// From the second on a module prefetches the next 25 elements once its own wait is over, never before: f0 waits for p0,
// then p1 comes while f0 runs, and p2 while f1 runs. While f2 runs the queue's next is p2 for b2: it is there and costs
// nothing, but is now fetched for b2, so that f2's end does not release it; then p1 (released at f1's end) comes again.
// b2 fetches p0, b1 and b0 find the queue empty.
TEST(ZeroInfinityTest, PrefetchFollowsTheRecordedOrder) {
  const Steps second = replay({{"prefetch_bucket", "25"}}, 2);
  EXPECT_THAT(second.ops, ElementsAre("f0 100-250", "f1 250-400", "f2 400-550", "b2 550-850", "b1 850-1150",
                                      "b0 1150-1450", "u0 1550-1750", "u1 1750-1950", "u2 1950-2150"));
  EXPECT_THAT(second.copies, ElementsAre("h2d p0 0-100", "h2d p1 100-200", "h2d p2 250-350", "h2d p1 400-500",
                                         "h2d p0 550-650", "d2h g2 1150-1250", "d2h g0 1450-1550", "d2h g1 1550-1650"));
  EXPECT_EQ(second.result.iteration_ns.at(1), 2150);
  EXPECT_EQ(second.stall(StallCause::h2d), 100);
}

// min(max_live - live, prefetch_bucket). With room for two parameters all goes as above but for b2: p2 and p1 are live
// then, and p0 waits until p2 is released at its end. With room for one, which the running module has, nothing is
// prefetched.
TEST(ZeroInfinityTest, MaxLiveBoundsPrefetch) {
  const Steps two = replay({{"prefetch_bucket", "1000"}, {"max_live", "50"}}, 2);
  EXPECT_THAT(two.copies,
              IsSupersetOf({"h2d p0 0-100", "h2d p1 100-200", "h2d p2 250-350", "h2d p1 400-500", "h2d p0 850-950"}));
  const Steps one = replay({{"prefetch_bucket", "1000"}, {"max_live", "25"}}, 2);
  EXPECT_THAT(one.ops, ElementsAre("f0 100-250", "f1 350-500", "f2 600-750", "b2 850-1150", "b1 1250-1550",
                                   "b0 1650-1950", "u0 2050-2250", "u1 2250-2450", "u2 2450-2650"));
}

// Used again within max_reuse_distance: from f2's end to b2 there are 0 elements, from f1's to b1 50 (those of f2 and
// b2), from f0's to b0 100. At 51 the GPU keeps p2 and p1.
TEST(ZeroInfinityTest, ReusedSoonStays) {
  const Steps kept = replay({{"max_reuse_distance", "51"}}, 2);
  EXPECT_THAT(kept.ops, ElementsAre("f0 100-250", "f1 350-500", "f2 600-750", "b2 750-1050", "b1 1050-1350",
                                    "b0 1450-1750", "u0 1850-2050", "u1 2050-2250", "u2 2250-2450"));
}

// Parameters of 25 elements persist: they come once, and again after each update; p2, the last, while f0 runs.
TEST(ZeroInfinityTest, SmallParametersPersist) {
  const Steps persisted = replay({{"persistence_threshold", "25"}}, 2);
  EXPECT_THAT(persisted.ops, ElementsAre("f0 0-150", "f1 150-300", "f2 300-450", "b2 450-750", "b1 750-1050",
                                         "b0 1050-1350", "u0 1450-1650", "u1 1650-1850", "u2 1850-2050"));
  EXPECT_THAT(persisted.copies, ElementsAre("h2d p2 0-100", "d2h g2 1050-1150", "d2h g0 1350-1450", "d2h g1 1450-1550",
                                            "h2d p0 1650-1750", "h2d p1 1850-1950"));
}

// A bucket of all gradients lets go at the end of the backward pass only.
TEST(ZeroInfinityTest, GradientsGatherInABucket) {
  const Steps gathered = replay({{"prefetch_bucket", "25"}, {"reduce_bucket", "75"}}, 2);
  EXPECT_THAT(gathered.copies, IsSupersetOf({"d2h g0 1450-1550", "d2h g2 1550-1650", "d2h g1 1650-1750"}));
}

// The GPU holds 150 bytes: b2 needs p2 and g2. Nothing but offloaded tensors may go, and those are in use.
TEST(ZeroInfinityTest, WhatDoesNotFitIsOutOfMemory) {
  const Steps none_fits = replay({}, 2, 150);
  EXPECT_FALSE(none_fits.result.fits);
  EXPECT_EQ(none_fits.result.misfit_op, "b2");
  EXPECT_EQ(none_fits.result.misfit_bytes, 50U);
  EXPECT_TRUE(replay({}, 2, 200).result.fits);
}

// States on NVMe, one update a sub-group; gradients follow them there through CPU memory. Backward ends at 1450 as
// above. u0's sub-group is s0 and g0: s0 is read from 1450 to 1550, g0 comes in that time and is rescued from going on
// to NVMe. g1 arrives at 1650 and goes on; the step begins when it has been written, at 1750.
//   u0 1750-1950, then s0 is written.
//   u1: g1 and s1 are read one after the other meanwhile, until 2150.
//   u2 2550: after u1, at 2350, g2 and s2 are read while s1 is written.
TEST(ZeroInfinityTest, StatesOnNvmeOneSubGroupAfterTheOther) {
  const Steps plain = replay({{"prefetch_bucket", "25"}, {"offload_optimizer", "nvme"}}, 2);
  EXPECT_THAT(plain.ops, IsSupersetOf({"b0 1150-1450", "u0 1750-1950", "u1 2150-2350", "u2 2550-2750"}));
  EXPECT_THAT(plain.copies, IsSupersetOf({"write g2 1250-1350", "read s0 1450-1550", "write g1 1650-1750",
                                          "write s0 1950-2050", "read s1 2050-2150", "write s1 2350-2450"}));
}

// Read and written ahead: when u0 has begun, g1 and s1 are read 1750-1950, when u1 has begun, g2 and s2 1950-2150. u2
// waits for the write of s0 only, which is over. The updates run back to back.
TEST(ZeroInfinityTest, StatesOnNvmePipelined) {
  const Steps pipelined = replay({{"prefetch_bucket", "25"},
                                  {"offload_optimizer", "nvme"},
                                  {"pipeline_read", "true"},
                                  {"pipeline_write", "true"},
                                  {"optimizer_buffer_count", "12"}},
                                 2);
  EXPECT_THAT(pipelined.ops, IsSupersetOf({"b0 1150-1450", "u0 1750-1950", "u1 1950-2150", "u2 2150-2350"}));
  EXPECT_THAT(pipelined.copies,
              IsSupersetOf({"read s0 1450-1550", "read s1 1850-1950", "write s0 1950-2050", "write s1 2150-2250"}));
}

// Sub-groups of 50 elements: u0 and u1 are one, u2 the other. Both states are read before u0.
TEST(ZeroInfinityTest, SubGroupsByCount) {
  const Steps counted = replay(
      {{"prefetch_bucket", "25"}, {"offload_optimizer", "nvme"}, {"sub_groups", "count"}, {"sub_group", "50"}}, 2);
  EXPECT_THAT(counted.ops, IsSupersetOf({"u0 1650-1850", "u1 1850-2050"}));
  EXPECT_THAT(counted.copies,
              IsSupersetOf({"read s0 1450-1550", "read s1 1550-1650", "write s0 2050-2150", "write s1 2150-2250"}));
}

// Parameters on NVMe: f0 waits for p0's read and its copy. Prefetching stops at p1, which is on NVMe; it is read ahead
// into a buffer meanwhile (one: nothing else is on its way to the GPU), and f1 waits for its copy alone; so does f2.
// While f2 runs, p1 is read again, which f1's end released; b2 finds it in its buffer, prefetches it, and p0 is read
// ahead; b1 does the same with p0.
TEST(ZeroInfinityTest, ParametersOnNvme) {
  const Steps far = replay({{"prefetch_bucket", "25"}, {"offload_param", "nvme"}}, 2);
  EXPECT_THAT(far.ops,
              IsSupersetOf({"f0 200-350", "f1 450-600", "f2 700-850", "b2 850-1150", "b1 1150-1450", "b0 1450-1750"}));
  EXPECT_THAT(far.copies, IsSupersetOf({"read p0 0-100", "h2d p0 100-200", "read p1 200-300", "h2d p1 350-450",
                                        "read p2 450-550", "h2d p2 600-700", "read p1 700-800", "h2d p1 850-950",
                                        "read p0 850-950", "h2d p0 1150-1250"}));
}

// One buffer of half a parameter: the second half is read when the first has left it.
TEST(ZeroInfinityTest, ParametersLargerThanAllStagingBuffersComeInParts) {
  const Steps parts =
      replay({{"offload_param", "nvme"}}, 2, 1000, three_modules(), {.tier = 1, .count = 1, .bytes = 50});
  EXPECT_THAT(parts.copies, IsSupersetOf({"read p0 0-50", "h2d p0 50-100", "read p0 100-150", "h2d p0 150-200"}));
  EXPECT_THAT(parts.ops, Contains("f0 200-350"));
}

// Of the 600 bytes that start in CPU memory 450 have room; the others come from NVMe, in parts.
TEST(ZeroInfinityTest, WhatSpillsComesThroughStagingBuffersInParts) {
  MachineSpec machine = machine_of(1000);
  machine.tiers[1].capacity = 450;
  machine.staging = {.tier = 1, .count = 1, .bytes = 50};
  const MadePolicy made = make_policy("zero-infinity", bare());
  const Program program = lower(three_modules(), *made.policy, machine);
  const RunResult result = simulate(program, machine, *made.policy, {.max_iterations = 2, .until_steady = false});
  EXPECT_TRUE(result.fits) << result.misfit;
  EXPECT_GT(result.window.links[2].bytes, 0u);  // read
}

// All of it: parameters, gradients and states on NVMe.
TEST(ZeroInfinityTest, Timeline) {
  Settings settings = bare();
  settings["prefetch_bucket"] = "25";
  settings["offload_optimizer"] = settings["offload_param"] = "nvme";
  settings["sub_groups"] = "trace";
  settings["buffer_size"] = "25";
  const GoldenRun run = run_golden("zero-infinity", settings, three_modules(), machine_of(1000));
  EXPECT_TRUE(run.result.steady);
  expect_golden("zero_infinity", run.text);
}

TEST(ZeroInfinityTest, TooFewBuffersAreNamed) {
  EXPECT_THAT(refusal_of({{"offload_optimizer", "nvme"}, {"pipeline_read", "true"}}),
              AllOf(HasSubstr("optimizer_buffer_count=4"), HasSubstr("8 are in use")));
  EXPECT_THAT(refusal_of({{"offload_optimizer", "nvme"},
                          {"pipeline_read", "true"},
                          {"pipeline_write", "true"},
                          {"optimizer_buffer_count", "11"}}),
              HasSubstr("12 are in use"));
  EXPECT_THAT(refusal_of({{"offload_param", "nvme"}, {"buffer_size", "24"}}),
              AllOf(HasSubstr("'p0'"), HasSubstr("raise buffer_size")));
  EXPECT_THAT(refusal_of({{"offload_param", "nvme"}, {"buffer_count", "0"}}),
              AllOf(HasSubstr("'p0'"), HasSubstr("raise buffer_count")));
}

}  // namespace
}  // namespace tencache
