#include "studies/sweep/sweep_file.h"

#include <algorithm>
#include <filesystem>
#include <functional>

#include "configs/gpu_yaml.h"
#include "configs/shipped_files.h"
#include "configs/yaml_layers.h"
#include "core/error.h"
#include "core/names.h"
#include "core/parse_number.h"
#include "core/units.h"
#include "policies/registry.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

constexpr Bytes maximum_sweep_file_bytes = 4 * MiB;
constexpr std::size_t most_of_a_kind = 10'000;  // lists multiply: a small file could ask for any number
// Of the generator, whose values a machine may fill in.
const std::vector<std::string> filled_by_machine = {"gpu", "data-parallel", "tensor-parallel", "pipeline-parallel"};

// What a filter may ask for beside the workloads' settings and the policies' options.
const std::vector<std::string> filter_keys = {"workload", "trace", "machine", "gpu_memory", "policy", "cpu_memory"};

class SweepReader {
 public:
  SweepReader(const std::string& file, const std::vector<std::string>& setting_names)
      : file_(file), folder_(std::filesystem::path(file).parent_path()), setting_names_(setting_names) {}

  SweepFile read(const YAML::Node& root) {
    const YamlMap keys({{root, &file_}}, "a sweep",
                       {"name", "description", "workloads", "machines", "policies", "iterations", "only", "exclude",
                        "limits", "cost"});
    sweep_.file = file_;
    sweep_.name = figures_.name(keys.require("name"), "name");
    figures_.take(keys, "description", "", sweep_.description, &FigureReader::text);
    list(keys.require("workloads"), "workloads", [&](const YamlValue& item) { read_workload(item); });
    list(keys.require("machines"), "machines", [&](const YamlValue& item) { read_machines(item); });
    list(keys.require("policies"), "policies", [&](const YamlValue& item) { read_policies(item); });
    figures_.take(keys, "iterations", "", sweep_.iterations, &FigureReader::count, 1, 1'000'000);
    for (const auto& [key, filters] : {std::pair("only", &sweep_.only), {"exclude", &sweep_.exclude}}) {
      const auto value = keys.get(key);
      if (value) each_item(*value, key, [&](const YamlValue& item) { filters->push_back(read_filter(item)); });
    }
    if (const auto limits = keys.get("limits")) read_limits(*limits);
    if (const auto cost = keys.get("cost")) read_cost(*cost);
    return std::move(sweep_);
  }

 private:
  using Values = std::vector<std::string>;

  // A list or a single item.
  static void list(const YamlValue& value, const std::string& path,
                   const std::function<void(const YamlValue&)>& read_one) {
    if (!value.node.IsSequence()) return read_one(value);
    if (value.node.size() == 0) fail_at(value, path + ": the list is empty");
    each_item(value, path, read_one);
  }
  Values texts(const YamlValue& value, const std::string& path) {
    Values result;
    list(value, path, [&](const YamlValue& item) {
      std::string text = figures_.text(item, path);
      if (text.empty()) fail_at(item, path + ": must not be empty");
      if (std::ranges::find(result, text) == result.end()) result.push_back(std::move(text));
    });
    return result;
  }
  Values texts_or_none(const YamlMap& keys, const std::string& key) {
    const auto value = keys.get(key);
    return value ? texts(*value, key) : Values{""};
  }
  std::string place_of(const std::string& path) const {
    return std::filesystem::path(path).is_absolute() ? path : (folder_ / path).lexically_normal().string();
  }

