// `tencache endurance`: what is written to each SSD, and how long it lasts.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "answers/endurance.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/repeat.h"
#include "cli/workload_options.h"
#include "policies/registry.h"

namespace tencache {
namespace {

struct EnduranceArguments {
  Scenario scenario;
  std::string rated;  // --tbw
  double duty_percent = 100;
  WearOptions wear;
  bool json = false;
  Json command;  // for the manifest
};

ExitCode endurance(EnduranceArguments arguments) {
  if (!arguments.rated.empty()) {
    try {
      arguments.wear.rated = parse_capacity(arguments.rated, "TB");
      if (*arguments.wear.rated == 0) throw Error("must be above 0");
    } catch (const Error& error) {
      throw Error(std::string("--tbw: ") + error.what());
    }
  }
  arguments.wear.duty = arguments.duty_percent / 100;
  const PolicyChoice& policy = arguments.scenario.policy;
  const Workload workload = load_workload(arguments.scenario);
  const auto& tiers = workload.machine.tiers;
  if (std::none_of(tiers.begin(), tiers.end(), [](const Tier& tier) { return tier.kind == TierKind::nvme; })) {
    throw Error("machine '" + workload.machine.name + "' has no tier of kind nvme, so that nothing wears out");
  }
  make_policy(policy.name, policy.settings);  // a wrong name or option is bad usage
  const Outcome outcome = simulate_or_refuse(workload, policy.name, policy.settings);
  const EnduranceAnswer answer = endurance_answer(workload, outcome, arguments.wear, arguments.rated);
  print_answer(answer, arguments.json, arguments.command);
  return answer.fits ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_endurance_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("endurance", "What is written to each SSD, and how long it lasts");
  auto arguments = std::make_shared<EnduranceArguments>();
  add_workload_options(*command, arguments->scenario);
  add_policy_options(*command, arguments->scenario.policy);
  CLI::Option* rated = refuse_empty(
      command->add_option("--tbw", arguments->rated,
                          "What each SSD is rated to have written, such as 600TB (default: the machine file's tbw)"));
  command
      ->add_option(
          "--dwpd", arguments->wear.drive_writes_per_day,
          "The same as whole drives a day, over --warranty-years (default: 1 where the machine file has no tbw)")
      ->check(finite_range(1e-6, 1e6))
      ->excludes(rated);
  command->add_option("--warranty-years", arguments->wear.warranty_years, "Of --dwpd")
      ->check(finite_range(0.01, 100))
      ->excludes(rated)
      ->capture_default_str();
  command->add_option("--duty", arguments->duty_percent, "Percent of the day that is trained")
      ->check(finite_range(0.001, 100))
      ->capture_default_str();
  command
      ->add_option("--write-amplification", arguments->wear.write_amplification,
                   "Bytes that reach flash for each that is written: 1 for large writes in order")
      ->check(finite_range(1, 100))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "The same as JSON (docs/schemas/endurance.schema.json)");
  command->footer(
      "Exit code 1: the trace does not fit.\n\nExamples:\n"
      "  tencache endurance step.trace.jsonl.zst -m g5.xlarge -p zero-infinity --tbw 600TB\n"
      "  tencache endurance --model llama-3-8b --batch 1 --seq 2048 -m g5.xlarge -p foresight --dwpd 1 --duty 50");
  command->callback([arguments, command, &chosen] {
    arguments->command = command_json(*command);
    chosen = [arguments] { return endurance(*arguments); };
  });
}

}  // namespace tencache
