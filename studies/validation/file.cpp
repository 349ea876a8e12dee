#include "studies/validation/file.h"

#include <algorithm>
#include <filesystem>

#include "configs/machine_node.h"
#include "configs/machine_yaml.h"
#include "configs/shipped_files.h"
#include "configs/yaml_layers.h"
#include "core/check.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "core/timeline.h"
#include "policies/registry.h"
#include "studies/validation/kernels.h"
#include "studies/validation/throughput.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

constexpr Bytes maximum_file_bytes = 4 * MiB;

// Beside stalls and links.
constexpr const char* metrics[] = {"seconds",
                                   "forward_seconds",
                                   "backward_seconds",
                                   "update_seconds",
                                   "prefill_seconds",
                                   "decode_seconds",
                                   "hit_rate.tensors",
                                   "hit_rate.accesses",
                                   "hit_rate.bytes",
                                   "peak_bytes",
                                   "peak_bytes_less_optimizer",
                                   "peak_activation_bytes",
                                   "peak_reserved_bytes"};

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(' '), end = text.find_last_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

// Of one file.
class ValidationReader {
 public:
  ValidationReader(const std::string& text, const std::string& file) : file_(file), root_(load_yaml(text, file)) {}

  ValidationFile read() {
    const YamlMap keys({{root_, &file_}}, "a validation file",
                       {"kind", "system", "source", "url", "tolerance", "fitted", "not_modelled", "remarks", "machines",
                        "workloads", "systems", "experiments", "models", "throughput", "kernels"});
    result_.name = std::filesystem::path(file_).stem().string();
    result_.system = text(keys.require("system"), "system");
    result_.source = text(keys.require("source"), "source");
    result_.url = optional_text(keys, "url", "url");
    if (const auto value = keys.get("kind")) {
      result_.kind = static_cast<ValidationKind>(figures_.choice(*value, "kind", validation_kind_names()));
    }
    read_tolerance(keys);
    each(keys, "fitted", [&](const YamlValue& item) { read_fitted(item); });
    each(keys, "not_modelled", [&](const YamlValue& v) { result_.not_modelled.push_back(text(v, "not_modelled")); });
    each(keys, "remarks", [&](const YamlValue& v) { result_.remarks.push_back(text(v, "remarks")); });
    each(keys, "machines", [&](const YamlValue& item) { read_machine_entry(item); });
    if (result_.kind == ValidationKind::gpu) {
      read_gpu_tables(keys);
    } else {
      read_systems(keys);
    }
    return std::move(result_);
  }

 private:
  template <typename Read>
  static void each(const YamlMap& keys, const std::string& key, Read read) {
    if (const auto value = keys.get(key)) each_item(*value, key, read);
  }

  void read_tolerance(const YamlMap& keys) {
    const bool gpu = result_.kind == ValidationKind::gpu;
    if (gpu) {
      result_.tolerance = {.median = 0.06, .p90 = 0.12, .worst = 0.30, .gpu_median = 0.05};
    }
    const auto value = keys.get("tolerance");
    if (!value) return;
    std::vector<std::string> valid{"median", "worst"};
    if (gpu) valid.insert(valid.end(), {"p90", "gpu_median"});
    const YamlMap limits({*value}, "tolerance", valid);
    const auto limit = [&](const std::string& key, std::optional<double>& tolerance) {
      const auto given = limits.get(key);
      if (!given) return;
      tolerance.reset();
      if (!gpu || text(*given, "tolerance." + key) != "none") tolerance = share(*given, "tolerance." + key);
    };
    limit("median", result_.tolerance.median);
    limit("worst", result_.tolerance.worst);
    if (!gpu) return;
    limit("p90", result_.tolerance.p90);
    limit("gpu_median", result_.tolerance.gpu_median);
  }

  void read_systems(const YamlMap& keys) {
    for (const char* key : {"models", "throughput", "kernels"}) {
      if (const auto value = keys.get(key))
        fail_at(*value, std::string("'") + key + "' belongs to a file of kind: gpu");
    }
    keys.require("systems");
    each(keys, "systems", [&](const YamlValue& item) { read_system(item); });
    keys.require("workloads");
    each(keys, "workloads", [&](const YamlValue& item) { read_workload(item); });
    keys.require("experiments");
    each(keys, "experiments", [&](const YamlValue& item) { read_experiment(item); });
  }

