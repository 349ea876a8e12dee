// `tencache explain`: where an iteration's time goes, each second of it set beside a simulation without its cause.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "answers/explain.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/repeat.h"
#include "cli/workload_options.h"
#include "configs/tool_clock.h"

namespace tencache {
namespace {

struct ExplainArguments {
  WorkloadOptions workload;
  std::string policy;
  std::string policies = "foresight,g10,10cache,zero-infinity,on-demand";
  std::vector<std::string> settings;
  std::size_t top = 5;
  bool json = false;
  Json command;  // for the manifest
};

ExitCode run_explain(const ExplainArguments& arguments) {
  ExplainRequest request;
  request.policy = policies_named(arguments.policy).front();
  if (arguments.policy.find(',') != std::string::npos || arguments.policy == "all") {
    throw Error("--policy: name one; others to set beside it go to --policies");
  }
  if (arguments.policies != "none") request.other_policies = policies_named(arguments.policies);
  request.settings = parse_settings(arguments.settings);
  const Workload workload = load_workload(arguments.workload);
  request.trace = &workload.trace;
  request.machine = &workload.machine;
  request.limits = limits_of(workload.options.iterations);
  request.tensors_confirmed = arguments.top;
  const std::int64_t start = tool_clock_ns();
  Explanation explanation;
  {
    ProgressLine progress;
    request.progress = [&](std::size_t done, std::size_t expected) {
      progress.show(fmt::format(
          "{} of about {} simulations, {} left", done, expected,
          format_seconds(seconds_since(start) / static_cast<double>(done) * static_cast<double>(expected - done))));
    };
    explanation = explain(request);
  }
  const ExplainAnswer answer =
      explain_answer(workload, std::move(explanation), references_of(workload), arguments.top, seconds_since(start));
  if (arguments.json) {
    print_repeatable(to_json_of(answer), arguments.command);
  } else {
    print(document_text(document_of(answer)));
  }
  return answer.fits ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_explain_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("explain", "Where the time goes, confirmed by simulations without each cause");
  auto arguments = std::make_shared<ExplainArguments>();
  add_workload_options(*command, arguments->workload);
  command->add_option("--policy,-p", arguments->policy, "A name of `tencache policies`")->required();
  add_settings_option(*command, arguments->settings);
  command
      ->add_option("--policies", arguments->policies, "Others to try instead: names separated by commas, all, or none")
      ->capture_default_str();
  command->add_option("--top", arguments->top, "So many ops, layers and tensors")
      ->check(CLI::Range(std::size_t{0}, std::size_t{1'000'000}))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "The same as JSON (docs/schemas/explain.schema.json)");
  command->footer(
      "Attributed: how long the GPU stood for a cause. Confirmed: how much shorter the iteration is in a simulation "
      "without it; the rest is\nstill there, or has moved to what binds next. docs/explain.md. Exit code 1: it does "
      "not fit.\nThen the ops, layers and tensors that wait longest; and what would help: twice as much of each figure "
      "of "
      "the machine, one at a time,\nand the other policies of --policies. All of it is simulated: a few dozen runs.\n\n"
      "Examples:\n"
      "  tencache explain step.trace.jsonl.zst -m 10cache-l40s -p 10cache\n"
      "  tencache explain step.trace.jsonl.zst -m g5.xlarge -p zero-infinity --policies all --top 20 --json");
  command->callback([arguments, command, &chosen] {
    arguments->command = command_json(*command);
    chosen = [arguments] { return run_explain(*arguments); };
  });
}

}  // namespace tencache
