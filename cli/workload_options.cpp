#include "cli/workload_options.h"

#include <CLI/CLI.hpp>

#include "cli/questions.h"

namespace tencache {

CLI::Option* add_faults_option(CLI::App& command, std::string& plan) {
  add_group(command, [&](QuestionOptions& options) { add_faults_option(options, plan); });
  return command.get_option("--faults");
}

void add_device_option(CLI::App& command, std::string& device, std::vector<std::string> names) {
  command
      .add_option(
          "--device", device,
          "Where the GPU's memory lies: cuda (a GPU), host (ordinary memory stands in), auto (a GPU where there "
          "is one with enough memory)")
      ->check(CLI::IsMember(std::move(names)))
      ->capture_default_str();
}

CLI::Option* refuse_empty(CLI::Option* option) {
  return option->check([](const std::string& text) { return std::string(text.empty() ? "must not be empty" : ""); });
}

}  // namespace tencache