  void read_gpu_tables(const YamlMap& keys) {
    for (const char* key : {"machines", "systems", "workloads", "experiments"}) {
      if (const auto value = keys.get(key)) {
        fail_at(*value, std::string("'") + key + "' belongs to a file of kind: offloading or memory");
      }
    }
    if (!keys.get("throughput") && !keys.get("kernels")) {
      fail_at(keys.top(), "a file of kind: gpu has 'throughput' or 'kernels'");
    }
    ThroughputReader reader(file_, result_);
    each(keys, "models", [&](const YamlValue& item) { reader.read_model_entry(item); });
    each(keys, "throughput", [&](const YamlValue& item) { reader.read_section(item); });
    each(keys, "kernels", [&](const YamlValue& item) { read_kernel_section(item, file_, result_); });
  }

  std::string text(const YamlValue& value, const std::string& path) const { return figures_.text(value, path); }
  std::string optional_text(const YamlMap& keys, const std::string& key, const std::string& path) const {
    const auto value = keys.get(key);
    return value ? text(*value, path) : "";
  }
  bool flag(const YamlMap& keys, const std::string& key) const {
    const auto value = keys.get(key);
    return value && figures_.choice(*value, key, {"false", "true"}) == 1;
  }
  double share(const YamlValue& value, const std::string& path) {
    const double result = figures_.positive_number(value, path);
    if (result >= 1) fail_at(value, path + ": must be below 1, such as 0.1");
    return result;
  }

  // A name stands in tables and JSON; `taken` are those there are already.
  std::string new_name(const YamlMap& keys, const std::string& what, const std::vector<std::string>& taken) const {
    const YamlValue value = keys.require("name");
    std::string name = text(value, what + ".name");
    if (name.empty() || name.size() > 64 || name.find('|') != std::string::npos || name == ideal_system) {
      fail_at(value, what + ".name: '" + name + "' is no name here; write up to 64 characters, not 'ideal', without |");
    }
    if (std::ranges::find(taken, name) != taken.end()) fail_at(value, "'" + name + "' stands twice");
    return name;
  }

  template <typename List>
  static std::vector<std::string> names_of(const List& list) {
    std::vector<std::string> names;
    for (const auto& item : list) names.push_back(item.name);
    return names;
  }

  Settings settings(const YamlValue& value, const std::string& path) const {
    if (!value.node.IsMap()) fail_at(value, path + ": expected a map of options, found " + describe(value.node));
    Settings result;
    for (const auto& entry : value.node) {
      const std::string key = text({entry.first, value.file}, path);
      if (!result.emplace(key, text({entry.second, value.file}, path + "." + key)).second) {
        fail_at({entry.first, value.file}, path + ": '" + key + "' stands twice");
      }
    }
    return result;
  }

  void read_fitted(const YamlValue& item) {
    const YamlMap keys({item}, "a fitted parameter", {"parameter", "value", "on"});
    result_.fitted.push_back({.parameter = text(keys.require("parameter"), "fitted.parameter"),
                              .value = text(keys.require("value"), "fitted.value"),
                              .on = text(keys.require("on"), "fitted.on")});
  }

  void read_machine_entry(const YamlValue& item) {
    MachineSpec machine = machine_of_node(item.node, file_);
    const auto same = [&](const MachineSpec& other) { return other.name == machine.name; };
    if (std::ranges::any_of(machines_, same)) fail_at(item, "'" + machine.name + "' stands twice");
    machines_.push_back(std::move(machine));
  }

  MachineSpec machine_named(const YamlValue& value) const {
    const std::string name = text(value, "systems.machine");
    for (const MachineSpec& machine : machines_) {
      if (machine.name == name) return machine;
    }
    try {
      return read_machine(name);
    } catch (const Error& error) {
      fail_at(value, std::string("systems.machine: ") + error.what());
    }
  }

