#include "cli/workload.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>

#include "configs/machine_yaml.h"
#include "core/error.h"
#include "policies/registry.h"
#include "sim/simulate.h"
#include "traces/file_io.h"
#include "traces/lower.h"
#include "traces/trace_file.h"

namespace tencache {
namespace {

Bytes parse_size_option(const char* option, const std::string& text) {
  try {
    const Bytes bytes = parse_bytes(text);
    if (bytes == 0) throw Error("must be above 0");
    return bytes;
  } catch (const Error& error) {
    throw Error(std::string(option) + ": " + error.what());
  }
}

void set_capacity(MachineSpec& machine, Device device, const char* option, const std::string& text) {
  if (text.empty()) return;
  const Bytes bytes = parse_size_option(option, text);
  const TierId tier = machine.tier_of(device);
  if (tier == no_tier) throw Error(std::string(option) + ": machine " + machine.name + " has no such tier");
  machine.tiers[tier].capacity = bytes;
  // What the user says is exact.
  const std::string path = "tiers." + machine.tiers[tier].name + ".capacity";
  std::erase_if(machine.facts, [&](const Fact& fact) { return fact.path == path; });
}

// Of its file; where that builds on others, of the SHA-256 of all of them.
std::string sha256_of_machine(const MachineSpec& machine) {
  std::string hash = sha256_of_file(machine.file);
  if (machine.base_files.empty()) return hash;
  for (const std::string& base : machine.base_files) hash += sha256_of_file(base);
  return sha256_hex(hash);
}

}  // namespace

std::int64_t tool_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double seconds_since(std::int64_t start_ns) { return static_cast<double>(tool_clock_ns() - start_ns) * 1e-9; }

void add_workload_options(CLI::App& command, WorkloadOptions& options) {
  command.add_option("TRACE", options.trace, "Trace file (.trace.jsonl, .trace.jsonl.zst)")->required();
  command.add_option("--machine,-m", options.machine, "Machine: a name of `tencache machines`, or a YAML file")
      ->required();
  refuse_empty(
      command.add_option("--gpu-memory", options.gpu_memory, "GPU memory that tensors may use, such as 24GiB"));
  refuse_empty(
      command.add_option("--cpu-memory", options.cpu_memory, "CPU memory that tensors may use, such as 128GiB"));
  command
      .add_option("--iterations", options.iterations,
                  "Run exactly so many iterations, the second half of which is the result (default: until the "
                  "state at an iteration's end recurs)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000}));
}

CLI::Option* refuse_empty(CLI::Option* option) {
  return option->check([](const std::string& text) { return std::string(text.empty() ? "must not be empty" : ""); });
}

void add_settings_option(CLI::App& command, std::vector<std::string>& settings) {
  command
      .add_option("--set", settings,
                  "An option of the policy as KEY=VALUE, any number of times; see `tencache policies`")
      ->allow_extra_args(false)
      ->take_all();
}

std::map<std::string, std::string> parse_settings(const std::vector<std::string>& settings) {
  std::map<std::string, std::string> result;
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw Error("--set " + setting + ": write it as key=value");
    }
    const std::string key = setting.substr(0, equals);
    if (!result.emplace(key, setting.substr(equals + 1)).second) throw Error("--set " + key + ": given twice");
  }
  return result;
}

MachineSpec load_machine(const WorkloadOptions& options, std::string* sha256) {
  MachineSpec machine = read_machine(options.machine);
  if (sha256 != nullptr) *sha256 = sha256_of_machine(machine);
  set_capacity(machine, Device::gpu, "--gpu-memory", options.gpu_memory);
  set_capacity(machine, Device::cpu, "--cpu-memory", options.cpu_memory);
  return machine;
}

Workload load_workload(const WorkloadOptions& options) {
  const std::int64_t start = tool_clock_ns();
  Workload workload;
  workload.options = options;
  workload.machine = load_machine(options, &workload.machine_sha256);
  workload.trace_sha256 = sha256_of_file(options.trace);
  workload.trace = read_trace(options.trace);
  workload.load_seconds = seconds_since(start);
  return workload;
}

RunLimits limits_of(const WorkloadOptions& options) {
  RunLimits limits;
  if (options.iterations != 0) {
    limits.max_iterations = options.iterations;
    limits.until_steady = false;
  }
  return limits;
}

Outcome simulate_policy(const Workload& workload, const std::string& policy,
                        const std::map<std::string, std::string>& settings, Timeline* timeline,
                        DecisionSink on_decision) {
  return simulate_policy(workload, workload.machine, policy, settings, timeline, std::move(on_decision));
}

Outcome simulate_policy(const Workload& workload, const MachineSpec& machine, const std::string& policy,
                        const std::map<std::string, std::string>& settings, Timeline* timeline,
                        DecisionSink on_decision) {
  const std::int64_t start = tool_clock_ns();
  MadePolicy made = make_policy(policy, settings);
  Outcome outcome;
  outcome.policy = policy;
  outcome.options = std::move(made.options);
  outcome.program = lower(workload.trace, *made.policy, machine);
  EngineOptions options;
  options.timeline = timeline;
  options.on_decision = std::move(on_decision);
  outcome.result = simulate(outcome.program, machine, *made.policy, limits_of(workload.options), std::move(options));
  outcome.seconds = seconds_since(start);
  return outcome;
}

double compute_bound_seconds(const Trace& trace) {
  Nanoseconds gpu_ns = 0, cpu_ns = 0;
  for (const Op& op : trace.ops) {
    if (op.placeable) continue;
    (op.device == Device::gpu ? gpu_ns : cpu_ns) += op.duration_ns + op.gap_before_ns;
  }
  return to_seconds(std::max(gpu_ns, cpu_ns));
}

References references_of(const Workload& workload) {
  const Outcome ideal = simulate_policy(workload, "ideal", {});
  return {.ideal_seconds = ideal.result.iteration_seconds(),
          .compute_bound_seconds = compute_bound_seconds(workload.trace)};
}

}  // namespace tencache
