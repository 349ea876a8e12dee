// The questions (answers/questions.h) as commands.
#include <CLI/CLI.hpp>

#include "answers/questions.h"
#include "cli/command_line.h"
#include "cli/questions.h"

namespace tencache {
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