  void read_workload(const YamlValue& item) {
    if (item.node.IsScalar()) return add_traces(item, "");
    const YamlMap keys({item}, "a workload", {"name", "trace", "generate", "assume_gpu", "rescale"});
    std::string name;
    if (const auto value = keys.get("name")) name = figures_.text(*value, "name");
    const auto trace = keys.get("trace"), generate = keys.get("generate");
    if (trace.has_value() == generate.has_value()) {
      fail_at(item, "a workload has either 'trace' or 'generate', settings of `tencache generate`");
    }
    const std::size_t first = sweep_.workloads.size();
    trace ? add_traces(*trace, name) : add_generated(*generate, name);
    RescaleOptions rescale;
    if (const auto value = keys.get("rescale")) {
      rescale.no_rescale = figures_.choice(*value, "rescale", {"true", "false"}) == 1;
    }
    if (const auto gpu = keys.get("assume_gpu")) {
      if (generate) fail_at(*gpu, "assume_gpu: a generated trace is of the GPU that `generate` has as `gpu`");
      if (rescale.no_rescale) fail_at(*gpu, "assume_gpu: nothing is assumed where durations are not rescaled");
      rescale.assume_gpu = figures_.text(*gpu, "assume_gpu");
      try {
        read_gpu(rescale.assume_gpu);
      } catch (const Error& error) {
        fail_at(*gpu, std::string("assume_gpu: ") + error.what());
      }
    }
    for (std::size_t i = first; i < sweep_.workloads.size(); ++i) sweep_.workloads[i].trace.rescale = rescale;
  }

  void add_traces(const YamlValue& value, const std::string& name) {
    const Values files = texts(value, "trace");
    for (const std::string& file : files) {
      const std::string stem = std::filesystem::path(file).filename().string();
      const std::string own = stem.substr(0, stem.find(".trace."));
      SweepWorkload workload;
      workload.name = name.empty() ? own : files.size() == 1 ? name : name + ", " + own;
      workload.trace.file = place_of(file);
      add_workload(value, std::move(workload));
    }
  }

  void add_generated(const YamlValue& value, const std::string& name) {
    const YamlMap keys({value}, "generate", setting_names_);
    std::vector<std::pair<std::string, Values>> settings;
    std::map<std::string, std::uint64_t> lines;
    for (const auto& entry : value.node) {
      const std::string key = entry.first.Scalar();
      lines[key] = line_of(entry.second);
      Values values = texts({entry.second, value.file}, key);
      for (std::string& text : values) {
        if (text == of_the_machine && std::ranges::find(filled_by_machine, key) == filled_by_machine.end()) {
          fail_at({entry.second, value.file},
                  key + ": the machine does not say it; it fills in " + join_names(filled_by_machine));
        }
        if (key == "model" && is_config_path(text)) text = place_of(text);
      }
      settings.emplace_back(key, std::move(values));
    }
    keys.require("model");
    if (!keys.get("new-tokens")) keys.require("batch");
    if (!keys.get("gpu")) settings.emplace_back("gpu", Values{std::string(of_the_machine)});
    each_choice(settings, [&](const std::vector<std::size_t>& choice) {
      SweepWorkload workload;
      workload.setting_lines = lines;
      std::string label;
      for (std::size_t i = 0; i < settings.size(); ++i) {
        const auto& [key, values] = settings[i];
        const std::string& text = values[choice[i]];
        workload.trace.generate.emplace_back(key, text);
        if (key == "model") {
          const std::string model = std::filesystem::path(text).filename().string();
          if (name.empty() || values.size() > 1) label = (name.empty() ? "" : name + ", ") + model;
        } else if (values.size() > 1 || (name.empty() && (key == "batch" || key == "block"))) {
          workload.name += ", " + key + " " + text;
        }
      }
      workload.name = (label.empty() ? name : label) + workload.name;
      add_workload(value, std::move(workload));
    });
  }

  void add_workload(const YamlValue& where, SweepWorkload workload) {
    for (const SweepWorkload& other : sweep_.workloads) {
      if (other.name == workload.name) fail_at(where, "two workloads are called '" + workload.name + "'; name them");
    }
    require_room(where, sweep_.workloads.size(), "workloads");
    workload.line = line_of(where.node);
    if (workload.name.size() > 200) fail_at(where, "the name of a workload is too long: '" + workload.name + "'");
    sweep_.workloads.push_back(std::move(workload));
  }

  static void require_room(const YamlValue& where, std::size_t count, const std::string& what) {
    if (count >= most_of_a_kind) {
      fail_at(where, "more than " + std::to_string(most_of_a_kind) + " " + what + "; make it several sweeps");
    }
  }

