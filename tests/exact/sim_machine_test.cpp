#include <gtest/gtest.h>

#include "tests/small_cases.h"

namespace tencache {
namespace {

CopyCommand copy(LinkId link, Bytes bytes) {
  CopyCommand command;
  command.link = link;
  command.bytes = bytes;
  return command;
}

Completion next(SimMachine& machine) {
  Completion completion;
  EXPECT_TRUE(machine.wait(completion));
  return completion;
}

TEST(SimMachineTest, WorkBeginsWhenItIsSubmitted) {
  const MachineSpec spec = small_machine(1000);
  SimMachine machine(spec);
  const Fence op = machine.execute({.lane = 0, .op = 0, .idle = false, .duration_ns = 40, .uses = {}}, 1);
  EXPECT_EQ(next(machine).fence, op);
  const Fence copied = machine.submit(copy(0, 100), 2);
  const Completion completion = next(machine);
  EXPECT_EQ(completion.fence, copied);
  EXPECT_EQ(completion.start_ns, 40);
  EXPECT_EQ(completion.end_ns, 140);
  Completion none_left;
  EXPECT_FALSE(machine.wait(none_left));
}

// Link 0 alone until 50; then both at half rate: its other 50 bytes end at 150, when 50 of link 1's 100 are left: 200.
TEST(SimMachineTest, WorkThatComesLaterSlowsOthersDown) {
  MachineSpec spec = small_machine(1000);
  spec.resources = {{"bus", byte_per_ns}};
  spec.links[0].uses = spec.links[1].uses = {0};
  SimMachine machine(spec);
  const Fence op = machine.execute({.lane = 0, .op = 0, .idle = false, .duration_ns = 50, .uses = {}}, 1);
  const Fence first = machine.submit(copy(0, 100), 2);
  EXPECT_EQ(next(machine).fence, op);
  const Fence second = machine.submit(copy(1, 100), 3);
  Completion completion = next(machine);
  EXPECT_EQ(completion.fence, first);
  EXPECT_EQ(completion.end_ns, 150);
  completion = next(machine);
  EXPECT_EQ(completion.fence, second);
  EXPECT_EQ(completion.end_ns, 200);
}

// Three copies of 40 years each: the third would end after 120.
TEST(SimMachineTest, NoClockPassesAHundredYears) {
  MachineSpec spec = small_machine(1000);
  spec.name = "box";
  spec.links[0].bandwidth = 1;
  SimMachine machine(spec);
  for (Tag tag = 1; tag <= 3; ++tag) machine.submit(copy(0, 40ull * 31'557'600), tag);
  next(machine);
  EXPECT_EQ(next(machine).end_ns, 80 * (31'557'600 * second_ns));
  try {
    Completion third;
    machine.wait(third);
    FAIL();
  } catch (const TooSlow& error) {
    EXPECT_EQ(error.what(), "machine 'box': the simulated clock passes a hundred years; check the slowest, link '" +
                                spec.links[0].name + "' with 1 B/s, then the trace's sizes and durations");
  }
}

TEST(SimMachineTest, CancelEndsACopyAtOnce) {
  const MachineSpec spec = small_machine(1000);
  SimMachine machine(spec);
  const Fence op = machine.execute({.lane = 0, .op = 0, .idle = false, .duration_ns = 30, .uses = {}}, 1);
  const Fence first = machine.submit(copy(0, 100), 2);
  const Fence second = machine.submit(copy(0, 10), 3);
  EXPECT_EQ(next(machine).fence, op);
  machine.cancel(first);
  Completion completion = next(machine);
  EXPECT_EQ(completion.fence, first);
  EXPECT_EQ(completion.status, CompletionStatus::cancelled);
  EXPECT_EQ(completion.end_ns, 30);
  completion = next(machine);
  EXPECT_EQ(completion.fence, second);
  EXPECT_EQ(completion.start_ns, 30);
  EXPECT_EQ(completion.end_ns, 40);
}

TEST(SimMachineTest, EqualTimesComeInOrderOfSubmission) {
  const MachineSpec spec = small_machine(1000);
  SimMachine machine(spec);
  const Fence first = machine.submit(copy(1, 100), 1);
  const Fence second = machine.submit(copy(0, 100), 2);
  const Fence third = machine.execute({.lane = 0, .op = 0, .idle = false, .duration_ns = 100, .uses = {}}, 3);
  EXPECT_EQ(next(machine).fence, first);
  EXPECT_EQ(next(machine).fence, second);
  EXPECT_EQ(next(machine).fence, third);
}

std::vector<Nanoseconds> ends_of(SimMachine& machine, std::size_t count) {
  std::vector<Nanoseconds> ends;
  for (std::size_t i = 0; i < count; ++i) ends.push_back(next(machine).end_ns);
  return ends;
}

// Copies of 10 bytes at 1 B/ns, latency 30. Depth 1: 40 each. Depth 2: the second's latency passes beside the first's,
// the third's begins when the first is over, at 40: 40, 50, 40 + 30 + 10, 50 + 30 + 10. Depth 4: all latencies at once.
TEST(SimMachineTest, LatenciesOfAQueueOverlap) {
  const auto ends_with = [](std::uint32_t depth) {
    MachineSpec spec = small_machine(1000);
    spec.links[0].latency_ns = 30;
    spec.links[0].queue_depth = depth;
    SimMachine machine(spec);
    for (Tag tag = 1; tag <= 4; ++tag) machine.submit(copy(0, 10), tag);
    return ends_of(machine, 4);
  };
  EXPECT_EQ(ends_with(1), (std::vector<Nanoseconds>{40, 80, 120, 160}));
  EXPECT_EQ(ends_with(2), (std::vector<Nanoseconds>{40, 50, 80, 90}));
  EXPECT_EQ(ends_with(4), (std::vector<Nanoseconds>{40, 50, 60, 70}));
}

// Four devices of 1 B/ns each, stripes of 100 bytes: 100 bytes reach one device, 150 two, 1000 all four.
TEST(SimMachineTest, ACopyReachesAsManyDevicesAsItHasStripes) {
  MachineSpec spec = small_machine(1000);
  spec.links[0].bandwidth = 4 * byte_per_ns;
  spec.links[0].devices = 4;
  spec.links[0].stripe_bytes = 100;
  SimMachine machine(spec);
  for (const Bytes bytes : {100U, 150U, 1000U}) machine.submit(copy(0, bytes), 1);
  EXPECT_EQ(ends_of(machine, 3), (std::vector<Nanoseconds>{100, 100 + 75, 175 + 250}));
}

// 1 B/ns for 100 bytes, then 0.25 B/ns: 150 bytes take 100 + 50 / 0.25 = 300 ns. In the pause until 500 the credit
// grows to 200 x 0.25 = 50 bytes: 60 bytes then take 50 + 10 / 0.25 = 90 ns.
TEST(SimMachineTest, AfterABurstTheSustainedRate) {
  MachineSpec spec = small_machine(1000);
  spec.links[0].sustained_bandwidth = byte_per_ns / 4;
  spec.links[0].burst_bytes = 100;
  SimMachine machine(spec);
  machine.execute({.lane = 0, .op = 0, .idle = false, .duration_ns = 500, .uses = {}}, 1);
  machine.submit(copy(0, 150), 2);
  EXPECT_EQ(ends_of(machine, 2), (std::vector<Nanoseconds>{300, 500}));
  machine.submit(copy(0, 60), 3);
  EXPECT_EQ(next(machine).end_ns, 590);
}

// The state tells a full credit from an empty one.
TEST(SimMachineTest, TheStateKnowsTheCredit) {
  MachineSpec spec = small_machine(1000);
  spec.links[0].sustained_bandwidth = byte_per_ns / 4;
  spec.links[0].burst_bytes = 100;
  SimMachine machine(spec);
  const std::uint64_t full = machine.state();
  machine.submit(copy(0, 100), 1);
  next(machine);
  EXPECT_NE(machine.state(), full);
  machine.execute({.lane = 0, .op = 0, .idle = true, .duration_ns = 400, .uses = {}}, 2);
  next(machine);
  EXPECT_EQ(machine.state(), full);
}

// DRAM of 1.5 B/ns. The CPU's op wants 1 B/ns for its 100 ns, the copy 1 B/ns for its 150 bytes: 0.75 each. The op ends
// at 100 / 0.75 = 133.3 -> 134 ns; the copy has 150 - 0.75 x 134 = 49.5 bytes left: 134 + 49.5 -> 184 ns.
TEST(SimMachineTest, OpsAndCopiesShareWhatBothOccupy) {
  MachineSpec spec = small_machine(1000);
  spec.resources = {{"dram", byte_per_ns / 2 * 3}};
  spec.links[0].uses = {0};
  spec.lane_uses[1] = {0};
  SimMachine machine(spec);
  machine.execute({.lane = 1, .op = 0, .idle = false, .duration_ns = 100, .bytes = 100, .uses = {}}, 1);
  machine.submit(copy(0, 150), 2);
  EXPECT_EQ(ends_of(machine, 2), (std::vector<Nanoseconds>{134, 184}));
}

// Alone an op takes its duration to the nanosecond, though 7 bytes in 3 ns are no whole rate; so does one whose traffic
// is not known, beside a copy that has all of the resource.
TEST(SimMachineTest, AnOpAloneTakesItsDuration) {
  MachineSpec spec = small_machine(1000);
  spec.resources = {{"dram", 10 * byte_per_ns}};
  spec.links[0].uses = {0};
  spec.lane_uses[1] = {0};
  SimMachine machine(spec);
  machine.execute({.lane = 1, .op = 0, .idle = false, .duration_ns = 3, .bytes = 7, .uses = {}}, 1);
  EXPECT_EQ(next(machine).end_ns, 3);
  machine.execute({.lane = 1, .op = 0, .idle = false, .duration_ns = 50, .uses = {}}, 2);
  machine.submit(copy(0, 20), 3);
  EXPECT_EQ(ends_of(machine, 2), (std::vector<Nanoseconds>{23, 53}));
}

// A link that lists a resource twice takes two shares: DRAM of 1.5 B/ns lets it have 0.75.
TEST(SimMachineTest, AResourceListedTwiceIsTakenTwice) {
  MachineSpec spec = small_machine(1000);
  spec.resources = {{"dram", byte_per_ns / 2 * 3}};
  spec.links[0].uses = {0, 0};
  SimMachine machine(spec);
  machine.submit(copy(0, 300), 1);
  EXPECT_EQ(next(machine).end_ns, 400);
}

// Two copies cost the host 2 x 7 before the lane's next op, and none before the one after it; the other lane is free of
// it.
TEST(SimMachineTest, WhatCopiesCostTheHostComesBeforeTheNextOp) {
  MachineSpec spec = small_machine(1000);
  spec.host.per_transfer_ns = 7;
  SimMachine machine(spec);
  const std::uint64_t before = machine.state();
  machine.submit(copy(0, 10), 1);
  machine.submit(copy(1, 10), 2);
  EXPECT_EQ(next(machine).end_ns, 10);
  EXPECT_EQ(next(machine).end_ns, 10);
  EXPECT_NE(machine.state(), before);
  machine.execute({.lane = 1, .op = 0, .idle = false, .duration_ns = 5, .uses = {}}, 3);
  EXPECT_EQ(next(machine).end_ns, 15);
  machine.execute({.lane = 0, .op = 1, .idle = false, .duration_ns = 20, .uses = {}}, 4);
  EXPECT_EQ(next(machine).end_ns, 15 + 20 + 14);
  EXPECT_EQ(machine.state(), before);
  machine.execute({.lane = 0, .op = 2, .idle = false, .duration_ns = 20, .uses = {}}, 5);
  EXPECT_EQ(next(machine).end_ns, 49 + 20);
}

// Before the data: 5 ns of taking memory and 30 of latency.
TEST(SimMachineTest, SetupComesBeforeTheData) {
  MachineSpec spec = small_machine(1000);
  spec.links[0].latency_ns = 30;
  SimMachine machine(spec);
  CopyCommand command = copy(0, 10);
  command.setup_ns = 5;
  machine.submit(command, 1);
  EXPECT_EQ(next(machine).end_ns, 45);
}

}  // namespace
}  // namespace tencache
