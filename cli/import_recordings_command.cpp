#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/console.h"
#include "cli/import_command.h"
#include "cli/workload_options.h"
#include "configs/gpu_yaml.h"
#include "configs/kernel_yaml.h"
#include "configs/stack_yaml.h"
#include "studies/workload.h"
#include "traces/file/output_files.h"
#include "traces/file/trace_file.h"
#include "traces/import/pytorch/chakra.h"
#include "traces/import/pytorch/execution_trace.h"
#include "traces/import/pytorch/import_kineto.h"
#include "traces/import/pytorch/import_pytorch.h"
#include "traces/transform/rescale.h"
#include "traces/transform/strip_names.h"

namespace tencache {
namespace {

struct RecordingArguments {
  std::vector<std::string> files;
  std::string output, gpu, kernels, model, nodes;
  std::int64_t iteration = -1, kineto_iteration = -1, batch = 0, sequence_length = 0;
  bool as_recorded = false, strip_names = false, json = false;
};

Nanoseconds eager_launch_ns() { return read_stack_figures().launch_ns[static_cast<std::size_t>(Stack::eager)]; }

// "120-4711" as ids of nodes.
void parse_nodes(const std::string& text, IterationChoice& choice) {
  const std::size_t dash = text.find('-');
  try {
    std::size_t used = 0;
    choice.first_node = std::stoull(text, &used);
    if (used != dash) throw std::invalid_argument("");
    const std::string last = text.substr(dash + 1);
    choice.last_node = std::stoull(last, &used);
    if (used != last.size() || choice.last_node < choice.first_node || choice.first_node == 0) {
      throw std::invalid_argument("");
    }
  } catch (const std::exception&) {
    throw Error("--nodes: '" + text + "' is no range of node ids; write 120-4711, the first and the last");
  }
}

ImportProgress progress_line(const std::string& what) {
  auto line = std::make_shared<ProgressLine>();
  return [line, what, shown = std::uint64_t{0}](std::uint64_t consumed, std::uint64_t total) mutable {
    if (consumed >= shown && consumed < shown + 16 * MiB && shown != 0) return;  // a second pass begins anew
    shown = consumed;
    line->show(total == 0 ? fmt::format("reading {}: {}", what, format_bytes(consumed))
                          : fmt::format("reading {}: {} %", what, consumed * 100 / total));
  };
}

void add_common(CLI::App* command, RecordingArguments& arguments) {
  refuse_empty(
      command->add_option("--output,-o", arguments.output, "The trace to write (.trace.jsonl, .trace.jsonl.zst)"))
      ->required();
  command->add_option("--model", arguments.model, "What was recorded (default: the file's name)");
  const auto add_count = [command](const char* name, std::int64_t& count, const char* description) {
    command->add_option(name, count, description)->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}));
  };
  add_count("--batch", arguments.batch, "Sequences or samples an iteration");
  add_count("--sequence-length", arguments.sequence_length, "Tokens a sequence");
  command->add_flag("--strip-names", arguments.strip_names,
                    "Neutral names for tensors, ops, modules and the model, to share the trace");
  command->add_flag("--json", arguments.json, "What was imported as JSON");
}

void add_iteration(CLI::App* command, RecordingArguments& arguments) {
  whole_number(command->add_option(
      "--iteration", arguments.iteration,
      "Which iteration: N of ProfilerStep#N, else counted from 0 (default: the last complete one)"));
}

ExitCode finish(ImportedTrace& imported, const RecordingArguments& arguments) {
  if (arguments.strip_names) imported.trace = strip_names(imported.trace);
  return finish_import(imported.trace, imported.notes, arguments.output, arguments.json);
}

void add_kernels(CLI::App* command, RecordingArguments& arguments) {
  refuse_empty(command->add_option("--kernels", arguments.kernels,
                                   "Constants of the GPU's kernels from this file, such as calibrate --from-trace "
                                   "writes (default: those of configs/kernels)"))
      ->needs("--gpu");
}

