// `tencache tune`: the best knobs of a policy.
#include "answers/questions.h"
#include "cli/command_line.h"
#include "cli/questions.h"

namespace tencache {

void add_tune_command(CLI::App& app, Command& chosen) {
  add_question(
      app, chosen, tune_question(), "The best knobs of a policy, by simulations", "The result as JSON",
      "Tried are the values that `tencache policies --json` lists for each option with \"tuned\": true (tune_values); "
      "--set fixes one, --over\nlists others. The text says the best, the gain over the defaults, what each knob alone "
      "would change, and a `replay` command with the best\nsettings. Nothing is written but the files that are named: "
      "docs/tune.md. Exit code 1: nothing fits.\n\nExamples:\n"
      "  tencache tune step.trace.jsonl.zst --machine g5.xlarge --policy zero-infinity\n"
      "  tencache tune short.trace.jsonl.zst long.trace.jsonl.zst -m g5.xlarge -p 10cache --jitter 5%\n"
      "  tencache tune step.trace.jsonl.zst -m g5.xlarge -p layer-streaming --over buffers=2..6 --csv all.csv\n"
      "  tencache tune step.trace.jsonl.zst -m g5.xlarge --from-deepspeed ds.json --deepspeed tuned.json");
}

}  // namespace tencache
