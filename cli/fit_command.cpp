// `tencache fit`: does it fit in every tier, what overflows first, and how much memory would do.
#include "answers/questions.h"
#include "cli/command_line.h"
#include "cli/questions.h"

namespace tencache {

void add_fit_command(CLI::App& app, Command& chosen) {
  add_question(
      app, chosen, fit_question(),
      "Does a training step fit on a machine, what overflows first, and what memory would be enough",
      "The same as JSON",
      "The step is a trace, or a model of which --model, --batch and --seq are enough. The first table needs no "
      "policy: it fills the tiers, the fastest\nfirst, with all that is alive at once. The second simulates each "
      "policy: whether it fits, the most that each tier holds (start-up and\nstaging buffers counted), and the least "
      "memory, in whole MiB by bisection, with the other tiers as the machine has them; `+`: so much\nmore than there "
      "is. Of a single policy it says when each tier is fullest as well. How to read it: docs/explain.md. Exit code 1: "
      "it\nfits under none of the policies.\n\n"
      "Examples:\n"
      "  tencache fit step.trace.jsonl.zst --machine g10-a100\n"
      "  tencache fit --model llama-3-8b --batch 1 --seq 2048 -m g5.xlarge -p zero-infinity\n"
      "  tencache fit step.trace.jsonl.zst -m my-computer.yaml -p zero-offload --gpu-memory 8GiB --json");
}

}  // namespace tencache
