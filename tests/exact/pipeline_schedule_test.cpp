// The order in which pipeline stages compute and exchange: hand-worked lists, Megatron-LM's formulas, and every rule of
// a schedule over many small plans.
#include "traces/generate/pipeline_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tencache::generator {
namespace {

using Count = std::uint64_t;
using Kind = PipelineAction::Kind;
using Schedule = std::vector<std::vector<PipelineAction>>;  // by stage

Schedule schedule_of(const PipelinePlan& plan) {
  Schedule schedule;
  for (Count stage = 0; stage < plan.stages; ++stage) schedule.push_back(pipeline_schedule(plan, stage));
  return schedule;
}

std::string text(const PipelineMessage& message) {
  return (message.phase == Phase::forward ? "f" : "b") + std::to_string(message.micro_batch) + ">" +
         std::to_string(message.to);
}

// "F1.0": the forward pass of micro-batch 0 through chunk 1; "[2 f0>5 b1>4]": an exchange with stage 2, which gets the
// activation of micro-batch 0 for virtual stage 5, and gives the gradient of micro-batch 1 for virtual stage 4.
std::string text(const PipelineAction& action) {
  if (action.kind != Kind::exchange) {
    return (action.kind == Kind::forward ? "F" : "B") + std::to_string(action.chunk) + "." +
           std::to_string(action.micro_batch);
  }
  return "[" + std::to_string(action.peer) + " " + (action.sent ? text(*action.sent) : "-") + " " +
         (action.received ? text(*action.received) : "-") + "]";
}

std::string text(const std::vector<PipelineAction>& actions) {
  std::string all;
  for (const PipelineAction& action : actions) all += (all.empty() ? "" : " ") + text(action);
  return all;
}

std::string text(const PipelinePlan& plan) {
  return std::to_string(plan.stages) + " stages, " + std::to_string(plan.chunks) + " chunks, " +
         std::to_string(plan.micro_batches) + " micro-batches" + (plan.forward_only ? ", forward only" : "");
}

bool meet(const PipelineAction& one, const PipelineAction& other, Count stage_of_one, Count stage_of_other) {
  return one.kind == Kind::exchange && other.kind == Kind::exchange && one.peer == stage_of_other &&
         other.peer == stage_of_one && one.sent == other.received && one.received == other.sent;
}

// Plays all lists side by side. An exchange takes no time, and starts when both stages have come to it. Returns when
// the last stage ends, or -1 if stages wait for each other for ever.
std::int64_t play(const Schedule& schedule, std::int64_t forward, std::int64_t backward) {
  std::vector<std::size_t> next(schedule.size(), 0);
  std::vector<std::int64_t> now(schedule.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t stage = 0; stage < schedule.size(); ++stage) {
      if (next[stage] == schedule[stage].size()) continue;
      const PipelineAction& action = schedule[stage][next[stage]];
      if (action.kind == Kind::exchange) {
        const std::size_t peer = action.peer;
        if (next[peer] == schedule[peer].size() || !meet(action, schedule[peer][next[peer]], stage, peer)) continue;
        now[stage] = now[peer] = std::max(now[stage], now[peer]);
        ++next[peer];
      } else {
        now[stage] += action.kind == Kind::forward ? forward : backward;
      }
      ++next[stage];
      moved = true;
    }
  }
  for (std::size_t stage = 0; stage < schedule.size(); ++stage) {
    if (next[stage] < schedule[stage].size()) return -1;
  }
  return *std::max_element(now.begin(), now.end());
}

std::vector<PipelinePlan> plans() {
  std::vector<PipelinePlan> plans;
  for (const bool forward_only : {false, true}) {
    for (Count stages = 1; stages <= 6; ++stages) {
      for (Count micro_batches = 1; micro_batches <= 13; ++micro_batches) {
        plans.push_back({stages, 1, micro_batches, forward_only});
      }
      if (stages == 1) continue;
      for (Count chunks = 2; chunks <= 5; ++chunks) {
        for (const Count groups : {1u, 2u, 3u, 5u}) plans.push_back({stages, chunks, groups * stages, forward_only});
      }
    }
  }
  plans.push_back({8, 4, 64, false});
  plans.push_back({9, 3, 36, false});
  return plans;
}

