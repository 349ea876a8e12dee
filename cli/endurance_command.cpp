// `tencache endurance`: what is written to each SSD, and how long it lasts.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "answers/result.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/repeat.h"
#include "cli/workload_options.h"
#include "policies/registry.h"
#include "studies/wear.h"

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

// Where the rating comes from.
std::string rating_of(const EnduranceArguments& arguments, WearRating rating) {
  if (rating == WearRating::unknown) return "not known, as the capacity is not: --tbw says it";
  if (rating == WearRating::of_machine) return "the machine's tbw";
  if (!arguments.rated.empty()) return "--tbw " + arguments.rated;
  const std::string writes =
      fmt::format("{} drive writes a day for {} years", arguments.wear.drive_writes_per_day.value_or(1),
                  arguments.wear.warranty_years);
  return rating == WearRating::of_options ? writes
                                          : "assumed: " + writes + ", as data-centre SSDs often are; --tbw says yours";
}

// Tiers may differ: one that the machine rates beside one that it does not.
std::string ratings_of(const EnduranceArguments& arguments, const std::vector<TierWear>& wears) {
  std::vector<std::string> texts;
  for (const TierWear& wear : wears) {
    const bool alike = std::all_of(wears.begin(), wears.end(),
                                   [&](const TierWear& other) { return other.rating == wears.front().rating; });
    if (alike) return rating_of(arguments, wear.rating);
    texts.push_back(fmt::format("{} by {}", wear.tier, rating_of(arguments, wear.rating)));
  }
  return join(texts);
}

std::string terabytes(double bytes) {
  return bytes >= 1e12 ? fmt::format("{:.4g} TB", bytes * 1e-12) : fmt::format("{:.4g} GB", bytes * 1e-9);
}

std::string years_text(const TierWear& wear) {
  if (wear.bytes_per_day <= 0) return "nothing is written";
  if (!wear.years) return "rating not known: --tbw";
  if (*wear.years >= 1) return fmt::format("{:.3g} years", *wear.years);
  return fmt::format("{:.3g} days", *wear.years * 365);
}

// Storage that is no SSD of the machine.
std::vector<std::string> file_systems_of(const MachineSpec& machine) {
  std::vector<std::string> texts;
  for (const Tier& tier : machine.tiers) {
    if (is_parallel_file_system(tier)) {
      texts.push_back(tier.name + " is left out: a parallel file system, no SSD of the machine");
    }
  }
  return texts;
}

Json endurance_json(const EnduranceArguments& arguments, const Workload& workload, const Outcome& outcome,
                    const std::vector<TierWear>& wears) {
  const bool fits = outcome.result.fits;
  Json tiers = Json::array();
  for (const TierWear& wear : wears) {
    tiers.push_back({{"tier", wear.tier},
                     {"ssds", wear.devices},
                     {"ssd_capacity_bytes", wear.capacity > 0 ? Json(wear.capacity) : Json(nullptr)},
                     {"ssd_written_bytes_per_iteration", wear.bytes_per_iteration},
                     {"ssd_written_bytes_per_day", wear.bytes_per_day},
                     {"drive_writes_per_day", wear.capacity > 0 ? Json(wear.drive_writes_per_day) : Json(nullptr)},
                     {"ssd_rated_bytes", wear.rated_bytes > 0 ? Json(wear.rated_bytes) : Json(nullptr)},
                     {"rated_by", wear.rating != WearRating::unknown ? Json(to_string(wear.rating)) : Json(nullptr)},
                     {"years", wear.years ? Json(*wear.years) : Json(nullptr)}});
  }
  return {{"policy", outcome.policy},
          {"machine", workload.machine.name},
          {"trace", workload.scenario.trace.file},
          {"fits", fits},
          {"reason", fits ? Json(nullptr) : Json(outcome.result.misfit)},
          {"iteration_seconds", fits ? Json(outcome.result.iteration_seconds()) : Json(nullptr)},
          {"duty", arguments.wear.duty},
          {"write_amplification", arguments.wear.write_amplification},
          {"rating", fits ? Json(ratings_of(arguments, wears)) : Json(nullptr)},
          {"tiers", std::move(tiers)},
          {"notes", notes_of(workload)},
          {"rescaled", rescaling_json(workload)},
          {"gpu_time", gpu_time_json(workload)},
          {"manifest", manifest_json(workload, outcome.policy, outcome.options)},
          {"timing", {{"load_seconds", workload.load_seconds}, {"run_seconds", outcome.seconds}}}};
}

std::string endurance_text(const EnduranceArguments& arguments, const Workload& workload, const Outcome& outcome,
                           const std::vector<TierWear>& wears) {
  std::string text = fmt::format("{} on {} under {}\n", trace_title(workload), machine_title(workload), outcome.policy);
  if (!outcome.result.fits) return text + "  does not fit: " + printable(outcome.result.misfit) + "\n";
  const double seconds = outcome.result.iteration_seconds();
  text +=
      fmt::format("  iteration {}, {:.0f} a day\n\n", format_seconds(seconds), arguments.wear.duty * 86'400 / seconds);
  Table table({"tier", "SSDs", "an iteration", "a day", "drive writes a day", "rated", "each lasts"});
  for (const TierWear& wear : wears) {
    table.add({wear.tier,
               wear.capacity > 0 ? fmt::format("{} × {}", wear.devices, terabytes(static_cast<double>(wear.capacity)))
                                 : fmt::format("{}", wear.devices),
               terabytes(wear.bytes_per_iteration), terabytes(wear.bytes_per_day),
               wear.capacity > 0 ? fmt::format("{:.3g}", wear.drive_writes_per_day) : "-",
               wear.rated_bytes > 0 ? terabytes(wear.rated_bytes) : "-", years_text(wear)});
  }
  text +=
      table.text() + "\nWritten to each SSD, in the steady state. Rated for: " + ratings_of(arguments, wears) + ".\n";
  if (arguments.wear.write_amplification != 1) {
    text += fmt::format("A day's figure with a write amplification of {}.\n", arguments.wear.write_amplification);
  }
  for (const std::string& line : file_systems_of(workload.machine)) text += line + "\n";
  for (const std::string& note : notes_of(workload)) text += note + "\n";
  return text;
}

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
  std::vector<TierWear> wears;
  if (outcome.result.fits) wears = wear_of(outcome, workload.machine, arguments.wear);
  if (arguments.json) {
    print_repeatable(endurance_json(arguments, workload, outcome, wears), arguments.command);
  } else {
    print(endurance_text(arguments, workload, outcome, wears));
  }
  return outcome.result.fits ? ExitCode::done : ExitCode::answer_is_no;
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
