#include "answers/questions.h"
#include "cli/command_line.h"
#include "cli/questions.h"

namespace tencache {

void add_compare_command(CLI::App& app, Command& chosen) {
  add_question(
      app, chosen, compare_question(), "Simulate a trace under several policies: a table, best first",
      "A list of results as JSON, the rows of the table",
      "The lower bound and `ideal` are always rows; the bound is no policy and cannot be named in --policies. "
      "Exit code 1: the trace fits under none of the policies asked for. Rows that do not fit come last, with the "
      "reason.\n\n"
      "Examples:\n"
      "  tencache compare step.trace.jsonl.zst --machine g10-a100\n"
      "  tencache compare step.trace.jsonl.zst --machine g5.xlarge --samples 100\n"
      "  tencache compare step.trace.jsonl.zst -m my-computer.yaml --policies on-demand,layer-streaming --json");
}

}  // namespace tencache
