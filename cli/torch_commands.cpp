// `tencache run train` and `tencache record`: they hand over to tencache-torch, after the prediction is on disk.
#include <fmt/format.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "cli/chrome_trace.h"
#include "cli/command_line.h"
#include "cli/faults.h"
#include "cli/output_files.h"
#include "cli/policy_library.h"
#include "cli/prediction.h"
#include "cli/torch_program.h"
#include "configs/machine_yaml.h"
#include "core/parse_number.h"
#include "policies/registry.h"
#include "traces/file_io.h"
#include "traces/summary.h"
#include "traces/trace_file.h"
#ifdef TENCACHE_WITH_EXECUTOR
#include "cli/device.h"
#include "executor/host_machine.h"
#endif

namespace tencache {

class Accelerator;

namespace {

struct TrainArguments {
  WorkloadOptions workload;  // its trace may be empty: then one is recorded first
  std::string config;
  std::string policy;
  std::vector<std::string> settings;
  std::vector<std::string> directories;
  std::string device = "auto";
  std::int64_t steps = 0;  // 0: those of the configuration
  std::string timeline;
  std::string prediction;
  std::string checkpoint, resume;
  std::int64_t checkpoint_every = 0;  // 0: after the last step only
  bool predict = false;
  bool plain = false;
  bool json = false;
};

ExitCode exit_code_of(int code) { return static_cast<ExitCode>(code); }

// The recording is made by a process of its own, as the rule of predictions asks.
void record_for_prediction(const std::string& program, const std::string& config, const std::string& device,
                           const std::string& trace) {
  remark("recording one training step without a memory limit, for the prediction");
  // Its words on stdout would stand before our JSON document.
  const int saved = dup(STDOUT_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  const int code = run_program(program, {"record", config, "-o", trace, "--device", device});
  dup2(saved, STDOUT_FILENO);
  close(saved);
  if (code != 0) throw Error(fmt::format("recording {} failed (exit code {})", config, code));
}

// What of the configuration concerns a prediction; tencache-torch checks all of it.
struct ConfigHead {
  std::string name;
  std::uint64_t seed = 1;
};
ConfigHead read_config_head(const std::string& path) {
  try {
    const YAML::Node root = YAML::LoadFile(path);
    ConfigHead head;
    if (root.IsMap() && root["name"]) head.name = root["name"].as<std::string>();
    if (root.IsMap() && root["seed"]) head.seed = root["seed"].as<std::uint64_t>();
    return head;
  } catch (const YAML::Exception& error) {
    throw Error(path + ": cannot be read as a training configuration: " + error.what());
  }
}

// "50%" of the bytes that the recorded step has alive at once; other sizes stay as they are.
std::string resolve_percentage(const std::string& size, const std::string& trace_file, const Accelerator* accelerator) {
  if (!size.ends_with('%')) return size;
  const double percent = parse_number(std::string_view(size).substr(0, size.size() - 1)).value_or(0);
  if (!(percent > 0 && percent <= 1000)) {
    throw Error("--gpu-memory: '" + size + "' is no size and no percentage, such as 24MiB or 50%");
  }
#ifdef TENCACHE_WITH_EXECUTOR
  const Bytes peak = peak_in_pages(read_trace(trace_file), accelerator);
#else
  static_cast<void>(accelerator);
  const Bytes peak = summarize(read_trace(trace_file)).peak_demand_bytes;
#endif
  const auto bytes = static_cast<Bytes>(static_cast<double>(peak) * percent / 100);
  remark(fmt::format("--gpu-memory: {} of {} alive at once is {}", size, format_bytes(peak), format_bytes(bytes)));
  return std::to_string(bytes);
}

// The GPU that the training program will use, for its pages; settles what `auto` means.
std::shared_ptr<Accelerator> training_accelerator(TrainArguments& arguments) {
  std::shared_ptr<Accelerator> accelerator;
#ifdef TENCACHE_TORCH_CUDA
  WorkloadOptions known = arguments.workload;
  if (known.gpu_memory.ends_with('%')) known.gpu_memory.clear();
  accelerator = choose_device(arguments.device, load_machine(known));
#endif
  if (arguments.device == "auto") arguments.device = accelerator != nullptr ? "cuda" : "host";
  return accelerator;
}

std::vector<std::string> train_words(const TrainArguments& arguments) {
  std::vector<std::string> words = {"train", arguments.config};
  const auto add = [&words](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  add("--machine", arguments.workload.machine);
  add("--policy", arguments.policy);
  for (const std::string& setting : arguments.settings) add("--set", setting);
  for (const std::string& library : loaded_policy_libraries()) add("--policy-library", library);
  add("--gpu-memory", arguments.workload.gpu_memory);
  add("--cpu-memory", arguments.workload.cpu_memory);
  for (const std::string& limit : arguments.workload.limits) add("--limit", limit);
  if (arguments.steps != 0) add("--steps", std::to_string(arguments.steps));
  add("--faults", arguments.workload.faults);
  for (const std::string& directory : arguments.directories) add("--directory", directory);
  if (arguments.device != "auto") add("--device", arguments.device);
  add("--timeline", arguments.timeline);
  add("--checkpoint", arguments.checkpoint);
  if (arguments.checkpoint_every != 0) {
    words.insert(words.end(), {"--checkpoint-every", std::to_string(arguments.checkpoint_every)});
  }
  add("--resume", arguments.resume);
  if (arguments.json) words.push_back("--json");
  if (arguments.plain) words.push_back("--plain");
  return words;
}

// Options that contradict each other, or are missing.
void check_options(const TrainArguments& arguments, bool predicting) {
  if (arguments.plain && predicting) throw Error("--plain runs without paging, so there is nothing to predict");
  if (arguments.plain &&
      !(arguments.policy.empty() && arguments.workload.machine.empty() && arguments.settings.empty() &&
        arguments.directories.empty() && arguments.workload.limits.empty())) {
    throw Error(
        "--plain runs without paging; --machine, --policy, --set, --limit and --directory have no meaning with it");
  }
  if (!arguments.plain && (arguments.policy.empty() || arguments.workload.machine.empty())) {
    throw Error("--machine and --policy are missing (or --plain, for LibTorch alone)");
  }
}

// Complains about names before anything is recorded or run.
void check_names(const TrainArguments& arguments) {
  std::vector<std::string> others = {arguments.config};
  if (!arguments.plain) {
    make_policy(arguments.policy, parse_settings(arguments.settings));
    const std::vector<std::string> inputs = input_files(arguments.workload);
    others.insert(others.end(), inputs.begin(), inputs.end());
  }
  check_output("--checkpoint", arguments.checkpoint, others);  // may be that of --resume
  others.insert(others.end(), {arguments.checkpoint, arguments.resume});
  check_output("--timeline", arguments.timeline, others);
  others.push_back(arguments.timeline);
  check_output("--prediction", arguments.prediction, others);
}

// What is predicted: the trace of `arguments`, or a recording that is made now and written to `recording`. Settles
// what percentages and `auto` among the arguments mean.
Workload workload_to_predict(const std::string& program, TemporaryFile& recording, TrainArguments& arguments) {
  const ConfigHead head = read_config_head(arguments.config);
  // Gone at the end: the training program has the GPU's memory for itself.
  const std::shared_ptr<Accelerator> accelerator = training_accelerator(arguments);
  const bool recorded_now = arguments.workload.trace.empty();
  if (recorded_now) {
    arguments.workload.trace = recording.path();
    record_for_prediction(program, arguments.config, arguments.device, arguments.workload.trace);
  }
  arguments.workload.gpu_memory =
      resolve_percentage(arguments.workload.gpu_memory, arguments.workload.trace, accelerator.get());
  arguments.workload.rescale = {.assume_gpu = {}, .no_rescale = true};  // recorded where it will run
  Workload workload = load_workload(arguments.workload);
  workload.seed = head.seed;
  // Predictions name what the user gave, not a temporary file.
  if (recorded_now) workload.options.trace = arguments.config;
  if (!recorded_now && workload.trace.header.model != head.name) {
    throw Error(fmt::format(
        "{}: is a recording of model '{}', but {} trains '{}'; record one with `tencache record {}`",
        arguments.workload.trace, workload.trace.header.model, arguments.config, head.name, arguments.config));
  }
#ifdef TENCACHE_WITH_EXECUTOR
  workload.machine = with_real_pages(workload.machine, accelerator.get());
  workload.run_options["device"] = arguments.device;
#endif
  return workload;
}

ExitCode train_and_predict(const std::string& program, TrainArguments arguments) {
  TemporaryFile recording(".trace.jsonl"), unnamed(".prediction.json");
  const Workload workload = workload_to_predict(program, recording, arguments);
  Timeline timeline;
  const bool drawn = !arguments.timeline.empty();
  const Prediction prediction =
      predict(workload, arguments.policy, parse_settings(arguments.settings),
              arguments.prediction.empty() ? unnamed.path() : arguments.prediction, drawn ? &timeline : nullptr);
  if (!prediction.outcome.result.fits) remark("predicted not to fit: " + prediction.outcome.result.misfit);
  std::vector<std::string> words = train_words(arguments);
  words.insert(words.end(), {"--prediction", prediction.file, "--trace", arguments.workload.trace});
  TemporaryFile predicted(".timeline.json");
  if (!timeline.spans.empty()) {
    write_chrome_trace(predicted.path(), {{.name = "predicted: " + arguments.policy,
                                           .timeline = &timeline,
                                           .machine = &workload.machine,
                                           .trace = &prediction.outcome.program.trace}});
    words.insert(words.end(), {"--predicted-timeline", predicted.path()});
  }
  return exit_code_of(run_program(program, words));
}

ExitCode train(TrainArguments arguments) {
  const bool predicting = arguments.predict || !arguments.prediction.empty();
  check_options(arguments, predicting);
  if (predicting && arguments.prediction.empty() && !arguments.timeline.empty()) {
    arguments.prediction = arguments.timeline + ".prediction.json";
  }
  check_names(arguments);
  const std::string program = find_torch_program();
  if (predicting) return train_and_predict(program, std::move(arguments));
  if (!arguments.workload.trace.empty()) throw Error("--trace is for a prediction; give --predict as well");
  return exit_code_of(run_program(program, train_words(arguments)));
}

void add_training_device_option(CLI::App& command, std::string& device) {
  command
      .add_option("--device", device,
                  "Where it computes: cuda (a GPU, with a LibTorch that has CUDA), host (this computer's processor; "
                  "ordinary memory stands in for the GPU's), auto (a GPU where there is one with enough memory)")
      ->check(CLI::IsMember({"auto", "cuda", "host"}))
      ->capture_default_str();
}

}  // namespace

void add_run_train_command(CLI::App& run, Command& chosen) {
  CLI::App* command = run.add_subcommand("train", "Train a small GPT with its tensors paged by a policy");
  auto arguments = std::make_shared<TrainArguments>();
  command->add_option("CONFIG", arguments->config, "What to train, a YAML file (configs/training)")->required();
  refuse_empty(command->add_option("--machine,-m", arguments->workload.machine,
                                   "Machine: a name of `tencache machines`, or a YAML file"));
  refuse_empty(command->add_option("--policy,-p", arguments->policy, "A name of `tencache policies`"));
  add_settings_option(*command, arguments->settings);
  add_policy_library_option(*command);
  refuse_empty(command->add_option(
      "--gpu-memory", arguments->workload.gpu_memory,
      "GPU memory that tensors may use, such as 24MiB, or 50% of what the program has alive at once"));
  refuse_empty(command->add_option("--cpu-memory", arguments->workload.cpu_memory,
                                   "CPU memory that tensors may use, such as 1GiB"));
  add_limit_option(*command, arguments->workload.limits);
  command->add_option("--steps", arguments->steps, "Training steps (default: those of CONFIG)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}));
  command
      ->add_option("--directory", arguments->directories,
                   "Folder for the files of NVMe tiers, any number of times (default: the machine's, else /var/tmp)")
      ->allow_extra_args(false)
      ->take_all();
  refuse_empty(command->add_option("--timeline", arguments->timeline,
                                   "Write the timeline to this file, step by step from the third on, for "
                                   "`tencache gui F` and https://ui.perfetto.dev"));
  refuse_empty(command->add_option(
      "--checkpoint", arguments->checkpoint,
      "Write weights, optimizer states, random numbers and position to this file after the last step"));
  command->add_option("--checkpoint-every", arguments->checkpoint_every, "… and after every so many steps")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}));
  refuse_empty(command->add_option(
      "--resume", arguments->resume,
      "Go on from this checkpoint, under any policy and machine; --steps counts from the beginning"));
  add_training_device_option(*command, arguments->device);
  add_faults_option(*command, arguments->workload.faults);
  command->add_flag("--predict", arguments->predict,
                    "Simulate the same first, and report how far the prediction was off");
  refuse_empty(
      command->add_option("--trace", arguments->workload.trace,
                          "Predict from this recording (`tencache record`); without it one is recorded first"));
  refuse_empty(command->add_option("--prediction", arguments->prediction,
                                   "Write the prediction to this file; implies --predict"));
  command->add_flag("--plain", arguments->plain, "LibTorch alone, without paging")->excludes("--faults");
  command->get_option("--faults")->excludes("--predict")->excludes("--prediction");
  command->add_flag("--json", arguments->json, "The result as JSON");
  command->footer(
      "The prediction is written, and its SHA-256 said, before the measured run starts.\n\nExamples:\n"
      "  tencache run train configs/training/gpt-small.yaml -m my-computer.yaml -p layer-streaming --predict\n"
      "  tencache run train configs/training/gpt-small.yaml -m small-host -p on-demand --gpu-memory 64MiB --steps 5");
  command->callback([arguments, &chosen] { chosen = [arguments] { return train(*arguments); }; });
}

void add_record_command(CLI::App& app, Command& chosen) {
  struct Arguments {
    std::string config, program, output;
    std::string device = "auto";
    std::uint64_t steps = 0;
  };
  CLI::App* command = app.add_subcommand("record", "Record a trace of one step of a training program");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("CONFIG", arguments->config, "What to train, a YAML file (configs/training)");
  refuse_empty(command->add_option("--program", arguments->program,
                                   "… or a program that is built in: resnet, lstm or lora-encoder"));
  command->add_option("--output,-o", arguments->output, "The trace to write (.trace.jsonl, .trace.jsonl.zst)")
      ->required();
  command->add_option("--steps", arguments->steps, "Recorded steps; durations are their medians (default: 8)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1000}));
  add_training_device_option(*command, arguments->device);
  command->footer(
      "Examples:\n  tencache record configs/training/gpt-small.yaml -o gpt.trace.jsonl.zst\n"
      "  tencache record --program resnet -o resnet.trace.jsonl.zst");
  command->callback([arguments, &chosen] {
    chosen = [arguments] {
      if (arguments->config.empty() == arguments->program.empty()) {
        throw Error("record: give either a training configuration or --program");
      }
      std::vector<std::string> words = {"record"};
      if (!arguments->config.empty()) words.push_back(arguments->config);
      if (!arguments->program.empty()) words.insert(words.end(), {"--program", arguments->program});
      words.insert(words.end(), {"-o", arguments->output});
      if (arguments->device != "auto") words.insert(words.end(), {"--device", arguments->device});
      if (arguments->steps != 0) words.insert(words.end(), {"--steps", std::to_string(arguments->steps)});
      return exit_code_of(run_program(find_torch_program(), words));
    };
  });
}

}  // namespace tencache
