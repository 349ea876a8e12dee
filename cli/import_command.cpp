#include "cli/import_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/console.h"
#include "cli/workload_options.h"
#include "studies/workload.h"
#include "traces/file/output_files.h"
#include "traces/file/trace_file.h"
#include "traces/import/csv.h"

namespace tencache {
namespace {

struct ImportArguments {
  std::vector<std::string> files;
  CsvImportOptions csv;
  std::string output;
  bool json = false;
};

ExitCode import(const ImportArguments& arguments) {
  std::vector<std::string> inputs = arguments.files;
  for (const char* name : {"/ops.csv", "/tensors.csv"}) {
    for (const char* packed : {"", ".gz", ".zst"}) inputs.push_back(arguments.files.front() + name + packed);
  }
  check_output("--output", arguments.output, inputs);
  CsvImportOptions options = arguments.csv;
  options.ops_file = arguments.files.front();
  if (arguments.files.size() == 2) options.tensors_file = arguments.files.back();
  std::vector<std::string> notes;
  const Trace trace = import_csv(options, &notes);
  return finish_import(trace, notes, arguments.output, arguments.json);
}

}  // namespace

ExitCode finish_import(const Trace& trace, const std::vector<std::string>& notes, const std::string& output,
                       bool json) {
  write_trace(trace, output);
  if (json) {
    print_json({{"trace", output},
                {"sha256", sha256_of_file(output)},
                {"ops", trace.ops.size()},
                {"tensors", trace.tensors.size()},
                {"notes", notes}});
    return ExitCode::done;
  }
  for (const std::string& note : notes) remark("note: " + note);
  print(fmt::format("{}: {} ops, {} tensors\n", output, trace.ops.size(), trace.tensors.size()));
  return ExitCode::done;
}

void add_import_command(CLI::App& app, Command& chosen) {
  CLI::App* group = app.add_subcommand("import", "Make a trace from recordings of other tools");
  group->require_subcommand(1);
  group->footer("Examples:\n  tencache import pytorch --help\n  tencache import csv --help");

  CLI::App* csv = group->add_subcommand("csv", "From a pair of CSV files: ops and tensors");
  auto arguments = std::make_shared<ImportArguments>();
  csv->add_option("FILES", arguments->files,
                  "A folder with ops.csv and tensors.csv, or these two files (also .gz, .zst)")
      ->required()
      ->expected(1, 2);
  refuse_empty(csv->add_option("--output,-o", arguments->output, "The trace to write (.trace.jsonl, .trace.jsonl.zst)"))
      ->required();
  csv->add_option("--size-column", arguments->csv.size_column, "The column of the tensors' file that holds their sizes")
      ->capture_default_str();
  csv->add_option("--model", arguments->csv.model, "What was recorded (default: the folder's name)");
  // As signed numbers: an unsigned option takes -1 for a huge one.
  const auto add_count = [csv](const char* name, std::uint64_t& count, const char* description) {
    csv->add_option_function<std::int64_t>(
           name, [&count](std::int64_t value) { count = static_cast<std::uint64_t>(value); }, description)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}));
  };
  add_count("--batch", arguments->csv.batch, "Sequences or samples an iteration");
  add_count("--sequence-length", arguments->csv.sequence_length, "Tokens a sequence");
  csv->add_option("--precision", arguments->csv.precision, "Such as fp32 or bf16");
  csv->add_option("--hardware", arguments->csv.hardware, "What the times were measured on, such as a100-40g");
  csv->add_flag("--json", arguments->json, "What was imported as JSON");
  csv->footer(
      "The columns are described in docs/trace-format.md.\n\nExamples:\n"
      "  tencache import csv recordings/BERT_Base-256 -o bert.trace.jsonl.zst --hardware a100-40g\n"
      "  tencache import csv ops.csv.gz tensors.csv.gz --size-column bytes_no_batch -o bert.trace.jsonl");
  csv->callback([arguments, &chosen] { chosen = [arguments] { return import(*arguments); }; });
  add_import_recordings(*group, chosen);
}

}  // namespace tencache
