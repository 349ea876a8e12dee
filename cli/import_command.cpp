#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/python_package.h"
#include "cli/questions.h"
#include "studies/import_recording.h"
#include "traces/file/trace_file.h"

namespace tencache {
namespace {

ExitCode run_import(const RecordingImport& import) {
  const auto [trace, notes] = import.read();
  write_trace(trace, import.output);
  if (import.json) {
    print_json({{"trace", import.output},
                {"sha256", sha256_of_file(import.output)},
                {"ops", trace.ops.size()},
                {"tensors", trace.tensors.size()},
                {"notes", notes}});
    return ExitCode::done;
  }
  for (const std::string& note : notes) remark("note: " + note);
  print(fmt::format("{}: {} ops, {} tensors\n", import.output, trace.ops.size(), trace.tensors.size()));
  return ExitCode::done;
}

void add_format(CLI::App& group, Command& chosen, const char* format, const char* summary, const char* footer) {
  CLI::App* command = group.add_subcommand(format, summary);
  const std::shared_ptr<RecordingImport> import = recording_import(format);
  add_options(*command, std::shared_ptr<QuestionOptions>(import, &import->options));
  command->footer(footer);
  command->callback([import, &chosen] { chosen = [import] { return run_import(*import); }; });
}

}  // namespace

void add_import_command(CLI::App& app, Command& chosen) {
  CLI::App* group = app.add_subcommand("import", "Make a trace from recordings of other tools");
  group->require_subcommand(1);
  group->footer("Examples:\n  tencache import pytorch --help\n  tencache import csv --help");
  add_format(*group, chosen, "csv", "From a pair of CSV files: ops and tensors",
             "The columns are described in docs/trace-format.md.\n\nExamples:\n"
             "  tencache import csv recordings/BERT_Base-256 -o bert.trace.jsonl.zst --hardware a100-40g\n"
             "  tencache import csv ops.csv.gz tensors.csv.gz --size-column bytes_no_batch -o bert.trace.jsonl");
  add_format(*group, chosen, "pytorch", "From a PyTorch execution trace, with or without a Kineto trace",
             "docs/import.md says what is known from a recording and what is inferred.\n\nExamples:\n"
             "  tencache import pytorch et.json.gz kineto.json.gz -o step.trace.jsonl.zst\n"
             "  tencache import pytorch gpt2_et.json --assume-gpu a100-40g -o step.trace.jsonl.zst");
  add_format(*group, chosen, "kineto", "From a Kineto trace alone, recorded with profile_memory=True",
             "Which op reads which tensor is only partly known: docs/import.md.\n\nExamples:\n"
             "  tencache import kineto trace.json.gz -o step.trace.jsonl.zst");
  add_format(*group, chosen, "chakra", "From Chakra execution traces (.et) converted from PyTorch",
             "docs/import.md says what is known and what is inferred.\n\nExamples:\n"
             "  tencache import chakra trace.0.et trace.1.et -o step.trace.jsonl.zst");
  add_format(*group, chosen, "trace", "A trace written again, with modelled durations or without names",
             "Examples:\n  tencache import trace recorded.trace.jsonl --gpu l40s -o on-l40s.trace.jsonl\n"
             "  tencache import trace mine.trace.jsonl.zst --strip-names -o shared.trace.jsonl.zst");
  add_python_command(*group, chosen, {"import", "snapshot"},
                     "Allocations for `fragment`, from a memory snapshot of PyTorch (needs Python)",
                     "Needs python3 with the package tencache (pip install tencache), but no PyTorch.\n\nExamples:\n"
                     "  tencache import snapshot snapshot.pickle -o steps.alloc.jsonl\n"
                     "  tencache import snapshot snapshot.pickle -o steps.alloc.jsonl --gpu 1");
}

}  // namespace tencache
