// `tencache-torch`: reads one job from stdin, does it, and says on stdout what happens (executor/torch_messages.h). A
// program of its own because LibTorch takes 0.4 s to load; `tencache run train` and `tencache record` start it.
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "configs/load_policy_library.h"
#include "configs/machine_yaml.h"
#include "core/error.h"
#include "executor/live/timeline_parts.h"
#include "executor/torch/programs.h"
#include "executor/torch/record.h"
#include "executor/torch/recorded_durations.h"
#include "executor/torch/torch_cuda.h"
#include "executor/torch/train.h"
#include "executor/torch_messages.h"
#include "policies/registry.h"
#include "sim/rehearse.h"
#include "traces/file/trace_file.h"

namespace tencache {
namespace {

// Our stdout; what libraries print goes to stderr.
std::FILE* messages = nullptr;
void send(const TorchMessage& message) { write_message(messages, message); }

TrainingDevice training_device(const std::string& device) {
  if (device == "cuda") return cuda_training_device();
  if (device == "host" || !torch_cuda::available()) return {};
  try {
    return cuda_training_device();
  } catch (const Error& error) {
    send(Remark{std::string("training on the host: ") + error.what()});
    return {};
  }
}

void send_step(std::uint64_t step, float loss, Nanoseconds duration_ns) { send(StepDone{step, loss, duration_ns}); }

// ---- train ----------------------------------------------------------------------------------------------------------

// The run's timeline. Parts are sent between two steps, outside the time of either.
class TimelineSender {
 public:
  // Both live as long as this.
  void attach(LiveOptions& live, TrainingOptions& options) {
    parts_.attach(live.engine);
    options.on_boundary = [this](const LiveRuntime& runtime) {
      if (!std::exchange(known_, runtime.has_recorded()) && known_) program_ = runtime.program().trace;
    };
    options.on_step = [this](std::uint64_t step, float loss, Nanoseconds duration_ns) {
      send_part(parts_.take());
      send_step(step, loss, duration_ns);
    };
  }
  // After the run.
  void finish() { send_part(parts_.rest()); }

 private:
  void send_part(Timeline timeline) {
    TimelinePart part;
    part.program = std::exchange(program_, {});
    part.timeline = std::move(timeline);
    send(part);
  }

  TimelineParts parts_;
  Trace program_;  // not yet sent
  bool known_ = false;
};

TrainingDone train(const TorchJob& job) {
  const TrainingConfig config = read_training_config(job.config);
  const TextData data(read_text(config.text), config.batch, config.context, config.seed);
  if (!job.checkpoint.empty()) check_checkpoint_name(job.checkpoint);
  TrainingOptions options{.steps = job.steps,
                          .on_step = send_step,
                          .checkpoint = job.checkpoint,
                          .checkpoint_every = job.checkpoint_every,
                          .resume = job.resume,
                          .on_checkpoint = [](std::uint64_t steps) { send(CheckpointDone{steps}); }};
  TrainingDone done;
  if (job.task == TorchTask::train_plain) {
    const TrainingDevice device = training_device(job.device);
    done.on_gpu = device.accelerator != nullptr;
    done.result.training = train_plain(config, data, options, device);
    return done;
  }
  for (const std::string& library : job.policy_libraries) load_policy_library(library);
  const MadePolicy made = make_policy(job.policy, job.settings);
  std::unique_ptr<Policy> by_recording;
  if (!job.recording.empty()) by_recording = with_durations_of(read_trace(job.recording), *made.policy);
  const MachineSpec machine = parse_machine(job.machine, "the machine");
  const TrainingDevice device = training_device(job.device);
  LiveOptions live;
  live.engine.rehearse = rehearse;
  if (!job.faults.empty()) live.machine.faults = parse_fault_plan(job.faults);
  TimelineSender timeline;
  if (job.timeline) timeline.attach(live, options);
  done.on_gpu = device.accelerator != nullptr;
  done.result =
      train_paged(config, data, machine, by_recording != nullptr ? *by_recording : *made.policy, live, options, device);
  if (job.timeline) timeline.finish();
  return done;
}

// ---- record ---------------------------------------------------------------------------------------------------------

RecordingDone record(const TorchJob& job) {
  const RecordingOptions options{.steps = job.steps, .on_step = send_step};
  if (job.config.empty()) return {record_program(job.program, options)};
  const TrainingConfig config = read_training_config(job.config);
  const TextData data(read_text(config.text), config.batch, config.context, config.seed);
  return {record_training(config, data, options, training_device(job.device))};
}

// ---- The program ----------------------------------------------------------------------------------------------------

// One core computes, the others copy: what calibrations and predictions assume. OpenBLAS has threads of its own, of
// which LibTorch does not know; it reads its environment before main begins.
void compute_on_one_core() {
  at::set_num_threads(1);
  using SetThreads = void (*)(int);
  if (void* function = dlsym(RTLD_DEFAULT, "openblas_set_num_threads"); function != nullptr) {
    reinterpret_cast<SetThreads>(function)(1);
  }
}

int run() {
  Failure failure{.exit_code = static_cast<int>(ExitCode::bad_usage)};
  try {
    const TorchJob job = read_job({std::istreambuf_iterator<char>(std::cin), {}});
    compute_on_one_core();
    if (job.task == TorchTask::record) {
      send(record(job));
    } else {
      send(train(job));
    }
    return 0;
  } catch (const OutOfMemory& error) {
    failure = {error.what(), static_cast<int>(error.exit_code()), true, error.op(), error.bytes_missing()};
  } catch (const Error& error) {
    failure.message = error.what();
    failure.exit_code = static_cast<int>(error.exit_code());
  } catch (const std::bad_alloc&) {
    failure.message = "this computer has not enough memory for that";
  } catch (const std::exception& error) {
    failure.message = error.what();
  }
  send(failure);
  return failure.exit_code;
}

}  // namespace
}  // namespace tencache

int main() {
  tencache::messages = fdopen(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3), "w");
  dup2(STDERR_FILENO, STDOUT_FILENO);
  try {
    return tencache::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tencache-torch: %s\n", error.what());
    return 2;
  }
}