TEST(PipelineSchedule, IsOneForwardOneBackwardWithOneChunk) {
  const Schedule schedule = schedule_of({.stages = 3, .micro_batches = 4});
  EXPECT_EQ(text(schedule[0]),
            "F0.0 [1 f0>1 -] F0.1 [1 f1>1 -] F0.2 [1 f2>1 b0>0] B0.0 F0.3 [1 f3>1 b1>0] B0.1 [1 - b2>0] B0.2 "
            "[1 - b3>0] B0.3");
  EXPECT_EQ(text(schedule[1]),
            "[0 - f0>1] F0.0 [2 f0>2 -] [0 - f1>1] F0.1 [2 f1>2 b0>1] B0.0 [0 b0>0 f2>1] F0.2 [2 f2>2 b1>1] B0.1 "
            "[0 b1>0 f3>1] F0.3 [2 f3>2 b2>1] B0.2 [0 b2>0 -] [2 - b3>1] B0.3 [0 b3>0 -]");
  EXPECT_EQ(text(schedule[2]),
            "[1 - f0>2] F0.0 B0.0 [1 b0>1 f1>2] F0.1 B0.1 [1 b1>1 f2>2] F0.2 B0.2 [1 b2>1 f3>2] F0.3 B0.3 [1 b3>1 -]");
}

TEST(PipelineSchedule, AccumulatesGradientsWithOneStage) {
  EXPECT_EQ(text(pipeline_schedule({.micro_batches = 3}, 0)), "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2");
}

TEST(PipelineSchedule, ReceivesComputesAndSendsWithoutBackwardPasses) {
  EXPECT_EQ(text(pipeline_schedule({.stages = 3, .micro_batches = 2, .forward_only = true}, 1)),
            "[0 - f0>1] F0.0 [2 f0>2 -] [0 - f1>1] F0.1 [2 f1>2 -]");
}

// Two neighbours in a ring are the same stage twice: opposite messages share an exchange, whatever their kind.
TEST(PipelineSchedule, InterleavesTwoStages) {
  const Schedule schedule = schedule_of({.stages = 2, .chunks = 2, .micro_batches = 2});
  EXPECT_EQ(text(schedule[0]),
            "F0.0 [1 f0>1 -] F0.1 [1 f1>1 f0>2] F1.0 [1 f0>3 f1>2] F1.1 [1 f1>3 b0>2] B1.0 [1 b0>1 b1>2] B1.1 "
            "[1 b1>1 b0>0] B0.0 [1 - b1>0] B0.1");
  EXPECT_EQ(text(schedule[1]),
            "[0 - f0>1] F0.0 [0 f0>2 f1>1] F0.1 [0 f1>2 f0>3] F1.0 B1.0 [0 b0>2 f1>3] F1.1 B1.1 [0 b1>2 b0>1] B0.0 "
            "[0 b0>0 b1>1] B0.1 [0 b1>0 -]");
}

// Megatron-LM's schedules.py: warm-up passes and the chunk of each virtual micro-batch, written down a second time.
TEST(PipelineSchedule, ComputesInMegatronsOrder) {
  for (const PipelinePlan& plan : plans()) {
    if (plan.chunks == 1 || plan.forward_only) continue;
    const Count total = plan.micro_batches * plan.chunks;
    for (Count stage = 0; stage < plan.stages; ++stage) {
      const Count warm_up = std::min(total, (plan.stages - stage - 1) * 2 + (plan.chunks - 1) * plan.stages);
      const auto pass = [&](Kind kind, Count k) {
        PipelineAction action;
        action.kind = kind;
        const Count in_group = k % (plan.stages * plan.chunks);
        action.chunk = in_group / plan.stages;
        if (kind == Kind::backward) action.chunk = plan.chunks - 1 - action.chunk;
        action.micro_batch = k / (plan.stages * plan.chunks) * plan.stages + k % plan.stages;
        return action;
      };
      std::vector<PipelineAction> wanted, found;
      for (Count k = 0; k < warm_up; ++k) wanted.push_back(pass(Kind::forward, k));
      for (Count k = warm_up; k < total; ++k) {
        wanted.push_back(pass(Kind::forward, k));
        wanted.push_back(pass(Kind::backward, k - warm_up));
      }
      for (Count k = total - warm_up; k < total; ++k) wanted.push_back(pass(Kind::backward, k));
      for (const PipelineAction& action : pipeline_schedule(plan, stage)) {
        if (action.kind != Kind::exchange) found.push_back(action);
      }
      EXPECT_EQ(text(found), text(wanted)) << text(plan) << ", stage " << stage;
    }
  }
}

