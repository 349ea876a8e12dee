// `tencache tune`: the best knobs of a policy.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>

#include "cli/command_line.h"
#include "cli/output_files.h"
#include "cli/policy_library.h"
#include "cli/tune_run.h"
#include "traces/file_io.h"

namespace tencache {
namespace {

struct TuneArguments {
  TuneRequest request;
  std::string jitter, tie = "0.5%";
  std::string csv;
  bool json = false;
};

// "5%" or "0.05".
double parse_share(const std::string& option, const std::string& text) {
  double value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  const bool percent = end != last && *end == '%' && end + 1 == last;
  if (error != std::errc() || (end != last && !percent) || !(value >= 0) || !((percent ? value / 100 : value) < 1)) {
    throw Error(option + " " + text + ": write a share below 1, such as 5% or 0.05");
  }
  return percent ? value / 100 : value;
}

ExitCode tune_policy(const TuneArguments& arguments) {
  TuneRequest request = arguments.request;
  if (!arguments.jitter.empty()) request.jitter = parse_share("--jitter", arguments.jitter);
  request.tie = parse_share("--tie", arguments.tie);
  check_output("--csv", arguments.csv, request.traces);
  const Tuned tuned = run_tune(request, std::nullopt);
  if (!arguments.csv.empty()) write_file(arguments.csv, tune_csv(tuned));
  arguments.json ? print_json(tune_json(tuned)) : print(tune_text(tuned));
  if (!arguments.csv.empty()) {
    remark(fmt::format("{} candidates in {}", tuned.result.candidates.size(), arguments.csv));
  }
  return tuned.best().fits ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_tune_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("tune", "The best knobs of a policy, by simulations");
  auto arguments = std::make_shared<TuneArguments>();
  TuneRequest& request = arguments->request;
  command->add_option("TRACES", request.traces, "Trace files; of several, the geometric mean of their times counts")
      ->required();
  add_machine_choice_options(*command, request.workload);
  add_iterations_option(*command, request.workload);
  add_policy_library_option(*command);
  command->add_option("--policy,-p", request.policy, "A name of `tencache policies`")->required();
  command->add_option("--budget", request.budget, "Simulations at most")
      ->capture_default_str()
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{10'000'000}));
  command->add_option("--seed", request.seed, "Of the search and of --jitter")->capture_default_str();
  command->add_option("--threads", request.threads, "Simulations at once (default: one a core)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1024}));
  refuse_empty(command->add_option("--jitter", arguments->jitter,
                                   "Judge each candidate on copies of the traces whose durations vary by this, such "
                                   "as 5%"));
  command->add_option("--copies", request.copies, "Such copies of each trace (default: 5)")
      ->check(CLI::Range(std::uint64_t{2}, std::uint64_t{1000}));
  refuse_empty(command->add_option("--tie", arguments->tie, "Times that are closer are a tie"))->capture_default_str();
  add_settings_option(*command, request.settings);
  command
      ->add_option(
          "--over", request.over,
          "A knob's values, KEY=a,b,c or KEY=lo..hi, any number of times (default: `tencache policies --json`)")
      ->allow_extra_args(false)
      ->take_all();
  refuse_empty(command->add_option("--csv", arguments->csv, "Write all candidates to this file"));
  command->add_flag("--json", arguments->json, "The result as JSON");
  command->footer(
      "Exit code 1: nothing fits.\n\nExamples:\n"
      "  tencache tune step.trace.jsonl.zst --machine g5.xlarge --policy zero-infinity\n"
      "  tencache tune short.trace.jsonl.zst long.trace.jsonl.zst -m g5.xlarge -p 10cache --jitter 5%\n"
      "  tencache tune step.trace.jsonl.zst -m g5.xlarge -p layer-streaming --over buffers=2..6 --csv all.csv");
  command->callback([arguments, &chosen] { chosen = [arguments] { return tune_policy(*arguments); }; });
}

}  // namespace tencache
