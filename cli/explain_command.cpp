// `tencache explain`: where an iteration's time goes, each second of it set beside a simulation without its cause.
#include "answers/questions.h"
#include "cli/command_line.h"
#include "cli/questions.h"

namespace tencache {

void add_explain_command(CLI::App& app, Command& chosen) {
  add_question(
      app, chosen, explain_question(), "Where the time goes, confirmed by simulations without each cause",
      "The same as JSON (docs/schemas/explain.schema.json)",
      "Attributed: how long the GPU stood for a cause. Confirmed: how much shorter the iteration is in a simulation "
      "without it; the rest is\nstill there, or has moved to what binds next. docs/explain.md. Exit code 1: it does "
      "not fit.\nThen the ops, layers and tensors that wait longest; and what would help: twice as much of each figure "
      "of "
      "the machine, one at a time,\nand the other policies of --policies. All of it is simulated: a few dozen runs.\n\n"
      "Examples:\n"
      "  tencache explain step.trace.jsonl.zst -m 10cache-l40s -p 10cache\n"
      "  tencache explain step.trace.jsonl.zst -m g5.xlarge -p zero-infinity --policies all --top 20 --json");
}

}  // namespace tencache
