#include "studies/sweep/sweep_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "configs/gpu_yaml.h"
#include "configs/load_policy_library.h"
#include "configs/machine_overrides.h"
#include "configs/model_yaml.h"
#include "configs/yaml_layers.h"
#include "core/check.h"
#include "core/error.h"
#include "policies/registry.h"
#include "studies/sweep/build_id.h"
#include "studies/workload.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

// Stands for that of any machine where only the other settings are checked.
constexpr const char* some_gpu = "h100";

// Ours is less what a context takes: who writes a GPU's nominal memory asks for no other machine.
constexpr double nominal_over_usable = 1.25;

// Enough of a hash to tell builds apart.
std::string start_of_hash(const std::string& hash) { return hash.substr(0, 12); }

PlannedMachine plan_machine(const SweepMachine& asked, Prices& prices) {
  PlannedMachine machine{
      .asked = asked, .spec = read_machine(asked.machine), .sha256 = {}, .price = {}, .what_if = false, .refusal = {}};
  machine.sha256 = sha256_of_machine(machine.spec);
  machine.price = prices.apply(machine.spec);
  const auto memory = [&machine](Device device) {
    const TierId tier = machine.spec.tier_of(device);
    return tier == no_tier ? 0 : machine.spec.tiers[tier].capacity;
  };
  const Bytes sold_gpu = memory(Device::gpu), sold_cpu = memory(Device::cpu);
  try {
    change_machine(machine.spec, asked.machine, {"gpu_memory", "cpu_memory", "gpu_allocator", "limits: "});
  } catch (const Error& error) {
    machine.refusal = error.what();
  }
  const auto above = [](Bytes wanted, Bytes sold) {
    return static_cast<double>(wanted) > nominal_over_usable * static_cast<double>(sold);
  };
  machine.what_if = above(memory(Device::gpu), sold_gpu) || above(memory(Device::cpu), sold_cpu);
  if (machine.what_if) machine.spec.price = {};
  return machine;
}

bool within_limits(const SweepFile& file, const MachineSpec& machine) {
  if (file.most_gpus != 0 && machine.rank_count() > file.most_gpus) return false;
  if (file.most_usd_per_hour <= 0) return true;
  return machine.price.in_usd() && machine.price.on_demand <= file.most_usd_per_hour;
}