void note_kernels(ImportedTrace& imported, const GpuSpec& gpu, const RecordingArguments& arguments) {
  if (arguments.kernels.empty()) return;
  if (const std::string note = calibration_note(gpu.kernels); !note.empty()) imported.notes.push_back(note);
  std::string& recorded_by = imported.trace.header.recorded_by;
  recorded_by += std::string(recorded_by.empty() ? "" : "; ") + "--kernels " + arguments.kernels;
}

ExitCode import_execution_trace(const RecordingArguments& arguments) {
  check_output("--output", arguments.output, arguments.files);
  PytorchImportOptions options;
  options.execution_trace = arguments.files.front();
  if (arguments.files.size() == 2) options.kineto = arguments.files.back();
  options.as_recorded = arguments.as_recorded;
  options.model = arguments.model;
  options.batch = static_cast<std::uint64_t>(arguments.batch);
  options.sequence_length = static_cast<std::uint64_t>(arguments.sequence_length);
  if (arguments.iteration >= 0) options.iteration.number = arguments.iteration;
  if (arguments.kineto_iteration >= 0) options.kineto_iteration = arguments.kineto_iteration;
  options.progress = progress_line("the recording");
  try {
    if (!arguments.gpu.empty()) {
      options.gpu = read_gpu(arguments.gpu, arguments.kernels);
      options.launch_ns = eager_launch_ns();
    }
    if (!arguments.nodes.empty()) parse_nodes(arguments.nodes, options.iteration);
  } catch (const Error&) {
    read_execution_trace(options.execution_trace, options.progress);  // what is wrong with the file is said first
    throw;
  }
  ImportedTrace imported = import_pytorch(options);
  options.progress = {};  // clears the line
  if (options.gpu) note_kernels(imported, *options.gpu, arguments);
  return finish(imported, arguments);
}

ExitCode import_kineto_trace(const RecordingArguments& arguments) {
  check_output("--output", arguments.output, arguments.files);
  KinetoImportOptions options;
  options.file = arguments.files.front();
  if (arguments.iteration >= 0) options.iteration = arguments.iteration;
  options.model = arguments.model;
  options.batch = static_cast<std::uint64_t>(arguments.batch);
  options.sequence_length = static_cast<std::uint64_t>(arguments.sequence_length);
  options.progress = progress_line("the recording");
  ImportedTrace imported = import_kineto(options);
  options.progress = {};
  return finish(imported, arguments);
}

ExitCode import_chakra_trace(const RecordingArguments& arguments) {
  check_output("--output", arguments.output, arguments.files);
  ChakraImportOptions options;
  options.files = arguments.files;
  options.model = arguments.model;
  options.batch = static_cast<std::uint64_t>(arguments.batch);
  options.sequence_length = static_cast<std::uint64_t>(arguments.sequence_length);
  options.as_recorded = arguments.as_recorded;
  options.progress = progress_line("the recording");
  ImportedTrace imported = import_chakra(options);
  options.progress = {};
  return finish(imported, arguments);
}

ExitCode rewrite_trace(const RecordingArguments& arguments) {
  check_output("--output", arguments.output, arguments.files);
  ImportedTrace imported;
  imported.trace = read_trace(arguments.files.front());
  if (!arguments.gpu.empty()) {
    const GpuSpec gpu = read_gpu(arguments.gpu, arguments.kernels);
    model_durations(imported.trace, gpu, eager_launch_ns());
    imported.notes.push_back("durations are modelled for the " + gpu.name +
                             ", gaps for a host that issues eager PyTorch's kernels");
    note_kernels(imported, gpu, arguments);
  }
  return finish(imported, arguments);
}

constexpr const char* as_recorded_text =
    "Keep the optimizer's step op by op, and what only a first step does: the creation of its states";

void add_kineto(CLI::App& group, Command& chosen) {
  CLI::App* kineto = group.add_subcommand("kineto", "From a Kineto trace alone, recorded with profile_memory=True");
  auto arguments = std::make_shared<RecordingArguments>();
  kineto->add_option("FILE", arguments->files, "The Kineto trace (.json, .gz, .zst, .tar.gz)")->required()->expected(1);
  add_common(kineto, *arguments);
  add_iteration(kineto, *arguments);
  kineto->footer(
      "Which op reads which tensor is only partly known: docs/import.md.\n\nExamples:\n"
      "  tencache import kineto trace.json.gz -o step.trace.jsonl.zst");
  kineto->callback([arguments, &chosen] { chosen = [arguments] { return import_kineto_trace(*arguments); }; });
}

