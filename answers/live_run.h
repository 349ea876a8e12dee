// A program's live run from its setting to its answer: what is predicted before, the runtime, the timeline's file, the
// figures. python/bindings_live.cpp has it for programs in Python.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "answers/measured.h"
#include "answers/timeline/training_timeline.h"
#include "executor/live/live_runtime.h"
#include "executor/live/timeline_parts.h"
#include "policies/registry.h"
#include "studies/measured.h"

namespace tencache {

struct LivePrediction {
  Prediction prediction;
  Workload workload;
  Timeline timeline;
};
// Of the recorded step. Ops of the program's own optimizer run where the program runs them, only those that were
// recorded as tasks where the policy says. `file`: of predict().
std::shared_ptr<LivePrediction> predict_live(const LiveSetting& setting, const Trace& recorded,
                                             const std::string& file);

struct LiveRunOptions {
  bool pace = false;                                     // links take the time that the machine says
  bool sleep = false;                                    // LiveOptions::sleep
  std::function<void()> fence = {};                      // with an accelerator: LiveOptions::fence
  decltype(LiveOptions::stream) stream = {};             // as there
  decltype(LiveOptions::interpose) interpose = {};       // as there
  decltype(LiveOptions::relocates) relocates = {};       // as there
  std::string timeline = {};                             // a file; empty: none
  std::shared_ptr<const LivePrediction> predicted = {};  // null: nothing was
};

// Threads may call everything but constructor and destructor.
class LiveRun {
 public:
  LiveRun(LiveSetting setting, LiveRunOptions options);
  // Where storages still have the runtime's memory, they keep it, and the runtime, to the end of the process.
  ~LiveRun();
  LiveRun(const LiveRun&) = delete;
  LiveRun& operator=(const LiveRun&) = delete;

  // Ends the runtime, unless storages still have its memory: how much.
  Bytes close();
  // Throws Error once it is closed, as all below.
  LiveRuntime& runtime();
  // As LiveRuntime::iteration_boundary. Returns whether the program sleeps now.
  bool iteration_boundary();
  // The last step is over, and so is what is measured.
  void end();
  RuntimeFigures figures();
  // After `end`. `seconds`: that the steps took.
  LiveAnswer answer(ProgramFigures figures, double seconds);

 private:
  Trace newly_recorded();
  RankFigures rank_figures();

  const LiveSetting setting_;
  const std::shared_ptr<const LivePrediction> predicted_;
  MadePolicy made_;
  std::optional<TrainingTimeline> timeline_;
  TimelineParts parts_;
  bool named_ = false;
  bool paced_ = false;
  std::uint64_t boundaries_ = 0;
  Counters window_begin_;
  // After `end`.
  RunResult result_;
  std::optional<LiveFigures> before_end_;
  std::unique_ptr<LiveRuntime> runtime_;
};

}  // namespace tencache
