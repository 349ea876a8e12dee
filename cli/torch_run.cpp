#include "cli/torch_run.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>

#include "answers/prediction.h"
#include "answers/result.h"
#include "answers/timeline/training_timeline.h"
#include "cli/console.h"
#include "cli/torch_program.h"
#include "cli/training_report.h"
#include "configs/load_policy_library.h"
#include "configs/machine_yaml.h"
#include "configs/tool_clock.h"
#include "core/parse_number.h"
#include "executor/choose_device.h"
#include "executor/host_machine.h"
#include "executor/room.h"
#include "executor/training_config.h"
#include "policies/registry.h"
#include "studies/faults.h"
#include "studies/workload.h"
#include "traces/file/file_io.h"
#include "traces/file/output_files.h"
#include "traces/file/trace_file.h"

namespace tencache {
namespace {

// The program ended without a result and without saying why, as when a signal ends it: nothing is left to be said.
struct EndedSilently {
  int exit_code;
};

// Does the job and returns the result, a message of kind `Done`. `hear` is given what else comes on the way.
template <typename Done, typename Hear>
Done run_job(const std::string& program, const TorchJob& job, const Hear& hear) {
  ChildProgram process(program, write_job(job));
  std::optional<Done> done;
  std::optional<Failure> failure;
  while (std::optional<TorchMessage> message = read_message(process.output())) {
    if (auto* result = std::get_if<Done>(&*message)) {
      done = std::move(*result);
    } else if (auto* failed = std::get_if<Failure>(&*message)) {
      failure = std::move(*failed);
    } else if (const auto* said = std::get_if<Remark>(&*message)) {
      remark(said->text);
    } else {
      hear(*message);
    }
  }
  const int code = process.wait();
  if (failure) failure->raise();
  if (code != 0) throw EndedSilently{code};
  if (!done) throw Error("tencache-torch ended without a result");
  return std::move(*done);
}

std::string step_text(const StepDone& step) {
  return fmt::format("step {:>3}  loss {:.6f}  {}", step.step, step.loss, format_seconds(to_seconds(step.duration_ns)));
}

// The GPU that the program will use, for its pages; null: the host. Settles what `auto` means, as far as that is known
// without LibTorch.
std::shared_ptr<Accelerator> accelerator_for(std::string& device, [[maybe_unused]] const MachineSpec& machine) {
  std::shared_ptr<Accelerator> accelerator;
#ifdef TENCACHE_TORCH_CUDA
  accelerator = choose_device(device, machine).accelerator;
#endif
  if (device == "auto" && accelerator == nullptr) device = "host";
  return accelerator;
}

Recording record(const std::string& program, const TorchJob& job) {
  ProgressLine progress;
  const auto show = [&](const TorchMessage& message) {
    const auto* step = std::get_if<StepDone>(&message);
    if (step != nullptr) progress.show(fmt::format("{} of {}", step_text(*step), job.steps + 2));  // two warm up
  };
  return run_job<RecordingDone>(program, job, show).result;
}

// ---- Before training ------------------------------------------------------------------------------------------------

// "50%" of the bytes that a recorded step has alive at once, the same as `tencache info` says of a recording.
std::string resolve_percentage(const std::string& size, const Recording& recording, const Accelerator* accelerator) {
  const double percent = parse_number(std::string_view(size).substr(0, size.size() - 1)).value_or(0);
  if (!(percent > 0 && percent <= 1000)) {
    throw Error("--gpu-memory: '" + size +
                "' is no size and no percentage of the program's peak, such as 24MiB or 50%");
  }
  const Bytes peak = peak_in_pages(recording.trace, accelerator);
  const auto bytes = static_cast<Bytes>(static_cast<double>(peak) * percent / 100);
  remark(fmt::format("--gpu-memory: {} of {} alive at once is {}", size, format_bytes(peak), format_bytes(bytes)) +
         (recording.largest_op.empty() ? ""
                                       : fmt::format("; the largest op, {}, needs {}", recording.largest_op,
                                                     format_bytes(recording.largest_op_bytes))));
  return std::to_string(bytes) + "B";
}

// The run that is to come, and its simulation if there is one.
struct Plan {
  Workload measured;  // but for the trace, which the run records
  Workload predicted;
  std::optional<Prediction> prediction;
  Timeline timeline;  // predicted
  TemporaryFile recording{".trace.jsonl"}, unnamed_prediction{".prediction.json"};

