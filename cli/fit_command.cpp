// `tencache fit`: does it fit in every tier, what overflows first, and how much memory would do.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "answers/fit.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/repeat.h"
#include "cli/workload_options.h"
#include "studies/bound.h"
#include "studies/fit.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

struct FitArguments {
  WorkloadOptions workload;
  std::string policies = "all";
  std::vector<std::string> settings;
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

ExitCode fit(const FitArguments& arguments) {
  std::vector<std::string> names = policies_named(arguments.policies);
  // That the ideal fits says nothing, unless nothing else was asked.
  if (names.size() > 1) std::erase(names, "ideal");
  const auto settings = parse_settings(arguments.settings);
  if (!settings.empty() && names.size() > 1) throw Error("--set goes with one policy; name it with --policy");
  const Workload workload = load_workload(arguments.workload);
  FitRequest request;
  request.workload = &workload;
  request.policies = names;
  request.settings = settings;
  request.searched = searched_kinds(arguments, names.size());
  request.pinned_limit = parse_pinned_limit(arguments.pinned_limit, workload.machine, rank_count(workload.trace));
  std::vector<FitVerdict> verdicts;
  {
    ProgressLine progress;
    request.progress = [&](std::size_t done, std::size_t of, const std::string& what) {
      progress.show(fmt::format("{} of {}: {}", done, of, what));
    };
    verdicts = judge_fit(request);
  }
  std::optional<Bound> bound;
  if (arguments.json || std::ranges::any_of(verdicts, &FitVerdict::fits_all)) {
    bound = lower_bound_of(workload.trace, workload.machine);
  }
  const FitAnswer answer = fit_answer(request, std::move(verdicts), bound);
  if (arguments.json) {
    print_repeatable(to_json_of(answer), arguments.command);
  } else {
    print(document_text(document_of(answer)));
  }
  return answer.fits ? ExitCode::done : ExitCode::answer_is_no;
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