  // All combinations, the last setting's values fastest.
  static void each_choice(const std::vector<std::pair<std::string, Values>>& lists,
                          const std::function<void(const std::vector<std::size_t>&)>& take) {
    std::vector<std::size_t> choice(lists.size(), 0);
    while (true) {
      take(choice);
      std::size_t i = lists.size();
      while (i > 0 && ++choice[i - 1] == lists[i - 1].second.size()) choice[--i] = 0;
      if (i == 0) return;
    }
  }

  void read_machines(const YamlValue& item) {
    ++machine_items_;
    const auto add = [&](const std::string& name, const std::string& gpu, const std::string& cpu,
                         const Values& limits) {
      require_room(item, sweep_.machines.size(), "machines");
      MachineChoice machine{.name = name, .gpu_memory = gpu, .cpu_memory = cpu, .limits = limits};
      sweep_.machines.push_back({std::move(machine), line_of(item.node), machine_items_});
    };
    if (item.node.IsScalar()) {
      for (const std::string& machine : machines_named(item)) add(machine, "", "", {});
      return;
    }
    const YamlMap keys({item}, "a machine", {"name", "gpu_memory", "cpu_memory", "limits"});
    Values names, limits;
    list(keys.require("name"), "name", [&](const YamlValue& value) {
      for (std::string& machine : machines_named(value)) names.push_back(std::move(machine));
    });
    if (const auto value = keys.get("limits")) limits = texts(*value, "limits");
    for (const std::string& name : names) {
      for (const std::string& gpu : texts_or_none(keys, "gpu_memory")) {
        for (const std::string& cpu : texts_or_none(keys, "cpu_memory")) {
          for (const auto& [option, size] : {std::pair("gpu_memory", gpu), std::pair("cpu_memory", cpu)}) {
            try {
              if (!size.empty() && parse_bytes(size) == 0) throw Error("must be above 0");
            } catch (const Error& error) {
              fail_at(item, std::string(option) + ": " + error.what());
            }
          }
          add(name, gpu, cpu, limits);
        }
      }
    }
  }

  Values machines_named(const YamlValue& value) {
    const std::string text = figures_.text(value, "machine");
    if (is_config_path(text)) return {place_of(text)};
    Values found, valid;
    for (const auto& [name, path] : shipped_files("machines")) {
      valid.push_back(name);
      if (matches_pattern(text, name)) found.push_back(name);
    }
    if (!found.empty()) return found;
    fail_at(value, "no machine is called '" + text + "'; " + valid_names(text, valid, "`tencache machines`") +
                       "; a file is given by its path, ./" + text + ".yaml");
  }

  void read_policies(const YamlValue& item) {
    if (item.node.IsScalar()) {
      for (const std::string& policy : policies_named(item)) sweep_.policies.push_back({policy, {}});
      return;
    }
    const YamlMap keys({item}, "a policy", {"name", "options"});
    Values names;
    list(keys.require("name"), "name", [&](const YamlValue& value) {
      for (std::string& policy : policies_named(value)) names.push_back(std::move(policy));
    });
    std::vector<std::pair<std::string, Values>> options;
    if (const auto value = keys.get("options")) {
      if (!value->node.IsMap()) fail_at(*value, "options: expected a map, found " + describe(value->node));
      for (const auto& entry : value->node) {
        options.emplace_back(entry.first.Scalar(), texts({entry.second, value->file}, entry.first.Scalar()));
      }
    }
    for (const std::string& name : names) {
      each_choice(options, [&](const std::vector<std::size_t>& choice) {
        PolicyChoice policy{name, {}};
        for (std::size_t i = 0; i < options.size(); ++i) {
          policy.settings[options[i].first] = options[i].second[choice[i]];
        }
        try {
          make_policy(policy.name, policy.settings);
        } catch (const Error& error) {
          fail_at(item, error.what());
        }
        require_room(item, sweep_.policies.size(), "policies and options");
        sweep_.policies.push_back(std::move(policy));
      });
    }
  }

