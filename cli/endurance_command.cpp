// `tencache endurance`: what is written to each SSD, and how long it lasts.
#include "answers/questions.h"
#include "cli/command_line.h"
#include "cli/questions.h"

namespace tencache {

void add_endurance_command(CLI::App& app, Command& chosen) {
  add_question(
      app, chosen, endurance_question(), "What is written to each SSD, and how long it lasts",
      "The same as JSON (docs/schemas/endurance.schema.json)",
      "Exit code 1: the trace does not fit.\n\nExamples:\n"
      "  tencache endurance step.trace.jsonl.zst -m g5.xlarge -p zero-infinity --tbw 600TB\n"
      "  tencache endurance --model llama-3-8b --batch 1 --seq 2048 -m g5.xlarge -p foresight --dwpd 1 --duty 50");
}

}  // namespace tencache
