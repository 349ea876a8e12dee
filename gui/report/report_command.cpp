// `tencache report`: what the dashboard knows as a page. The command adds itself to those of cli/, which knows nothing
// of the dashboard; whoever has it links this file.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command_line.h"
#include "gui/report/page.h"

namespace tencache {
namespace {

struct ReportArguments {
  std::vector<std::string> files;
  std::string output, title;
};

void add_report_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("report", "A page to send: results, timelines and sweeps as one HTML file");
  auto arguments = std::make_shared<ReportArguments>();
  command
      ->add_option(
          "FILES", arguments->files,
          "What the commands write: results and all else of --json, timelines (--timeline), sweeps, tables (--csv), "
          "traces; in the page in this order, results first")
      ->required();
  refuse_empty(command->add_option("--output,-o", arguments->output, "The page to write (.html)")->required());
  command->add_option("--title", arguments->title, "Its heading (default: what was run)");
  command->footer(
      "The page needs no network, no scripts and no fonts; it follows the reader's light or dark mode and prints.\n"
      "Exit code 2: some of the files could not be shown; the page, which says so, is made of the others.\n\n"
      "Examples:\n"
      "  tencache compare step.trace.jsonl.zst -m g10-a100 --samples 100 --json > r.json\n"
      "  tencache replay step.trace.jsonl.zst -m g10-a100 -p foresight --timeline t.json\n"
      "  tencache report r.json t.json -o step.html");
  command->callback([arguments, &chosen] {
    chosen = [arguments] {
      const bool whole = gui::write_report(arguments->files, arguments->output, arguments->title);
      return whole ? ExitCode::done : ExitCode::bad_usage;
    };
  });
}

const bool offered = (offer_command(add_report_command), true);

}  // namespace
}  // namespace tencache