  Values policies_named(const YamlValue& value) {
    const std::string text = figures_.text(value, "policy");
    Values found, valid;
    for (const PolicyInfo& info : list_policies()) {
      valid.push_back(info.name);
      if (text == "all" || matches_pattern(text, info.name)) found.push_back(info.name);
    }
    if (!found.empty()) return found;
    fail_at(value, "unknown policy '" + text + "'; " + policies_like(text) + ", and `all` is all");
  }

  SweepFilter read_filter(const YamlValue& item) {
    Values valid = filter_keys;
    valid.insert(valid.end(), setting_names_.begin(), setting_names_.end());
    for (const PolicyChoice& policy : sweep_.policies) {
      for (const auto& [option, value] : make_policy(policy.name, policy.settings).options) {
        if (std::ranges::find(valid, option) == valid.end()) valid.push_back(option);
      }
    }
    const YamlMap keys({item}, "a filter", valid);
    SweepFilter filter;
    filter.line = line_of(item.node);
    for (const auto& entry : item.node) {
      filter.patterns.emplace_back(entry.first.Scalar(), texts({entry.second, item.file}, entry.first.Scalar()));
    }
    if (filter.patterns.empty()) fail_at(item, "a filter without a key matches everything");
    return filter;
  }

  void read_limits(const YamlValue& value) {
    const YamlMap keys({value}, "limits", {"combinations", "usd_per_hour", "gpus"});
    figures_.take(keys, "combinations", "limits.", sweep_.most_combinations, &FigureReader::count, 1, 100'000'000);
    figures_.take(keys, "usd_per_hour", "limits.", sweep_.most_usd_per_hour, &FigureReader::positive_number);
    figures_.take(keys, "gpus", "limits.", sweep_.most_gpus, &FigureReader::count, 1, 1'000'000);
  }

  void read_cost(const YamlValue& value) {
    const YamlMap keys({value}, "cost",
                       {"run_tokens", "budget_usd_per_hour", "attached_storage", "interruptions_per_hour",
                        "checkpoint_seconds", "restart_seconds", "checkpoint_interval_seconds"});
    const auto number = [&](const char* key, double& field) {
      figures_.take(keys, key, "cost.", field, &FigureReader::positive_number);
    };
    SweepCostSettings& cost = sweep_.cost;
    number("run_tokens", cost.run_tokens);
    number("budget_usd_per_hour", cost.budget_usd_per_hour);
    if (const auto rate = keys.get("interruptions_per_hour")) {
      const std::string text = figures_.text(*rate, "cost.interruptions_per_hour");
      cost.interruptions_per_hour = parse_number(text);
      if (!(cost.interruptions_per_hour.value_or(-1) >= 0)) {
        fail_at(*rate, "cost.interruptions_per_hour: '" + text + "' is not a number, 0 or above");
      }
    }
    number("checkpoint_seconds", cost.checkpoints.checkpoint_seconds);
    number("restart_seconds", cost.checkpoints.restart_seconds);
    number("checkpoint_interval_seconds", cost.checkpoints.interval_seconds);
    if (const auto size = keys.get("attached_storage")) {
      cost.attached_storage_gb = static_cast<double>(figures_.bytes(*size, "cost.attached_storage")) * 1e-9;
    }
  }

  const std::string& file_;
  std::filesystem::path folder_;
  const std::vector<std::string>& setting_names_;
  FigureReader figures_;
  SweepFile sweep_;
  std::size_t machine_items_ = 0;
};

}  // namespace

SweepFile parse_sweep_file(std::string_view text, const std::string& file,
                           const std::vector<std::string>& setting_names) {
  return SweepReader(file, setting_names).read(load_yaml(text, file));
}

SweepFile read_sweep_file(const std::string& name_or_file) {
  const std::string path = find_config("sweeps", "sweep", name_or_file);
  return parse_sweep_file(read_file(path, maximum_sweep_file_bytes), path, generate_option_names());
}

bool matches_pattern(std::string_view pattern, std::string_view text) {
  // The usual walk: back to the last star, which takes one character more.
  std::size_t p = 0, t = 0, star = std::string_view::npos, taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace tencache
