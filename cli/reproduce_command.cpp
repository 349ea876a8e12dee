// `tencache reproduce`: a result again from its manifest.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "answers/question.h"
#include "answers/result_file.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/questions.h"
#include "configs/load_policy_library.h"
#include "core/error.h"
#include "core/text.h"
#include "studies/scenario_options.h"

namespace tencache {
namespace {

struct ReproduceArguments {
  std::string file;
  std::string trace, machine;  // where they are now; empty: where they were
  bool json = false;
};

Json without_timing(Json result) {
  if (result.is_object()) result.erase("timing");
  return result;
}

// What changed before anything ran, in words.
std::string explanation(const std::vector<Change>& changes) {
  const auto changed = [&](const std::string& path) {  // or one of its parts: hashes.traces.0
    return std::ranges::any_of(
        changes, [&](const Change& change) { return change.path == path || change.path.starts_with(path + "."); });
  };
  constexpr std::pair<const char*, const char*> reasons[] = {
      {"version", "another version of tencache made it"},
      {"hashes.trace", "the trace is not the one of then: its hash differs"},
      {"hashes.traces", "the trace is not the one of then: its hash differs"},
      {"hashes.from_deepspeed", "the file of --from-deepspeed is not the one of then: its hash differs"},
      {"hashes.gpus", "the figures of GPUs that durations are rescaled by have changed"},
      {"hashes.machine", "the machine file is not the one of then: its hash differs"},
      {"hashes.sweep", "the sweep's file is not the one of then: its hash differs"},
      {"hashes.combinations", "traces, machine files, policies or the build of tencache are not those of then"},
      {"hashes.prices", "the price of the machine is not the one of then"},
      {"price.per_hour", "the price of the machine is not the one of then"},
      {"hashes.policy_library", "the policy library is not the one of then: its hash differs"}};
  if (changes.empty()) return "  the figures are the same, but not the keys that they stand under\n";
  std::string text;
  for (const auto& [path, reason] : reasons) {
    const std::string line = fmt::format("  {}\n", reason);
    if (changed(std::string("manifest.") + path) && !text.ends_with(line)) text += line;
  }
  if (text.empty()) text = "  version, trace, machine and options are the same; only what came out differs\n";
  return text;
}

// Throws Error where a document cannot be had again to the byte, or only with code that the user did not name.
void check_repeatable(const Json& document, const std::string& file) {
  const auto fail = [&](const std::string& message) { throw Error(file, 0, title_of(document) + " " + message); };
  const Json& measured = member(document, "measured");
  if (!measured.is_null() && !measured.is_boolean()) fail("has a 'measured' that is neither true nor false");
  if (measured == true || document.contains("training")) {
    fail("was measured, which no run repeats to the byte; `run` it again and look at `diff`");
  }
  if (!is_repeatable(document)) fail("lacks manifest.command, which says what was asked");
  const Json &library = member(member(document["manifest"], "run"), "policy_library"),
             &policy = member(document, "policy");
  if (library.is_string() && policy.is_string() && origin_of_policy(policy.get<std::string>()).file.empty()) {
    fail(fmt::format("is of a policy in the library {0}; if you trust it, add --policy-library {0}",
                     library.get<std::string>()));
  }
}

// What answers a document now: the whole answer of its command, or of a list the element of the same policy. Null: the
// list has none any more.
Json element_for(const Json& document, const Json& answer) {
  if (!answer.is_array()) return answer;
  const auto found = std::ranges::find_if(
      answer, [&](const Json& element) { return member(element, "policy") == member(document, "policy"); });
  return found == answer.end() ? Json() : *found;
}

// Each command is asked once for all that it printed.
std::vector<Json> ask_all_again(const ReproduceArguments& arguments, const std::vector<Json>& documents) {
  for (const Json& document : documents) check_repeatable(document, arguments.file);
  std::vector<Json> now;
  Json command, answer;
  for (const Json& document : documents) {
    if (document["manifest"]["command"] != command) {
      answer = ask_again(arguments.file, document, arguments.trace, arguments.machine);
      command = document["manifest"]["command"];
    }
    now.push_back(element_for(document, answer));
  }
  return now;
}

// Rows of `compare` are called as `replay` calls its result.
std::string title_of_document(const Json& document) {
  if (document.contains("iteration_seconds")) return title_of(document);
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
  const std::vector<Json> results = is_repeatable(document) ? std::vector<Json>{std::move(document)}
                                                            : results_of(std::move(document), arguments.file);
  const std::vector<Json> now = ask_all_again(arguments, results);
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
    list.push_back({{"policy", member(results[i], "policy")},
                    {"machine", member(results[i], "machine")},
                    {"trace", member(results[i], "trace")},
                    {"reproduced", same},
                    {"changes", std::move(changes_list)}});
    list.back()["command"] = results[i]["manifest"]["command"]["name"];
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