// Each pass runs once, the backward pass after the forward pass; each message is sent after the pass that makes it and
// received before the pass that needs it; no other message exists.
TEST(PipelineSchedule, SendsAfterComputingAndReceivesBeforeUse) {
  for (const PipelinePlan& plan : plans()) {
    SCOPED_TRACE(text(plan));
    const Schedule schedule = schedule_of(plan);
    const Count last = plan.virtual_stages() - 1;
    std::set<PipelineMessage> sent, received;
    for (Count stage = 0; stage < plan.stages; ++stage) {
      std::set<std::pair<Count, Count>> forwards, backwards;  // virtual stage, micro-batch
      for (const PipelineAction& action : schedule[stage]) {
        if (action.kind == Kind::exchange) {
          ASSERT_TRUE(action.sent || action.received);
          if (action.sent) {
            const auto& [phase, from, to, micro_batch] = *action.sent;
            EXPECT_TRUE(sent.insert(*action.sent).second) << text(action) << " twice";
            EXPECT_EQ(from % plan.stages, stage);
            EXPECT_EQ(to, phase == Phase::forward ? from + 1 : from - 1);
            EXPECT_EQ(to % plan.stages, action.peer);
            EXPECT_TRUE((phase == Phase::forward ? forwards : backwards).contains({from, micro_batch}))
                << text(action) << " before it is computed";
          }
          if (action.received) {
            EXPECT_TRUE(received.insert(*action.received).second) << text(action) << " twice";
            EXPECT_EQ(action.received->to % plan.stages, stage);
            EXPECT_EQ(action.received->from % plan.stages, action.peer);
          }
          continue;
        }
        const Count at = action.chunk * plan.stages + stage;
        const bool forward = action.kind == Kind::forward;
        EXPECT_TRUE((forward ? forwards : backwards).insert({at, action.micro_batch}).second) << text(action);
        if (!forward) {
          EXPECT_TRUE(forwards.contains({at, action.micro_batch})) << text(action);
        }
        if (forward && at > 0) {
          EXPECT_TRUE(received.contains({Phase::forward, at - 1, at, action.micro_batch})) << text(action);
        }
        if (!forward && at < last) {
          EXPECT_TRUE(received.contains({Phase::backward, at + 1, at, action.micro_batch})) << text(action);
        }
      }
      EXPECT_EQ(forwards.size(), plan.chunks * plan.micro_batches);
      EXPECT_EQ(backwards.size(), plan.forward_only ? 0 : plan.chunks * plan.micro_batches);
    }
    EXPECT_EQ(sent, received);
    EXPECT_EQ(sent.size(), (plan.forward_only ? 1 : 2) * last * plan.micro_batches);
  }
}

// No stages wait for each other, and an exchange has a name of its own that both stages know.
TEST(PipelineSchedule, MeetsInOneOrder) {
  for (const PipelinePlan& plan : plans()) {
    SCOPED_TRACE(text(plan));
    const Schedule schedule = schedule_of(plan);
    EXPECT_GE(play(schedule, 1, 2), 0) << "stages wait for each other";
    std::map<PipelineMessage, std::vector<Count>> names;
    for (Count stage = 0; stage < plan.stages; ++stage) {
      for (const PipelineAction& action : schedule[stage]) {
        if (action.kind == Kind::exchange) names[action.occurrence()].push_back(stage);
      }
    }
    for (const auto& [name, stages] : names) {
      ASSERT_EQ(stages.size(), 2U) << text(name);
      EXPECT_NE(stages[0], stages[1]) << text(name);
    }
  }
}

// Narayanan et al., SC'21, sections 2.1 and 2.2: with p stages of v chunks and m micro-batches, the idle time is
// (p − 1) ÷ (v · m) of the time for computing. Here a pass through one chunk takes the time t, so computing takes
// m · v · t, and each stage is idle for (p − 1) · t. This holds for every ratio of forward and backward passes.
TEST(PipelineSchedule, IsIdleAsThePaperHasIt) {
  for (const PipelinePlan& plan : plans()) {
    if (plan.forward_only) continue;
    for (const auto& [forward, backward] : {std::pair{1, 2}, {1, 1}, {1, 3}, {4, 3}}) {
      const std::int64_t pass = forward + backward;
      const auto passes = static_cast<std::int64_t>(plan.micro_batches * plan.chunks + plan.stages - 1);
      EXPECT_EQ(play(schedule_of(plan), forward, backward), passes * pass)
          << text(plan) << ", passes of " << forward << " and " << backward;
    }
  }
}

// The price: more micro-batches are under way. With one chunk a stage keeps as many activations as there are stages
// from it to the end; interleaved, as many as the warm-up passes and one more, each of a chunk.
TEST(PipelineSchedule, KeepsTheActivationsOfTheWarmUp) {
  const auto most_kept = [](const PipelinePlan& plan, Count stage) {
    Count kept = 0, most = 0;
    for (const PipelineAction& action : pipeline_schedule(plan, stage)) {
      if (action.kind == Kind::forward) most = std::max(most, ++kept);
      if (action.kind == Kind::backward) --kept;
    }
    return most;
  };
  for (Count stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(most_kept({.stages = 4, .micro_batches = 16}, stage), 4 - stage);
    EXPECT_EQ(most_kept({.stages = 4, .chunks = 3, .micro_batches = 16}, stage), (3 - stage) * 2 + 2 * 4 + 1);
  }
}

}  // namespace
}  // namespace tencache::generator
