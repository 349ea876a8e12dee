// `tencache run train` and `tencache record`: their options.
#include <CLI/CLI.hpp>
#include <memory>
#include <utility>

#include "cli/command_line.h"
#include "cli/python_package.h"
#include "cli/questions.h"
#include "cli/torch_program.h"
#include "cli/torch_run.h"
#include "cli/workload_options.h"
#include "policies/registry.h"
#include "traces/file/output_files.h"

namespace tencache {
namespace {

// Options that contradict each other, or are missing.
void check_options(const TrainArguments& arguments) {
  const bool plain = arguments.job.task == TorchTask::train_plain;
  if (plain && arguments.predict) throw Error("--plain runs without paging, so there is nothing to predict");
  if (plain && !(arguments.scenario.policy.name.empty() && arguments.scenario.machine.name.empty() &&
                 arguments.scenario.policy.settings.empty() && arguments.directories.empty() &&
                 arguments.scenario.machine.limits.empty())) {
    throw Error(
        "--plain runs without paging; --machine, --policy, --set, --limit and --directory have no meaning with it");
  }
  for (const auto& [name, text] : {std::pair("--timeline", arguments.timeline),
                                   {"--gpu-memory", arguments.scenario.machine.gpu_memory},
                                   {"--cpu-memory", arguments.scenario.machine.cpu_memory}}) {
    if (plain && !text.empty()) {
      throw Error(std::string(name) + " has no meaning with --plain, LibTorch alone");
    }
  }
  if (!plain && (arguments.scenario.policy.name.empty() || arguments.scenario.machine.name.empty())) {
    throw Error("--machine and --policy are missing (or --plain, for LibTorch alone)");
  }
  if (arguments.job.checkpoint_every != 0 && arguments.job.checkpoint.empty()) {
    throw Error("--checkpoint-every has no meaning without --checkpoint");
  }
  if (!arguments.scenario.trace.file.empty() && !arguments.predict) {
    throw Error("--trace is for a prediction; give --predict as well");
  }
}

// Complains about names before anything is recorded or run.
void check_names(const TrainArguments& arguments) {
  std::vector<std::string> others = {arguments.job.config};
  if (arguments.job.task == TorchTask::train) {
    make_policy(arguments.scenario.policy.name, arguments.scenario.policy.settings);
    const std::vector<std::string> inputs = input_files(arguments.scenario);
    others.insert(others.end(), inputs.begin(), inputs.end());
  }
  check_output("--checkpoint", arguments.job.checkpoint, others);  // may be that of --resume
  others.insert(others.end(), {arguments.job.checkpoint, arguments.job.resume});
  check_output("--timeline", arguments.timeline, others);
  others.push_back(arguments.timeline);
  check_output("--prediction", arguments.prediction, others);
}

ExitCode train(TrainArguments arguments) {
  arguments.predict = arguments.predict || !arguments.prediction.empty();
  check_options(arguments);
  if (arguments.predict && arguments.prediction.empty() && !arguments.timeline.empty()) {
    arguments.prediction = arguments.timeline + ".prediction.json";
  }
  check_names(arguments);
  return run_training(find_torch_program(), std::move(arguments));
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
  command->add_option("CONFIG", arguments->job.config, "What to train, a YAML file (configs/training)")->required();
  refuse_empty(command->add_option("--machine,-m", arguments->scenario.machine.name,
                                   "Machine: a name of `tencache machines`, or a YAML file"));
  refuse_empty(command->add_option("--policy,-p", arguments->scenario.policy.name, "A name of `tencache policies`"));
  add_group(*command, [&](QuestionOptions& options) {
    add_settings_option(options, arguments->scenario.policy.settings);
    add_policy_library_option(options);
  });
  refuse_empty(command->add_option(
      "--gpu-memory", arguments->scenario.machine.gpu_memory,
      "GPU memory that tensors may use, such as 24MiB, or 50% of what the program has alive at once"));
  refuse_empty(command->add_option("--cpu-memory", arguments->scenario.machine.cpu_memory,
                                   "CPU memory that tensors may use, such as 1GiB"));
  add_group(*command, [&](QuestionOptions& options) { add_limit_option(options, arguments->scenario.machine); });
  command->add_option("--steps", arguments->job.steps, "Training steps (default: those of CONFIG)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000}));
  command
      ->add_option("--directory", arguments->directories,
                   "Folder for the files of NVMe tiers, any number of times (default: the machine's, else /var/tmp)")
      ->allow_extra_args(false)
      ->take_all();
  refuse_empty(command->add_option("--timeline", arguments->timeline,
                                   "Write the timeline to this file, step by step from the third on, for "
                                   "`tencache gui F` and https://ui.perfetto.dev"));
  refuse_empty(command->add_option(
      "--checkpoint", arguments->job.checkpoint,
      "Write weights, optimizer states, random numbers and position to this file after the last step"));
  command->add_option("--checkpoint-every", arguments->job.checkpoint_every, "… and after every so many steps")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000}));
  refuse_empty(command->add_option(
      "--resume", arguments->job.resume,
      "Go on from this checkpoint, under any policy and machine; --steps counts from the beginning"));
  add_training_device_option(*command, arguments->job.device);
  add_faults_option(*command, arguments->scenario.faults);
  command->add_flag("--predict", arguments->predict,
                    "Simulate the same first, and report how far the prediction was off");
  refuse_empty(
      command->add_option("--trace", arguments->scenario.trace.file,
                          "Predict from this recording (`tencache record`); without it one is recorded first"));
  refuse_empty(command->add_option("--prediction", arguments->prediction,
                                   "Write the prediction to this file; implies --predict"));
  command
      ->add_flag_callback(
          "--plain", [&job = arguments->job] { job.task = TorchTask::train_plain; }, "LibTorch alone, without paging")
      ->excludes("--faults");
  command->get_option("--faults")->excludes("--predict")->excludes("--prediction");
  command->add_flag("--json", arguments->json, "The result as JSON");
  command->footer(
      "The prediction is written, and its SHA-256 said, before the measured run starts.\n\nExamples:\n"
      "  tencache run train configs/training/gpt-small.yaml -m my-computer.yaml -p layer-streaming --predict\n"
      "  tencache run train configs/training/gpt-small.yaml -m small-host -p on-demand --gpu-memory 64MiB --steps 5");
  command->callback([arguments, &chosen] { chosen = [arguments] { return train(*arguments); }; });
}

