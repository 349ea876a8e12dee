#include "studies/sweep/sweep_run.h"

#include <algorithm>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/thread_annotations.h"
#include "policies/registry.h"
#include "studies/generation.h"
#include "studies/parallel.h"
#include "studies/sweep/sweep_costs.h"
#include "studies/validity.h"
#include "studies/workload.h"
#include "traces/transform/fold_updates.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

std::string command_of(const GenerateSettings& settings) {
  std::string text = "generate";
  for (const auto& [name, value] : settings) text += " --" + name + " " + value;
  return text;
}

std::string options_text(const std::map<std::string, std::string>& options) {
  return nlohmann::ordered_json(options).dump();
}

Bytes peak_of(const MachineSpec& machine, const RunResult& result, TierKind kind, bool& has_tier) {
  Bytes bytes = 0;
  has_tier = false;
  for (std::size_t tier = 0; tier < machine.tiers.size(); ++tier) {
    if (machine.tiers[tier].kind != kind) continue;
    has_tier = true;
    bytes += result.peak_bytes[tier];
  }
  return bytes;
}

void add_figures(SweepRow& row, const Workload& workload, const Outcome& outcome) {
  const MachineSpec& machine = workload.machine.of_rank(outcome.rank);
  const RunResult& result = outcome.result;
  row.fits = result.fits;
  if (!result.fits) {
    row.reason = result.misfit;
    return;
  }
  row.iteration_seconds = result.iteration_seconds();
  row.first_iteration_seconds = static_cast<double>(result.first_iteration_ns) * 1e-9;
  if (const TimeAtBounds at = time_at_bounds(machine, result, *row.iteration_seconds); !at.links.empty()) {
    row.iteration_seconds_fast = at.fast;
    row.iteration_seconds_slow = at.slow;
  }
  if (row.ideal_seconds && *row.ideal_seconds > 0) row.slowdown = *row.iteration_seconds / *row.ideal_seconds;
  const StallCause cause = largest_of(result.window.stall_ns);
  if (const Nanoseconds longest = result.window.stall_ns[cause]; longest > 0) {
    row.waits_for = to_string(cause);
    row.waits_seconds = static_cast<double>(longest) * 1e-9 / static_cast<double>(result.period);
  }
  const auto peak = [&](TierKind kind, std::optional<std::uint64_t>& field) {
    bool has_tier = false;
    const Bytes bytes = peak_of(machine, result, kind, has_tier);
    if (has_tier) field = bytes;
  };
  peak(TierKind::gpu, row.gpu_peak_bytes);
  peak(TierKind::cpu, row.cpu_peak_bytes);
  peak(TierKind::nvme, row.nvme_peak_bytes);
  if (row.tokens_per_iteration != 0 && *row.iteration_seconds > 0) {
    row.tokens_per_second = static_cast<double>(row.tokens_per_iteration) / *row.iteration_seconds;
  }
  if (const std::optional<Generation> generation = generation_of(*workload.trace, outcome.rank)) {
    row.time_to_first_token_seconds = time_to_first_token_seconds(*generation, result);
    row.time_per_output_token_seconds = time_per_output_token_seconds(*generation, result);
  }
}

// A file that is no trace: the user's slip, and no reason why something does not fit.
class UnreadableTrace : public Error {
  using Error::Error;
};

Trace read_recorded(const std::string& file) {
  try {
    return read_trace_to_simulate(file);
  } catch (const Error& error) {
    throw UnreadableTrace(error.what());
  }
}

// What all rows of a unit have in common, before its trace is known.
SweepRow common_row(const SweepWorkload& workload, const PlannedTrace& planned, const PlannedMachine& machine) {
  const MachineChoice& asked = machine.asked.machine;
  SweepRow row;
  row.workload = workload.name;
  row.trace = planned.trace.file.empty() ? command_of(planned.trace.generate) : planned.trace.file;
  row.machine = machine.spec.name;
  row.gpu = machine.spec.gpu;
  row.gpu_memory = asked.gpu_memory;
  row.cpu_memory = asked.cpu_memory;
  for (const std::string& limit : asked.limits) row.limits += (row.limits.empty() ? "" : " ") + limit;
  row.gpus = machine.spec.rank_count();
  return row;
}

