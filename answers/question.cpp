#include "answers/question.h"

#include <algorithm>

#include "answers/questions.h"
#include "answers/result_file.h"
#include "core/error.h"

namespace tencache {

Json command_json(const Question& question) {
  Json arguments = Json::object();
  for (const QuestionOption& option : question.options.all()) {
    if (option.given.empty() || !option.recorded) continue;
    arguments[option.name()] = option.kind == QuestionOption::Kind::flag ? Json(true) : Json(option.given);
  }
  return {{"name", question.name}, {"arguments", std::move(arguments)}};
}

void set_command(Json& answer, const Json& command) {
  if (command.is_null()) return;
  if (answer.is_array()) {
    for (Json& one : answer) set_command(one, command);
  } else {
    answer["manifest"]["command"] = command;
  }
}

namespace {

struct Made {
  std::string name;
  std::unique_ptr<Question> (*make)();
};

const std::vector<Made>& all_questions() {
#define TENCACHE_ROW(asked) {asked##_question()->name, [] { return asked##_question(); }},
  static const std::vector<Made> questions = {TENCACHE_QUESTIONS(TENCACHE_ROW)};
#undef TENCACHE_ROW
  return questions;
}

bool has_values(const Json& value) {
  return value.is_array() && !value.empty() &&
         std::ranges::all_of(value, [](const Json& text) { return text.is_string(); });
}

// Of any of these questions.
bool is_unrecorded(const std::string& name) {
  return std::ranges::any_of(all_questions(), [&](const Made& question) {
    const std::unique_ptr<Question> made = question.make();
    const QuestionOption* const option = made->options.find(name);
    return option != nullptr && !option->recorded;
  });
}

}  // namespace

bool is_repeatable(const Json& document) { return !member(member(document, "manifest"), "command").is_null(); }

Json ask_again(const std::string& file, const Json& document, const std::string& trace, const std::string& machine) {
  const auto fail = [&](const std::string& message) { throw Error(file, 0, message); };
  const Json& command = document["manifest"]["command"];
  const Json &named = member(command, "name"), &arguments = member(command, "arguments");
  if (!named.is_string() || !arguments.is_object()) fail("manifest.command lacks a 'name' or 'arguments'");
  const auto name = named.get<std::string>();
  const std::unique_ptr<Question> question = question_named(name);
  if (question == nullptr || !question->repeatable) {
    fail("is of command '" + name + "', which this version cannot repeat");
  }
  QuestionSettings settings;
  std::size_t unnamed = 0;
  for (const auto& [key, value] : arguments.items()) {
    const QuestionOption* const option = question->options.find(key);
    if (option != nullptr ? !option->recorded : is_unrecorded(key)) {
      fail("manifest.command has '" + key + "', which no result may ask for");
    }
    if (value != true && !has_values(value)) fail("manifest.command: '" + key + "' has neither texts nor true");
    if (value == true) {
      settings.emplace_back(key, "true");
      continue;
    }
    for (const Json& text : value) settings.emplace_back(key, text.get<std::string>());
    if (option != nullptr && !option->is_named()) unnamed = value.size();
  }
  if (name == "sweep" && !(trace.empty() && machine.empty())) {
    fail("is of a sweep, whose file names its traces and machines: leave --trace and --machine out");
  }
  if (!trace.empty() && unnamed != 1) {
    fail(unnamed == 0 ? "has no trace file that --trace could stand for"
                      : "has several traces, of which --trace could stand for one");
  }
  if (!trace.empty()) settings.emplace_back("trace-at", trace);
  if (!machine.empty()) settings.emplace_back("machine-at", machine);
  question->options.set(settings, name);
  return question->ask().json();
}

std::unique_ptr<Question> question_named(const std::string& name) {
  const auto found = std::ranges::find(all_questions(), name, &Made::name);
  return found == all_questions().end() ? nullptr : found->make();
}

std::vector<std::string> question_names() {
  std::vector<std::string> names;
  for (const Made& question : all_questions()) names.push_back(question.name);
  return names;
}

}  // namespace tencache
