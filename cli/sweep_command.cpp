// `tencache sweep` and `tencache sweep merge`.
#include <CLI/CLI.hpp>

#include "answers/questions.h"
#include "cli/command_line.h"
#include "cli/questions.h"
#include "configs/shipped_files.h"
#include "core/text.h"

namespace tencache {

void add_sweep_command(CLI::App& app, Command& chosen) {
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
}

}  // namespace tencache