// And what is known once it is there.
void add_trace_facts(SweepRow& row, const Workload& workload) {
  const TraceHeader& header = workload.trace->header;
  row.model = header.model;
  row.batch = header.batch;
  row.sequence_length = header.sequence_length;
  row.tokens_per_iteration = header.tokens_per_iteration();
  row.gpus_used = rank_count(*workload.trace);
  row.durations = workload.rescaling ? "rescaled" : header.hardware.starts_with("modelled") ? "modelled" : "measured";
  if (workload.rescaling) row.rescaled_from = workload.rescaling->from;
  if (workload.gpu_time) {
    row.gpu_time_error = workload.gpu_time->error;
    row.gpu_time_extrapolated_share = workload.gpu_time->extrapolated_share;
  }
}

// The GPU that durations are of which are not rescaled to the machine's; else empty.
std::string taken_from(const Workload& workload) {
  return taken_as_they_are(*workload.trace, workload.machine, workload.scenario.trace.rescale);
}

// `validated`: of the machine and the trace's recorder; null where nothing like it was measured.
void add_validity(SweepRow& row, const Workload& workload, const Validated* validated, const PolicyRun& run) {
  const Provenance& provenance = workload.trace->header.provenance;
  row.validity = validity_text(validated, run, provenance);
  const std::string from = taken_from(workload);
  if (!from.empty()) row.validity += ", durations of " + from + " taken as they are";
  if (validated != nullptr && validates_time(*validated, run, provenance)) row.validated_within = validated->worst;
}

std::set<std::string> keys_of(const SweepPlan& plan) {
  std::set<std::string> keys;
  for (const SweepUnit& unit : plan.units) {
    for (const PlannedRow& row : unit.rows) keys.insert(row.key);
  }
  return keys;
}

// What is asked of another rank: a unit, less the rows that are there already.
std::string task_of(const SweepPlan& plan, const SweepUnit& unit, const std::set<std::string>& done) {
  nlohmann::json skip = nlohmann::json::array();
  for (const PlannedRow& row : unit.rows) {
    if (done.contains(row.key)) skip.push_back(row.key);
  }
  return nlohmann::json{{"unit", &unit - plan.units.data()}, {"skip", std::move(skip)}}.dump();
}

// Takes rows from all threads and writes them on one, whatever has come meanwhile at once.
class RowWriter {
 public:
  explicit RowWriter(SweepStore& store) : store_(store), thread_([this] { work(); }) {}
  ~RowWriter() { end(); }

