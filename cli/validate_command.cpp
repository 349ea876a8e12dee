#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "answers/validation.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "core/error.h"
#include "studies/validation/run.h"
#include "traces/file/file_io.h"
#include "traces/file/output_files.h"

namespace tencache {
namespace {

struct ValidateArguments {
  std::vector<std::string> files;
  std::string traces, report;
  bool quick = false, json = false;
};

ExitCode run_validate(const ValidateArguments& arguments) {
  check_output("--report", arguments.report, arguments.files);
  const std::vector<ValidationFile> files = read_validations(arguments.files);
  if (files.empty()) throw Error("no published experiments are to be found; name a file");
  std::vector<ValidationResult> results;
  {
    ProgressLine progress;
    ValidationOptions options{.traces = arguments.traces, .quick = arguments.quick, .progress = {}};
    options.progress = [&progress](const std::string& text) { progress.show(text); };
    results = run_validations(files, options);
  }
  if (!arguments.report.empty()) write_file(arguments.report, validation_markdown(results));
  const ValidationAnswer answer = validation_answer(results);
  if (arguments.json) {
    print_json(to_json_of(answer));
  } else {
    print(document_text(document_of(answer)));
  }
  const auto passed = [](const ValidatedSystem& system) { return system.summary.passed; };
  return std::ranges::all_of(answer.systems, passed) ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_validate_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("validate", "Simulate published experiments again and compare the figures");
  auto arguments = std::make_shared<ValidateArguments>();
  ValidateArguments& a = *arguments;
  command->add_option("FILES", a.files,
                      "Names of what ships (configs/validation), or YAML files (default: all that ships)");
  command
      ->add_option("--traces", a.traces,
                   "Folder of the recordings published with G10; without it their rows are skipped")
      ->check(CLI::ExistingDirectory);
  command->add_option("--report", a.report, "Write the comparison as Markdown");
  command->add_flag("--quick", a.quick, "Without the workloads that a file calls slow");
  command->add_flag("--json", a.json, "All rows and simulations as JSON");
  command->footer(
      "Offloading systems, GPU times (training throughput, recorded kernels) and GPU memory have a summary each.\n"
      "Exit code 1 if an error is above what its file tolerates, or an order or a failure is not as published.\n"
      "Policies are those that are built in: policy libraries are not loaded here.\n"
      "The files' format: docs/validation-format.md.\n\nExamples:\n"
      "  tencache validate\n"
      "  tencache validate gpu-throughput\n"
      "  tencache validate g10 --traces recordings/g10\n"
      "  tencache validate 10cache mine.yaml --report validation.md");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run_validate(*arguments); }; });
}

}  // namespace tencache
