#include <optional>

#include "answers/intervals.h"
#include "answers/questions.h"
#include "answers/result.h"
#include "answers/timeline/decisions.h"
#include "answers/timeline/timeline_csv.h"
#include "studies/faults.h"
#include "studies/scenario_options.h"
#include "studies/validity.h"
#include "traces/file/output_files.h"

namespace tencache {
namespace {

struct ReplayRequest {
  Scenario scenario;
  std::string timeline, decisions;
};

Answered replay(const ReplayRequest& request, const Json& command, std::vector<KeptTimeline>* kept) {
  Workload workload = load_workload(request.scenario);
  const std::optional<FaultPlan> faults = announce_faults(workload.scenario, workload.machine);
  const PolicyChoice& policy = workload.scenario.policy;
  std::vector<std::string> others = input_files(request.scenario);
  check_timeline_name(request.timeline);
  check_output("--timeline", request.timeline, others);
  others.push_back(request.timeline);
  check_output("--decisions", request.decisions, others);
  Timeline timeline;
  std::vector<Timeline> other_timelines;  // of ranks 1, 2, …
  std::optional<DecisionLog> decisions;
  if (!request.decisions.empty()) decisions.emplace(request.decisions);
  Recorders recorders;
  if (!request.timeline.empty() || kept != nullptr) {
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
    if (!request.timeline.empty()) write_timeline(request.timeline, processes);
    for (const TimelineProcess& process : processes) {
      if (kept != nullptr) kept->push_back({process.name, *process.timeline, *process.machine, *process.trace});
    }
  }
  const Intervals intervals = sample_intervals(
      workload, {{policy.name, policy.settings, outcome.result.iteration_seconds()}}, workload.scenario.sampling);
  ResultAnswer result = result_answer(workload, outcome, references);
  add_interval(result, intervals, intervals.policies.front());
  if (outcome.result.fits && outcome.policy != "ideal") {
    result.validity = published_validity(workload, outcome.policy, outcome.options);
  }
  Answered answer;
  result.manifest.command = command;
  answer.json = [result = std::move(result)] { return to_json_of(result); };
  answer.text = [text = result_text(workload, outcome, references) + interval_text(intervals)] { return text; };
  answer.yes = outcome.result.fits;
  if (drawn && !request.timeline.empty()) {
    const bool chrome = !request.timeline.ends_with(".csv");
    answer.text_remarks.push_back("timeline in " + request.timeline +
                                  (chrome ? "; open it at https://ui.perfetto.dev" : ""));
  }
  if (decided) {
    answer.text_remarks.push_back(std::to_string(decisions->count()) + " decisions in " + request.decisions);
  }
  return answer;
}

}  // namespace

std::unique_ptr<Question> replay_question() { return replay_question(nullptr); }

std::unique_ptr<Question> replay_question(std::vector<KeptTimeline>* kept) {
  auto question = std::make_unique<Question>("replay");
  question->help = {
      .summary = "Simulate a trace on a machine under one policy",
      .json = "The result as JSON",
      .footer =
          "Exit code 1: the trace does not fit.\n\n"
          "Examples:\n"
          "  tencache replay step.trace.jsonl.zst --machine g10-a100 --policy on-demand\n"
          "  tencache replay step.trace.jsonl.zst -m my-computer.yaml -p zero-offload --gpu-memory 8GiB --json\n"
          "  tencache replay step.trace.jsonl.zst -m g10-a100 -p on-demand --timeline step.json\n"
          "  tencache replay step.trace.jsonl.zst -m g10-a100 -p g10 --decisions step.decisions.jsonl.zst\n"
          "  tencache replay step.trace.jsonl.zst -m g10-a100 -p g10 --faults seed=7"};
  question->repeatable = true;
  question->schemas = [] {
    return std::vector{schema_named<ResultAnswer>(
        "result", "A TenCache result",
        "What `tencache replay --json` prints, and each element of the list of `tencache compare --json`. "
        "Figures of the run are null where the trace does not fit. docs/results.md says what the figures mean.")};
  };
  auto request = std::make_shared<ReplayRequest>();
  QuestionOptions& options = question->options;
  add_workload_options(options, request->scenario);
  add_price_options(options, request->scenario.prices);
  add_policy_options(options, request->scenario.policy);
  add_sample_options(options, request->scenario.sampling);
  add_faults_option(options, request->scenario.faults).without("--samples");
  options.output("--timeline", request->timeline,
                 "Write the timeline to this file, for https://ui.perfetto.dev; .csv: a line per span");
  options.output("--decisions", request->decisions,
                 "Write every decision about a tensor and its reason to this file, one JSON object a "
                 "line (.zst: compressed); docs/decisions.md");
  question->ask = [request, kept, question = question.get()] {
    return replay(*request, command_json(*question), kept);
  };
  return question;
}

}  // namespace tencache
