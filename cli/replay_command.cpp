#include "answers/questions.h"
#include "cli/command_line.h"
#include "cli/questions.h"

namespace tencache {

void add_replay_command(CLI::App& app, Command& chosen) {
  add_question(app, chosen, replay_question(), "Simulate a trace on a machine under one policy", "The result as JSON",
               "Exit code 1: the trace does not fit.\n\nExamples:\n"
               "  tencache replay step.trace.jsonl.zst --machine g10-a100 --policy on-demand\n"
               "  tencache replay step.trace.jsonl.zst -m my-computer.yaml -p zero-offload --gpu-memory 8GiB --json\n"
               "  tencache replay step.trace.jsonl.zst -m g10-a100 -p on-demand --timeline step.json\n"
               "  tencache replay step.trace.jsonl.zst -m g10-a100 -p g10 --decisions step.decisions.jsonl.zst\n"
               "  tencache replay step.trace.jsonl.zst -m g10-a100 -p g10 --faults seed=7");
}

}  // namespace tencache
