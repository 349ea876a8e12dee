#include "cli/workload_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <utility>

#include "cli/questions.h"
#include "core/parse_number.h"
#include "studies/scenario_options.h"

namespace tencache {

void add_memory_options(CLI::App& command, MachineChoice& machine) {
  add_group(command, [&](QuestionOptions& options) { add_memory_options(options, machine); });
}

void add_limit_option(CLI::App& command, MachineChoice& machine) {
  add_group(command, [&](QuestionOptions& options) { add_limit_option(options, machine); });
}

void add_price_options(CLI::App& command, PriceChoice& prices) {
  add_group(command, [&](QuestionOptions& options) { add_price_options(options, prices); });
}

void add_workload_options(CLI::App& command, Scenario& scenario) {
  add_group(command, [&](QuestionOptions& options) { add_workload_options(options, scenario); });
}

void add_policy_options(CLI::App& command, PolicyChoice& policy) {
  add_group(command, [&](QuestionOptions& options) { add_policy_options(options, policy); });
}

void add_settings_option(CLI::App& command, std::map<std::string, std::string>& settings) {
  add_group(command, [&](QuestionOptions& options) { add_settings_option(options, settings); });
}

CLI::Option* add_faults_option(CLI::App& command, std::string& plan) {
  add_group(command, [&](QuestionOptions& options) { add_faults_option(options, plan); });
  return command.get_option("--faults");
}

void add_policy_library_option(CLI::App& command) {
  add_group(command, [](QuestionOptions& options) { add_policy_library_option(options); });
}

CLI::Validator finite_range(double least, double most) {
  const std::string range = fmt::format("in [{:g} - {:g}]", least, most);
  return CLI::Validator(
      [least, most, range](std::string& text) {
        const std::optional<double> value = parse_number(text);
        const bool valid = value && *value >= least && *value <= most;
        return valid ? std::string() : fmt::format("Value {} not {}", text, range);
      },
      "FLOAT " + range, "");
}

CLI::Option* whole_number(CLI::Option* option) {
  return option->check([](const std::string& text) {
    const bool digits =
        !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    return digits ? std::string() : "'" + text + "' is no whole number from 0";
  });
}

CLI::Option* refuse_empty(CLI::Option* option) {
  return option->check([](const std::string& text) { return std::string(text.empty() ? "must not be empty" : ""); });
}

void add_device_option(CLI::App& command, std::string& device) {
  command
      .add_option(
          "--device", device,
          "Where the GPU's memory lies: cuda (a GPU), host (ordinary memory stands in), auto (a GPU where there "
          "is one with enough memory)")
      ->check(CLI::IsMember({"auto", "cuda", "host"}))
      ->capture_default_str();
}

}  // namespace tencache
