// A question that has a study, and its answer: what a command of `tencache`, a function of the Python package and
// `reproduce` ask alike.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "answers/described.h"
#include "answers/document.h"
#include "answers/schemas.h"
#include "studies/question_options.h"

namespace tencache {

// Made when it is asked for: as the document of --json, or as lines for a terminal. Empty where another process has the
// answer (a sweep under mpirun).
struct Answered {
  std::function<Json()> json;
  std::function<std::string()> text;
  bool yes = true;                             // else the command's exit code is 1
  std::vector<std::string> text_remarks = {};  // for stderr, after the text
};

// What --help says of a question's command.
struct QuestionHelp {
  std::string summary = {};  // a line
  std::string json = {};     // of --json
  std::string footer = {};   // more, and Examples:
};

struct Question {
  explicit Question(std::string its_name) : name(std::move(its_name)) {}

  std::string name;  // "sweep merge"
  QuestionHelp help = {};
  std::vector<AnswerSchema> (*schemas)() = nullptr;  // of its answers; null: they have none
  bool repeatable = false;                           // its answer's manifest has its command: ask_again
  bool is_listing = false;                           // of what there is: the last ones in --help
  QuestionOptions options = {};
  // Once the options are set. Throws Error.
  std::function<Answered()> ask = {};
};

// {"name": "tune", "arguments": {"TRACES": ["a", "b"], "--budget": ["20"], "--no-rescale": true}}: what was given, by
// the first name of each option and as text, in the order of --help. Left out is what the answer does not depend on:
// threads, and files that are written; and policy libraries, which no result may cause to be loaded.
Json command_json(const Question& question);

// Whether the document is of a question that can be asked again from its manifest.
bool is_repeatable(const Json& document);

// The answer of now to the question that `document` answers. `trace` and `machine`: where these files are now, under
// the names that the result has; empty: where they were. Throws Error, placed at `file`, for what command_json did not
// write, for a question that is none of those, and for options that write files or load code.
Json ask_again(const std::string& file, const Json& document, const std::string& trace, const std::string& machine);

// Puts the command into the manifest of an answer, or of each of a list of them: the question can be asked again from
// there. Null: nothing.
void set_command(Json& answer, const Json& command);

// An answer with a description and a document.
template <typename Answer>
Answered answered(Answer answer, bool yes, const Json& command) {
  const auto kept = std::make_shared<const Answer>(std::move(answer));
  return {.json =
              [kept, command] {
                Json document = to_json_of(*kept);
                set_command(document, command);
                return document;
              },
          .text = [kept] { return document_text(document_of(*kept)); },
          .yes = yes};
}

}  // namespace tencache