  // Throws what writing threw.
  void add(std::vector<SweepRow> rows) {
    const MutexLock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    std::move(rows.begin(), rows.end(), std::back_inserter(waiting_));
    changed_.notify_one();
  }
  void close() {
    end();
    const MutexLock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void end() {
    {
      const MutexLock lock(mutex_);
      closed_ = true;
      changed_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }
  void work() {
    MutexLock lock(mutex_);
    while (true) {
      while (!closed_ && waiting_.empty()) changed_.wait(lock);
      if (waiting_.empty() || failure_) return;
      const std::vector<SweepRow> rows = std::exchange(waiting_, {});
      lock.unlock();
      std::exception_ptr failure;
      try {
        store_.add(rows);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failure_ = failure;
      if (failure_) return;
    }
  }

  SweepStore& store_;
  Mutex mutex_;
  Condition changed_;
  std::vector<SweepRow> waiting_ TENCACHE_GUARDED_BY(mutex_);
  bool closed_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ TENCACHE_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace

class SweepRunner::Traces {
 public:
  explicit Traces(const SweepPlan& plan) : plan_(plan) {}

  // The trace on one of the machines that it is made for. Throws Error where it cannot be made.
  std::shared_ptr<const Workload> get(std::size_t index) {
    std::promise<std::shared_ptr<const Workload>> promise;
    std::shared_future<std::shared_ptr<const Workload>> trace;
    bool mine = false;
    {
      const MutexLock lock(mutex_);
      made_.erase(made_.begin(), made_.lower_bound(index));
      auto& known = made_[index];
      mine = !known.valid();
      if (mine) known = promise.get_future().share();
      trace = known;
    }
    if (mine) {
      try {
        promise.set_value(std::make_shared<const Workload>(make(plan_.traces[index])));
      } catch (...) {
        promise.set_exception(std::current_exception());
      }
    }
    return trace.get();
  }

 private:
  Workload make(const PlannedTrace& planned) const {
    const MachineSpec& machine = plan_.machines[planned.machine].spec;
    for (const auto& [name, value] : planned.trace.generate) {
      if (name == "gpu" && value.empty()) {
        throw Error("machine " + machine.name + " does not name its GPU; give the workload one, as `gpu`");
      }
    }
    Scenario scenario;
    scenario.trace = planned.trace;
    scenario.machine.loaded = std::make_shared<const MachineSpec>(machine);
    scenario.iterations = plan_.file.iterations;
    const std::string& file = planned.trace.file;
    if (!file.empty()) scenario.trace.loaded = std::make_shared<const Trace>(read_recorded(file));
    return load_workload(scenario);
  }

  const SweepPlan& plan_;
  Mutex mutex_;
  std::map<std::size_t, std::shared_future<std::shared_ptr<const Workload>>> made_ TENCACHE_GUARDED_BY(mutex_);
};

SweepRunner::SweepRunner(const SweepPlan& plan)
    : plan_(plan), traces_(std::make_unique<Traces>(plan)), validated_(read_validated()) {}
SweepRunner::~SweepRunner() = default;

std::vector<SweepRow> SweepRunner::run(const SweepUnit& unit, const std::set<std::string>& skip) {
  const PlannedTrace& planned = plan_.traces[unit.trace];
  const PlannedMachine& machine = plan_.machines[unit.machine];
  SweepRow common = common_row(plan_.file.workloads[planned.workload], planned, machine);
  Workload workload;
  std::optional<References> references;
  const Validated* validated = nullptr;
  try {
    if (!machine.refusal.empty()) throw Error(machine.refusal);
    workload = *traces_->get(unit.trace);
    workload.machine = machine.spec;
    workload.scenario.machine = machine.asked.machine;
    add_trace_facts(common, workload);
    if (is_like_measured(workload)) {
      validated = validated_for(validated_, machine.spec.name, workload.trace->header.provenance.made_by);
    }
    references = references_of(workload);
    common.ideal_seconds = references->ideal_seconds;
    references->name_bounds(common, references->bound_seconds);
    common.bound_term = references->bound_term;
  } catch (const UnreadableTrace&) {
    throw;
  } catch (const Error& error) {
    common.reason = error.what();
  }

  std::vector<SweepRow> rows;
  for (const PlannedRow& planned_row : unit.rows) {
    if (skip.contains(planned_row.key)) continue;
    SweepRow row = common;
    row.key = planned_row.key;
    row.position = planned_row.position;
    const auto& [policy, settings] = plan_.file.policies[planned_row.policy];
    row.build = plan_.builds[planned_row.policy];
    row.policy = policy;
    const PolicyRun run{policy, make_policy(policy, settings).options, make_policy(policy).options};
    row.options = options_text(run.options);
    if (references) {
      try {
        const Outcome outcome = simulate_policy(workload, policy, settings);
        references->name_bounds(row, references->bound_of(outcome.result));
        if (outcome.runs_with) row.runs_with = to_string(*outcome.runs_with);
        row.changes_training = counterparts_of(policy).changes_training;
        add_figures(row, workload, outcome);
      } catch (const Error& error) {
        row.reason = error.what();
      }
    }
    if (row.fits) add_validity(row, workload, validated, run);
    add_costs(row, machine, plan_.file.cost);
    rows.push_back(std::move(row));
  }
  return rows;
}

SweepResume resume(const SweepPlan& plan, SweepStore& store) {
  const std::set<std::string> keys = keys_of(plan);
  SweepResume resumed;
  std::vector<std::string> others;
  std::size_t of_other_builds = 0, dropped = 0;
  std::string other_build;
  for (const SweepRow& row : store.rows()) {
    if (std::ranges::find(plan.builds, row.build) == plan.builds.end()) {
      ++of_other_builds;
      other_build = row.build;
    }
    keys.contains(row.key) ? void(resumed.done.insert(row.key)) : others.push_back(row.key);
    if (!keys.contains(row.key) && row.policy != "ideal") ++dropped;
  }
  if (of_other_builds != 0) {
    throw Error("the results file holds " + std::to_string(of_other_builds) +
                " rows of another build of the program or of a policy library (" + other_build + "; this is " +
                plan.builds.front() +
                "): figures of two builds are not mixed; name another file, or remove it to simulate all of it anew");
  }
  if (resumed.done.empty() && !others.empty()) {
    throw Error("the results file holds " + std::to_string(others.size()) +
                " rows of another sweep or of other inputs; name another file, or remove it");
  }
  if (plan.part && !others.empty()) {
    throw Error("the results file holds " + std::to_string(others.size()) +
                " rows that are not of this part of the sweep; name a file of its own for each part");
  }
  if (!others.empty()) store.remove(others);
  resumed.dropped = dropped;
  return resumed;
}

Answer answer_units(const SweepPlan& plan) {
  const auto runner = std::make_shared<SweepRunner>(plan);
  return [runner, &plan](const std::string& task) {
    const nlohmann::json json = nlohmann::json::parse(task);
    return encode_rows(
        runner->run(plan.units.at(json["unit"].get<std::size_t>()), json["skip"].get<std::set<std::string>>()));
  };
}

void run_sweep(const SweepPlan& plan, SweepStore& store, const SweepResume& resumed, std::size_t threads,
               const SweepProgress& progress, RankLeader* leader) {
  std::vector<const SweepUnit*> units;
  const std::uint64_t rows = row_count(plan);
  for (const SweepUnit& unit : plan.units) {
    if (std::ranges::any_of(unit.rows, [&](const PlannedRow& row) { return !resumed.done.contains(row.key); })) {
      units.push_back(&unit);
    }
  }
  if (!units.empty()) store.set_about({});  // until its end it is no whole sweep
  std::uint64_t done = resumed.done.size();
  const std::set<std::string> keys = keys_of(plan);
  std::mutex mutex;
  RowWriter writer(store);
  const auto take = [&](std::vector<SweepRow> made) {
    const std::uint64_t count = made.size();
    writer.add(std::move(made));
    const std::lock_guard lock(mutex);
    done += count;
    if (progress) progress(done, rows);
  };
  if (leader != nullptr) {
    std::vector<std::string> tasks;
    for (const SweepUnit* unit : units) tasks.push_back(task_of(plan, *unit, resumed.done));
    const auto take_answer = [&](std::string&& answer) {
      std::vector<SweepRow> made = decode_rows(answer);
      for (const SweepRow& row : made) {
        if (!keys.contains(row.key)) {
          throw Error("a rank answered with another sweep's row (build " + row.build + ", here " + plan.builds.front() +
                      "): all ranks need the same program and the same files");
        }
      }
      take(std::move(made));
    };
    leader->distribute(tasks, take_answer, answer_units(plan));
  } else {
    SweepRunner runner(plan);
    on_all_cores(
        units.size(), [&](std::size_t i) { take(runner.run(*units[i], resumed.done)); }, threads);
  }
  writer.close();
  finish_sweep(plan, store);
}

void finish_sweep(const SweepPlan& plan, SweepStore& store) {
  std::map<std::string, std::size_t> machines, positions;
  for (const SweepUnit& unit : plan.units) {
    for (const PlannedRow& row : unit.rows) {
      machines[row.key] = unit.machine;
      positions[row.key] = row.position;
    }
  }
  const std::vector<SweepRow> before = store.rows();
  std::vector<SweepRow> rows = before;
  for (SweepRow& row : rows) {
    row.position = positions.at(row.key);
    add_costs(row, plan.machines[machines.at(row.key)], plan.file.cost);
  }
  mark_fronts(rows, plan.any_policy);
  std::vector<SweepRow> changed;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != before[i]) changed.push_back(rows[i]);
  }
  store.add(changed);
  std::map<std::string, std::string> about{{"name", plan.file.name},
                                           {"description", plan.file.description},
                                           {"file", plan.file.file},
                                           {"file_sha256", plan.file_sha256},
                                           {"command", plan.command},
                                           {"build", plan.build},
                                           {"combinations", std::to_string(plan.combinations)},
                                           {"ideal_combinations", std::to_string(plan.ideals)},
                                           {"combinations_sha256", plan.sha256},
                                           {"prices_sha256", plan.prices_sha256},
                                           {"budget_usd_per_hour", std::to_string(plan.file.cost.budget_usd_per_hour)}};
  if (plan.any_policy) about.emplace("any_policy", "true");
  store.set_about(about);
}

}  // namespace tencache
