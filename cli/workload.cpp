#include "cli/workload.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>

#include "cli/console.h"
#include "cli/policy_library.h"
#include "configs/machine_yaml.h"
#include "core/error.h"
#include "policies/registry.h"
#include "sim/bound.h"
#include "sim/simulate.h"
#include "traces/file_io.h"
#include "traces/lower.h"
#include "traces/split_ranks.h"
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

// "h2d=12GB/s": the link is no faster than that.
void set_limit(MachineSpec& machine, const std::string& limit) {
  const std::size_t equals = limit.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw Error("--limit " + limit + ": write it as LINK=BANDWIDTH, such as h2d=12GB/s");
  }
  const std::string name = limit.substr(0, equals);
  const auto link = std::find_if(machine.links.begin(), machine.links.end(),
                                 [&](const Link& candidate) { return candidate.name == name; });
  if (link == machine.links.end()) {
    std::vector<std::string> valid;
    for (const Link& candidate : machine.links) valid.push_back(candidate.name);
    throw Error("--limit " + limit + ": machine " + machine.name + " has no link '" + name + "'; valid names are " +
                join(valid));
  }
  BytesPerSecond bandwidth = 0;
  try {
    bandwidth = parse_bandwidth(limit.substr(equals + 1));
    if (bandwidth == 0) throw Error("must be above 0");
  } catch (const Error& error) {
    throw Error("--limit " + limit + ": " + error.what());
  }
  if (bandwidth >= link->bandwidth) return;
  link->bandwidth = bandwidth;
  link->sustained_bandwidth = std::min(link->sustained_bandwidth, bandwidth);
  // What the user says is exact.
  std::erase_if(machine.facts, [&](const Fact& fact) { return fact.path == "links." + name + ".bandwidth"; });
}

// Of its file; where that builds on others, of the SHA-256 of all of them.
std::string sha256_of_machine(const MachineSpec& machine) {
  std::string hash = sha256_of_file(machine.file);
  if (machine.base_files.empty()) return hash;
  for (const std::string& base : machine.base_files) hash += sha256_of_file(base);
  return sha256_hex(hash);
}

void simulate_several(const Trace& trace, const MachineSpec& whole, const std::map<std::string, std::string>& settings,
                      const RunLimits& limits, Outcome& outcome, const Recorders& recorders) {
  const std::vector<Trace> traces = split_ranks(trace);
  if (traces.size() > whole.rank_count()) {
    throw Error("the trace has " + std::to_string(traces.size()) + " ranks, machine '" + whole.name + "' has " +
                std::to_string(whole.rank_count()) + "; take a machine with as many ranks");
  }
  outcome.ranks.resize(traces.size());
  std::vector<Timeline>* others = recorders.other_timelines;
  if (others != nullptr) others->assign(traces.size() - 1, {});
  std::vector<MadePolicy> policies;
  std::vector<RankRun> runs;
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    const MachineSpec& machine = whole.of_rank(rank);
    policies.push_back(make_policy(outcome.policy, settings));
    outcome.ranks[rank].program = lower(traces[rank], *policies.back().policy, machine);
    EngineOptions options;
    if (rank == 0) {
      options.timeline = recorders.timeline;
      options.on_decision = recorders.on_decision;
    } else if (others != nullptr) {
      options.timeline = &(*others)[rank - 1];
    }
    runs.push_back({.program = &outcome.ranks[rank].program,
                    .machine = &machine,
                    .policy = policies.back().policy.get(),
                    .options = std::move(options)});
  }
  RanksResult result = simulate_ranks(runs, limits);
  std::uint64_t events = 0;
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    outcome.ranks[rank].result = std::move(result.ranks[rank]);
    events += outcome.ranks[rank].result.simulated_events;
  }
  outcome.rank = result.slowest;
  outcome.program = outcome.ranks[outcome.rank].program;
  outcome.result = outcome.ranks[outcome.rank].result;
  outcome.result.simulated_events = events;
}

}  // namespace

std::int64_t tool_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double seconds_since(std::int64_t start_ns) { return static_cast<double>(tool_clock_ns() - start_ns) * 1e-9; }