  void read_system(const YamlValue& item) {
    const YamlMap keys({item}, "a system", {"name", "policy", "set", "machine", "iteration", "generate"});
    ValidationSystem system;
    system.name = new_name(keys, "systems", names_of(result_.systems));
    system.scenario.policy.name = text(keys.require("policy"), "systems.policy");
    if (const auto value = keys.get("set")) system.scenario.policy.settings = settings(*value, "systems.set");
    system.scenario.machine.loaded = std::make_shared<const MachineSpec>(machine_named(keys.require("machine")));
    if (const auto value = keys.get("iteration")) {
      system.scenario.iterations = figures_.count(*value, "systems.iteration", 1, 1000);
    }
    if (const auto value = keys.get("generate")) system.generate = generate_settings(*value, "systems.generate");
    check_policy(item, system.scenario.policy);
    result_.systems.push_back(std::move(system));
  }

  static void check_policy(const YamlValue& where, const PolicyChoice& policy) {
    try {
      make_policy(policy.name, policy.settings);
    } catch (const Error& error) {
      fail_at(where, error.what());
    }
  }

  GenerateSettings generate_settings(const YamlValue& value, const std::string& path) const {
    const YamlMap options({value}, path, generate_option_names());
    GenerateSettings result;
    for (const auto& entry : value.node) {
      const std::string& key = entry.first.Scalar();
      result.emplace_back(key, text({entry.second, value.file}, path + "." + key));
    }
    return result;
  }

  void read_workload(const YamlValue& item) {
    const YamlMap keys({item}, "a workload", {"name", "title", "recording", "size_column", "generate", "slow", "set"});
    ValidationWorkload workload;
    workload.name = new_name(keys, "workloads", names_of(result_.workloads));
    workload.title = optional_text(keys, "title", "workloads.title");
    workload.recording = optional_text(keys, "recording", "workloads.recording");
    workload.size_column = optional_text(keys, "size_column", "workloads.size_column");
    workload.slow = flag(keys, "slow");
    const auto generate = keys.get("generate");
    if (workload.recording.empty() == !generate) {
      fail_at(item, "a workload has either 'recording', a folder of recordings, or 'generate'");
    }
    if (!workload.size_column.empty() && generate) fail_at(item, "size_column belongs to a recording");
    if (workload.size_column.empty()) workload.size_column = "bytes4k";
    if (generate) workload.generate = generate_settings(*generate, "workloads.generate");
    if (const auto value = keys.get("set")) {
      const YamlMap systems({*value}, "workloads.set", names_of(result_.systems));
      for (const auto& entry : value->node) {
        const std::string& name = entry.first.Scalar();
        const YamlValue own{entry.second, &file_};
        workload.settings[name] = settings(own, "workloads.set." + name);
        const ValidationSystem& system = result_.system_named(name);
        PolicyChoice policy{system.scenario.policy.name, workload.settings[name]};
        policy.settings.insert(system.scenario.policy.settings.begin(), system.scenario.policy.settings.end());
        check_policy(own, policy);
      }
    }
    result_.workloads.push_back(std::move(workload));
  }

  void read_experiment(const YamlValue& item) {
    const YamlMap keys({item}, "an experiment", {"name", "workload", "source", "rows"});
    ValidationExperiment experiment;
    experiment.name = new_name(keys, "experiments", names_of(result_.experiments));
    experiment.source = optional_text(keys, "source", "experiments.source");
    const auto workloads = keys.get("workload");
    each_item(keys.require("rows"), "rows",
              [&](const YamlValue& row) { experiment.rows.push_back(read_row(row, workloads)); });
    result_.experiments.push_back(std::move(experiment));
  }

