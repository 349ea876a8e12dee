// `tencache reproduce`: a result again from its manifest.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>

#include "answers/intervals.h"
#include "answers/manifest.h"
#include "answers/question.h"
#include "answers/result.h"
#include "answers/result_file.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/questions.h"
#include "cli/workload_options.h"
#include "configs/load_policy_library.h"
#include "studies/faults.h"

namespace tencache {
namespace {

struct ReproduceArguments {
  std::string file;
  std::string trace, machine;  // where they are now; empty: where they were
  bool json = false;
};

// Rows of one run, as `compare` made them: read once and, where they have intervals, sampled together, since an
// interval says how often its policy was the fastest of them. Appends the results of now.
void simulate_rows(const ReproduceArguments& arguments, const std::vector<Json>& then,
                   const std::vector<Scenario>& rows, std::size_t begin, std::size_t end, std::vector<Json>& now) {
  Scenario scenario = rows[begin];
  if (!scenario.trace.generate.empty()) scenario.trace.file.clear();  // only the name of what was generated
  if (!arguments.trace.empty()) {
    scenario.trace.file = arguments.trace;
    scenario.trace.generate.clear();
  }
  scenario.machine.found_at = arguments.machine;
  Workload workload = load_workload(scenario);
  workload.scenario = rows[begin];  // the result speaks of the names of then
  const std::optional<FaultPlan> faults = announce_faults(workload.scenario, workload.machine);
  const References references = references_of(workload);
  std::vector<Sampled> sampled;
  std::vector<std::size_t> sampled_rows;
  std::vector<ResultAnswer> answers;
  for (std::size_t i = begin; i < end; ++i) {
    const PolicyChoice& policy = rows[i].policy;
    if (policy.name == bound_row) {
      answers.push_back(bound_row_answer(workload, references));
      continue;
    }
    const Outcome outcome = simulate_or_refuse(workload, policy.name, policy.settings, faults ? &*faults : nullptr);
    answers.push_back(result_answer(workload, outcome, references));
    if (then[i].value("samples", Json()).is_null()) continue;
    sampled_rows.push_back(i - begin);
    sampled.push_back(
        {policy.name, policy.settings,
         outcome.result.fits ? outcome.result.iteration_seconds() : std::numeric_limits<double>::infinity()});
  }
  if (!sampled.empty()) {
    const Intervals intervals = sample_intervals(workload, sampled, rows[begin].sampling);
    for (std::size_t i = 0; i < sampled_rows.size(); ++i) {
      add_interval(answers[sampled_rows[i]], intervals, intervals.policies[i]);
    }
  }
  for (const ResultAnswer& answer : answers) now.push_back(to_json_of(answer));
}

Json without_timing(Json result) {
  result.erase("timing");
  return result;
}

// What changed before anything ran, in words.
std::string explanation(const std::vector<Change>& changes) {
  const auto changed = [&](const std::string& path) {  // or one of its parts: hashes.traces.0
    return std::any_of(changes.begin(), changes.end(), [&](const Change& change) {
      return change.path == path || change.path.starts_with(path + ".");
    });
  };
  std::string text;
  if (changes.empty()) return "  the figures are the same, but not the keys that they stand under\n";
  if (changed("manifest.version")) text += "  another version of tencache made it\n";
  if (changed("manifest.hashes.trace") || changed("manifest.hashes.traces"))
    text += "  the trace is not the one of then: its hash differs\n";
  if (changed("manifest.hashes.from_deepspeed"))
    text += "  the file of --from-deepspeed is not the one of then: its hash differs\n";
  if (changed("manifest.hashes.gpus")) text += "  the figures of GPUs that durations are rescaled by have changed\n";
  if (changed("manifest.hashes.machine")) text += "  the machine file is not the one of then: its hash differs\n";
  if (changed("manifest.hashes.sweep")) text += "  the sweep's file is not the one of then: its hash differs\n";
  if (changed("manifest.hashes.combinations"))
    text += "  traces, machine files, policies or the build of tencache are not those of then\n";
  if (changed("manifest.hashes.prices") || changed("manifest.price.per_hour"))
    text += "  the price of the machine is not the one of then\n";
  if (changed("manifest.hashes.policy_library"))
    text += "  the policy library is not the one of then: its hash differs\n";
  if (text.empty()) text = "  version, trace, machine and options are the same; only what came out differs\n";
  return text;
}

// The results of `replay` and `compare` again.
std::vector<Json> rows_again(const ReproduceArguments& arguments, const std::vector<Json>& results) {
  std::vector<Scenario> scenarios;
  for (const Json& result : results) {
    check_repeatable(result, arguments.file);
    scenarios.push_back(read_manifest(result, arguments.file));
  }
  std::vector<Json> now;
  ProgressLine progress;
  for (std::size_t begin = 0, end = 0; begin < results.size(); begin = end) {
    while (end < results.size() && same_question(results[begin], results[end])) ++end;
    progress.show(fmt::format("{} of {} results", end, results.size()));
    simulate_rows(arguments, results, scenarios, begin, end, now);
  }
  return now;
}

// What a command printed of a whole question (`tune`, `explain`, …) again.
Json command_again(const ReproduceArguments& arguments, const Json& document) {
  const Json &library = member(member(document["manifest"], "run"), "policy_library"),
             &policy = member(document, "policy");
  if (library.is_string() && policy.is_string() && origin_of_policy(policy.get<std::string>()).file.empty()) {
    throw Error(arguments.file, 0, library_is_missing(library.get<std::string>()));
  }
  return ask_again(arguments.file, document, arguments.trace, arguments.machine);
}

std::string title_of_document(const Json& document) {
  if (!is_repeatable(document)) return title_of(document);
  const Json &name = member(document["manifest"]["command"], "name"), &machine = member(document, "machine");
  const Json& on = machine.is_string() ? machine : member(member(document, "sweep"), "name");
  return printable(fmt::format("{} {} {}", name.get<std::string>(), machine.is_string() ? "on" : "of",
                               on.is_string() ? on.get<std::string>() : std::string("?")));
}

// A table of all would bury what it is about.
std::string some_changes_text(std::vector<Change> changes) {
  constexpr std::size_t shown = 40;
  const std::size_t more = changes.size() - std::min(changes.size(), shown);
  changes.resize(changes.size() - more);
  return changes_text(changes, "then", "now") +
         (more == 0 ? std::string() : fmt::format("  and {} more; --json has all\n", more));
}

ExitCode reproduce(const ReproduceArguments& arguments) {
  Json document = read_json(arguments.file);
  std::vector<Json> results, now;
  if (is_repeatable(document)) {
    now.push_back(command_again(arguments, document));
    results.push_back(std::move(document));
  } else {
    results = results_of(std::move(document), arguments.file);
    now = rows_again(arguments, results);
  }
  std::size_t reproduced = 0;
  std::string text;
  Json list = Json::array();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Json& again = now[i];
    const std::vector<Change> changes = changes_between(results[i], again);
    const bool same = without_timing(results[i]).dump() == without_timing(again).dump();
    if (same) {
      ++reproduced;
    } else {
      text += fmt::format("{}\n{}{}", title_of_document(results[i]), explanation(changes), some_changes_text(changes));
    }
    Json changes_list = Json::array();
    for (const Change& change : changes) changes_list.push_back(change_json(change));
    list.push_back({{"policy", member(again, "policy")},
                    {"machine", member(again, "machine")},
                    {"trace", member(again, "trace")},
                    {"reproduced", same},
                    {"changes", std::move(changes_list)}});
    if (is_repeatable(again)) list.back()["command"] = again["manifest"]["command"]["name"];
  }
  const bool all = reproduced == results.size();
  if (arguments.json) {
    print_json({{"reproduced", all}, {"file", arguments.file}, {"results", std::move(list)}});
  } else {
    print(fmt::format("{}reproduced {} of {} result{}{}\n", text, reproduced, results.size(),
                      results.size() == 1 ? "" : "s", all ? ": every figure, hash and option is the same" : ""));
  }
  return all ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_reproduce_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("reproduce", "A simulated result again, from its manifest");
  auto arguments = std::make_shared<ReproduceArguments>();
  command
      ->add_option("RESULT", arguments->file,
                   "A result, or a list of them, as replay, compare, fit, explain, endurance, bound, sensitivity, "
                   "sweep or tune print with --json")
      ->required();
  refuse_empty(command->add_option("--trace", arguments->trace, "Where the trace is now, if not where it was"));
  refuse_empty(
      command->add_option("--machine,-m", arguments->machine, "Where the machine is now, if not where it was"));
  add_group(*command, [](QuestionOptions& options) { add_policy_library_option(options); });
  command->add_flag("--json", arguments->json, "What changed, as JSON");
  command->footer(
      "Reproduced means the same bytes but for `timing`. Else it says what changed: version, hashes of trace and "
      "machine,\nfigures. Paths are those of then, from the present folder. Exit code 1: not reproduced.\n\n"
      "Examples:\n"
      "  tencache reproduce results.json\n"
      "  tencache reproduce results.json --trace elsewhere/step.trace.jsonl\n"
      "where results.json is, for instance, of\n"
      "  tencache compare step.trace.jsonl -m g10-a100 --json > results.json");
  command->callback([arguments, &chosen] { chosen = [arguments] { return reproduce(*arguments); }; });
}

}  // namespace tencache
