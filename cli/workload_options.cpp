#include "cli/workload_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <utility>

#include "cli/embedding.h"
#include "configs/load_policy_library.h"
#include "core/parse_number.h"
#include "core/remark.h"
#include "studies/workload.h"
#include "traces/transform/fold_updates.h"

namespace tencache {
void add_machine_options(CLI::App& command, Scenario& scenario) {
  refuse_empty(
      command.add_option("TRACE", scenario.trace.file, "Trace file (.trace.jsonl, .trace.jsonl.zst), or else --model"))
      ->each([&scenario](const std::string& word) { choose_trace(scenario.trace, word); });
  add_machine_choice_options(command, scenario);
  add_model_options(command, scenario.trace.generate);
}

void choose_trace(TraceChoice& trace, const std::string& word) {
  trace.file = word;
  const EmbeddedTrace* given = embedded_trace(word);
  if (given == nullptr) return;
  Trace ready = *given->trace;
  if (const FoldedUpdates folded = fold_updates(ready); folded.kernels > 0) remark("note: " + folded.to_string());
  trace.loaded = std::make_shared<const Trace>(std::move(ready));
  trace.loaded_sha256 = given->sha256;
}

void add_memory_options(CLI::App& command, MachineChoice& machine) {
  refuse_empty(
      command.add_option("--gpu-memory", machine.gpu_memory, "GPU memory that tensors may use, such as 24GiB"));
  refuse_empty(
      command.add_option("--cpu-memory", machine.cpu_memory, "CPU memory that tensors may use, such as 128GiB"));
}

void add_machine_choice_options(CLI::App& command, Scenario& scenario) {
  refuse_empty(command.add_option("--machine,-m", scenario.machine.name,
                                  "Machine: a name of `tencache machines`, or a YAML file"))
      ->required();
  add_memory_options(command, scenario.machine);
  add_limit_option(command, scenario.machine.limits);
  refuse_empty(command.add_option("--assume-gpu", scenario.trace.rescale.assume_gpu,
                                  "The GPU that the trace's durations are of, where it does not say"));
  command.add_flag("--no-rescale", scenario.trace.rescale.no_rescale,
                   "Take durations as they are, whatever GPU the machine has");
  // For `reproduce`, in no list.
  command.add_option("--trace-at", scenario.trace.found_at)->group("");
  command.add_option("--machine-at", scenario.machine.found_at)->group("");
}

void add_limit_option(CLI::App& command, std::vector<std::string>& limits) {
  command
      .add_option("--limit", limits,
                  "A link is no faster than this, LINK=BANDWIDTH such as h2d=12GB/s, any number of times")
      ->allow_extra_args(false)
      ->take_all();
}

void add_price_options(CLI::App& command, PriceChoice& prices) {
  refuse_empty(command.add_option("--prices", prices.file, "A price table; its prices go before all others"));
  command
      .add_option("--price", prices.prices,
                  "What an hour of a machine costs in USD, TYPE=3.06 or TYPE:spot=1.1, any number of times")
      ->allow_extra_args(false)
      ->take_all();
}

void add_workload_options(CLI::App& command, Scenario& scenario) {
  add_machine_options(command, scenario);
  add_iterations_option(command, scenario);
  add_policy_library_option(command);
}

void add_iterations_option(CLI::App& command, Scenario& scenario) {
  command
      .add_option("--iterations", scenario.iterations,
                  "Run exactly so many iterations, the second half of which is the result (default: until the "
                  "state at an iteration's end recurs)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000}));
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

void add_policy_options(CLI::App& command, PolicyChoice& policy) {
  command.add_option("--policy,-p", policy.name, "A name of `tencache policies`")->required();
  add_settings_option(command, policy.settings);
}

void add_settings_option(CLI::App& command, std::map<std::string, std::string>& settings) {
  command
      .add_option_function<std::vector<std::string>>(
          "--set", [&settings](const std::vector<std::string>& texts) { settings = parse_settings(texts); },
          settings_help)
      ->allow_extra_args(false)
      ->take_all();
}

CLI::Option* add_faults_option(CLI::App& command, std::string& plan) {
  return refuse_empty(
      command.add_option("--faults", plan,
                         "Make things go wrong by this plan, such as seed=7 (a mixture drawn from the seed) or "
                         "seed=7,copy_error=0.01,delay=0.05:2ms (docs/reliability.md)"));
}

void add_sample_options(CLI::App& command, SampleOptions& options) {
  command
      .add_option("--samples", options.samples,
                  "Simulate so many machines whose figures are drawn within what their sources allow, and report an "
                  "interval (64 or more say something)")
      ->check(CLI::Range(fewest_samples, most_samples));
  whole_number(command.add_option("--seed", options.seed, "Seed of --samples"))
      ->capture_default_str()
      ->needs("--samples");
}

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

void add_device_option(CLI::App& command, std::string& device, std::vector<std::string> names) {
  command
      .add_option(
          "--device", device,
          "Where the GPU's memory lies: cuda (a GPU), host (ordinary memory stands in), auto (a GPU where there "
          "is one with enough memory)")
      ->check(CLI::IsMember(std::move(names)))
      ->capture_default_str();
}

}  // namespace tencache