  ValidationRow read_row(const YamlValue& item, const std::optional<YamlValue>& workloads) {
    const YamlMap keys({item}, "a row",
                       {"name", "workload", "metric", "of", "over", "order", "fails", "published", "source", "fitted",
                        "not_judged", "note"});
    ValidationRow row;
    row.source = optional_text(keys, "source", "rows.source");
    row.note = optional_text(keys, "note", "rows.note");
    row.not_judged = optional_text(keys, "not_judged", "rows.not_judged");
    row.fitted = flag(keys, "fitted");
    if (const auto own = keys.get("workload"); own || workloads)
      row.workloads = read_workloads(own ? *own : *workloads);
    if (row.workloads.empty()) fail_at(item, "a row, or its experiment, needs a 'workload'");
    if (keys.get("of").has_value() + keys.get("order").has_value() + keys.get("fails").has_value() != 1) {
      fail_at(item, "a row has one of 'of' (a figure, perhaps 'over' another), 'order' and 'fails'");
    }
    const bool figure = keys.get("of").has_value();
    for (const char* key : {"over", "metric", "published", "fitted"}) {
      if (!figure && keys.get(key)) fail_at(*keys.get(key), std::string("'") + key + "' belongs to a row with 'of'");
    }
    if (figure) read_figure(keys, row);
    if (const auto value = keys.get("fails")) {
      row.kind = RowKind::fails;
      row.of = system(*value, "rows.fails");
      if (row.of == ideal_system) fail_at(*value, "rows.fails: ideal is no system that could");
      row.name = row.of + " runs out of memory";
    }
    if (const auto value = keys.get("order")) {
      row.kind = RowKind::order;
      each_item(*value, "rows.order", [&](const YamlValue& v) { row.order.push_back(system(v, "rows.order")); });
      if (row.order.size() < 2) fail_at(*value, "rows.order: name at least two systems, the fastest first");
      const bool ideal_alone = std::ranges::all_of(row.order, [](const auto& name) { return name == ideal_system; });
      if (ideal_alone) fail_at(*value, "rows.order: ideal is compared with a system");
      for (const std::string& name : row.order) row.name += (row.name.empty() ? "" : " < ") + name;
    }
    if (const auto value = keys.get("name")) row.name = text(*value, "rows.name");
    check_traces(item, row);
    return row;
  }

  // A recording is as it is.
  void check_traces(const YamlValue& item, const ValidationRow& row) const {
    std::vector<std::string> names = row.order;
    names.insert(names.end(), {row.of, row.over});
    for (const ValidationSystem& system : result_.systems) {
      if (system.generate.empty() || std::ranges::find(names, system.name) == names.end()) continue;
      for (const std::string& workload : row.workloads) {
        if (result_.workload(workload).recording.empty()) continue;
        fail_at(item,
                "system '" + system.name + "' changes what is generated, workload '" + workload + "' is recorded");
      }
    }
  }

  void read_figure(const YamlMap& keys, ValidationRow& row) {
    row.of = system(keys.require("of"), "rows.of");
    if (const auto value = keys.get("over")) row.over = system(*value, "rows.over");
    if (row.of == ideal_system && (row.over.empty() || row.over == ideal_system)) {
      fail_at(keys.top(), "ideal is compared with a system: of: ideal, over: a system");
    }
    if (const auto value = keys.get("metric")) read_metric(*value, row);
    row.published = published(keys.require("published"));
    row.name = row.of + (row.over.empty() ? "" : " ÷ " + row.over);
    if (row.metric != "seconds") row.name += ", " + row.metric;
  }

  void read_metric(const YamlValue& value, ValidationRow& row) {
    std::vector<std::string> names(std::begin(metrics), std::end(metrics));
    for (const StallCause cause : all_causes) {
      names.push_back("stall_seconds." + std::string(to_string(cause)));
    }
    const MachineSpec& machine = result_.system_named(row.of == ideal_system ? row.over : row.of).machine();
    for (const Link& link : machine.links) names.push_back("bytes." + link.name);
    row.metric = names[figures_.choice(value, "rows.metric", names)];
  }

  std::vector<std::string> read_workloads(const YamlValue& value) const {
    std::vector<std::string> names;
    const auto read_one = [&](const YamlValue& v) {
      const std::size_t index = figures_.choice(v, "workload", names_of(result_.workloads));
      names.push_back(result_.workloads[index].name);
    };
    if (value.node.IsSequence()) {
      each_item(value, "workload", read_one);
    } else {
      read_one(value);
    }
    return names;
  }

  std::string system(const YamlValue& value, const std::string& path) const {
    std::vector<std::string> names = names_of(result_.systems);
    names.emplace_back(ideal_system);
    return names[figures_.choice(value, path, names)];
  }

