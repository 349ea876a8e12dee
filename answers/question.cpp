#include "answers/question.h"

#include "answers/questions.h"

namespace tencache {

Json command_json(const Question& question) {
  Json arguments = Json::object();
  for (const QuestionOption& option : question.options.all()) {
    if (option.given.empty() || !option.recorded) continue;
    arguments[option.name()] = option.kind == QuestionOption::Kind::flag ? Json(true) : Json(option.given);
  }
  return {{"name", question.name}, {"arguments", std::move(arguments)}};
}

namespace {

using Make = std::unique_ptr<Question> (*)();

const std::map<std::string, Make>& all_questions() {
  static const std::map<std::string, Make> questions = {
      {"compare", compare_question},
      {"replay", [] { return replay_question(); }},
  };
  return questions;
}

}  // namespace

std::unique_ptr<Question> question_named(const std::string& name) {
  const auto found = all_questions().find(name);
  return found == all_questions().end() ? nullptr : found->second();
}

std::vector<std::string> question_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : all_questions()) names.push_back(name);
  return names;
}

}  // namespace tencache
