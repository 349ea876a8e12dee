// The commands that ask a question (answers/questions.h): what --help says of them.
#include <CLI/CLI.hpp>

#include "answers/questions.h"
#include "cli/command_line.h"
#include "cli/questions.h"
#include "configs/shipped_files.h"
#include "core/text.h"

namespace tencache {

void add_question_commands(CLI::App& app, Command& chosen) {
  add_question(
      app, chosen, info_question(), "What is in a trace", "The same as JSON",
      "Ops by phase and (if the trace has kernels) by kernel, tensors by role, the bytes alive at once, and the "
      "least GPU memory with which it can run.\n\n"
      "Examples:\n  tencache info step.trace.jsonl.zst\n  tencache info step.trace.jsonl.zst --json");
  add_question(app, chosen, replay_question(), "Simulate a trace on a machine under one policy", "The result as JSON",
               "Exit code 1: the trace does not fit.\n\nExamples:\n"
               "  tencache replay step.trace.jsonl.zst --machine g10-a100 --policy on-demand\n"
               "  tencache replay step.trace.jsonl.zst -m my-computer.yaml -p zero-offload --gpu-memory 8GiB --json\n"
               "  tencache replay step.trace.jsonl.zst -m g10-a100 -p on-demand --timeline step.json\n"
               "  tencache replay step.trace.jsonl.zst -m g10-a100 -p g10 --decisions step.decisions.jsonl.zst\n"
               "  tencache replay step.trace.jsonl.zst -m g10-a100 -p g10 --faults seed=7");
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
  add_question(
      app, chosen, fragment_question(),
      "Why memory ran out: what allocators reserve for a program, and what of it nobody asked for",
      "The same as JSON (schemas/fragment.schema.json; of a message fragment-message.schema.json)",
      "PyTorch's caching allocator is replayed exactly, others beside it: GMLake stitches free blocks, STWeaver and "
      "`planned` place all blocks before\nthe run, `exact` is what is asked for. No policy runs: all is on the GPU. "
      "docs/fragment.md says what each column means. Exit code 1: the first\nallocator runs out of memory.\n\n"
      "Examples:\n"
      "  tencache fragment step.trace.jsonl.zst --limit 22GiB\n"
      "  tencache fragment short.trace.jsonl.zst long.trace.jsonl.zst -a default -a expandable -a "
      "max_split_size_mb:128\n"
      "  tencache fragment profile.json.gz\n"
      "  tencache fragment --message 'CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total …'");
  add_question(
      app, chosen, explain_question(), "Where the time goes, confirmed by simulations without each cause",
      "The same as JSON (schemas/explain.schema.json)",
      "Attributed: how long the GPU stood for a cause. Confirmed: how much shorter the iteration is in a simulation "
      "without it; the rest is\nstill there, or has moved to what binds next. docs/explain.md. Exit code 1: it does "
      "not fit.\nThen the ops, layers and tensors that wait longest; and what would help: twice as much of each figure "
      "of "
      "the machine, one at a time,\nand the other policies of --policies. All of it is simulated: a few dozen runs.\n\n"
      "Examples:\n"
      "  tencache explain step.trace.jsonl.zst -m 10cache-l40s -p 10cache\n"
      "  tencache explain step.trace.jsonl.zst -m g5.xlarge -p zero-infinity --policies all --top 20 --json");
  add_question(
      app, chosen, endurance_question(), "What is written to each SSD, and how long it lasts",
      "The same as JSON (schemas/endurance.schema.json)",
      "Exit code 1: the trace does not fit.\n\nExamples:\n"
      "  tencache endurance step.trace.jsonl.zst -m g5.xlarge -p zero-infinity --tbw 600TB\n"
      "  tencache endurance --model llama-3-8b --batch 1 --seq 2048 -m g5.xlarge -p foresight --dwpd 1 --duty 50");
  add_question(
      app, chosen, bound_question(), "The lower bound of the iteration time, and what binds", "The same as JSON",
      "No policy is faster: the compute of the GPU and of the CPU, and what must cross the machine's links beyond "
      "what\n"
      "its memory holds, window by window. Exit code 1: the trace fits under no policy at all.\n\n"
      "Examples:\n"
      "  tencache bound step.trace.jsonl.zst --machine g10-a100\n"
      "  tencache bound step.trace.jsonl.zst -m my-computer.yaml --gpu-memory 8GiB --json");
  add_question(
      app, chosen, sensitivity_question(),
      "Time against one or two figures of the machine, and where more gains nothing",
      "The same as JSON (schemas/sensitivity.schema.json)",
      "A knee is the least value from which on more gains less than the tolerance; found by bisection. The bound is "
      "always a line.\nExit code 1: nothing fits anywhere.\n\n"
      "Examples:\n"
      "  tencache sensitivity step.trace.jsonl.zst -m 10cache-l40s --over nvme_read=1GB/s..20GB/s -p "
      "10cache,foresight\n"
      "  tencache sensitivity step.trace.jsonl.zst -m g5.xlarge --over pcie=4GB/s..64GB/s:5 --over "
      "gpu_memory=8GiB,16GiB,22GiB "
      "\\\n      --svg pcie.svg --csv pcie.csv");
  std::vector<std::string> names;
  for (const auto& [name, path] : shipped_files("sweeps")) names.push_back(name);
  CLI::App* sweep = add_question(
      app, chosen, sweep_question(),
      "Simulate workloads × machines × policies × options, with cost and the Pareto front",
      "Rows, fronts and advice as JSON",
      "The file says what is combined, and with which budget; its format and what a row holds: docs/sweep.md. Shipped "
      "are " +
          join(names) +
          ".\nPrinted is, for each workload, the Pareto front of time against cost and what to take. With -o a sweep "
          "may "
          "be "
          "interrupted: the same command\ngoes on where it was. Several computers: mpirun -n 4 tencache sweep …, or "
          "--shard "
          "i/n on each and `sweep merge`. What does not fit and\nwhat a policy refuses are rows with a reason. Exit "
          "code "
          "1: "
          "nothing fits.\n\n"
          "Examples:\n"
          "  tencache sweep small\n"
          "  tencache sweep mine.yaml -o results.sqlite --csv results.csv\n"
          "  tencache sweep mine.yaml --shard 3/8 -o part3.sqlite");
  add_question(*sweep, chosen, sweep_merge_question(), "Join the results of a sweep's parts",
               "Rows, fronts and advice as JSON",
               "The files must be of one sweep, build and set of prices. What is missing is said.\n\n"
               "Examples:\n  tencache sweep merge part1.sqlite part2.sqlite -o results.sqlite");
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

void add_listing_commands(CLI::App& app, Command& chosen) {
  add_question(
      app, chosen, policies_question(), "List the policies with their options and sources", "The list as JSON",
      "Examples:\n  tencache policies\n  tencache policies --json\n  tencache policies --policy-library my_policy.so");
  add_question(
      app, chosen, machines_question(), "List the machines that ship with TenCache",
      "The list as JSON, with the source of each figure",
      "Your own machine is a YAML file; `tencache calibrate` writes one. $TENCACHE_CONFIGS names another folder whose\n"
      "sub-folder `machines` is listed instead.\n\nExamples:\n  tencache machines\n  tencache machines --json");
  add_question(
      app, chosen, models_question(), "List the models that ship with TenCache, or show one",
      "The list, or the one model with its tensors, as JSON",
      "Your own model is a YAML file or the config.json of its Hugging Face page.\n\n"
      "Examples:\n  tencache models\n  tencache models --model opt-6.7b\n  tencache models --model ./config.json "
      "--json");
}

}  // namespace tencache
