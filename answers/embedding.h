// Commands run inside another program, such as the Python bindings: what they would print is handed over instead. The
// command line (cli/), where it is linked, runs them.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "studies/question_options.h"

namespace tencache {

struct Embedding {
  GivenTraces traces = {};   // in place of files
  std::string output = {};   // what would be on stdout
  std::string remarks = {};  // what would be on stderr, a line each
};

// Parses and runs the words (without "tencache" before them) as the command line would, but throws what that reports:
// Error for bad usage and bad input, anything else as it is. Threads may call it at once, each with its own embedding.
ExitCode run_embedded(const std::vector<std::string>& words, Embedding& embedding);

// Of the command that runs in this thread; null where it is a program of its own.
Embedding* current_embedding();

// The command line's own: what runs words, "tencache" the first, in the thread's embedding.
void set_embedded_command_line(ExitCode (*run)(int argc, const char* const* argv));

}  // namespace tencache
