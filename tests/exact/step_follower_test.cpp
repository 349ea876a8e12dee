#include "executor/live/step_follower.h"

#include <gtest/gtest.h>

#include <string>

namespace tencache {
namespace {

// A program of steps, each a list of ops without tensors.
class Steps {
 public:
  // Returns whether the step that begins is recorded.
  bool step(const std::string& ops) {
    follower_.iteration_boundary();
    const bool recording = follower_.recording();
    for (const char name : ops) {
      StepFollower::Signal signal = StepFollower::Signal::nothing;
      Op op;
      op.name = follower_.names().intern(std::string(1, name));
      follower_.begin_op(op, {}, signal);
      follower_.end_op(0);
    }
    return recording;
  }
  // Which of so many steps are recorded: r, else a point.
  std::string steps(const std::string& ops, int count) {
    std::string recorded;
    for (int i = 0; i < count; ++i) recorded += step(ops) ? 'r' : '.';
    return recorded;
  }
  const StepFollower& follower() const { return follower_; }

 private:
  StepFollower follower_;
};

TEST(StepFollowerTest, TheSecondStepIsRecordedAndFollowed) {
  Steps program;
  EXPECT_EQ(program.steps("abc", 6), ".r....");
  EXPECT_EQ(program.follower().deviations(), 0u);
  EXPECT_EQ(program.follower().ops(), 12u);  // from the third step on
  EXPECT_EQ(program.follower().ops_on_schedule(), 12u);
}

TEST(StepFollowerTest, AfterThreeStepsThatLeaveTheRecordingTheNextOneReplacesIt) {
  Steps program;
  program.steps("abc", 6);
  EXPECT_EQ(program.steps("axc", 8), "...r....");
  EXPECT_EQ(program.follower().deviations(), 4u) << "the step that is recorded has left the old recording, too";
  EXPECT_EQ(program.follower().ops_on_schedule(), 12u + 4 * 1 + 4 * 3);
}

// A gradient that the program lets go after the last op but one, and one that it keeps to the step's end.
TEST(StepFollowerTest, WhatLivesLongerThanItsLastUseIsFreedLater) {
  StepFollower follower;
  StepFollower::Signal signal = StepFollower::Signal::nothing;
  const auto op = [&](std::vector<Use> uses, std::vector<TensorId> births) {
    follower.begin_op(Op(), uses, signal);
    for (const TensorId tensor : births) {
      follower.created(tensor, 8, Role::activation);
      follower.born(tensor);
    }
    follower.end_op(0);
  };
  for (int step = 0; step < 3; ++step) {
    follower.iteration_boundary();
    op({}, {0, 1, 2});
    follower.destroyed(2);  // with its last use
    op({{0, true, false}, {1, true, false}}, {});
    op({}, {});
    follower.destroyed(0);
    op({}, {});
    follower.destroyed(1);
  }
  const Trace& trace = follower.recorded_trace();
  ASSERT_EQ(trace.ops.size(), 4u);
  const std::vector<std::vector<TensorId>> expected = {{}, {}, {0}, {1}};
  for (std::size_t i = 0; i < 4; ++i) {
    const auto frees = trace.frees(trace.ops[i]);
    EXPECT_EQ(std::vector(frees.begin(), frees.end()), expected[i]) << i;
  }
}

TEST(StepFollowerTest, StepsThatEndTooSoonLeaveTheRecording) {
  Steps program;
  program.steps("abc", 6);
  EXPECT_EQ(program.steps("ab", 6), "...r..");
}

TEST(StepFollowerTest, AStepNowAndThenLeavesTheRecordingAsItIs) {
  Steps program;
  program.steps("abc", 3);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(program.steps("abc", 4) + program.steps("axc", 2), "......");
}

TEST(StepFollowerTest, TheFirstRecordingIsReplacedAtOnce) {
  Steps program;
  program.steps("abc", 2);
  EXPECT_EQ(program.steps("axc", 5), ".r...");
}

TEST(StepFollowerTest, WhereNoStepIsLikeAnotherRecordingBecomesRarer) {
  Steps program;
  std::string recorded;
  for (char op = 'a'; op <= 'z'; ++op) recorded += program.steps(std::string(3, op), 1);
  EXPECT_EQ(recorded, ".r.r...r......r...........");
}

TEST(StepFollowerTest, WhatIsSetAsideIsNoDeviation) {
  StepFollower follower;
  const auto op = [&follower](const char* name) {
    StepFollower::Signal signal = StepFollower::Signal::nothing;
    Op announced;
    announced.name = follower.names().intern(name);
    follower.begin_op(announced, {}, signal);
    follower.end_op(0);
  };
  for (int step = 0; step < 4; ++step) {
    follower.iteration_boundary();
    op("a");
    op("b");
  }
  follower.iteration_boundary();
  op("a");
  follower.set_aside(true);
  follower.iteration_boundary();
  EXPECT_EQ(follower.deviations(), 0u) << follower.first_deviation();
}

}  // namespace
}  // namespace tencache
