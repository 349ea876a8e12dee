#include "cli/questions.h"

#include <CLI/CLI.hpp>

#include "answers/embedding.h"
#include "answers/questions.h"
#include "cli/console.h"
#include "configs/patience_line.h"

namespace tencache {
namespace {

CLI::Option* add_option(CLI::App& command, const std::shared_ptr<QuestionOptions>& options, QuestionOption& option) {
  const auto take = [options, &option](const std::vector<std::string>& texts) {
    option.given = texts;
    option.take(texts);
  };
  if (option.kind == QuestionOption::Kind::flag) {
    return command.add_flag_callback(
        option.names, [take] { take({"true"}); }, option.help);
  }
  CLI::Option* added = nullptr;
  if (option.kind == QuestionOption::Kind::list) {
    added = command.add_option_function<std::vector<std::string>>(option.names, take, option.help);
    if (option.most != 0) added->expected(1, static_cast<int>(option.most));
    if (option.is_named()) added->allow_extra_args(false)->take_all();
  } else {
    added = command.add_option_function<std::string>(
        option.names, [take](const std::string& text) { take({text}); }, option.help);
  }
  if (option.refusal) added->check(option.refusal);
  if (!option.standard.empty()) added->default_str(option.standard);
  return added->type_name(option.type)->required(option.required);
}

ExitCode print_answer(const Question& question, bool json) {
  Answered answer;
  Json document;
  std::string text;
  {
    const PatienceLine line(question.name);
    answer = question.ask();
    if (!answer.json) return ExitCode::done;
    json ? void(document = answer.json()) : void(text = answer.text());
  }
  if (json) {
    print_json(document);
  } else {
    print(text);
    for (const std::string& more : answer.text_remarks) remark(more);
  }
  return answer.yes ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_options(CLI::App& command, const std::shared_ptr<QuestionOptions>& options) {
  if (const Embedding* embedding = current_embedding()) *options->traces() = embedding->traces;
  for (QuestionOption& option : options->all()) {
    if (!option.listed) continue;
    CLI::Option* added = add_option(command, options, option);
    if (!option.group.empty()) added->group(option.group);
  }
  for (const QuestionOption& option : options->all()) {
    if (!option.needs.empty()) command.get_option(option.name())->needs(command.get_option(option.needs));
    if (!option.excludes.empty()) command.get_option(option.name())->excludes(command.get_option(option.excludes));
  }
}

void add_question(CLI::App& app, Command& chosen, std::unique_ptr<Question> question) {
  const std::shared_ptr<Question> asked = std::move(question);
  CLI::App* command = app.add_subcommand(asked->name.substr(asked->name.rfind(' ') + 1), asked->help.summary);
  const auto json = std::make_shared<bool>(false);
  // Only the command that is called needs its options, and all of them take milliseconds.
  command->preparse_callback([asked, json, command](std::size_t) {
    add_options(*command, std::shared_ptr<QuestionOptions>(asked, &asked->options));
    command->add_flag("--json", *json, asked->help.json);
  });
  command->footer(asked->help.footer);
  command->callback([asked, json, command, &chosen] {
    if (command->get_subcommands().empty()) chosen = [asked, json] { return print_answer(*asked, *json); };
  });
}

namespace {

void add_questions(CLI::App& app, Command& chosen, bool listings) {
  for (const std::string& name : question_names()) {
    std::unique_ptr<Question> question = question_named(name);
    if (question->is_listing != listings) continue;
    const std::size_t space = name.rfind(' ');  // "sweep merge" is a command of `sweep`
    CLI::App& parent = space == std::string::npos ? app : *app.get_subcommand(name.substr(0, space));
    add_question(parent, chosen, std::move(question));
  }
}

}  // namespace

void add_question_commands(CLI::App& app, Command& chosen) { add_questions(app, chosen, false); }
void add_listing_commands(CLI::App& app, Command& chosen) { add_questions(app, chosen, true); }

}  // namespace tencache
