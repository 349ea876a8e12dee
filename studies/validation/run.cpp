#include "studies/validation/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "core/error.h"
#include "core/metrics.h"
#include "core/timeline.h"
#include "studies/fragment.h"
#include "studies/parallel.h"
#include "studies/workload.h"
#include "traces/import/csv.h"
#include "traces/transform/allocations_of.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

// A workload's trace, made when the first of its runs begins and given up when the last is over.
class SharedTrace {
 public:
  SharedTrace(const ValidationFile& file, const ValidationWorkload& workload, GenerateSettings generate,
              std::string recording)
      : file_(file), workload_(workload), generate_(std::move(generate)), recording_(std::move(recording)) {}

  const ValidationWorkload& workload() const { return workload_; }
  void add_run() { ++runs_; }
  std::shared_ptr<const Trace> take() {
    const std::lock_guard lock(mutex_);
    if (!trace_) trace_ = std::make_shared<const Trace>(make());
    std::shared_ptr<const Trace> trace = trace_;
    if (--runs_ == 0) trace_.reset();
    return trace;
  }

 private:
  Trace make() const {
    try {
      if (recording_.empty()) return generated();
      CsvImportOptions options;
      options.ops_file = recording_;
      options.size_column = workload_.size_column;
      return import_csv(options);
    } catch (const Error& error) {
      throw Error(file_.name + ": workload '" + workload_.name + "': " + error.what());
    }
  }

  Trace generated() const {
    Trace trace = generate_trace(generate_, workload_.model ? &*workload_.model : nullptr);
    if (!workload_.one_rank || rank_count(trace) == 1) return trace;
    std::vector<Trace> ranks = split_ranks(trace);
    const std::vector<std::size_t> first = alike_ranks(ranks);
    const bool alike = std::ranges::all_of(first, [](std::size_t rank) { return rank == 0; });
    return alike ? std::move(ranks[0]) : trace;
  }

  const ValidationFile& file_;
  const ValidationWorkload& workload_;
  GenerateSettings generate_;
  std::string recording_;
  std::size_t runs_ = 0;
  std::mutex mutex_;
  std::shared_ptr<const Trace> trace_;
};

struct Task {
  const ValidationFile* file = nullptr;
  RunKey key;
  std::shared_ptr<SharedTrace> trace;
  const ValidationSystem* system = nullptr;  // for the ideal: whose machine it is
  RunFigures figures;

  bool ideal() const { return key.second != system->name; }
};

template <typename Wanted>
Bytes bytes_of(const Trace& trace, Wanted wanted) {
  Bytes bytes = 0;
  for (const Tensor& tensor : trace.tensors) bytes += wanted(tensor) ? tensor.bytes : 0;
  return bytes;
}

