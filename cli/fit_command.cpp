// `tencache fit`: does it fit in every tier, what overflows first, and how much memory would do.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>

#include "answers/fit.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/repeat.h"
#include "cli/workload_options.h"
#include "policies/registry.h"
#include "studies/fit.h"
#include "studies/parallel.h"
#include "traces/demand.h"

namespace tencache {
namespace {

struct FitArguments {
  Scenario workload;
  std::string policies = "all";
  std::map<std::string, std::string> settings;
  std::string minimum;       // none, gpu, all; empty: all of one policy, gpu of several
  std::string pinned_limit;  // of page-locked CPU memory: a size, or percent of the machine's
  bool json = false;
  Json command;  // for the manifest
};

// What is searched by default: every tier of one policy, the GPU's of several.
std::vector<TierKind> searched_kinds(const FitArguments& arguments, std::size_t policies) {
  if (arguments.minimum == "none") return {};
  const bool all = arguments.minimum == "all" || (arguments.minimum.empty() && policies == 1);
  if (all) return {TierKind::gpu, TierKind::cpu, TierKind::nvme};
  return {TierKind::gpu};
}

TierId tier_of_kind(const MachineSpec& machine, TierKind kind) {
  for (TierId tier = 0; tier < machine.tiers.size(); ++tier) {
    if (machine.tiers[tier].kind == kind) return tier;
  }
  return no_tier;
}

// Page-locked CPU memory at most, staging buffers included.
Bytes pinned_bytes(const TierPeak& cpu_peak, Bytes cpu_peak_bytes, const Staging& staging) {
  return (cpu_peak.pinned != 0 ? cpu_peak.pinned : cpu_peak_bytes) + staging.count * staging.bytes;
}

FitVerdict judge(const Workload& workload, const std::string& policy,
                 const std::map<std::string, std::string>& settings, std::optional<Bytes> pinned_limit) {
  FitVerdict verdict;
  Timeline timeline;
  std::vector<Timeline> others;
  const Recorders recorders{.timeline = &timeline, .other_timelines = &others};
  if (!settings.empty()) make_policy(policy, settings);  // a wrong option is bad usage
  try {
    verdict.outcome = simulate_policy(workload, policy, settings, recorders);
  } catch (const Error& error) {  // what the machine cannot serve, such as staging buffers too small, is a no
    verdict.outcome.policy = policy;
    verdict.outcome.result.fits = false;
    verdict.outcome.result.misfit = error.what();
  }
  Outcome& outcome = verdict.outcome;
  outcome.program.trace = Trace();
  for (RankOutcome& rank : outcome.ranks) rank.program.trace = Trace();
  if (!outcome.result.fits) return verdict;
  const MachineSpec& machine = workload.machine.of_rank(outcome.rank);
  verdict.peaks = tier_peaks(outcome.rank == 0 ? timeline : others[outcome.rank - 1], outcome.result, machine);
  if (const TierId cpu = machine.tier_of(Device::cpu); pinned_limit && cpu != no_tier) {
    Bytes needed = 0;  // of all ranks: they lock the memory of one host
    for (std::size_t rank = 0; rank < std::max<std::size_t>(outcome.ranks.size(), 1); ++rank) {
      const RunResult& result = outcome.ranks.empty() ? outcome.result : outcome.ranks[rank].result;
      const MachineSpec& own = workload.machine.of_rank(rank);
      const TierPeak peak = tier_peaks(rank == 0 ? timeline : others[rank - 1], result, own)[cpu];
      needed += pinned_bytes(peak, result.peak_bytes[cpu], own.staging);
    }
    verdict.pinned_fits = needed <= *pinned_limit;
    verdict.pinned = needed;
    verdict.pinned_limit = *pinned_limit;
  }
  return verdict;
}

std::vector<FitVerdict> judge_all(const FitArguments& arguments, const Workload& workload,
                                  const std::vector<std::string>& names,
                                  const std::map<std::string, std::string>& settings, std::size_t ranks) {
  const std::optional<Bytes> limit = parse_pinned_limit(arguments.pinned_limit, workload.machine, ranks);
  std::vector<TierId> tiers;
  for (const TierKind kind : searched_kinds(arguments, names.size())) {
    if (const TierId tier = tier_of_kind(workload.machine, kind); tier != no_tier) tiers.push_back(tier);
  }
  std::vector<FitVerdict> verdicts(names.size());
  ProgressLine progress;
  std::mutex mutex;
  std::size_t done = 0;
  const auto step = [&](const std::string& what) {
    const std::lock_guard lock(mutex);
    progress.show(fmt::format("{} of {}: {}", ++done, names.size() * (1 + tiers.size()), what));
  };
  on_all_cores(names.size(), [&](std::size_t i) {
    verdicts[i] = judge(workload, names[i], settings, limit);
    for (const TierId tier : tiers) verdicts[i].minimums.push_back({tier, std::nullopt, std::nullopt});
    step(names[i]);
  });
  on_all_cores(names.size() * tiers.size(), [&](std::size_t i) {
    FitVerdict& verdict = verdicts[i / tiers.size()];
    FitVerdict::Minimum& minimum = verdict.minimums[i % tiers.size()];
    minimum.bytes = minimum_capacity(*workload.trace, workload.machine, minimum.tier, verdict.outcome.policy, settings,
                                     limits_of(workload.scenario.iterations), verdict.outcome.result.fits);
    step(verdict.outcome.policy + ", least " + workload.machine.tiers[minimum.tier].name + " memory");
  });
  if (tiers.size() < 2) return verdicts;
  std::vector<FitVerdict*> helpless;  // two tiers are too small at least
  for (FitVerdict& verdict : verdicts) {
    const bool none_does = std::none_of(verdict.minimums.begin(), verdict.minimums.end(),
                                        [](const FitVerdict::Minimum& minimum) { return minimum.bytes.has_value(); });
    if (none_does) helpless.push_back(&verdict);
  }
  on_all_cores(helpless.size() * tiers.size(), [&](std::size_t i) {
    FitVerdict& verdict = *helpless[i / tiers.size()];
    FitVerdict::Minimum& minimum = verdict.minimums[i % tiers.size()];
    minimum.joint = joint_minimum(*workload.trace, workload.machine, minimum.tier, verdict.outcome.policy, settings,
                                  limits_of(workload.scenario.iterations));
  });
  return verdicts;
}

ExitCode fit(const FitArguments& arguments) {
  std::vector<std::string> names = policies_named(arguments.policies);
  // That the ideal fits says nothing, unless nothing else was asked.
  if (names.size() > 1) std::erase(names, "ideal");
  const auto& settings = arguments.settings;
  if (!settings.empty() && names.size() > 1) throw Error("--set goes with one policy; name it with --policy");
  const Workload workload = load_workload(arguments.workload);
  FitResult result{.workload = workload,
                   .demands = demands_of(*workload.trace),
                   .rounded = demands_of(*workload.trace, workload.machine.tiers.front().granularity),
                   .verdicts = {}};
  result.verdicts = judge_all(arguments, workload, names, settings, result.demands.size());
  if (arguments.json) {
    print_repeatable(fit_json(result), arguments.command);
  } else {
    print(fit_text(result));
  }
  return result.fits() ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_fit_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand(
      "fit", "Does a training step fit on a machine, what overflows first, and what memory would be enough");
  auto arguments = std::make_shared<FitArguments>();
  add_workload_options(*command, arguments->workload);
  command->add_option("--policy,-p,--policies", arguments->policies, "Names separated by commas, or all")
      ->capture_default_str();
  add_settings_option(*command, arguments->settings);
  command
      ->add_option("--minimum", arguments->minimum,
                   "Search the least memory of: none, gpu, all tiers, each with the others as the machine has them "
                   "(default: all of one policy, gpu of several)")
      ->check(CLI::IsMember({"none", "gpu", "all"}));
  refuse_empty(command->add_option("--pinned-limit", arguments->pinned_limit,
                                   "It fits only if page-locked CPU memory of all ranks, staging buffers included, is "
                                   "within this: 64GiB, or 50% of CPU memory"));
  command->add_flag("--json", arguments->json, "The same as JSON");
  command->footer(
      "The step is a trace, or a model of which --model, --batch and --seq are enough. The first table needs no "
      "policy: it fills the tiers, the fastest\nfirst, with all that is alive at once. The second simulates each "
      "policy: whether it fits, the most that each tier holds (start-up and\nstaging buffers counted), and the least "
      "memory, in whole MiB by bisection, with the other tiers as the machine has them; `+`: so much\nmore than there "
      "is. Of a single policy it says when each tier is fullest as well. How to read it: docs/explain.md. Exit code 1: "
      "it\nfits under none of the policies.\n\n"
      "Examples:\n"
      "  tencache fit step.trace.jsonl.zst --machine g10-a100\n"
      "  tencache fit --model llama-3-8b --batch 1 --seq 2048 -m g5.xlarge -p zero-infinity\n"
      "  tencache fit step.trace.jsonl.zst -m my-computer.yaml -p zero-offload --gpu-memory 8GiB --json");
  command->callback([arguments, command, &chosen] {
    arguments->command = command_json(*command);
    chosen = [arguments] { return fit(*arguments); };
  });
}

}  // namespace tencache
