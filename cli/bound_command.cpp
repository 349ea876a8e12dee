// `tencache bound`: the lower bound of the iteration time, its terms, and where they bind. studies/bound.h says why it
// holds.
#include "answers/questions.h"
#include "cli/command_line.h"
#include "cli/questions.h"

namespace tencache {

void add_bound_command(CLI::App& app, Command& chosen) {
  add_question(
      app, chosen, bound_question(), "The lower bound of the iteration time, and what binds", "The same as JSON",
      "No policy is faster: the compute of the GPU and of the CPU, and what must cross the machine's links beyond "
      "what\n"
      "its memory holds, window by window. Exit code 1: the trace fits under no policy at all.\n\n"
      "Examples:\n"
      "  tencache bound step.trace.jsonl.zst --machine g10-a100\n"
      "  tencache bound step.trace.jsonl.zst -m my-computer.yaml --gpu-memory 8GiB --json");
}

}  // namespace tencache
