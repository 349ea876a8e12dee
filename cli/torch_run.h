// What `tencache run train` and `tencache record` do once their options are read: tencache-torch gets a job, its
// messages become remarks, steps, a timeline file and the answer.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "executor/torch_messages.h"
#include "studies/workload.h"

namespace tencache {

// Of the job what LibTorch alone needs to know; the run settles the rest from the scenario.
struct TrainArguments {
  TorchJob job{.task = TorchTask::train, .device = "auto"};
  Scenario scenario;  // its trace: a recording to predict from, may be empty
  std::vector<std::string> directories;
  std::string timeline;
  std::string prediction;
  bool predict = false;  // also where `prediction` is given
  bool json = false;
};

struct RecordArguments {
  TorchJob job{.task = TorchTask::record, .steps = 8, .device = "auto"};
  std::string output;
};

// `program`: tencache-torch. Options and names have been checked. Both throw Error, as the program reports it.
ExitCode run_training(const std::string& program, TrainArguments arguments);
ExitCode run_recording(const std::string& program, RecordArguments arguments);

}  // namespace tencache