void add_machine_options(CLI::App& command, WorkloadOptions& options) {
  command.add_option("TRACE", options.trace, "Trace file (.trace.jsonl, .trace.jsonl.zst)")->required();
  command.add_option("--machine,-m", options.machine, "Machine: a name of `tencache machines`, or a YAML file")
      ->required();
  refuse_empty(
      command.add_option("--gpu-memory", options.gpu_memory, "GPU memory that tensors may use, such as 24GiB"));
  refuse_empty(
      command.add_option("--cpu-memory", options.cpu_memory, "CPU memory that tensors may use, such as 128GiB"));
  add_limit_option(command, options.limits);
}

void add_limit_option(CLI::App& command, std::vector<std::string>& limits) {
  command
      .add_option("--limit", limits,
                  "A link is no faster than this, LINK=BANDWIDTH such as h2d=12GB/s, any number of times")
      ->allow_extra_args(false)
      ->take_all();
}

void add_workload_options(CLI::App& command, WorkloadOptions& options) {
  add_machine_options(command, options);
  command
      .add_option("--iterations", options.iterations,
                  "Run exactly so many iterations, the second half of which is the result (default: until the "
                  "state at an iteration's end recurs)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000}));
  add_policy_library_option(command);
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
  const auto change = [&options](MachineSpec& rank) {
    set_capacity(rank, Device::gpu, "--gpu-memory", options.gpu_memory);
    set_capacity(rank, Device::cpu, "--cpu-memory", options.cpu_memory);
    for (const std::string& limit : options.limits) set_limit(rank, limit);
  };
  change(machine);
  for (MachineSpec& rank : machine.other_ranks) change(rank);
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
                        const std::map<std::string, std::string>& settings, const Recorders& recorders) {
  return simulate_policy(workload, workload.machine, policy, settings, recorders);
}

Outcome simulate_policy(const Workload& workload, const MachineSpec& machine, const std::string& policy,
                        const std::map<std::string, std::string>& settings, const Recorders& recorders) {
  return simulate_policy(workload.trace, machine, policy, settings, limits_of(workload.options), recorders);
}

Outcome simulate_policy(const Trace& trace, const MachineSpec& machine, const std::string& policy,
                        const std::map<std::string, std::string>& settings, const RunLimits& limits,
                        const Recorders& recorders) {
  const std::int64_t start = tool_clock_ns();
  MadePolicy made = make_policy(policy, settings);
  Outcome outcome;
  outcome.policy = policy;
  outcome.options = std::move(made.options);
  if (rank_count(trace) > 1) {
    simulate_several(trace, machine, settings, limits, outcome, recorders);
  } else {
    outcome.program = lower(trace, *made.policy, machine);
    EngineOptions options;
    options.timeline = recorders.timeline;
    options.on_decision = recorders.on_decision;
    outcome.result = simulate(outcome.program, machine, *made.policy, limits, std::move(options));
  }
  outcome.seconds = seconds_since(start);
  return outcome;
}

Outcome simulate_or_refuse(const Workload& workload, const std::string& policy,
                           const std::map<std::string, std::string>& settings) {
  try {
    return simulate_policy(workload, policy, settings);
  } catch (const Error& error) {
    Outcome refused;
    refused.policy = policy;
    refused.result.fits = false;
    refused.result.misfit = error.what();
    return refused;
  }
}

std::vector<std::string> policies_named(const std::string& list) {
  std::vector<std::string> valid;
  for (const PolicyInfo& info : list_policies()) valid.push_back(info.name);
  if (list == "all") return valid;
  std::vector<std::string> names;
  std::size_t begin = 0;
  while (begin <= list.size()) {
    const std::size_t comma = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, comma - begin);
    if (name == "bound") throw Error("'bound' is no policy: the lower bound is a row of every table; see also `bound`");
    if (std::find(valid.begin(), valid.end(), name) == valid.end()) {
      throw Error("unknown policy '" + name + "'; valid names are " + join(valid) + ", or all");
    }
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    begin = comma + 1;
  }
  return names;
}

References references_of(const Workload& workload) {
  const Outcome ideal = simulate_policy(workload, "ideal", {});
  const Bound bound = lower_bound_of(workload.trace, workload.machine);
  return {.ideal_seconds = ideal.result.iteration_seconds(),
          .bound_seconds = bound.seconds,
          .bound_term = bound.term,
          .any_run_bound_seconds = bound.any_run_seconds};
}

double References::bound_of(const RunResult& result) const {
  if (!any_run_bound_seconds) return bound_seconds;
  return least_seconds(bound_seconds, *any_run_bound_seconds, result.steady, result.period);
}

}  // namespace tencache
