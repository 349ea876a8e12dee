#include "sim/sweep/sweep_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "configs/gpu_yaml.h"
#include "configs/machine_overrides.h"
#include "configs/machine_yaml.h"
#include "core/error.h"
#include "policies/registry.h"
#include "traces/file_io.h"

namespace tencache {
namespace {

PlannedMachine plan_machine(const MachineVariant& variant, Prices& prices) {
  PlannedMachine machine{
      .variant = variant, .spec = read_machine(variant.machine), .sha256 = {}, .price = {}, .refusal = {}};
  machine.sha256 = sha256_of_machine(machine.spec);
  machine.price = prices.apply(machine.spec);
  try {
    override_capacity(machine.spec, Device::gpu, "gpu_memory", variant.gpu_memory);
    override_capacity(machine.spec, Device::cpu, "cpu_memory", variant.cpu_memory);
    for (const std::string& limit : variant.limits) limit_link(machine.spec, "limits: " + limit, limit);
  } catch (const Error& error) {
    machine.refusal = error.what();
  }
  return machine;
}

bool within_limits(const SweepFile& file, const MachineSpec& machine) {
  if (file.most_gpus != 0 && machine.rank_count() > file.most_gpus) return false;
  if (file.most_usd_per_hour <= 0) return true;
  return machine.price.on_demand > 0 && machine.price.currency == "USD" &&
         machine.price.on_demand <= file.most_usd_per_hour;
}

// The settings with what the machine fills in.
TraceSettings settings_for(const SweepWorkload& workload, const MachineSpec& machine) {
  TraceSettings settings = workload.settings;
  bool alone = false;
  for (auto& [name, value] : settings) {
    if (value != of_the_machine) continue;
    value = name == "gpu" ? machine.gpu : std::to_string(machine.rank_count());
    alone = alone || (name == "data-parallel" && value == "1");
  }
  // A machine of one GPU has nothing to share what ZeRO shares.
  if (alone) {
    std::erase_if(settings,
                  [](const auto& setting) { return setting.first == "zero" || setting.first == "gradient-reduction"; });
  }
  return settings;
}

using Facts = std::map<std::string, std::string>;  // of a combination, by the keys of filters

bool matches(const SweepFilter& filter, const Facts& facts) {
  return std::all_of(filter.patterns.begin(), filter.patterns.end(), [&](const auto& pattern) {
    const auto fact = facts.find(pattern.first);
    return fact != facts.end() && std::any_of(pattern.second.begin(), pattern.second.end(),
                                              [&](const std::string& p) { return matches_pattern(p, fact->second); });
  });
}

bool wanted(const SweepFile& file, const Facts& facts) {
  const auto any = [&](const std::vector<SweepFilter>& filters) {
    return std::any_of(filters.begin(), filters.end(),
                       [&](const SweepFilter& filter) { return matches(filter, facts); });
  };
  return (file.only.empty() || any(file.only)) && !any(file.exclude);
}

struct ResolvedPolicy {
  std::string name;
  std::map<std::string, std::string> options;
};

class Planner {
 public:
  Planner(SweepFile file, const SweepTools& tools) : tools_(tools) { plan_.file = std::move(file); }

  SweepPlan plan() {
    for (const PolicyVariant& policy : plan_.file.policies) {
      policies_.push_back({policy.policy, make_policy(policy.policy, policy.settings).options});
    }
    std::set<std::string> seen;
    std::string price_text;
    Prices prices(tools_.prices);
    for (const MachineVariant& variant : plan_.file.machines) {
      std::string text = variant.machine + "\n" + variant.gpu_memory + "\n" + variant.cpu_memory;
      for (const std::string& limit : variant.limits) text += "\n" + limit;
      if (!seen.insert(text).second) continue;
      PlannedMachine machine = plan_machine(variant, prices);
      price_text += machine.spec.name + " " + std::to_string(machine.spec.price.on_demand) + " " +
                    std::to_string(machine.spec.price.spot) + " " +
                    std::to_string(machine.price.storage_usd_per_gb_month) + " " +
                    std::to_string(machine.price.interruptions_per_hour) + "\n";
      if (within_limits(plan_.file, machine.spec)) plan_.machines.push_back(std::move(machine));
    }
    prices.check_all_used();
    const SweepCostSettings& cost = plan_.file.cost;
    for (const double setting :
         {cost.run_tokens, cost.attached_storage_gb, cost.interruptions_per_hour, cost.checkpoints.checkpoint_seconds,
          cost.checkpoints.restart_seconds, cost.checkpoints.interval_seconds}) {
      price_text += std::to_string(setting) + " ";
    }
    plan_.prices_sha256 = sha256_hex(price_text);
    for (std::size_t workload = 0; workload < plan_.file.workloads.size(); ++workload) plan_workload(workload);
    if (plan_.combinations == 0) throw Error(plan_.file.file, 0, "filters and limits leave no combination");
    std::string keys;
    for (const SweepUnit& unit : plan_.units) {
      for (const PlannedRow& row : unit.rows) keys += row.key;
    }
    plan_.sha256 = sha256_hex(keys);
    plan_.version = tools_.version;
    return std::move(plan_);
  }