// The settings with what the machine fills in: its GPU, its number of GPUs.
GenerateSettings settings_for(const SweepWorkload& workload, const std::string& gpu, std::size_t gpus) {
  GenerateSettings settings = workload.trace.generate;
  bool alone = false;
  for (auto& [name, value] : settings) {
    if (value != of_the_machine) continue;
    value = name == "gpu" ? gpu : std::to_string(gpus);
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

// A filter, and what of it any combination had.
class WatchedFilter {
 public:
  WatchedFilter(const SweepFilter& filter, const char* kind) : filter_(filter), kind_(kind) {
    for (const auto& [key, patterns] : filter.patterns) found_.emplace_back(patterns.size(), false);
  }

  bool matches(const Facts& facts) {
    bool all = true;
    for (std::size_t key = 0; key < filter_.patterns.size(); ++key) all = note(key, facts) && all;
    matched_ = matched_ || all;
    return all;
  }
  // Of a machine that limits leave out: a pattern that names it is no slip.
  void note(const Facts& facts) {
    for (std::size_t key = 0; key < filter_.patterns.size(); ++key) note(key, facts);
  }

  // Throws Error where a key's patterns all are of nothing that the sweep has. `values`: what it has, by key.
  std::vector<std::string> warnings(const std::string& file,
                                    const std::map<std::string, std::set<std::string>>& values) const {
    std::vector<std::string> texts;
    for (std::size_t key = 0; key < filter_.patterns.size(); ++key) {
      const auto& [name, patterns] = filter_.patterns[key];
      const bool any = std::ranges::find(found_[key], true) != found_[key].end();
      for (std::size_t i = 0; i < patterns.size(); ++i) {
        if (found_[key][i]) continue;
        const Error error(
            file, filter_.line,
            kind_ + ": " + name + " '" + patterns[i] + "' matches nothing; there is " + values_text(values, name));
        if (!any) throw error;
        texts.push_back(error.what());
      }
    }
    if (!matched_ && texts.empty()) {
      texts.push_back(Error(file, filter_.line, kind_ + ": no combination matches all keys of this filter").what());
    }
    return texts;
  }

 private:
  bool note(std::size_t key, const Facts& facts) {
    const auto& [name, patterns] = filter_.patterns[key];
    const auto fact = facts.find(name);
    bool any = false;
    for (std::size_t i = 0; fact != facts.end() && i < patterns.size(); ++i) {
      if (!matches_pattern(patterns[i], fact->second)) continue;
      found_[key][i] = any = true;
    }
    return any;
  }
  static std::string values_text(const std::map<std::string, std::set<std::string>>& values, const std::string& key) {
    constexpr std::size_t most = 20;
    std::vector<std::string> shown;
    const auto found = values.find(key);
    if (found != values.end()) {
      for (const std::string& value : found->second) {
        if (value.empty()) continue;
        if (shown.size() == most) return join_names(shown) + " and others";
        shown.push_back(value);
      }
    }
    return shown.empty() ? "none that is said" : join_names(shown);
  }

  const SweepFilter& filter_;
  std::string kind_;
  std::vector<std::vector<bool>> found_;  // by key and pattern
  bool matched_ = false;
};

struct ResolvedPolicy {
  std::string name, library;  // the build of its library; empty: it is the program's own
  std::map<std::string, std::string> options;
};

class Planner {
 public:
  Planner(SweepFile file, const PriceChoice& prices) : prices_(prices) { plan_.file = std::move(file); }

  SweepPlan plan() {
    plan_.build = TENCACHE_VERSION "+" + start_of_hash(build_id());
    for (const PolicyChoice& policy : plan_.file.policies) {
      const std::string library = start_of_hash(origin_of_policy(policy.name).sha256);
      policies_.push_back({policy.name, library, make_policy(policy.name, policy.settings).options});
      plan_.builds.push_back(plan_.build + (library.empty() ? "" : ", library " + library));
    }
    for (const SweepFilter& filter : plan_.file.only) only_.emplace_back(filter, "only");
    for (const SweepFilter& filter : plan_.file.exclude) exclude_.emplace_back(filter, "exclude");
    plan_machines();
    for (std::size_t workload = 0; workload < plan_.file.workloads.size(); ++workload) plan_workload(workload);
    check_filters();
    if (plan_.combinations == 0) throw Error(plan_.file.file, 0, "filters and limits leave no combination");
    std::string keys;
    for (const SweepUnit& unit : plan_.units) {
      for (const PlannedRow& row : unit.rows) keys += row.key;
    }
    plan_.sha256 = sha256_hex(keys);
    return std::move(plan_);
  }

 private:
  void plan_machines() {
    std::set<std::string> seen;
    std::map<std::size_t, bool> possible;  // by item of the file: any of its variants
    std::string price_text;
    Prices prices(prices_);
    for (const SweepMachine& asked : plan_.file.machines) {
      std::string text = asked.machine.name + "\n" + asked.machine.gpu_memory + "\n" + asked.machine.cpu_memory;
      for (const std::string& limit : asked.machine.limits) text += "\n" + limit;
      if (!seen.insert(text).second) continue;
      PlannedMachine machine = plan_machine(asked, prices);
      bool& any = possible[asked.item];
      any = any || machine.refusal.empty();
      price_text += price_text_of(machine);
      (within_limits(plan_.file, machine.spec) ? plan_.machines : left_out_).push_back(std::move(machine));
    }
    for (const auto* machines : {&plan_.machines, &left_out_}) {
      for (const PlannedMachine& machine : *machines) {
        if (!possible[machine.asked.item]) throw Error(plan_.file.file, machine.asked.line, machine.refusal);
      }
    }
    prices.check_all_used();
    const SweepCostSettings& cost = plan_.file.cost;
    for (const double setting :
         {cost.run_tokens, cost.attached_storage_gb, cost.interruptions_per_hour.value_or(-1),
          cost.checkpoints.checkpoint_seconds, cost.checkpoints.restart_seconds, cost.checkpoints.interval_seconds}) {
      price_text += std::to_string(setting) + " ";
    }
    plan_.prices_sha256 = sha256_hex(price_text);
  }

  static std::string price_text_of(const PlannedMachine& machine) {
    const auto value = [](const std::optional<PriceFigure>& figure) {
      return figure ? std::to_string(figure->value) : std::string("unknown");
    };
    return machine.spec.name + " " + machine.spec.price.currency + " " + std::to_string(machine.spec.price.on_demand) +
           " " + std::to_string(machine.spec.price.spot) + " " + value(machine.price.storage) + " " +
           value(machine.price.interruptions) + "\n";
  }

  void check_filters() {
    for (const PlannedMachine& machine : left_out_) {
      const Facts facts = facts_of(machine);
      for (auto* filters : {&only_, &exclude_}) {
        for (WatchedFilter& filter : *filters) filter.note(facts);
      }
      for (const auto& [key, value] : facts) values_[key].insert(value);
    }
    for (auto* filters : {&only_, &exclude_}) {
      for (const WatchedFilter& filter : *filters) {
        for (std::string& text : filter.warnings(plan_.file.file, values_)) plan_.warnings.push_back(std::move(text));
      }
    }
  }

  // Places what is wrong with a workload at the line of the setting that the message names.
  [[noreturn]] void refuse(const SweepWorkload& workload, const std::string& message) const {
    std::uint64_t line = workload.line;
    std::size_t longest = 0;
    for (const auto& [setting, at] : workload.setting_lines) {
      const std::size_t found = message.find("--" + setting);
      const bool is_model = setting == "model" && message.find("model '") != message.npos && longest == 0;
      if ((found == message.npos && !is_model) || setting.size() <= longest) continue;
      line = at;
      if (found != message.npos) longest = setting.size();
    }
    throw Error(plan_.file.file, line, "workload '" + workload.name + "': " + message);
  }

  // What no machine could make a trace of; what one machine cannot, is a row of it with the reason.
  void check_settings(const SweepWorkload& workload) const {
    if (!workload.trace.file.empty()) return;
    try {
      check_generate_settings(settings_for(workload, some_gpu, 1));
    } catch (const Error& error) {
      refuse(workload, error.what());
    }
  }

  // Units in the order of their traces, positions in the order of the file.
  void plan_workload(std::size_t index) {
    const SweepWorkload& workload = plan_.file.workloads[index];
    const std::size_t first_trace = plan_.traces.size();
    std::map<std::string, std::size_t> traces;  // by the settings' text
    std::vector<SweepUnit> units;
    for (std::size_t machine = 0; machine < plan_.machines.size(); ++machine) {
      const MachineSpec& spec = plan_.machines[machine].spec;
      TraceChoice trace = workload.trace;
      trace.generate = settings_for(workload, spec.gpu, spec.rank_count());
      std::string text = gpu_hash() + plan_.machines[machine].spec.gpu + "\n" + trace.rescale.assume_gpu +
                         (trace.rescale.no_rescale ? "\nas it is\n" : "\n");
      for (const auto& [name, value] : trace.generate) text += name + "=" + value + "\n";
      const auto [found, is_new] = traces.emplace(text, plan_.traces.size());
      if (is_new) {
        plan_.traces.push_back({.workload = index,
                                .machine = machine,
                                .trace = trace,
                                .sha256 = sha256_hex(text + input_hash(workload, trace))});
      }
      SweepUnit unit{.trace = found->second, .machine = machine, .rows = rows_of(workload, found->second, machine)};
      if (!unit.rows.empty()) units.push_back(std::move(unit));
    }
    if (!units.empty()) check_settings(workload);
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
  std::string input_hash(const SweepWorkload& workload, const TraceChoice& trace) {
    try {
      return trace.file.empty() ? fingerprint(trace.generate) : file_hash(trace.file);
    } catch (const Error& error) {
      refuse(workload, error.what());
    }
  }
  const std::string& file_hash(const std::string& file) {
    auto& known = fingerprints_["file " + file];
    if (known.empty()) known = sha256_of_file(file);
    return known;
  }

  // Of the files that generating reads. Hardly any two differ; hashing them once for each combination would be most of
  // the time.
  std::string fingerprint(const GenerateSettings& settings) {
    const auto model = std::ranges::find(settings, "model", &GenerateSettings::value_type::first);
    TENCACHE_CHECK(model != settings.end());
    auto& known = fingerprints_["model " + model->second];
    if (known.empty()) known = sha256_of_file(find_model_file(model->second)) + gpu_hash();
    return known;
  }

  static Facts facts_of(const PlannedMachine& machine) {
    return {{"machine", machine.spec.name},
            {"gpu", machine.spec.gpu},
            {"gpu_memory", machine.asked.machine.gpu_memory},
            {"cpu_memory", machine.asked.machine.cpu_memory}};
  }

  bool wanted(const Facts& facts) {
    if (only_.empty() && exclude_.empty()) return true;
    for (const auto& [key, value] : facts) values_[key].insert(value);
    // All are asked, so that each knows what it would match.
    const auto any = [&](std::vector<WatchedFilter>& filters) {
      bool matched = false;
      for (WatchedFilter& filter : filters) matched = filter.matches(facts) || matched;
      return matched;
    };
    const bool among = any(only_), excluded = any(exclude_);
    return (only_.empty() || among) && !excluded;
  }

  std::vector<PlannedRow> rows_of(const SweepWorkload& workload, std::size_t trace, std::size_t machine_index) {
    const PlannedMachine& machine = plan_.machines[machine_index];
    Facts facts = facts_of(machine);
    facts["workload"] = workload.name;
    if (!workload.trace.file.empty()) facts["trace"] = workload.trace.file;
    for (const auto& [name, value] : plan_.traces[trace].trace.generate) facts[name] = value;
    std::vector<PlannedRow> rows;
    for (std::size_t policy = 0; policy < policies_.size(); ++policy) {
      Facts of_row = facts;
      of_row["policy"] = policies_[policy].name;
      for (const auto& [option, value] : policies_[policy].options) of_row.emplace(option, value);
      if (!wanted(of_row)) continue;
      std::string key = key_of(workload, trace, machine, policies_[policy]);
      if (!keys_.insert(key).second) continue;  // options that were given are the defaults
      if (++plan_.combinations > plan_.file.most_combinations) {
        throw Error(plan_.file.file, 0,
                    "more than " + std::to_string(plan_.file.most_combinations) +
                        " combinations; leave some out, or raise limits.combinations");
      }
      if (plan_.file.policies[policy].name == "ideal") ++plan_.ideals;
      rows.push_back({.key = std::move(key), .position = plan_.combinations - 1, .policy = policy});
    }
    return rows;
  }

  // All that the figures of a simulation depend on, and the workload's name.
  std::string key_of(const SweepWorkload& workload, std::size_t trace, const PlannedMachine& machine,
                     const ResolvedPolicy& policy) const {
    std::string text = plan_.build + "\n" + policy.library + "\n" + workload.name + "\n" + plan_.traces[trace].sha256 +
                       "\n" + machine.spec.name + "\n" + machine.sha256 + "\n" + machine.asked.machine.gpu_memory +
                       "\n" + machine.asked.machine.cpu_memory + "\n";
    for (const std::string& limit : machine.asked.machine.limits) text += limit + "\n";
    text += policy.name + "\n";
    for (const auto& [option, value] : policy.options) text += option + "=" + value + "\n";
    return sha256_hex(text + std::to_string(plan_.file.iterations));
  }

  const PriceChoice& prices_;
  SweepPlan plan_;
  std::vector<ResolvedPolicy> policies_;
  std::vector<WatchedFilter> only_, exclude_;
  std::map<std::string, std::set<std::string>> values_;  // that combinations have, by the keys of filters
  std::vector<PlannedMachine> left_out_;                 // by limits
  std::set<std::string> keys_;
  std::map<std::string, std::string> fingerprints_;
  std::string gpu_hash_;
};

}  // namespace

SweepPlan plan_sweep(SweepFile file, const PriceChoice& prices) { return Planner(std::move(file), prices).plan(); }

std::uint64_t row_count(const SweepPlan& plan) {
  std::uint64_t count = 0;
  for (const SweepUnit& unit : plan.units) count += unit.rows.size();
  return count;
}

std::uint64_t combination_count(const SweepPlan& plan, const std::set<std::string>* keys) {
  std::uint64_t count = 0;
  for (const SweepUnit& unit : plan.units) {
    for (const PlannedRow& row : unit.rows) {
      if (plan.file.policies[row.policy].name != "ideal" && (keys == nullptr || keys->contains(row.key))) ++count;
    }
  }
  return count;
}

void take_shard(SweepPlan& plan, std::size_t i, std::size_t n) {
  std::vector<SweepUnit> taken;
  for (std::size_t unit = i - 1; unit < plan.units.size(); unit += n) taken.push_back(std::move(plan.units[unit]));
  plan.units = std::move(taken);
  plan.part = true;
}

}  // namespace tencache
