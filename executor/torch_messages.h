// What `tencache` and `tencache-torch` say to each other. The job goes to the program's stdin, messages come from its
// stdout while it works, the last of them a result or a Failure. A job and each message are one line of JSON; a
// TimelinePart is followed by its spans and samples as they lie in memory, because a step has many thousands and
// whoever trains has no time to write numbers. Both programs are therefore of the same build, which reading a job
// checks.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/timeline.h"
#include "core/trace.h"
#include "executor/training_result.h"

namespace tencache {

enum class TorchTask : std::uint8_t { record, train, train_plain };  // plain: LibTorch alone, without paging

// Nothing is left to be decided but what only LibTorch knows. Empty texts and 0: absent.
struct TorchJob {
  TorchTask task = TorchTask::record;
  std::string config{};                // file of a training configuration
  std::string program{};               // record: or a program that is built in
  std::uint64_t steps = 0;             // record: that are recorded; train: from the program's beginning
  std::string device{};                // host, cuda, or auto: a GPU, but the host if LibTorch cannot use it
  std::string checkpoint{};            // to write after the last step
  std::uint64_t checkpoint_every = 0;  // and after every so many
  std::string resume{};                // to go on from
  // Of task `train`.
  std::string machine{};  // text of a machine file (write_machine_yaml), with real pages and folders
  std::string policy{};
  std::map<std::string, std::string> settings{};
  std::vector<std::string> policy_libraries{};
  std::string faults{};     // a plan
  std::string recording{};  // a trace whose durations place updates, in place of those of the run's own recorded step
  bool timeline = false;    // send timeline parts
};

// ---- Messages. Those of training come in this order for each step: TimelinePart, StepDone, CheckpointDone.
struct Remark {
  std::string text;  // for the user
};
// `step` counts from 1, from the program's beginning.
struct StepDone {
  std::uint64_t step = 0;
  float loss = 0;
  Nanoseconds duration_ns = 0;
};
struct CheckpointDone {
  std::uint64_t steps = 0;
};
// What was added to the timeline since the last part. The recorded step, lowered, comes once, as soon as it is known:
// it names the ops of the third step and all later ones.
struct TimelinePart {
  Timeline timeline;
  Trace program;
};
// Without losses, durations and weights, which StepDone gave, and without the machine. A plain run has `training`
// alone.
struct TrainingDone {
  PagedTraining result;
  bool on_gpu = false;
};
struct RecordingDone {
  Recording result;
};
struct Failure {
  std::string message{};
  int exit_code = 0;
  bool out_of_memory = false;  // an op does not fit:
  std::string op{};
  Bytes bytes_missing = 0;

  [[noreturn]] void raise() const;  // throws it as Error, or as OutOfMemory
};
using TorchMessage = std::variant<Remark, StepDone, CheckpointDone, TimelinePart, TrainingDone, RecordingDone, Failure>;

// All throw Error: where the stream fails, or holds no job or message of this build.
std::string write_job(const TorchJob& job);
TorchJob read_job(const std::string& text);
void write_message(std::FILE* stream, const TorchMessage& message);  // and flushes
std::optional<TorchMessage> read_message(std::FILE* stream);         // none: the stream has ended

}  // namespace tencache
