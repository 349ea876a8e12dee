// Commands run inside another program, such as the Python bindings: what they would print is handed over instead.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.h"
#include "studies/question_options.h"

namespace tencache {

struct Embedding {
  GivenTraces traces;   // in place of files
  std::string output;   // what would be on stdout
  std::string remarks;  // what would be on stderr, a line each
};

// Parses and runs the words (without "tencache" before them) as the command line would, but throws what that reports:
// Error for bad usage and bad input, anything else as it is. Threads may call it at once, each with its own embedding.
ExitCode run_embedded(const std::vector<std::string>& words, Embedding& embedding);

// One more command, of a library that this one does not know; before the first is run.
void offer_command(void (*add)(CLI::App& app, Command& chosen));

// Of the command that runs in this thread; null where it is a program of its own.
Embedding* current_embedding();

}  // namespace tencache