  // "2.54", "4469/1758", "83.9 %", "0.95..1".
  Published published(const YamlValue& value) const {
    Published result;
    result.text = trimmed(text(value, "rows.published"));
    const std::size_t range = result.text.find("..");
    if (range == std::string::npos) {
      result.from = result.to = quotient(value, result.text);
    } else {
      const std::string from = trimmed(result.text.substr(0, range));
      result.from = from == "0" ? 0 : quotient(value, from);  // a range may begin there: a wait
      result.to = quotient(value, result.text.substr(range + 2));
    }
    if (result.to < result.from) fail_at(value, "rows.published: the range '" + result.text + "' ends below its begin");
    return result;
  }
  static double quotient(const YamlValue& value, const std::string& text) {
    const std::size_t slash = text.find('/');
    if (slash == std::string::npos) return number(value, trimmed(text));
    return number(value, trimmed(text.substr(0, slash))) / number(value, trimmed(text.substr(slash + 1)));
  }
  static double number(const YamlValue& value, const std::string& text) {
    if (text.ends_with("B")) return bytes(value, text);
    const bool percent = text.ends_with("%");
    const std::string digits = percent ? trimmed(text.substr(0, text.size() - 1)) : text;
    const std::optional<double> result = parse_number(digits);
    if (!result || *result <= 0) {
      fail_at(value, "rows.published: '" + text +
                         "' is not a number above 0; write 2.54, 4469/1758, 83.9 %, 0.9..1 or 18.9 GiB");
    }
    return percent ? *result / 100 : *result;
  }
  static double bytes(const YamlValue& value, std::string text) {
    std::erase(text, ' ');
    try {
      return static_cast<double>(parse_bytes(text));
    } catch (const Error& error) {
      fail_at(value, std::string("rows.published: ") + error.what());
    }
  }

  std::string file_;
  YAML::Node root_;
  FigureReader figures_;
  std::vector<MachineSpec> machines_;
  ValidationFile result_;
};

template <typename List>
const auto& named(const List& list, const std::string& wanted) {
  const auto found = std::ranges::find(list, wanted, &List::value_type::name);
  TENCACHE_CHECK(found != list.end());
  return *found;
}

}  // namespace

const std::vector<std::string>& validation_kind_names() {
  static const std::vector<std::string> names{"offloading", "gpu", "memory"};
  return names;
}

double Published::error_of(double simulated) const {
  if (simulated < from) return simulated / from - 1;
  if (simulated > to) return simulated / to - 1;
  return 0;
}

bool ValidationFile::needs_recording(const ValidationRow& row) const {
  return std::ranges::any_of(row.workloads, [&](const std::string& name) { return !workload(name).recording.empty(); });
}

const ValidationWorkload& ValidationFile::workload(const std::string& wanted) const { return named(workloads, wanted); }

const ValidationSystem& ValidationFile::system_named(const std::string& wanted) const { return named(systems, wanted); }

GenerateSettings generate_for(const ValidationWorkload& workload, const GenerateSettings& changes) {
  GenerateSettings result = workload.generate;
  for (const auto& [key, value] : changes) {
    const auto found = std::ranges::find_if(result, [&key = key](const auto& o) { return o.first == key; });
    if (found != result.end()) {
      found->second = value;
    } else {
      result.emplace_back(key, value);
    }
  }
  return result;
}

ValidationFile parse_validation(const std::string& text, const std::string& file) {
  return ValidationReader(text, file).read();
}

std::vector<ValidationFile> read_validations(const std::vector<std::string>& names_or_files) {
  std::vector<std::string> paths;
  for (const std::string& wanted : names_or_files) {
    paths.push_back(find_config("validation", "published experiments", wanted));
  }
  if (names_or_files.empty()) {
    for (const auto& [name, path] : shipped_files("validation")) paths.push_back(path);
  }
  std::vector<ValidationFile> files;
  for (const std::string& path : paths) files.push_back(parse_validation(read_file(path, maximum_file_bytes), path));
  return files;
}

}  // namespace tencache
