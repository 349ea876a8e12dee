// `tencache diff`: what changed from one result to another.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "answers/result_file.h"
#include "cli/command_line.h"
#include "cli/console.h"

namespace tencache {
namespace {

struct Pair {
  std::size_t a, b;  // positions in their files
};

struct Matching {
  std::vector<Pair> pairs;  // in the order of A
  std::vector<std::size_t> only_a, only_b;
};

// Results of the same policy, machine and trace belong together; of what is left, those that agree in as much as can
// be. One result against one belong together whatever they are.
Matching match(const std::vector<Json>& a, const std::vector<Json>& b) {
  const std::vector<std::vector<const char*>> keys_by_pass = {
      {"policy", "machine", "trace"}, {"policy", "machine"}, {"policy", "trace"}, {"policy"}};
  std::vector<std::optional<std::size_t>> partner(a.size());
  std::vector<bool> taken(b.size(), false);
  if (a.size() == 1 && b.size() == 1) {
    partner[0] = 0;
    taken[0] = true;
  }
  for (const auto& keys : keys_by_pass) {
    const auto alike = [&](const Json& x, const Json& y) {
      for (const char* key : keys) {
        if (x.value(key, Json()) != y.value(key, Json())) return false;
      }
      return true;
    };
    for (std::size_t i = 0; i < a.size(); ++i) {
      for (std::size_t j = 0; j < b.size() && !partner[i]; ++j) {
        if (taken[j] || !alike(a[i], b[j])) continue;
        partner[i] = j;
        taken[j] = true;
      }
    }
  }
  Matching result;
  for (std::size_t i = 0; i < a.size(); ++i) {
    partner[i] ? result.pairs.push_back({i, *partner[i]}) : result.only_a.push_back(i);
  }
  for (std::size_t j = 0; j < b.size(); ++j) {
    if (!taken[j]) result.only_b.push_back(j);
  }
  return result;
}

Json identity_json(const Json& result) {
  return {{"policy", result.value("policy", Json())},
          {"machine", result.value("machine", Json())},
          {"trace", result.value("trace", Json())}};
}

ExitCode diff(const std::string& file_a, const std::string& file_b, bool json) {
  const std::vector<Json> a = read_results(file_a), b = read_results(file_b);
  const Matching matching = match(a, b);
  bool same = matching.only_a.empty() && matching.only_b.empty();
  Json pairs = Json::array();
  std::string text;
  std::size_t equal = 0;
  for (const Pair& pair : matching.pairs) {
    const std::vector<Change> changes = changes_between(a[pair.a], b[pair.b]);
    same = same && changes.empty();
    Json list = Json::array();
    for (const Change& change : changes) list.push_back(change_json(change));
    Json entry = identity_json(b[pair.b]);
    entry["same"] = changes.empty();
    entry["changes"] = std::move(list);
    pairs.push_back(std::move(entry));
    if (changes.empty()) {
      ++equal;
    } else {
      text += fmt::format("{}{}\n{}", text.empty() ? "" : "\n", title_of(a[pair.a]), changes_text(changes, "A", "B"));
    }
  }
  Json only_a = Json::array(), only_b = Json::array();
  for (const std::size_t i : matching.only_a) {
    only_a.push_back(identity_json(a[i]));
    text += fmt::format("only in A: {}\n", title_of(a[i]));
  }
  for (const std::size_t j : matching.only_b) {
    only_b.push_back(identity_json(b[j]));
    text += fmt::format("only in B: {}\n", title_of(b[j]));
  }
  if (json) {
    print_json({{"same", same},
                {"a", file_a},
                {"b", file_b},
                {"pairs", std::move(pairs)},
                {"only_in_a", std::move(only_a)},
                {"only_in_b", std::move(only_b)}});
  } else if (same) {
    print(fmt::format("the same: {} result{}\n", equal, equal == 1 ? "" : "s"));
  } else {
    print(fmt::format("A: {}\nB: {}\n\n{}{}", printable(file_a), printable(file_b), text,
                      equal == 0 ? std::string() : fmt::format("\nthe same: {} more\n", equal)));
  }
  return same ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_diff_command(CLI::App& app, Command& chosen) {
  struct Arguments {
    std::string a, b;
    bool json = false;
  };
  CLI::App* command = app.add_subcommand("diff", "What changed from one result to another");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("A", arguments->a, "A result, or a list of them, as replay or compare print with --json")
      ->required();
  command->add_option("B", arguments->b, "Another")->required();
  command->add_flag("--json", arguments->json, "The changes as JSON, with ratios");
  command->footer(
      "Results of lists belong together by policy, machine and trace. `timing`, the tool's own run time, is not "
      "compared.\nExit code 1: they differ.\n\n"
      "Examples:\n"
      "  tencache diff a.json b.json\n"
      "where a.json and b.json are, for instance, of\n"
      "  tencache replay step.trace.jsonl -m g10-a100 -p on-demand --json > a.json\n"
      "  tencache replay step.trace.jsonl -m g10-a100 -p on-demand --gpu-memory 24GiB --json > b.json");
  command->callback(
      [arguments, &chosen] { chosen = [arguments] { return diff(arguments->a, arguments->b, arguments->json); }; });
}

}  // namespace tencache
