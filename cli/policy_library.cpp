#include "cli/policy_library.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tencache {

void add_policy_library_option(CLI::App& command) {
  command
      .add_option_function<std::vector<std::string>>(
          "--policy-library",
          [](const std::vector<std::string>& files) {
            for (const std::string& file : files) load_policy_library(file);
          },
          "A shared library with more policies, any number of times; see docs/writing-a-policy.md")
      ->allow_extra_args(false)
      ->take_all();
}

}  // namespace tencache
