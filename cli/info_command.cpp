#include "answers/questions.h"
#include "cli/command_line.h"
#include "cli/questions.h"

namespace tencache {

void add_info_command(CLI::App& app, Command& chosen) {
  add_question(
      app, chosen, info_question(), "What is in a trace", "The same as JSON",
      "Ops by phase and (if the trace has kernels) by kernel, tensors by role, the bytes alive at once, and the "
      "least GPU memory with which it can run.\n\n"
      "Examples:\n  tencache info step.trace.jsonl.zst\n  tencache info step.trace.jsonl.zst --json");
}

}  // namespace tencache
