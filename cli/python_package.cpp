#include "cli/python_package.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>

namespace tencache {
namespace {

// Throws Error where there is no Python.
ExitCode run_in_python(const std::vector<std::string>& command, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"python3", "-m", "tencache"};
  words.insert(words.end(), command.begin(), command.end());
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp(argv.front(), argv.data());
  throw Error(fmt::format("{}: cannot start python3: {}", fmt::join(command, " "), std::strerror(errno)));
}

}  // namespace

void add_python_command(CLI::App& parent, Command& chosen, const std::vector<std::string>& words, const char* summary,
                        const char* footer) {
  CLI::App* command = parent.add_subcommand(words.back(), summary);
  command->prefix_command();
  command->footer(footer);
  command->callback([command, words, &chosen] {
    chosen = [words, rest = command->remaining()] { return run_in_python(words, rest); };
  });
}

void add_run_python_command(CLI::App& run, Command& chosen) {
  add_python_command(
      run, chosen, {"run", "python"}, "Run a PyTorch script as it is, with its tensors paged by a policy",
      "Needs python3 with PyTorch and the package tencache (pip install tencache). Options, before the --, are those "
      "of\n"
      "`python3 -m tencache run python --help`: --policy, --gpu-memory, --cpu-memory, --directory and others.\n\n"
      "Examples:\n"
      "  tencache run python --gpu-memory 8GiB -- train.py --epochs 1\n"
      "  tencache run python -p lru --gpu-memory 2GiB -- train.py");
}

}  // namespace tencache
