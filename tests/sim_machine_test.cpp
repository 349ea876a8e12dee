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

TEST(SimMachineTest, WorkWaitsForItsFence) {
  const MachineSpec spec = small_machine(1000);
  SimMachine machine(spec);
  const Fence op = machine.execute({.lane = 0, .op = 0, .idle = false, .duration_ns = 40, .uses = {}}, 0, 1);
  EXPECT_EQ(machine.last_of_lane(0), op);
  const Fence after = machine.submit(copy(0, 100), op, 2);
  EXPECT_EQ(next(machine).fence, op);
  const Completion completion = next(machine);
  EXPECT_EQ(completion.fence, after);
  EXPECT_EQ(completion.start_ns, 40);
  EXPECT_EQ(completion.end_ns, 140);
  EXPECT_EQ(machine.last_of_lane(0), 0U);
  Completion none_left;
  EXPECT_FALSE(machine.wait(none_left));
}

// Link 0 alone until 50; then both at half rate: its other 50 bytes end at 150, when 50 of link 1's 100 are left: 200.
TEST(SimMachineTest, WorkThatAFenceReleasesSlowsOthersDown) {
  MachineSpec spec = small_machine(1000);
  spec.resources = {{"bus", byte_per_ns}};
  spec.links[0].uses = spec.links[1].uses = {0};
  SimMachine machine(spec);
  const Fence op = machine.execute({.lane = 0, .op = 0, .idle = false, .duration_ns = 50, .uses = {}}, 0, 1);
  const Fence first = machine.submit(copy(0, 100), 0, 2);
  const Fence second = machine.submit(copy(1, 100), op, 3);
  EXPECT_EQ(next(machine).fence, op);
  Completion completion = next(machine);
  EXPECT_EQ(completion.fence, first);
  EXPECT_EQ(completion.end_ns, 150);
  completion = next(machine);
  EXPECT_EQ(completion.fence, second);
  EXPECT_EQ(completion.end_ns, 200);
}

TEST(SimMachineTest, CancelEndsACopyAtOnce) {
  const MachineSpec spec = small_machine(1000);
  SimMachine machine(spec);
  const Fence op = machine.execute({.lane = 0, .op = 0, .idle = false, .duration_ns = 30, .uses = {}}, 0, 1);
  const Fence first = machine.submit(copy(0, 100), 0, 2);
  const Fence second = machine.submit(copy(0, 10), 0, 3);
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
  const Fence first = machine.submit(copy(1, 100), 0, 1);
  const Fence second = machine.submit(copy(0, 100), 0, 2);
  const Fence third = machine.execute({.lane = 0, .op = 0, .idle = false, .duration_ns = 100, .uses = {}}, 0, 3);
  EXPECT_EQ(next(machine).fence, first);
  EXPECT_EQ(next(machine).fence, second);
  EXPECT_EQ(next(machine).fence, third);
}

}  // namespace
}  // namespace tencache
