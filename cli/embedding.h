// Commands run inside another program, such as the Python bindings: what they would print is handed over instead.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "core/machine_spec.h"
#include "core/timeline.h"
#include "core/trace.h"

namespace tencache {

// A simulated run with all that its spans refer to.
struct KeptTimeline {
  std::string name;  // "predicted: g10"
  Timeline timeline;
  MachineSpec machine;
  Trace trace;  // of the lowered program: names of ops and tensors
};

// A trace of the embedding program, in place of a file.
struct EmbeddedTrace {
  std::shared_ptr<const Trace> trace;
  std::string sha256;  // of its file, if it had one
};

struct Embedding {
  std::map<std::string, EmbeddedTrace> traces;  // by the words that stand for them
  std::string output;                           // what would be on stdout
  std::string remarks;                          // what would be on stderr, a line each
  bool remarks_pass = false;                    // on to stderr all the same, and progress too
  bool keep_timelines = false;
  std::vector<KeptTimeline> timelines;  // of `replay`, one a rank
};

// Parses and runs the words (without "tencache" before them) as the command line would, but throws what that reports:
// Error for bad usage and bad input, anything else as it is. Threads may call it at once, each with its own embedding.
ExitCode run_embedded(const std::vector<std::string>& words, Embedding& embedding);

// One more command, of a library that this one does not know; before the first is run.
void offer_command(void (*add)(CLI::App& app, Command& chosen));

// Of the command that runs in this thread; null where it is a program of its own.
Embedding* current_embedding();

// Which of the embedding program's traces the word stands for; null: none, it is a file.
const EmbeddedTrace* embedded_trace(const std::string& word);

}  // namespace tencache
