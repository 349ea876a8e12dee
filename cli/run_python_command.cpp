#include <CLI/CLI.hpp>

#include "cli/command_line.h"
#include "cli/python_package.h"

namespace tencache {

void add_run_python_command(CLI::App& run, Command& chosen) {
  CLI::App* command = run.add_subcommand("python", "Run a PyTorch script as it is, with its tensors paged by a policy");
  command->prefix_command();
  command->footer(
      "Needs python3 with PyTorch and the package tencache (pip install tencache). Options, before the --, are those "
      "of\n"
      "`python3 -m tencache run python --help`: --policy, --gpu-memory, --cpu-memory, --directory and others.\n\n"
      "Examples:\n"
      "  tencache run python --gpu-memory 8GiB -- train.py --epochs 1\n"
      "  tencache run python -p lru --gpu-memory 2GiB -- train.py");
  command->callback([command, &chosen] {
    chosen = [words = command->remaining()] { return run_in_python({"run", "python"}, words); };
  });
}

}  // namespace tencache
