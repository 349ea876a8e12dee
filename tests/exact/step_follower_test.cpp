#include "executor/live/step_follower.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

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

// A block of three experts, each of one weight; its loop has an op before each expert, which reads more if it runs.
class Mixture {
 public:
  Mixture() {
    for (int expert = 0; expert < 3; ++expert) {
      follower.created(weights[expert], 8, Role::activation);
      follower.marked(weights[expert], Role::expert, "mlp.experts." + std::to_string(expert) + ".up");
    }
  }
  void module(const std::string& name, const std::function<void()>& inside) {
    follower.module_begin(follower.names().intern(name));
    inside();
    follower.module_end();
  }
  // Its place in the recording as a letter from a on, else a point.
  void op(const char* name, const std::vector<Use>& uses = {}) {
    Op announced;
    announced.name = follower.names().intern(name);
    const OpIndex place = follower.begin_op(announced, uses, signal);
    follower.end_op(0);
    places += place == none ? '.' : static_cast<char>('a' + place);
    deviated |= signal == StepFollower::Signal::deviated;
  }
  // Returns the place of each op.
  std::string step(const std::string& experts) {
    follower.iteration_boundary();
    places.clear();
    op("before");
    module("mlp", [&] {
      module("mlp.gate", [&] {
        op("topk");
        gate = follower.chose(follower.names().intern("mlp"));
      });
      for (int expert = 0; expert < 3; ++expert) {
        const bool runs = experts.find(static_cast<char>('0' + expert)) != experts.npos;
        op("index", runs ? std::vector<Use>{{weights[0], true, false}} : std::vector<Use>{});
        if (!runs) continue;
        module("mlp.experts." + std::to_string(expert), [&] {
          op("up", {{weights[expert], true, false}});
          op("silu");
        });
      }
    });
    op("after");
    return places;
  }

  StepFollower follower;
  StepFollower::Signal signal = StepFollower::Signal::nothing;
  const TensorId weights[3] = {0, 1, 2};
  OpIndex gate = none;
  std::string places;
  bool deviated = false;
};

// Recorded: before, topk, index, index(w), up, silu of 1, index, after, as a to h.
TEST(StepFollowerTest, OtherExpertsThanRecordedAreNoDeviation) {
  Mixture program;
  program.step("1");
  program.step("1");
  EXPECT_EQ(program.step("1"), "abcdefgh");
  EXPECT_EQ(program.gate, 1u);
  EXPECT_EQ(program.step("0"), "ab.efg.h") << "expert 0 runs in place of expert 1";
  EXPECT_EQ(program.step("2"), "abc.defh") << "expert 2 runs, and reads more before";
  EXPECT_EQ(program.gate, 1u);
  EXPECT_FALSE(program.deviated);
  EXPECT_EQ(program.follower.ops(), program.follower.ops_on_schedule());
  const Trace& trace = program.follower.recorded_trace();
  EXPECT_EQ(trace.module(trace.ops[1]), "mlp") << "the gate is the block's";
  EXPECT_EQ(trace.module(trace.ops[5]), "mlp.experts.1");
  for (OpIndex op = 0; op < 8; ++op) {
    EXPECT_EQ(trace.detail(trace.ops[op]).revealed_by, op == 4 || op == 5 ? 1u : none) << op;
  }
  EXPECT_EQ(trace.tensors[2].role, Role::expert);
}

// A tensor that the last op makes from nothing, larger in each step, for the first op of the next one.
TEST(StepFollowerTest, WhatEachStepMakesLargerForTheNextIsOneTensor) {
  StepFollower follower;
  StepFollower::Signal signal = StepFollower::Signal::nothing;
  follower.created(0, 8, Role::activation);
  for (TensorId step = 0; step < 6; ++step) {
    const TensorId old = step % 2, made = 1 - old;
    follower.iteration_boundary();
    const Use reads_old{old, true, false};
    follower.begin_op(Op(), {&reads_old, 1}, signal);
    follower.end_op(0);
    follower.begin_op(Op(), {}, signal);
    follower.created(made, 8 * (step + Bytes{2}), Role::activation);
    follower.born(made);
    follower.end_op(0);
    follower.destroyed(old);
  }
  EXPECT_EQ(follower.deviations(), 0u) << follower.first_deviation();
  EXPECT_EQ(follower.recorded_trace().tensors.size(), 1u);
}

TEST(StepFollowerTest, ExpertsThatNobodyChoosesAreParameters) {
  Mixture program;
  for (int step = 0; step < 3; ++step) {
    program.follower.iteration_boundary();
    program.op("up", {{program.weights[0], true, false}});
  }
  for (const Tensor& tensor : program.follower.recorded_trace().tensors) EXPECT_EQ(tensor.role, Role::parameter);
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
