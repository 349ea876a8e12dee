#include "studies/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "configs/load_policy_library.h"
#include "configs/machine_overrides.h"
#include "configs/machine_yaml.h"
#include "configs/model_yaml.h"
#include "configs/tool_clock.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "core/remark.h"
#include "core/text.h"
#include "policies/registry.h"
#include "traces/file/file_io.h"
#include "traces/transform/fold_updates.h"

namespace tencache {

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
  MachineSpec machine = read_machine(options.machine_at.empty() ? options.machine : options.machine_at);
  if (sha256 != nullptr) *sha256 = sha256_of_machine(machine);
  override_capacity(machine, Device::gpu, "--gpu-memory", options.gpu_memory);
  override_capacity(machine, Device::cpu, "--cpu-memory", options.cpu_memory);
  for (const std::string& limit : options.limits) limit_link(machine, "--limit " + limit, limit);
  return machine;
}

std::vector<std::string> input_files(const WorkloadOptions& options) {
  const MachineSpec machine = read_machine(options.machine_at.empty() ? options.machine : options.machine_at);
  std::vector<std::string> files = machine.base_files;
  files.insert(files.end(), {machine.file, options.trace, options.trace_at, options.prices.file});
  for (const auto& [name, value] : options.generate) {
    if (name == "model") files.push_back(find_model_file(value));
  }
  for (const std::string& library : loaded_policy_libraries()) files.push_back(library);
  return files;
}

Trace generate_for(GenerateSettings settings, const MachineSpec& machine) {
  const bool named =
      std::any_of(settings.begin(), settings.end(), [](const auto& entry) { return entry.first == "gpu"; });
  if (!named && !machine.gpu.empty()) settings.emplace_back("gpu", machine.gpu);
  return generate_trace(settings);
}

Workload load_workload(const WorkloadOptions& options) {
  const std::int64_t start = tool_clock_ns();
  Workload workload;
  workload.options = options;
  workload.machine = load_machine(options, &workload.machine_sha256);
  Prices prices(options.prices);
  workload.price = prices.apply(workload.machine);
  prices.check_all_used();
  if (options.generate.empty()) {
    if (options.trace.empty()) throw Error("TRACE is required, or --model with the options of `tencache generate`");
    const std::string& file = options.trace_at.empty() ? options.trace : options.trace_at;
    FoldedUpdates folded;
    workload.trace = read_trace_to_simulate(file, &folded);
    workload.trace_sha256 = sha256_of_file(file);
    if (folded.kernels > 0) remark("note: " + folded.to_string());
  } else {
    if (!options.trace.empty()) throw Error("TRACE and --" + options.generate.front().first + " exclude each other");
    workload.trace = generate_for(options.generate, workload.machine);
    workload.options.trace = workload.trace.header.recorded_by;
  }
  workload.rescaling = rescale_to_machine(workload.trace, workload.machine, options.rescale);
  workload.gpu_time = modelled_gpu_time(workload.trace, workload.rescaling);
  workload.load_seconds = seconds_since(start);
  return workload;
}

std::string machine_title(const Workload& workload) {
  const MachineSpec& machine = workload.machine;
  const WorkloadOptions& options = workload.options;
  std::vector<std::string> changes;
  for (const auto& [device, name, size] :
       {std::tuple{Device::gpu, "GPU memory ", options.gpu_memory}, {Device::cpu, "CPU memory ", options.cpu_memory}}) {
    if (!size.empty()) changes.push_back(name + format_bytes(machine.tiers[machine.tier_of(device)].capacity));
  }
  for (const std::string& limit : options.limits) {
    const auto link = std::ranges::find(machine.links, limit.substr(0, limit.find('=')), &Link::name);
    if (link == machine.links.end()) continue;
    changes.push_back(link->name + " at most " + format_bandwidth(link->bandwidth));
  }
  return printable(machine.name) + (changes.empty() ? "" : " with " + join(changes));
}

Outcome simulate_policy(const Workload& workload, const std::string& policy,
                        const std::map<std::string, std::string>& settings, const Recorders& recorders) {
  return simulate_policy(workload, workload.machine, policy, settings, recorders);
}

Outcome simulate_policy(const Workload& workload, const MachineSpec& machine, const std::string& policy,
                        const std::map<std::string, std::string>& settings, const Recorders& recorders) {
  return simulate_policy(workload.trace, machine, policy, settings, limits_of(workload.options.iterations), recorders);
}

Outcome simulate_policy(const Trace& trace, const MachineSpec& machine, const std::string& policy,
                        const std::map<std::string, std::string>& settings, const RunLimits& limits,
                        const Recorders& recorders) {
  const std::int64_t start = tool_clock_ns();
  Outcome outcome = run_policy(trace, machine, policy, settings, limits, recorders);
  outcome.seconds = seconds_since(start);
  return outcome;
}

Outcome simulate_or_refuse(const Workload& workload, const std::string& policy,
                           const std::map<std::string, std::string>& settings, const FaultPlan* faults) {
  try {
    return simulate_policy(workload, policy, settings, {.faults = faults});
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
    if (name.empty()) throw Error("'" + list + "' has an empty name; write policies with one comma between them");
    if (name == "bound") throw Error("'bound' is no policy: the lower bound is a row of every table; see also `bound`");
    if (std::find(valid.begin(), valid.end(), name) == valid.end()) {
      throw Error("unknown policy '" + name + "'; valid names are " + join(valid) + ", or all");
    }
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    begin = comma + 1;
  }
  return names;
}

std::optional<Bytes> parse_pinned_limit(const std::string& text, const MachineSpec& machine, std::size_t ranks) {
  if (text.empty()) return std::nullopt;
  try {
    if (text.back() != '%') return parse_bytes(text);
    const double percent = parse_number(std::string_view(text).substr(0, text.size() - 1)).value_or(0);
    const TierId cpu = machine.tier_of(Device::cpu);
    if (percent > 0 && percent <= 100 && cpu != no_tier) {
      double capacity = 0;
      for (std::size_t rank = 0; rank < std::min(ranks, machine.rank_count()); ++rank) {
        capacity += static_cast<double>(machine.of_rank(rank).tiers[cpu].capacity);
      }
      return static_cast<Bytes>(capacity * percent / 100);
    }
  } catch (const Error&) {
  }
  throw Error("--pinned-limit " + text + ": give a size such as 64GiB, or percent of CPU memory such as 50%");
}

References references_of(const Workload& workload) {
  return references_of(workload.trace, workload.machine, limits_of(workload.options.iterations));
}

}  // namespace tencache