 private:
  // Units in the order of their traces, positions in the order of the file.
  void plan_workload(std::size_t index) {
    const SweepWorkload& workload = plan_.file.workloads[index];
    const std::size_t first_trace = plan_.traces.size();
    std::map<std::string, std::size_t> traces;  // by the settings' text
    std::vector<SweepUnit> units;
    for (std::size_t machine = 0; machine < plan_.machines.size(); ++machine) {
      const TraceSettings settings = settings_for(workload, plan_.machines[machine].spec);
      std::string text = gpu_hash() + plan_.machines[machine].spec.gpu + "\n" + workload.rescale.assume_gpu +
                         (workload.rescale.no_rescale ? "\nas it is\n" : "\n");
      for (const auto& [name, value] : settings) text += name + "=" + value + "\n";
      const auto [found, is_new] = traces.emplace(text, plan_.traces.size());
      if (is_new) {
        plan_.traces.push_back({.workload = index,
                                .machine = machine,
                                .settings = settings,
                                .sha256 = workload.trace_file.empty()
                                              ? sha256_hex(text + fingerprint(settings))
                                              : sha256_hex(text + file_hash(workload.trace_file))});
      }
      SweepUnit unit{.trace = found->second, .machine = machine, .rows = rows_of(workload, found->second, machine)};
      if (!unit.rows.empty()) units.push_back(std::move(unit));
    }
    for (std::size_t trace = first_trace; trace < plan_.traces.size(); ++trace) {
      for (SweepUnit& unit : units) {
        if (unit.trace == trace) plan_.units.push_back(std::move(unit));
      }
    }
  }

  const std::string& gpu_hash() {
    if (gpu_hash_.empty()) gpu_hash_ = sha256_of_file(gpu_file());
    return gpu_hash_;
  }
  const std::string& file_hash(const std::string& file) {
    auto& known = fingerprints_["file " + file];
    if (known.empty()) known = sha256_of_file(file);
    return known;
  }

  // Hardly any two differ; hashing the files once for each combination would be most of the time.
  std::string fingerprint(const TraceSettings& settings) {
    std::string files;
    for (const auto& [name, value] : settings) {
      if (name == "model") files += value + "\n";
    }
    auto& known = fingerprints_[files];
    if (known.empty()) known = tools_.fingerprint(settings);
    return known;
  }

  std::vector<PlannedRow> rows_of(const SweepWorkload& workload, std::size_t trace, std::size_t machine_index) {
    const PlannedMachine& machine = plan_.machines[machine_index];
    Facts facts = {{"workload", workload.name},
                   {"machine", machine.spec.name},
                   {"gpu", machine.spec.gpu},
                   {"gpu_memory", machine.variant.gpu_memory},
                   {"cpu_memory", machine.variant.cpu_memory}};
    if (!workload.trace_file.empty()) facts["trace"] = workload.trace_file;
    for (const auto& [name, value] : plan_.traces[trace].settings) facts[name] = value;
    std::vector<PlannedRow> rows;
    for (std::size_t policy = 0; policy < policies_.size(); ++policy) {
      Facts of_row = facts;
      of_row["policy"] = policies_[policy].name;
      for (const auto& [option, value] : policies_[policy].options) of_row.emplace(option, value);
      if (!wanted(plan_.file, of_row)) continue;
      std::string key = key_of(workload, trace, machine, policies_[policy]);
      if (!keys_.insert(key).second) continue;  // options that were given are the defaults
      if (++plan_.combinations > plan_.file.most_combinations) {
        throw Error(plan_.file.file, 0,
                    "more than " + std::to_string(plan_.file.most_combinations) +
                        " combinations; leave some out, or raise limits.combinations");
      }
      rows.push_back({.key = std::move(key), .position = plan_.combinations - 1, .policy = policy});
    }
    return rows;
  }

  // All that the figures of a simulation depend on, and the workload's name.
  std::string key_of(const SweepWorkload& workload, std::size_t trace, const PlannedMachine& machine,
                     const ResolvedPolicy& policy) const {
    std::string text = tools_.version + "\n" + workload.name + "\n" + plan_.traces[trace].sha256 + "\n" +
                       machine.spec.name + "\n" + machine.sha256 + "\n" + machine.variant.gpu_memory + "\n" +
                       machine.variant.cpu_memory + "\n";
    for (const std::string& limit : machine.variant.limits) text += limit + "\n";
    text += policy.name + "\n";
    for (const auto& [option, value] : policy.options) text += option + "=" + value + "\n";
    return sha256_hex(text + std::to_string(plan_.file.iterations));
  }

  const SweepTools& tools_;
  SweepPlan plan_;
  std::vector<ResolvedPolicy> policies_;
  std::set<std::string> keys_;
  std::map<std::string, std::string> fingerprints_;
  std::string gpu_hash_;
};

}  // namespace

SweepPlan plan_sweep(SweepFile file, const SweepTools& tools) { return Planner(std::move(file), tools).plan(); }

std::uint64_t row_count(const SweepPlan& plan) {
  std::uint64_t count = 0;
  for (const SweepUnit& unit : plan.units) count += unit.rows.size();
  return count;
}

void take_shard(SweepPlan& plan, std::size_t i, std::size_t n) {
  std::vector<SweepUnit> taken;
  for (std::size_t unit = i - 1; unit < plan.units.size(); unit += n) taken.push_back(std::move(plan.units[unit]));
  plan.units = std::move(taken);
  plan.part = true;
}

}  // namespace tencache
