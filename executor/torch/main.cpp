// `tencache-torch`: trains a small GPT with its tensors paged by a policy, or records it. A program of its own because
// LibTorch takes 0.4 s to load; `tencache run train` and `tencache record` start it.
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <new>
#include <optional>

#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/device.h"
#include "cli/faults.h"
#include "cli/policy_library.h"
#include "cli/report.h"
#include "cli/room.h"
#include "cli/training_timeline.h"
#include "cli/workload.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "executor/host_machine.h"
#include "executor/torch/programs.h"
#include "executor/torch/record.h"
#include "executor/torch/recorded_durations.h"
#include "executor/torch/torch_cuda.h"
#include "executor/torch/train.h"
#include "executor/torch/training_report.h"
#include "policies/registry.h"
#include "sim/rehearse.h"
#include "traces/file_io.h"
#include "traces/trace_file.h"

namespace tencache {
namespace {

struct TrainArguments {
  WorkloadOptions workload;  // its trace: the configuration's path
  std::string policy;
  std::vector<std::string> settings;
  std::uint64_t steps = 0;
  std::string timeline, prediction, recording;
  std::string predicted_timeline;
  std::string checkpoint, resume;
  std::uint64_t checkpoint_every = 0;
  std::vector<std::string> directories;
  std::string device = "auto";
  bool json = false, plain = false;
};

struct RecordArguments {
  std::string config, program, output;
  std::string device = "auto";
  std::uint64_t steps = RecordingOptions{}.steps;
};

// Null accelerator: the host. `auto` is the GPU where LibTorch and we can use it and it has the machine's memory.
TrainingDevice training_device(const std::string& device, const MachineSpec& machine) {
  if (device == "cuda") return cuda_training_device();
  if (device == "host" || !torch_cuda::available() || choose_device(device, machine) == nullptr) return {};
  try {
    return cuda_training_device();
  } catch (const Error& error) {
    remark(fmt::format("training on the host: {}", error.what()));
    return {};
  }
}

// ---- train ----------------------------------------------------------------------------------------------------------

// "50%" of what a recorded step has alive at once, in bytes; other sizes as they are. The same bytes as
// `tencache info` says of a recording, so that a prediction and a run without one mean the same.
std::string resolve_percentage(const std::string& size, const TrainingConfig& config, const TextData& data,
                               const TrainingDevice& device) {
  if (!size.ends_with('%')) return size;
  const double percent = parse_number(std::string_view(size).substr(0, size.size() - 1)).value_or(0);
  if (!(percent > 0 && percent <= 1000)) {
    throw Error("--gpu-memory: '" + size +
                "' is no size and no percentage of the program's peak, such as 24MiB or 50%");
  }
  const PagedTraining demand = measure_demand(config, data, device);
  const Bytes peak = peak_in_pages(demand.recorded, device.accelerator.get());
  const auto bytes = static_cast<Bytes>(static_cast<double>(peak) * percent / 100);
  remark(fmt::format("--gpu-memory: {} of {} alive at once is {}; the largest op, {}, needs {}", size,
                     format_bytes(peak), format_bytes(bytes), demand.largest_op,
                     format_bytes(demand.largest_op_bytes)));
  return std::to_string(bytes) + "B";
}

// Prints each step, or shows that something goes on where stdout is kept for JSON.
std::function<void(std::uint64_t, float, Nanoseconds)> step_printer(bool json, std::uint64_t steps,
                                                                    ProgressLine& progress) {
  return [json, steps, &progress](std::uint64_t step, float loss, Nanoseconds duration_ns) {
    const std::string line =
        fmt::format("step {:>3}  loss {:.6f}  {}", step, loss, format_seconds(to_seconds(duration_ns)));
    if (json) {
      progress.show(fmt::format("{} of {}", line, steps));
    } else {
      print(line + "\n");
    }
  };
}

ExitCode train_without_paging(const TrainArguments& arguments, const TrainingConfig& config, const TextData& data,
                              TrainingOptions options) {
  const TrainingDevice device = training_device(arguments.device, {});
  for (const auto& [name, text] : {std::pair("--timeline", arguments.timeline),
                                   {"--prediction", arguments.prediction},
                                   {"--trace", arguments.recording},
                                   {"--machine", arguments.workload.machine},
                                   {"--policy", arguments.policy},
                                   {"--gpu-memory", arguments.workload.gpu_memory},
                                   {"--cpu-memory", arguments.workload.cpu_memory}}) {
    if (!text.empty()) throw Error(std::string(name) + " has no meaning with --plain, LibTorch alone");
  }
  if (!arguments.workload.limits.empty()) throw Error("--limit has no meaning with --plain, LibTorch alone");
  if (!arguments.settings.empty()) throw Error("--set has no meaning with --plain, LibTorch alone");
  TrainingResult training;
  {
    ProgressLine progress;
    options.on_step = step_printer(arguments.json, options.steps, progress);
    training = train_plain(config, data, options, device);
  }
  if (arguments.json) {
    print_json({{"training", training_json(training)}});
  } else {
    print(steps_text(training));
  }
  return ExitCode::done;
}

// Hours of training are not to end in a file that cannot be written.
void require_writable(const std::string& file) {
  std::error_code ignored;
  const auto status = std::filesystem::status(file, ignored);
  const bool pipe_or_device = exists(status) && !is_regular_file(status) && !is_directory(status);
  if (!pipe_or_device) const AtomicFile attempt(file);
}

// `saved`: the steps of the last checkpoint.
TrainingOptions training_options(const TrainArguments& arguments, const TrainingConfig& config, std::uint64_t& saved) {
  TrainingOptions options;
  options.steps = arguments.steps != 0 ? arguments.steps : static_cast<std::uint64_t>(config.steps);
  if (arguments.checkpoint_every != 0 && arguments.checkpoint.empty()) {
    throw Error("--checkpoint-every has no meaning without --checkpoint");
  }
  if (!arguments.checkpoint.empty()) {
    check_checkpoint_name(arguments.checkpoint);
    require_writable(arguments.checkpoint);
  }
  options.checkpoint = arguments.checkpoint;
  options.checkpoint_every = arguments.checkpoint_every;
  options.resume = arguments.resume;
  options.on_checkpoint = [&saved](std::uint64_t steps) { saved = steps; };
  return options;
}

// A percentage is of what runs on the device, so it is not known while that is chosen.
MachineSpec machine_before_percentage(WorkloadOptions options) {
  if (options.gpu_memory.ends_with('%')) options.gpu_memory.clear();
  return load_machine(options);
}

// What will have run: `options` with the machine as it is on this computer. Nothing is recorded yet.
Workload workload_here(const WorkloadOptions& options, std::uint64_t steps, const TrainingDevice& device) {
  Workload workload;
  workload.options = options;
  workload.options.iterations = steps;
  workload.machine = with_real_pages(load_machine(options, &workload.machine_sha256), device.accelerator.get());
  workload.run_options["device"] = device.accelerator != nullptr ? "cuda" : "host";
  return workload;
}

// Each step is written as it ends. All of it outlives the run.
void write_steps(TrainingTimeline& file, Timeline& timeline, LiveOptions& live, TrainingOptions& options) {
  live.engine.timeline = &timeline;
  live.engine.on_iteration = [&](std::uint64_t) { file.collect(timeline); };  // the engine rests
  options.on_boundary = [&file](const LiveRuntime& runtime) {
    if (runtime.has_recorded()) file.write(runtime.program().trace);
  };
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

ExitCode train_with_paging(TrainArguments arguments, const TrainingConfig& config, const TextData& data,
                           TrainingOptions options) {
  MadePolicy made = make_policy(arguments.policy, parse_settings(arguments.settings));
  std::unique_ptr<Policy> by_recording;
  if (!arguments.recording.empty()) by_recording = with_durations_of(read_trace(arguments.recording), *made.policy);
  Policy& policy = by_recording != nullptr ? *by_recording : *made.policy;
  std::optional<GivenPrediction> prediction;
  if (!arguments.prediction.empty()) prediction = read_prediction(arguments.prediction, arguments.policy);
  const TrainingDevice device = training_device(arguments.device, machine_before_percentage(arguments.workload));
  arguments.workload.gpu_memory = resolve_percentage(arguments.workload.gpu_memory, config, data, device);
  Workload workload = workload_here(arguments.workload, options.steps, device);
  LiveOptions live;
  live.machine.faults = announce_faults(workload.options, workload.machine);
  choose_directories(workload.machine, arguments.directories);
  state_room(workload.machine, unlimited, "--gpu-memory or --cpu-memory", device.accelerator.get());
  live.engine.rehearse = rehearse;
  Timeline timeline;
  std::optional<TrainingTimeline> timeline_file;
  if (!arguments.timeline.empty()) {
    timeline_file.emplace(arguments.timeline, "measured: " + arguments.policy, workload.machine,
                          arguments.predicted_timeline);
    write_steps(*timeline_file, timeline, live, options);
  }

  Outcome outcome;
  outcome.policy = arguments.policy;
  outcome.options = std::move(made.options);
  PagedTraining paged;
  const std::int64_t start_ns = tool_clock_ns();
  TrainingResult until_now;
  try {
    ProgressLine progress;
    options.on_step = [&until_now, show = step_printer(arguments.json, options.steps, progress)](
                          std::uint64_t step, float loss, Nanoseconds duration_ns) {
      until_now.losses.push_back(loss);
      until_now.step_ns.push_back(duration_ns);
      show(step, loss, duration_ns);
    };
    paged = train_paged(config, data, workload.machine, policy, live, options, device);
  } catch (const OutOfMemory& error) {
    if (!arguments.json) throw;
    outcome.result = misfit_after(until_now.step_ns.size(), error);
    outcome.seconds = seconds_since(start_ns);
    print_json(misfit_json(workload, outcome, until_now, prediction, config.seed));
    return ExitCode::answer_is_no;
  }
  outcome.seconds = seconds_since(start_ns);
  outcome.result = paged.run;
  outcome.program = paged.program;
  outcome.faults = paged.faults;
  workload.options.iterations = paged.training.step_ns.size();  // those before a checkpoint are another run's
  workload.trace = paged.recorded;
  workload.trace_sha256 = sha256_hex(format_trace(workload.trace));
  if (timeline_file) {
    timeline_file->collect(timeline);
    timeline_file->end(paged.program.trace);
  }
  if (arguments.json) {
    print_json(paged_training_json(workload, outcome, paged, prediction, config.seed));
  } else {
    print(paged_training_text(workload, outcome, paged, prediction));
  }
  return ExitCode::done;
}

ExitCode run_training(const TrainArguments& arguments, std::uint64_t& saved) {
  const TrainingConfig config = read_training_config(arguments.workload.trace);
  const TextData data(read_text(config.text), config.batch, config.context, config.seed);
  const TrainingOptions options = training_options(arguments, config, saved);
  if (arguments.plain) return train_without_paging(arguments, config, data, options);
  if (arguments.policy.empty() || arguments.workload.machine.empty()) {
    throw Error("train: --machine and --policy are missing (or --plain for LibTorch alone)");
  }
  return train_with_paging(arguments, config, data, options);
}

// A run that fails says where it can be taken up again.
ExitCode train(const TrainArguments& arguments) {
  std::uint64_t saved = 0;
  const auto hint = [&] {
    return fmt::format("; {} has the first {} steps: go on with --resume {}", arguments.checkpoint, saved,
                       arguments.checkpoint);
  };
  try {
    return run_training(arguments, saved);
  } catch (const OutOfMemory& error) {
    if (saved == 0) throw;
    throw OutOfMemory(error.what() + hint(), error.op(), error.bytes_missing());
  } catch (const Error& error) {
    if (saved == 0) throw;
    throw Error(error.what() + hint());
  }
}

// ---- record ---------------------------------------------------------------------------------------------------------

ExitCode record(const RecordArguments& arguments) {
  if (arguments.config.empty() == arguments.program.empty()) {
    throw Error("record: give either a training configuration or --program");
  }
  Recording recording;
  {
    ProgressLine progress;
    RecordingOptions options;
    options.steps = arguments.steps;
    options.on_step = step_printer(true, options.steps + 2, progress);
    if (arguments.program.empty()) {
      const TrainingConfig config = read_training_config(arguments.config);
      const TextData data(read_text(config.text), config.batch, config.context, config.seed);
      recording = record_training(config, data, options, training_device(arguments.device, {}));
    } else {
      if (arguments.device == "cuda") throw Error("--program: built-in programs are recorded on the host");
      recording = record_program(arguments.program, options);
    }
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
                  format_seconds(to_seconds(gap_ns)), arguments.steps, format_bytes(recording.peak_live_bytes),
                  recording.largest_op, format_bytes(recording.largest_op_bytes)));
  return ExitCode::done;
}

// ---- The command line -----------------------------------------------------------------------------------------------

void add_training_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("train", "Train a small GPT with its tensors paged by a policy");
  auto arguments = std::make_shared<TrainArguments>();
  WorkloadOptions& workload = arguments->workload;
  command->add_option("CONFIG", workload.trace, "What to train, a YAML file (configs/training)")->required();
  command->add_option("--machine,-m", workload.machine, "Machine: a name of `tencache machines`, or a YAML file");
  command->add_option("--policy,-p", arguments->policy, "A name of `tencache policies`");
  add_settings_option(*command, arguments->settings);
  add_policy_library_option(*command);
  command->add_option(
      "--gpu-memory", workload.gpu_memory,
      "GPU memory that tensors may use, such as 24MiB, or 50% of what a recorded step has alive at once");
  command->add_option("--cpu-memory", workload.cpu_memory, "CPU memory that tensors may use, such as 1GiB");
  add_limit_option(*command, workload.limits);
  command->add_option("--steps", arguments->steps, "Training steps (default: those of CONFIG)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000'000}));
  command->add_option(
      "--timeline", arguments->timeline,
      "Write the timeline from the third step on (before, the schedule is not known; of fewer steps all) to this "
      "file, for https://ui.perfetto.dev");
  command->add_option("--predicted-timeline", arguments->predicted_timeline,
                      "The prediction's, to stand first in --timeline");
  command->add_option("--checkpoint", arguments->checkpoint,
                      "Write weights, optimizer states, random numbers and position to this file after the last step");
  command->add_option("--checkpoint-every", arguments->checkpoint_every, "… and after every so many steps")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000'000}));
  command->add_option("--resume", arguments->resume, "Go on from this checkpoint; --steps counts from the beginning");
  command->add_option("--prediction", arguments->prediction,
                      "Compare with this prediction, a result that `tencache replay --json` wrote before");
  command->add_option("--trace", arguments->recording,
                      "Place updates by the durations of this recording of CONFIG instead of this run's own");
  command->add_option("--directory", arguments->directories,
                      "Where files stand in for SSDs, one a device (default: the machine's, else /var/tmp)");
  add_device_option(*command, arguments->device);
  add_faults_option(*command, workload.faults);
  command->add_flag("--json", arguments->json, "The result as JSON");
  command->add_flag("--plain", arguments->plain, "LibTorch alone, without paging");
  command->footer("Exit code 1: an op does not fit; the message names it and the bytes.");
  command->callback([arguments, &chosen] { chosen = [arguments] { return train(*arguments); }; });
}

void add_recording_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("record", "Record a trace of one step of a training program");
  auto arguments = std::make_shared<RecordArguments>();
  command->add_option("CONFIG", arguments->config, "What to train, a YAML file (configs/training)");
  std::string programs;
  for (const ProgramInfo& program : list_programs()) {
    programs += (programs.empty() ? "" : "; ") + program.name + ", " + program.description;
  }
  command->add_option("--program", arguments->program, "… or one of these: " + programs);
  command->add_option("--output,-o", arguments->output, "The trace to write (.trace.jsonl, .trace.jsonl.zst)")
      ->required();
  command->add_option("--steps", arguments->steps, "Recorded steps; durations are their medians (default: 8)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1000}));
  add_device_option(*command, arguments->device);
  command->callback([arguments, &chosen] { chosen = [arguments] { return record(*arguments); }; });
}

int fail(std::string message, ExitCode code) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  remark("tencache: " + message);
  return static_cast<int>(code);
}

// One core computes, the others copy: what calibrations and predictions assume. OpenBLAS has threads of its own, of
// which LibTorch does not know; it reads its environment before main begins.
void compute_on_one_core() {
  at::set_num_threads(1);
  using SetThreads = void (*)(int);
  if (void* function = dlsym(RTLD_DEFAULT, "openblas_set_num_threads"); function != nullptr) {
    reinterpret_cast<SetThreads>(function)(1);
  }
}

int run(int argc, const char* const* argv) {
  CLI::App app(
      "Trains a small GPT with its tensors paged by a policy, or records it. `tencache run train` starts this.",
      "tencache-torch");
  try {
    Command chosen;
    app.require_subcommand(1);
    add_training_command(app, chosen);
    add_recording_command(app, chosen);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) return app.exit(error);  // --help
      return fail(error.what() + std::string("; see tencache-torch --help"), ExitCode::bad_usage);
    }
    compute_on_one_core();
    return static_cast<int>(chosen());
  } catch (const Error& error) {
    return fail(error.what(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return fail("this computer has not enough memory for that", ExitCode::bad_usage);
  } catch (const std::exception& error) {
    return fail(error.what(), ExitCode::bad_usage);
  }
}

}  // namespace
}  // namespace tencache

int main(int argc, char** argv) { return tencache::run(argc, argv); }