RunFigures figures_of(const Outcome& outcome, const MachineSpec& machine, std::uint64_t iteration) {
  const RunResult& result = outcome.result;
  RunFigures figures;
  figures.state = result.fits ? RunState::done : RunState::out_of_memory;
  figures.reason = result.misfit;
  figures.notes = result.policy_notes;
  if (!result.fits) return figures;
  const auto share = [](std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  const auto set = [&](const std::string& name, double value) { figures.figures[name] = value; };
  set("seconds", iteration == 0 ? result.iteration_seconds() : to_seconds(result.iteration_ns.at(iteration - 1)));
  const auto phase = [&](Phase wanted) {
    return per_iteration_seconds(result, result.window.phase_ns[static_cast<std::size_t>(wanted)]);
  };
  set("forward_seconds", phase(Phase::forward) + phase(Phase::loss));
  set("backward_seconds", phase(Phase::backward));
  set("update_seconds", phase(Phase::optimizer));
  set("prefill_seconds", phase(Phase::prefill));
  set("decode_seconds", phase(Phase::decode));
  const AccessCounters accesses = result.window.all_accesses();
  set("hit_rate.tensors", share(result.window.tensors_held, result.window.tensors));
  set("hit_rate.accesses", share(accesses.hits, accesses.accesses));
  set("hit_rate.bytes", share(accesses.hit_bytes, accesses.access_bytes));
  const auto set_peak = [&](const char* name, const auto& left_out) {
    const Bytes peak = result.peak_bytes[0];
    set(name, static_cast<double>(peak - std::min(peak, bytes_of(outcome.program.trace, left_out))));
  };
  set_peak("peak_bytes", [](const Tensor&) { return false; });
  set_peak("peak_bytes_less_optimizer", [](const Tensor& tensor) { return tensor.role == Role::optimizer_state; });
  set_peak("peak_activation_bytes", [](const Tensor& tensor) { return tensor.persistent; });
  for (std::size_t link = 0; link < machine.links.size(); ++link) {
    const auto bytes = static_cast<double>(result.window.links[link].bytes);
    set("bytes." + machine.links[link].name, bytes / static_cast<double>(result.period));
  }
  for (const StallCause cause : all_causes) {
    set("stall_seconds." + std::string(to_string(cause)), per_iteration_seconds(result, result.window.stall_ns[cause]));
  }
  figures.waits_for = main_stall(result);
  return figures;
}

Scenario scenario_of(const Task& task) {
  Scenario scenario = task.system->scenario;
  scenario.trace.loaded = task.trace->take();
  scenario.trace.rescale.no_rescale = true;  // they are of the GPU that the file says
  if (task.ideal()) {
    scenario.policy = {ideal_system, {}};
    scenario.iterations = 0;
    return scenario;
  }
  const auto& of_workload = task.trace->workload().settings;
  if (const auto found = of_workload.find(task.system->name); found != of_workload.end()) {
    for (const auto& [option, value] : found->second) scenario.policy.settings[option] = value;
  }
  return scenario;
}

Bytes reserved_bytes(const Trace& trace) {
  constexpr unsigned iterations = 3;
  return run_fragment(allocations_of({&trace}, {iterations, false}), fragment_allocator("default"), no_fragment_limit)
      .reserved_peak;
}

RunFigures simulate_task(const Task& task) {
  const Workload workload = load_workload(scenario_of(task));
  const auto& [policy, settings] = workload.scenario.policy;
  try {
    const Outcome outcome = simulate_policy(workload, policy, settings);
    RunFigures figures = figures_of(outcome, workload.machine.of_rank(outcome.rank), workload.scenario.iterations);
    if (task.file->kind == ValidationKind::memory && figures.state == RunState::done) {
      figures.figures["peak_reserved_bytes"] = static_cast<double>(reserved_bytes(outcome.program.trace));
    }
    return figures;
  } catch (const Error& error) {
    RunFigures refused;
    refused.state = RunState::refused;
    refused.reason = error.what();
    return refused;
  }
}

const ValidationSystem& system_of(const ValidationFile& file, const RunKey& key) {
  for (const ValidationSystem& system : file.systems) {
    if (system.name == key.second || ideal_run(system) == key.second) return system;
  }
  throw Error(file.name + ": no system '" + key.second + "'");
}

// Where the workload's recording is; `why_not` if it is not to be simulated.
std::string find_recording(const ValidationWorkload& workload, const ValidationOptions& options, std::string& why_not) {
  if (workload.slow && options.quick) why_not = "left out by --quick";
  if (workload.recording.empty() || !why_not.empty()) return "";
  if (options.traces.empty()) {
    why_not = "needs the recording " + workload.recording + "; give its folder with --traces";
    return "";
  }
  const std::filesystem::path folder = std::filesystem::path(options.traces) / workload.recording;
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    why_not = "the folder of --traces has no recording " + workload.recording;
  }
  return folder.string();
}

std::vector<Task> tasks_of(const ValidationFile& file, const ValidationOptions& options, RunTable& runs) {
  std::vector<Task> tasks;
  std::map<std::pair<std::string, GenerateSettings>, std::shared_ptr<SharedTrace>> traces;
  for (const RunKey& key : runs_needed(file)) {
    const ValidationWorkload& workload = file.workload(key.first);
    std::string why_not;
    const std::string recording = find_recording(workload, options, why_not);
    if (!why_not.empty()) {
      runs[key].reason = why_not;
      continue;
    }
    const ValidationSystem& system = system_of(file, key);
    const bool ideal = key.second != system.name;
    const GenerateSettings generate = generate_for(workload, ideal ? GenerateSettings{} : system.generate);
    std::shared_ptr<SharedTrace>& trace = traces[{key.first, generate}];
    if (!trace) trace = std::make_shared<SharedTrace>(file, workload, generate, recording);
    trace->add_run();
    tasks.push_back({.file = &file, .key = key, .trace = trace, .system = &system, .figures = {}});
  }
  return tasks;
}

// Takes the tasks in their order, which keeps those of a workload together.
void run_tasks(std::vector<Task>& tasks, const ValidationOptions& options) {
  std::size_t done = 0;
  std::mutex mutex;
  on_all_cores(tasks.size(), [&](std::size_t i) {
    Task& task = tasks[i];
    task.figures = simulate_task(task);
    const std::lock_guard lock(mutex);
    ++done;
    if (options.progress) {
      options.progress(fmt::format("{} of {} simulations: {}, {} under {}", done, tasks.size(), task.file->name,
                                   task.key.first, task.key.second));
    }
  });
}

}  // namespace

std::vector<ValidationResult> run_validations(const std::vector<ValidationFile>& files,
                                              const ValidationOptions& options) {
  std::map<const ValidationFile*, RunTable> runs;
  std::vector<Task> tasks;
  for (const ValidationFile& file : files) {
    for (Task& task : tasks_of(file, options, runs[&file])) tasks.push_back(std::move(task));
  }
  run_tasks(tasks, options);
  for (Task& task : tasks) runs[task.file][task.key] = std::move(task.figures);
  KernelTable kernels;
  for (const ValidationFile& file : files) {
    for (const ValidationExperiment& experiment : file.experiments) {
      for (const ValidationRow& row : experiment.rows) {
        if (row.kernels) kernels[&*row.kernels] = figures_of_kernels(*row.kernels);
      }
    }
  }
  std::vector<ValidationResult> results;
  for (const ValidationFile& file : files) results.push_back(evaluate(file, std::move(runs[&file]), kernels));
  return results;
}

}  // namespace tencache
