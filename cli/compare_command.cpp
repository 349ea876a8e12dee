#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli/command_line.h"
#include "cli/report.h"
#include "policies/registry.h"

namespace tencache {
namespace {

constexpr std::size_t bar_width = 32;

struct CompareArguments {
  WorkloadOptions workload;
  std::string policies = "all";
  bool json = false;
};

// Checks the names before anything runs.
std::vector<std::string> chosen_policies(const std::string& list) {
  std::vector<std::string> valid;
  for (const PolicyInfo& info : list_policies()) valid.push_back(info.name);
  if (list == "all") return valid;
  std::vector<std::string> names;
  std::size_t begin = 0;
  while (begin <= list.size()) {
    const std::size_t comma = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, comma - begin);
    if (std::find(valid.begin(), valid.end(), name) == valid.end()) {
      throw Error(fmt::format("unknown policy '{}'; valid names are {}, or all", name, join(valid)));
    }
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    begin = comma + 1;
  }
  return names;
}

// A policy that this machine cannot serve is a row with its reason, like one that does not fit.
Outcome simulate_or_refuse(const Workload& workload, const std::string& policy) {
  try {
    return simulate_policy(workload, policy, {});
  } catch (const Error& error) {
    Outcome refused;
    refused.policy = policy;
    refused.result.fits = false;
    refused.result.misfit = error.what();
    return refused;
  }
}

bool better(const Outcome& a, const Outcome& b) {
  if (a.result.fits != b.result.fits) return a.result.fits;
  return a.result.fits && a.result.iteration_seconds() < b.result.iteration_seconds();
}

std::string table(const Workload& workload, const std::vector<Outcome>& outcomes, const References& references) {
  double longest = references.ideal_seconds;
  for (const Outcome& outcome : outcomes) {
    if (outcome.result.fits) longest = std::max(longest, outcome.result.iteration_seconds());
  }
  std::string remarks;
  for (const std::string& note : notes_of(workload)) remarks += note + "\n";
  Table table({"policy", "iteration", "× ideal", "GPU hits", "waits most for", "compute █  stalls ░"});
  const auto ratio = [&](double seconds) {
    return references.ideal_seconds > 0 ? fmt::format("{:.3f}", seconds / references.ideal_seconds) : std::string("-");
  };
  table.add(
      {"(compute bound)", format_seconds(references.compute_bound_seconds), ratio(references.compute_bound_seconds)});
  for (const Outcome& outcome : outcomes) {
    const RunResult& result = outcome.result;
    if (!result.fits) {
      table.add({outcome.policy, "-", "-", "-", "", "does not fit"});
      remarks += outcome.policy + ": " + result.misfit + "\n";
      continue;
    }
    const double hits = result.window.accesses == 0
                            ? 1.0
                            : static_cast<double>(result.window.hits) / static_cast<double>(result.window.accesses);
    table.add({outcome.policy, format_seconds(result.iteration_seconds()), ratio(result.iteration_seconds()),
               fmt::format("{:.1f} %", 100 * hits), main_stall(result), time_bar(result, longest, bar_width)});
  }
  if (!remarks.empty()) remarks.insert(0, "\n");
  return fmt::format("{} on {}\n\n{}{}", trace_title(workload), workload.machine.name, table.text(), remarks);
}

ExitCode compare(const CompareArguments& arguments) {
  const std::vector<std::string> names = chosen_policies(arguments.policies);
  const Workload workload = load_workload(arguments.workload);
  const References references = references_of(workload);
  std::vector<Outcome> outcomes;
  {
    ProgressLine progress;
    for (const std::string& name : names) {
      progress.show(fmt::format("{} of {}: {}", outcomes.size() + 1, names.size(), name));
      outcomes.push_back(simulate_or_refuse(workload, name));
      outcomes.back().program.trace = {};  // a table needs only what was changed
    }
  }
  std::stable_sort(outcomes.begin(), outcomes.end(), better);

  // That the ideal fits says nothing, unless nothing else was asked.
  const bool any_fits = std::any_of(outcomes.begin(), outcomes.end(), [&](const Outcome& outcome) {
    return outcome.result.fits && (outcome.policy != "ideal" || names.size() == 1);
  });
  // `ideal` is a row whether it was asked for or not.
  if (std::find(names.begin(), names.end(), "ideal") == names.end()) {
    outcomes.insert(outcomes.begin(), simulate_or_refuse(workload, "ideal"));
  }

  if (arguments.json) {
    Json list = Json::array();
    for (const Outcome& outcome : outcomes) list.push_back(result_json(workload, outcome, references));
    print_json(list);
  } else {
    print(table(workload, outcomes, references));
  }
  return any_fits ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_compare_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("compare", "Simulate a trace under several policies: a table, best first");
  auto arguments = std::make_shared<CompareArguments>();
  add_workload_options(*command, arguments->workload);
  command->add_option("--policies", arguments->policies, "Names separated by commas, or all")->capture_default_str();
  command->add_flag("--json", arguments->json, "A list of results as JSON, the rows of the table");
  command->footer(
      "`ideal` is always a row. Exit code 1: the trace fits under none of the policies asked for. Rows that do not fit "
      "come last, with the reason.\n\n"
      "Examples:\n"
      "  tencache compare step.trace.jsonl.zst --machine g10-a100\n"
      "  tencache compare step.trace.jsonl.zst -m my-computer.yaml --policies on-demand,layer-streaming --json");
  command->callback([arguments, &chosen] { chosen = [arguments] { return compare(*arguments); }; });
}

}  // namespace tencache