  const Prediction* given() const { return prediction ? &*prediction : nullptr; }
};

// From the trace that was named; empty: from `recording`, which was made just now.
void predict(TrainArguments& arguments, const TrainingConfig& config, const Recording& recording,
             const Accelerator* accelerator, Plan& plan) {
  Scenario scenario = arguments.scenario;
  const bool recorded_now = scenario.trace.file.empty();
  if (recorded_now) {
    scenario.trace.found_at = plan.recording.path();
    write_trace(recording.trace, scenario.trace.found_at);
    scenario.trace.file = config.file;  // users know no temporary file
  }
  arguments.job.recording = recorded_now ? scenario.trace.found_at : scenario.trace.file;
  scenario.trace.rescale = {.assume_gpu = {}, .no_rescale = true};  // recorded where it will run
  scenario.hardware.device = arguments.job.device;
  Workload& workload = plan.predicted = load_workload(scenario);
  if (!recorded_now && workload.trace->header.model != config.name) {
    throw Error(
        fmt::format("{}: is a recording of model '{}', but {} trains '{}'; record one with `tencache record {}`",
                    scenario.trace.file, workload.trace->header.model, config.file, config.name, config.file));
  }
  workload.seed = config.seed;
  workload.machine = with_real_pages(workload.machine, accelerator);
  plan.prediction =
      predict(workload, arguments.prediction.empty() ? plan.unnamed_prediction.path() : arguments.prediction,
              arguments.timeline.empty() ? nullptr : &plan.timeline);
  const RunResult& result = plan.prediction->outcome.result;
  if (!result.fits) remark("predicted not to fit: " + result.misfit);
}

// Settles all that the options leave open: device, percentage, folders. The accelerator is closed at the end, since the
// training program has the GPU's memory for itself.
void make_plan(const std::string& program, TrainArguments& arguments, const TrainingConfig& config, Plan& plan) {
  TorchJob& job = arguments.job;
  Scenario& scenario = arguments.scenario;
  const std::string& trace = scenario.trace.file;
  std::string& gpu_memory = scenario.machine.gpu_memory;
  const bool percentage = gpu_memory.ends_with('%');
  MachineChoice known = scenario.machine;
  if (percentage) known.gpu_memory.clear();
  const std::shared_ptr<Accelerator> accelerator = accelerator_for(job.device, load_machine(known));
  if (arguments.predict && job.device == "auto") job.device = "cuda";  // which the prediction is for
  Recording recording;
  if (percentage && !trace.empty()) recording.trace = read_trace(trace);
  if (trace.empty() && (percentage || arguments.predict)) {
    if (arguments.predict) remark("recording one training step without a memory limit, for the prediction");
    TorchJob step = RecordArguments().job;
    step.config = job.config;
    step.device = job.device;
    if (!arguments.predict) step.steps = 1;  // for its sizes
    try {
      recording = record(program, step);
    } catch (const EndedSilently& ended) {
      throw Error(fmt::format("recording {} failed (exit code {})", job.config, ended.exit_code));
    }
  }
  if (percentage) gpu_memory = resolve_percentage(gpu_memory, recording, accelerator.get());
  if (arguments.predict) predict(arguments, config, recording, accelerator.get(), plan);

  Workload& measured = plan.measured;
  measured.scenario = scenario;
  measured.scenario.trace.file = config.file;
  measured.scenario.iterations = job.steps;
  measured.machine = with_real_pages(load_machine(scenario.machine, &measured.machine_sha256), accelerator.get());
  measured.seed = config.seed;
  measured.scenario.hardware.device = accelerator != nullptr ? "cuda" : "host";
  announce_faults(measured.scenario, measured.machine);
  choose_directories(measured.machine, arguments.directories);
  fit_to_disks(measured.machine);
  state_room(measured.machine, unlimited, "--gpu-memory or --cpu-memory", accelerator.get());
}

// ---- Training -------------------------------------------------------------------------------------------------------

// What is known of a run while it goes on.
struct RunningTraining {
  TrainingResult training;  // losses and durations
  std::uint64_t saved = 0;  // steps that the last checkpoint has
  TrainingTimeline* timeline = nullptr;
};

// The result is whole, with the losses and durations that came on the way.
TrainingDone train(const std::string& program, const TrainArguments& arguments, RunningTraining& running) {
  ProgressLine line;
  auto done = run_job<TrainingDone>(program, arguments.job, [&](TorchMessage& message) {
    if (const auto* step = std::get_if<StepDone>(&message)) {
      running.training.losses.push_back(step->loss);
      running.training.step_ns.push_back(step->duration_ns);
      if (arguments.json) {
        line.show(fmt::format("{} of {}", step_text(*step), arguments.job.steps));
      } else {
        print(step_text(*step) + "\n");
      }
    } else if (const auto* checkpoint = std::get_if<CheckpointDone>(&message)) {
      running.saved = checkpoint->steps;
    } else if (auto* part = std::get_if<TimelinePart>(&message)) {
      running.timeline->add(std::move(part->timeline), std::move(part->program));
    }
  });
  done.result.training.losses = running.training.losses;
  done.result.training.step_ns = running.training.step_ns;
  return done;
}

ExitCode train_without_paging(const std::string& program, TrainArguments& arguments, RunningTraining& running) {
  accelerator_for(arguments.job.device, {});
  const TrainingResult training = train(program, arguments, running).result.training;
  if (arguments.json) {
    print_json({{"training", training_json(training)}});
  } else {
    print(steps_text(training));
  }
  return ExitCode::done;
}

RunResult misfit_after(std::size_t steps, const OutOfMemory& error) {
  RunResult result;
  result.fits = false;
  result.misfit = error.what();
  result.misfit_op = error.op();
  result.misfit_bytes = error.bytes_missing();
  result.iterations = steps;
  return result;
}

ExitCode train_with_paging(const std::string& program, TrainArguments& arguments, const TrainingConfig& config,
                           RunningTraining& running) {
  TorchJob& job = arguments.job;
  job.policy = arguments.scenario.policy.name;
  job.settings = arguments.scenario.policy.settings;
  Outcome outcome;
  outcome.policy = job.policy;
  outcome.options = make_policy(job.policy, job.settings).options;
  Plan plan;
  make_plan(program, arguments, config, plan);
  Workload& workload = plan.measured;
  job.machine = write_machine_yaml(workload.machine);
  job.policy_libraries = loaded_policy_libraries();
  job.faults = workload.scenario.faults;
  job.timeline = !arguments.timeline.empty();
  std::optional<TrainingTimeline> timeline;
  if (job.timeline) {
    running.timeline = &timeline.emplace(arguments.timeline, "measured: " + job.policy, workload.machine);
    if (!plan.timeline.spans.empty()) {
      timeline->put({.name = "predicted: " + job.policy,
                     .timeline = &plan.timeline,
                     .machine = &plan.predicted.machine,
                     .trace = &plan.prediction->outcome.program.trace});
    }
  }
  const std::int64_t start_ns = tool_clock_ns();
  TrainingDone done;
  try {
    done = train(program, arguments, running);
  } catch (const OutOfMemory& error) {
    if (!arguments.json) throw;
    outcome.result = misfit_after(running.training.step_ns.size(), error);
    outcome.seconds = seconds_since(start_ns);
    print_json(misfit_json(workload, outcome, running.training, plan.given()));
    return ExitCode::answer_is_no;
  }
  const PagedTraining& paged = done.result;
  outcome.seconds = seconds_since(start_ns);
  outcome.result = paged.run;
  outcome.program = paged.program;
  outcome.faults = paged.faults;
  workload.scenario.hardware.device = done.on_gpu ? "cuda" : "host";
  workload.scenario.iterations = paged.training.step_ns.size();  // those before a checkpoint are another run's
  workload.trace = std::make_shared<const Trace>(paged.recorded);
  workload.trace_sha256 = sha256_hex(format_trace(paged.recorded));
  if (timeline) timeline->end(paged.program.trace);
  if (arguments.json) {
    print_json(paged_training_json(workload, outcome, paged, plan.given()));
  } else {
    print(paged_training_text(workload, outcome, paged, plan.given()));
  }
  return ExitCode::done;
}

}  // namespace

ExitCode run_training(const std::string& program, TrainArguments arguments) {
  const TrainingConfig config = read_training_config(arguments.job.config);
  if (arguments.job.steps == 0) arguments.job.steps = static_cast<std::uint64_t>(config.steps);
  RunningTraining running;
  // A run that fails says where it can be taken up again.
  const auto with_hint = [&](const Error& error) {
    if (running.saved == 0) return std::string(error.what());
    return fmt::format("{}; {} has the first {} steps: go on with --resume {}", error.what(), arguments.job.checkpoint,
                       running.saved, arguments.job.checkpoint);
  };
  try {
    return arguments.job.task == TorchTask::train_plain ? train_without_paging(program, arguments, running)
                                                        : train_with_paging(program, arguments, config, running);
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(with_hint(error), error.op(), error.bytes_missing());
  } catch (const Error& error) {
    throw Error(with_hint(error), error.exit_code());
  } catch (const EndedSilently& ended) {
    return static_cast<ExitCode>(ended.exit_code);
  }
}

ExitCode run_recording(const std::string& program, RecordArguments arguments) {
  accelerator_for(arguments.job.device, {});
  Recording recording;
  try {
    recording = record(program, arguments.job);
  } catch (const EndedSilently& ended) {
    return static_cast<ExitCode>(ended.exit_code);
  }
  write_trace(recording.trace, arguments.output);
  const Trace& trace = recording.trace;
  Nanoseconds duration_ns = 0, gap_ns = 0;
  for (const Op& op : trace.ops) {
    duration_ns += op.duration_ns;
    gap_ns += op.gap_before_ns;
  }
  print(
      fmt::format("{}: {} ops, {} tensors; {} of compute and {} of gaps a step (medians of {} steps)\n"
                  "needs {} at once; the largest op, {}, {}\n",
                  arguments.output, trace.ops.size(), trace.tensors.size(), format_seconds(to_seconds(duration_ns)),
                  format_seconds(to_seconds(gap_ns)), arguments.job.steps, format_bytes(recording.peak_live_bytes),
                  recording.largest_op, format_bytes(recording.largest_op_bytes)));
  return ExitCode::done;
}

}  // namespace tencache