void add_run_python_command(CLI::App& run, Command& chosen) {
  CLI::App* command = run.add_subcommand("python", "Run a PyTorch script as it is, with its tensors paged by a policy");
  command->prefix_command();
  command->footer(
      "Needs python3 with PyTorch and the package tencache (pip install tencache). Options, before the --, are those "
      "of\n"
      "`python3 -m tencache run python --help`: --policy, --gpu-memory, --cpu-memory, --directory and others.\n\n"
      "Examples:\n"
      "  tencache run python --gpu-memory 8GiB -- train.py --epochs 1\n"
      "  tencache run python -p lru --gpu-memory 2GiB -- train.py");
  command->callback([command, &chosen] {
    chosen = [words = command->remaining()] { return run_in_python({"run", "python"}, words); };
  });
}

void add_record_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("record", "Record a trace of one step of a training program");
  auto arguments = std::make_shared<RecordArguments>();
  command->add_option("CONFIG", arguments->job.config, "What to train, a YAML file (configs/training)");
  refuse_empty(command->add_option("--program", arguments->job.program,
                                   "… or a program that is built in: resnet, lstm or lora-encoder"));
  command->add_option("--output,-o", arguments->output, "The trace to write (.trace.jsonl, .trace.jsonl.zst)")
      ->required();
  command->add_option("--steps", arguments->job.steps, "Recorded steps; durations are their medians (default: 8)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1000}));
  add_training_device_option(*command, arguments->job.device);
  command->footer(
      "Examples:\n  tencache record configs/training/gpt-small.yaml -o gpt.trace.jsonl.zst\n"
      "  tencache record --program resnet -o resnet.trace.jsonl.zst");
  command->callback([arguments, &chosen] {
    chosen = [arguments] {
      if (arguments->job.config.empty() == arguments->job.program.empty()) {
        throw Error("record: give either a training configuration or --program");
      }
      if (!arguments->job.program.empty() && arguments->job.device == "cuda") {
        throw Error("--program: built-in programs are recorded on the host");
      }
      return run_recording(find_torch_program(), *arguments);
    };
  });
}

}  // namespace tencache
