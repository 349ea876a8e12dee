#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "answers/intervals.h"
#include "answers/result.h"
#include "answers/timeline/decisions.h"
#include "answers/timeline/timeline_csv.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/embedding.h"
#include "cli/output_files.h"
#include "cli/workload_options.h"
#include "studies/faults.h"

namespace tencache {
namespace {

struct ReplayArguments {
  Scenario scenario;
  std::string timeline;
  std::string decisions;
  bool json = false;
};

ExitCode replay(const ReplayArguments& arguments) {
  Workload workload = load_workload(arguments.scenario);
  const std::optional<FaultPlan> faults = announce_faults(workload.scenario, workload.machine);
  const PolicyChoice& policy = workload.scenario.policy;
  std::vector<std::string> others = input_files(arguments.scenario);
  check_timeline_name(arguments.timeline);
  check_output("--timeline", arguments.timeline, others);
  others.push_back(arguments.timeline);
  check_output("--decisions", arguments.decisions, others);
  Timeline timeline;
  std::vector<Timeline> other_timelines;  // of ranks 1, 2, …
  std::optional<DecisionLog> decisions;
  if (!arguments.decisions.empty()) decisions.emplace(arguments.decisions);
  Recorders recorders;
  Embedding* const embedding = current_embedding();
  const bool kept = embedding != nullptr && embedding->keep_timelines;
  if (!arguments.timeline.empty() || kept) {
    recorders.timeline = &timeline;
    recorders.other_timelines = &other_timelines;
  }
  if (decisions) recorders.on_decision = decisions->sink();
  if (faults) recorders.faults = &*faults;
  const Outcome outcome = simulate_policy(workload, policy.name, policy.settings, recorders);
  const bool decided = decisions && (outcome.result.iterations > 0 || decisions->count() > 0);
  if (decided) decisions->commit();
  const References references = references_of(workload);
  const bool drawn = !timeline.spans.empty();  // what never ran leaves an older timeline alone
  if (drawn) {
    std::vector<TimelineProcess> processes{{.name = "predicted: " + outcome.policy,
                                            .timeline = &timeline,
                                            .machine = &workload.machine,
                                            .trace = &outcome.program.trace}};
    if (!outcome.ranks.empty()) {
      processes[0].trace = &outcome.ranks[0].program.trace;
      processes[0].name += ", rank 0";
    }
    for (std::size_t rank = 1; rank < outcome.ranks.size(); ++rank) {
      processes.push_back({.name = "predicted: " + outcome.policy + ", rank " + std::to_string(rank),
                           .timeline = &other_timelines[rank - 1],
                           .machine = &workload.machine.of_rank(rank),
                           .trace = &outcome.ranks[rank].program.trace});
    }
    if (!arguments.timeline.empty()) write_timeline(arguments.timeline, processes);
    for (const TimelineProcess& process : processes) {
      if (kept) {
        embedding->timelines.push_back({process.name, *process.timeline, *process.machine, *process.trace});
      }
    }
  }
  const Intervals intervals = sample_intervals(
      workload, {{policy.name, policy.settings, outcome.result.iteration_seconds()}}, workload.scenario.sampling);
  if (arguments.json) {
    ResultAnswer result = result_answer(workload, outcome, references);
    add_interval(result, intervals, intervals.policies.front());
    print_json(to_json_of(result));
  } else {
    print(result_text(workload, outcome, references) + interval_text(intervals));
    if (drawn && !arguments.timeline.empty()) {
      const bool chrome = !arguments.timeline.ends_with(".csv");
      remark("timeline in " + arguments.timeline + (chrome ? "; open it at https://ui.perfetto.dev" : ""));
    }
    if (decided) remark(std::to_string(decisions->count()) + " decisions in " + arguments.decisions);
  }
  return outcome.result.fits ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_replay_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("replay", "Simulate a trace on a machine under one policy");
  auto arguments = std::make_shared<ReplayArguments>();
  add_workload_options(*command, arguments->scenario);
  add_price_options(*command, arguments->scenario.prices);
  add_policy_options(*command, arguments->scenario.policy);
  add_sample_options(*command, arguments->scenario.sampling);
  add_faults_option(*command, arguments->scenario.faults)->excludes("--samples");
  refuse_empty(command->add_option("--timeline", arguments->timeline,
                                   "Write the timeline to this file, for https://ui.perfetto.dev; .csv: a line "
                                   "per span"));
  refuse_empty(command->add_option("--decisions", arguments->decisions,
                                   "Write every decision about a tensor and its reason to this file, one JSON object a "
                                   "line (.zst: compressed); docs/decisions.md"));
  command->add_flag("--json", arguments->json, "The result as JSON");
  command->footer(
      "Exit code 1: the trace does not fit.\n\nExamples:\n"
      "  tencache replay step.trace.jsonl.zst --machine g10-a100 --policy on-demand\n"
      "  tencache replay step.trace.jsonl.zst -m my-computer.yaml -p zero-offload --gpu-memory 8GiB --json\n"
      "  tencache replay step.trace.jsonl.zst -m g10-a100 -p on-demand --timeline step.json\n"
      "  tencache replay step.trace.jsonl.zst -m g10-a100 -p g10 --decisions step.decisions.jsonl.zst\n"
      "  tencache replay step.trace.jsonl.zst -m g10-a100 -p g10 --faults seed=7");
  command->callback([arguments, &chosen] { chosen = [arguments] { return replay(*arguments); }; });
}

}  // namespace tencache
