#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/console.h"
#include "cli/import_command.h"
#include "configs/gpu_yaml.h"
#include "traces/pytorch/import_pytorch.h"

namespace tencache {
namespace {

struct RecordingArguments {
  std::vector<std::string> files;
  std::string output, gpu, model, nodes;
  std::int64_t iteration = -1, batch = 0, sequence_length = 0;
  bool as_recorded = false, json = false;
};

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
    if (consumed < shown + 16 * MiB && shown != 0) return;
    shown = consumed;
    line->show(total == 0 ? fmt::format("reading {}: {}", what, format_bytes(consumed))
                          : fmt::format("reading {}: {} %", what, consumed * 100 / total));
  };
}

void add_common(CLI::App* command, RecordingArguments& arguments) {
  command->add_option("--output,-o", arguments.output, "The trace to write (.trace.jsonl, .trace.jsonl.zst)")
      ->required();
  command->add_option("--model", arguments.model, "What was recorded (default: the file's name)");
  const auto add_count = [command](const char* name, std::int64_t& count, const char* description) {
    command->add_option(name, count, description)->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}));
  };
  add_count("--batch", arguments.batch, "Sequences or samples an iteration");
  add_count("--sequence-length", arguments.sequence_length, "Tokens a sequence");
  command->add_option("--iteration", arguments.iteration,
                      "Which iteration: N of ProfilerStep#N, else counted from 0 (default: the last complete one)");
  command->add_flag("--json", arguments.json, "What was imported as JSON");
}

ExitCode import_execution_trace(const RecordingArguments& arguments) {
  PytorchImportOptions options;
  options.execution_trace = arguments.files.front();
  if (!arguments.gpu.empty()) options.gpu = read_gpu(arguments.gpu);
  options.as_recorded = arguments.as_recorded;
  options.model = arguments.model;
  options.batch = static_cast<std::uint64_t>(arguments.batch);
  options.sequence_length = static_cast<std::uint64_t>(arguments.sequence_length);
  if (arguments.iteration >= 0) options.iteration.number = arguments.iteration;
  if (!arguments.nodes.empty()) parse_nodes(arguments.nodes, options.iteration);
  ImportedTrace imported;
  {
    options.progress = progress_line("the recording");
    imported = import_pytorch(options);
    options.progress = {};
  }
  return finish_import(imported.trace, imported.notes, arguments.output, arguments.json);
}

}  // namespace

void add_import_recordings(CLI::App& group, Command& chosen) {
  CLI::App* pytorch = group.add_subcommand("pytorch", "From a PyTorch execution trace");
  auto arguments = std::make_shared<RecordingArguments>();
  pytorch->add_option("FILES", arguments->files, "The execution trace (.json, .gz, .zst, .tar.gz)")
      ->required()
      ->expected(1);
  add_common(pytorch, *arguments);
  pytorch->add_option("--assume-gpu,--gpu", arguments->gpu,
                      "Durations by this GPU's roofline where the recording has none");
  pytorch->add_flag("--as-recorded", arguments->as_recorded,
                    "Keep the optimizer's step op by op, and what only a first step does: the creation of its states");
  pytorch->add_option("--nodes", arguments->nodes, "The iteration as ids of its first and last node: 120-4711");
  pytorch->footer(
      "docs/import.md says what is known from a recording and what is inferred.\n\nExamples:\n"
      "  tencache import pytorch gpt2_et.json --assume-gpu a100-40g -o step.trace.jsonl.zst");
  pytorch->callback([arguments, &chosen] { chosen = [arguments] { return import_execution_trace(*arguments); }; });
}

}  // namespace tencache
