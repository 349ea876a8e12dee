#include "studies/workload.h"

#include <algorithm>
#include <filesystem>
#include <tuple>
#include <utility>

#include "configs/load_policy_library.h"
#include "configs/machine_overrides.h"
#include "configs/machine_yaml.h"
#include "configs/model_yaml.h"
#include "configs/shipped_files.h"
#include "configs/tool_clock.h"
#include "core/error.h"
#include "core/names.h"
#include "core/parse_number.h"
#include "core/remark.h"
#include "core/split.h"
#include "core/text.h"
#include "policies/registry.h"
#include "studies/machine_parameter.h"
#include "traces/file/file_io.h"
#include "traces/transform/edits.h"
#include "traces/transform/fold_updates.h"

namespace tencache {
namespace {

// For the machine's GPU unless the settings name another.
Trace generate_for(GenerateSettings settings, const MachineSpec& machine) {
  const bool named = std::ranges::any_of(settings, [](const auto& entry) { return entry.first == "gpu"; });
  if (!named && !machine.gpu.empty()) settings.emplace_back("gpu", machine.gpu);
  return generate_trace(settings);
}

// What people give in place of a trace: a model's name, and files of other kinds.
void refuse_other_than_trace(const std::string& file) {
  std::error_code ignored;
  const std::string model = " --batch 1 --seq 2048";
  if (!std::filesystem::exists(file, ignored)) {
    if (find_shipped("models", file))
      throw Error("there is no trace '" + file + "'; a model is named by --model " + file + model);
    return;
  }
  if (!file.ends_with(".json")) return;
  constexpr Bytes longest = 64 * KiB;
  if (std::filesystem::file_size(file, ignored) > longest) return;
  const std::string text = read_file(file, longest);
  const auto has = [&](const char* key) { return text.find(key) != text.npos; };
  if (has("\"zero_optimization\"") || has("\"train_micro_batch_size_per_gpu\"")) {
    throw Error(file, 0,
                "is DeepSpeed's configuration, no trace: name a model (--model NAME" + model +
                    "), and give the file as `fit --with deepspeed=" + file + "` or `tune --from-deepspeed " + file +
                    "`");
  }
  if (has("\"model_type\"")) throw Error(file, 0, "describes a model and is no trace: --model " + file + model);
}

// Who says how many GPUs the computer has says the computer's memory, too.
std::size_t cpu_memory_sharers(const MachineSpec& machine, const MachineChoice& choice) {
  return choice.gpus.empty() ? 1 : machine.rank_count();
}

}  // namespace

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

MachineSpec read_machine(const MachineChoice& choice) {
  return read_machine(choice.found_at.empty() ? choice.name : choice.found_at);
}

void change_machine(MachineSpec& machine, const MachineChoice& choice, const ChangeNames& names) {
  override_gpus(machine, "--gpus", choice.gpus);
  override_link(machine, "--link", choice.link);
  override_nvme(machine, "--nvme", choice.nvme);
  override_capacity(machine, Device::gpu, names.gpu_memory, choice.gpu_memory);
  override_capacity(machine, Device::cpu, names.cpu_memory, choice.cpu_memory, cpu_memory_sharers(machine, choice));
  override_allocator(machine, names.gpu_allocator, choice.gpu_allocator);
  find_memory_bandwidth(machine);
  for (const std::string& limit : choice.limits) limit_link(machine, names.limit + limit, limit);
  override_run_ahead(machine, "--run-ahead", choice.run_ahead);
}

MachineSpec load_machine(const MachineChoice& choice, std::string* sha256) {
  MachineSpec machine = read_machine(choice);
  if (sha256 != nullptr) *sha256 = sha256_of_machine(machine);
  change_machine(machine, choice);
  return machine;
}

std::vector<std::string> input_files(const Scenario& scenario) {
  const MachineSpec machine = read_machine(scenario.machine);
  std::vector<std::string> files = machine.base_files;
  files.insert(files.end(), {machine.file, scenario.trace.file, scenario.trace.found_at, scenario.prices.file});
  for (const auto& [name, value] : scenario.trace.generate) {
    if (name == "model") files.push_back(find_model_file(value));
  }
  for (const std::string& library : loaded_policy_libraries()) files.push_back(library);
  return files;
}

void set_trace(Workload& workload, Trace trace) {
  TraceChoice& choice = workload.scenario.trace;
  const auto scale = [](const char* option, const std::string& text) {
    return text.empty() ? 1 : parse_scale(option, text);
  };
  const double bytes = scale("--scale-bytes", choice.scale_bytes), time = scale("--scale-time", choice.scale_time);
  try {
    workload.rescaling = rescale_to_machine(trace, workload.machine, choice.rescale);
  } catch (const Error&) {
    if (!choice.rescale.where_known || !choice.rescale.assume_gpu.empty()) throw;
    choice.rescale.no_rescale = true;
    workload.rescaling.reset();
  }
  workload.gpu_time = modelled_gpu_time(trace, workload.rescaling);
  if (bytes != 1 || time != 1) scale_trace(trace, bytes, time);
  workload.trace = std::make_shared<const Trace>(std::move(trace));
}

Workload with_changed_trace(Workload workload) {
  double& speed = workload.scenario.trace.gpu_speed;
  std::uint64_t& batch = workload.scenario.trace.batch;
  if (batch != 0 && batch != workload.trace->header.batch) {
    const GenerateSettings* const made_with = generate_settings_of(workload.trace->header);
    if (made_with == nullptr) throw Error("the batch of a trace that was not generated cannot be changed");
    GenerateSettings settings = *made_with;
    for (auto& [name, value] : settings) {
      if (name == "batch") value = std::to_string(batch);
      if (name == "block") {  // as many micro-batches
        const std::string batches = value.find('x') == value.npos ? "1" : value.substr(value.find('x') + 1);
        value = std::to_string(batch / std::stoull(batches)) + "x" + batches;
      }
    }
    set_trace(workload, generate_trace(settings));
  }
  if (speed != 1) workload.trace = std::make_shared<const Trace>(with_gpu_speed(*workload.trace, speed));
  batch = 0;
  speed = 1;
  return workload;
}

Workload load_workload(const Scenario& scenario) {
  const std::int64_t start = tool_clock_ns();
  Workload workload;
  workload.scenario = scenario;
  if (scenario.machine.loaded != nullptr) {
    workload.machine = *scenario.machine.loaded;
  } else {
    workload.machine = load_machine(scenario.machine, &workload.machine_sha256);
    Prices prices(scenario.prices);
    workload.price = prices.apply(workload.machine);
    prices.check_all_used();
  }
  const TraceChoice& trace = scenario.trace;
  if (!trace.generate.empty()) {
    if (!trace.file.empty()) throw Error("TRACE and --" + trace.generate.front().first + " exclude each other");
    doing("generating the trace");
    set_trace(workload, generate_for(trace.generate, workload.machine));
    workload.scenario.trace.file = workload.trace->header.recorded_by;
  } else if (trace.loaded != nullptr) {
    workload.trace_sha256 = trace.loaded_sha256;
    if (trace.rescale.no_rescale && trace.scale_bytes.empty() && trace.scale_time.empty()) {
      workload.trace = trace.loaded;  // without a copy
      workload.gpu_time = modelled_gpu_time(*trace.loaded, {});
    } else {
      set_trace(workload, *trace.loaded);
    }
  } else {
    if (trace.file.empty()) throw Error("TRACE is required, or --model with the options of `tencache generate`");
    const std::string& file = trace.found_at.empty() ? trace.file : trace.found_at;
    doing("reading " + file);
    refuse_other_than_trace(file);
    FoldedUpdates folded;
    Trace read = read_trace_to_simulate(file, &folded);
    workload.trace_sha256 = sha256_of_file(file);
    if (folded.kernels > 0) remark("note: " + folded.to_string());
    set_trace(workload, std::move(read));
  }
  workload = with_changed_trace(std::move(workload));
  workload.load_seconds = seconds_since(start);
  return workload;
}

bool is_like_measured(const Workload& workload) {
  const Scenario& scenario = workload.scenario;
  const auto scaled = [](const std::string& factor) { return !factor.empty() && factor != "1"; };
  return !scenario.machine.changed() && !scaled(scenario.trace.scale_bytes) && !scaled(scenario.trace.scale_time) &&
         !workload.rescaling && taken_as_they_are(*workload.trace, workload.machine, scenario.trace.rescale).empty();
}

std::string machine_title(const Workload& workload) {
  const MachineSpec& machine = workload.machine;
  const MachineChoice& choice = workload.scenario.machine;
  std::vector<std::string> changes;
  for (const auto& [device, name, size] :
       {std::tuple{Device::gpu, "GPU memory ", choice.gpu_memory}, {Device::cpu, "CPU memory ", choice.cpu_memory}}) {
    if (size.empty()) continue;
    const std::size_t ranks = device == Device::cpu ? cpu_memory_sharers(machine, choice) : 1;
    changes.push_back(name + format_bytes(machine.tiers[machine.tier_of(device)].capacity * ranks));
  }
  if (!choice.gpus.empty()) changes.push_back(choice.gpus + (choice.gpus == "1" ? " GPU" : " GPUs"));
  if (!choice.link.empty()) changes.push_back("link " + choice.link);
  if (!choice.nvme.empty()) changes.push_back("SSD " + choice.nvme);
  if (!choice.gpu_allocator.empty()) changes.push_back("GPU allocator " + choice.gpu_allocator);
  for (const std::string& limit : choice.limits) {
    const auto link = std::ranges::find(machine.links, limit.substr(0, limit.find('=')), &Link::name);
    if (link == machine.links.end()) continue;
    changes.push_back(link->name + " at most " + format_bandwidth(link->bandwidth));
  }
  if (!choice.run_ahead.empty()) {
    changes.push_back(machine.run_ahead.ops == 0 ? "each op waited for"
                                                 : std::to_string(machine.run_ahead.ops) + " ops run ahead");
  }
  return printable(machine.name) + (changes.empty() ? "" : " with " + join(changes));
}

Outcome simulate_policy(const Workload& workload, const std::string& policy,
                        const std::map<std::string, std::string>& settings, const Recorders& recorders) {
  return simulate_policy(*workload.trace, workload.machine, policy, settings, limits_of(workload.scenario.iterations),
                         recorders);
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
    return refused(policy, error);
  }
}

std::vector<std::string> policies_named(const std::string& list) {
  std::vector<std::string> valid;
  for (const PolicyInfo& info : list_policies()) valid.push_back(info.name);
  if (list == "all") return valid;
  std::vector<std::string> names;
  for (const std::string& name : split(list)) {
    if (name.empty()) throw Error("'" + list + "' has an empty name; write policies with one comma between them");
    if (name == "bound") throw Error("'bound' is no policy: the lower bound is a row of every table; see also `bound`");
    const std::optional<std::string> found = match_name(name, valid);
    if (!found) throw Error("unknown policy '" + name + "'; " + policies_like(name) + ", and `all` is all");
    if (std::ranges::find(names, *found) == names.end()) names.push_back(*found);
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

References references_of(const Workload& workload, const Recorders& recorders) {
  return references_of(*workload.trace, workload.machine, limits_of(workload.scenario.iterations), recorders);
}

}  // namespace tencache
