// `tencache sensitivity`: time against one or two figures of the machine, and beyond which value nothing is gained.
#include "answers/questions.h"
#include "cli/command_line.h"
#include "cli/questions.h"

namespace tencache {

void add_sensitivity_command(CLI::App& app, Command& chosen) {
  add_question(
      app, chosen, sensitivity_question(),
      "Time against one or two figures of the machine, and where more gains nothing",
      "The same as JSON (docs/schemas/sensitivity.schema.json)",
      "A knee is the least value from which on more gains less than the tolerance; found by bisection. The bound is "
      "always a line.\nExit code 1: nothing fits anywhere.\n\n"
      "Examples:\n"
      "  tencache sensitivity step.trace.jsonl.zst -m 10cache-l40s --over nvme_read=1GB/s..20GB/s -p "
      "10cache,foresight\n"
      "  tencache sensitivity step.trace.jsonl.zst -m g5.xlarge --over pcie=4GB/s..64GB/s:5 --over "
      "gpu_memory=8GiB,16GiB,22GiB "
      "\\\n      --svg pcie.svg --csv pcie.csv");
}

}  // namespace tencache
