// Commands that can be run again from what they printed: `manifest.command` of their JSON holds what was asked for.
#pragma once

#include <string>
#include <vector>

#include "answers/described.h"
#include "answers/document.h"
#include "cli/console.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tencache {

// {"name": "tune", "arguments": {"TRACES": ["a", "b"], "--budget": ["20"], "--no-rescale": true}}: what the user gave,
// by the first name of each option and as text, in the order of --help. Left out is what the result does not depend on:
// --json, --threads, and files that are written; and policy libraries, which no result may cause to be loaded. Valid
// while the command line is parsed.
Json command_json(const CLI::App& command);

// Prints the document with `command` in its manifest.
void print_repeatable(Json document, const Json& command);

// An answer with a description and a document: as JSON, or as text for a terminal.
template <typename Answer>
void print_answer(const Answer& answer, bool as_json, const Json& command) {
  if (as_json) {
    print_repeatable(to_json_of(answer), command);
  } else {
    print(document_text(document_of(answer)));
  }
}

// Whether the document is of such a command.
bool is_repeatable(const Json& document);

// The words of the command that printed `document`, with --json. `trace` and `machine`: where these files are now,
// under the names that the result has; empty: where they were. Throws Error, placed at `file`, for what was not written
// by command_json, for a command that is none of those, and for arguments that write files or load code.
std::vector<std::string> words_again(const std::string& file, const Json& document, const std::string& trace,
                                     const std::string& machine);

}  // namespace tencache
