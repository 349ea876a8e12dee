// Questions with a study (answers/questions.h) as commands: their options as the command line reads them.
#pragma once

#include <memory>

#include "answers/question.h"
#include "cli/command_line.h"

namespace tencache {

// The command reads its options into these.
void add_options(CLI::App& command, const std::shared_ptr<QuestionOptions>& options);

// The same of options that `add` adds.
template <typename Add>
void add_group(CLI::App& command, const Add& add) {
  const auto options = std::make_shared<QuestionOptions>();
  add(*options);
  add_options(command, options);
}

// A subcommand that asks the question and prints its answer, with --json as one document.
void add_question(CLI::App& app, Command& chosen, std::unique_ptr<Question> question);

}  // namespace tencache