void add_chakra(CLI::App& group, Command& chosen) {
  CLI::App* chakra = group.add_subcommand("chakra", "From Chakra execution traces (.et) converted from PyTorch");
  auto arguments = std::make_shared<RecordingArguments>();
  chakra->add_option("FILES", arguments->files, "The trace of each rank, in order (.et, .gz, .zst, .tar.gz)")
      ->required();
  add_common(chakra, *arguments);
  chakra->add_flag("--as-recorded", arguments->as_recorded, as_recorded_text);
  chakra->footer(
      "docs/import.md says what is known and what is inferred.\n\nExamples:\n"
      "  tencache import chakra trace.0.et trace.1.et -o step.trace.jsonl.zst");
  chakra->callback([arguments, &chosen] { chosen = [arguments] { return import_chakra_trace(*arguments); }; });
}

void add_trace(CLI::App& group, Command& chosen) {
  CLI::App* trace = group.add_subcommand("trace", "A trace written again, with modelled durations or without names");
  auto arguments = std::make_shared<RecordingArguments>();
  trace->add_option("FILE", arguments->files, "A trace of TenCache's")->required()->expected(1);
  refuse_empty(
      trace->add_option("--output,-o", arguments->output, "The trace to write (.trace.jsonl, .trace.jsonl.zst)"))
      ->required();
  trace->add_flag("--strip-names", arguments->strip_names,
                  "Neutral names for tensors, ops, modules and the model, to share the trace");
  trace->add_option("--gpu", arguments->gpu,
                    "Model all durations for this GPU: of a model recorded without its memory");
  add_kernels(trace, *arguments);
  trace->add_flag("--json", arguments->json, "What was written as JSON");
  trace->footer(
      "Examples:\n  tencache import trace recorded.trace.jsonl --gpu l40s -o on-l40s.trace.jsonl\n"
      "  tencache import trace mine.trace.jsonl.zst --strip-names -o shared.trace.jsonl.zst");
  trace->callback([arguments, &chosen] { chosen = [arguments] { return rewrite_trace(*arguments); }; });
}

}  // namespace

void add_import_recordings(CLI::App& group, Command& chosen) {
  CLI::App* pytorch = group.add_subcommand("pytorch", "From a PyTorch execution trace, with or without a Kineto trace");
  auto arguments = std::make_shared<RecordingArguments>();
  pytorch
      ->add_option("FILES", arguments->files,
                   "The execution trace (.json, .gz, .zst, .tar.gz), and the Kineto trace of the same run")
      ->required()
      ->expected(1, 2);
  add_common(pytorch, *arguments);
  add_iteration(pytorch, *arguments);
  pytorch->add_option("--assume-gpu,--gpu", arguments->gpu,
                      "Model durations for this GPU where the recording has none");
  add_kernels(pytorch, *arguments);
  pytorch->add_flag("--as-recorded", arguments->as_recorded, as_recorded_text);
  whole_number(
      pytorch->add_option("--kineto-iteration", arguments->kineto_iteration,
                          "Which iteration of the Kineto trace (default: the same one, else the last complete one)"));
  pytorch->add_option("--nodes", arguments->nodes, "The iteration as ids of its first and last node: 120-4711");
  pytorch->footer(
      "docs/import.md says what is known from a recording and what is inferred.\n\nExamples:\n"
      "  tencache import pytorch et.json.gz kineto.json.gz -o step.trace.jsonl.zst\n"
      "  tencache import pytorch gpt2_et.json --assume-gpu a100-40g -o step.trace.jsonl.zst");
  pytorch->callback([arguments, &chosen] { chosen = [arguments] { return import_execution_trace(*arguments); }; });
  add_kineto(group, chosen);
  add_chakra(group, chosen);
  add_trace(group, chosen);
}

}  // namespace tencache
