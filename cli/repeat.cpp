#include "cli/repeat.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>

#include "answers/result_file.h"
#include "cli/console.h"
#include "core/error.h"

namespace tencache {
namespace {

constexpr std::array commands{"bound", "endurance", "explain", "fit", "sensitivity", "sweep", "tune"};
constexpr std::array not_recorded{
    "--json", "--threads",    "--output",         "--csv",      "--svg",       "--deepspeed",
    "--fsdp", "--accelerate", "--policy-library", "--trace-at", "--machine-at"};

template <std::size_t n>
bool is_one_of(const std::array<const char*, n>& names, const std::string& name) {
  return std::any_of(names.begin(), names.end(), [&](const char* one) { return name == one; });
}

bool has_values(const Json& value) {
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(), [](const Json& text) { return text.is_string(); });
}

}  // namespace

Json command_json(const CLI::App& command) {
  Json arguments = Json::object();
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();  // empty of those that no list shows
    if (option->count() == 0 || name.empty() || is_one_of(not_recorded, name)) continue;
    const bool flag = option->get_items_expected_max() == 0;
    arguments[name] = flag ? Json(true) : Json(option->results());
  }
  return {{"name", command.get_name()}, {"arguments", std::move(arguments)}};
}

void print_repeatable(Json document, const Json& command) {
  document["manifest"]["command"] = command;
  print_json(document);
}

bool is_repeatable(const Json& document) { return !member(member(document, "manifest"), "command").is_null(); }

std::vector<std::string> words_again(const std::string& file, const Json& document, const std::string& trace,
                                     const std::string& machine) {
  const auto fail = [&](const std::string& message) { throw Error(file, 0, message); };
  const Json& command = document["manifest"]["command"];
  const Json &name = member(command, "name"), &arguments = member(command, "arguments");
  if (!name.is_string() || !arguments.is_object()) fail("manifest.command lacks a 'name' or 'arguments'");
  std::vector<std::string> words = {name.get<std::string>()}, positional;
  if (!is_one_of(commands, words[0])) fail("is of command '" + words[0] + "', which this version cannot repeat");
  for (const auto& [key, value] : arguments.items()) {
    if (is_one_of(not_recorded, key.substr(0, key.find('='))))
      fail("manifest.command has '" + key + "', which no result may ask for");
    const bool option = key.starts_with("--");
    if (!has_values(value) && !(option && value.is_boolean() && value.get<bool>())) {
      fail("manifest.command: '" + key + "' has neither texts nor true");
    }
    if (value.is_boolean()) {
      words.push_back(key);
      continue;
    }
    for (const Json& text : value) {
      if (option) {
        words.push_back(key + "=" + text.get<std::string>());
      } else {
        positional.push_back(text.get<std::string>());
      }
    }
  }
  if (words[0] == "sweep" && !(trace.empty() && machine.empty())) {
    fail("is of a sweep, whose file names its traces and machines: leave --trace and --machine out");
  }
  if (!trace.empty()) {
    if (positional.size() != 1) {
      fail(positional.empty() ? "has no trace file that --trace could stand for"
                              : "has several traces, of which --trace could stand for one");
    }
    words.push_back("--trace-at=" + trace);
  }
  if (!machine.empty()) words.push_back("--machine-at=" + machine);
  words.emplace_back("--json");
  words.emplace_back("--");
  words.insert(words.end(), positional.begin(), positional.end());
  return words;
}

}  // namespace tencache
