#include "sim/sweep/sweep_run.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "core/error.h"
#include "policies/registry.h"
#include "sim/parallel.h"
#include "sim/policy_run.h"
#include "traces/split_ranks.h"
#include "traces/trace_file.h"

namespace tencache {
namespace {

std::string command_of(const TraceSettings& settings) {
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

void add_figures(SweepRow& row, const MachineSpec& machine, const RunResult& result) {
  row.fits = result.fits;
  if (!result.fits) {
    row.reason = result.misfit;
    return;
  }
  row.iteration_seconds = result.iteration_seconds();
  row.first_iteration_seconds = static_cast<double>(result.first_iteration_ns) * 1e-9;
  if (row.ideal_seconds && *row.ideal_seconds > 0) row.slowdown = *row.iteration_seconds / *row.ideal_seconds;
  const auto& stalls = result.window.stall_ns;
  const auto longest = std::max_element(stalls.begin(), stalls.end());
  if (*longest > 0) {
    row.waits_for = to_string(static_cast<StallCause>(longest - stalls.begin()));
    row.waits_seconds = static_cast<double>(*longest) * 1e-9 / static_cast<double>(result.period);
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
}

struct MadeTrace {
  Trace trace;
  std::string durations;  // of SweepRow
};

void add_trace_facts(SweepRow& row, const Trace& trace) {
  row.model = trace.header.model;
  row.batch = trace.header.batch;
  row.sequence_length = trace.header.sequence_length;
  row.tokens_per_iteration = trace.header.tokens_per_iteration();
  row.gpus_used = rank_count(trace);
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
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    std::move(rows.begin(), rows.end(), std::back_inserter(waiting_));
    changed_.notify_one();
  }
  void close() {
    end();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void end() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      changed_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
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
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<SweepRow> waiting_;
  bool closed_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace

class SweepRunner::Traces {
 public:
  Traces(const SweepPlan& plan, const SweepTools& tools) : plan_(plan), tools_(tools) {}

  // Throws Error where it cannot be made.
  std::shared_ptr<const MadeTrace> get(std::size_t index) {
    std::promise<std::shared_ptr<const MadeTrace>> promise;
    std::shared_future<std::shared_ptr<const MadeTrace>> trace;
    bool mine = false;
    {
      const std::lock_guard lock(mutex_);
      made_.erase(made_.begin(), made_.lower_bound(index));
      auto& known = made_[index];
      mine = !known.valid();
      if (mine) known = promise.get_future().share();
      trace = known;
    }
    if (mine) {
      try {
        promise.set_value(std::make_shared<const MadeTrace>(make(plan_.traces[index])));
      } catch (...) {
        promise.set_exception(std::current_exception());
      }
    }
    return trace.get();
  }

 private:
  MadeTrace make(const PlannedTrace& planned) const {
    const SweepWorkload& workload = plan_.file.workloads[planned.workload];
    const MachineSpec& machine = plan_.machines[planned.machine].spec;
    for (const auto& [name, value] : planned.settings) {
      if (name == "gpu" && value.empty()) {
        throw Error("machine " + machine.name + " does not name its GPU; give the workload one, as `gpu`");
      }
    }
    MadeTrace made{
        .trace = workload.trace_file.empty() ? tools_.generate(planned.settings) : read_trace(workload.trace_file),
        .durations = {}};
    const bool modelled = made.trace.header.hardware.starts_with("modelled");
    const bool rescaled = rescale_to_machine(made.trace, machine, workload.rescale).has_value();
    made.durations = rescaled ? "rescaled" : modelled ? "modelled" : "measured";
    return made;
  }

  const SweepPlan& plan_;
  const SweepTools& tools_;
  std::mutex mutex_;
  std::map<std::size_t, std::shared_future<std::shared_ptr<const MadeTrace>>> made_;
};

SweepRunner::SweepRunner(const SweepPlan& plan, const SweepTools& tools)
    : plan_(plan), traces_(std::make_unique<Traces>(plan, tools)) {}
SweepRunner::~SweepRunner() = default;

std::vector<SweepRow> SweepRunner::run(const SweepUnit& unit, const std::set<std::string>& skip) {
  const PlannedTrace& planned = plan_.traces[unit.trace];
  const PlannedMachine& machine = plan_.machines[unit.machine];
  const SweepWorkload& workload = plan_.file.workloads[planned.workload];
  SweepRow common;
  common.workload = workload.name;
  common.trace = workload.trace_file.empty() ? command_of(planned.settings) : workload.trace_file;
  common.machine = machine.spec.name;
  common.gpu = machine.spec.gpu;
  common.gpu_memory = machine.variant.gpu_memory;
  common.cpu_memory = machine.variant.cpu_memory;
  for (const std::string& limit : machine.variant.limits) common.limits += (common.limits.empty() ? "" : " ") + limit;
  common.gpus = machine.spec.rank_count();

  std::shared_ptr<const MadeTrace> trace;
  RunLimits limits;
  if (plan_.file.iterations != 0) {
    limits.max_iterations = plan_.file.iterations;
    limits.until_steady = false;
  }
  std::optional<References> references;
  try {
    if (!machine.refusal.empty()) throw Error(machine.refusal);
    trace = traces_->get(unit.trace);
    add_trace_facts(common, trace->trace);
    common.durations = trace->durations;
    references = references_of(trace->trace, machine.spec, limits);
    common.ideal_seconds = references->ideal_seconds;
    common.bound_seconds = references->bound_seconds;
    common.bound_term = references->bound_term;
  } catch (const Error& error) {
    common.reason = error.what();
  }

  std::vector<SweepRow> rows;
  for (const PlannedRow& planned_row : unit.rows) {
    if (skip.contains(planned_row.key)) continue;
    SweepRow row = common;
    row.key = planned_row.key;
    row.position = planned_row.position;
    const PolicyVariant& policy = plan_.file.policies[planned_row.policy];
    row.policy = policy.policy;
    row.options = options_text(make_policy(policy.policy, policy.settings).options);
    if (references) {
      try {
        const Outcome outcome = run_policy(trace->trace, machine.spec, policy.policy, policy.settings, limits);
        row.bound_seconds = references->bound_of(outcome.result);
        add_figures(row, machine.spec.of_rank(outcome.rank), outcome.result);
      } catch (const Error& error) {
        row.reason = error.what();
      }
    }
    add_costs(row, machine, plan_.file.cost);
    rows.push_back(std::move(row));
  }
  return rows;
}

void add_costs(SweepRow& row, const PlannedMachine& machine, const SweepCostSettings& settings) {
  const Price& price = machine.spec.price;
  row.usd_per_hour = row.usd_per_iteration = row.usd_per_million_tokens = row.run_hours = row.run_usd = std::nullopt;
  row.spot_usd_per_hour = row.spot_slowdown = row.spot_checkpoint_interval_seconds = std::nullopt;
  row.spot_usd_per_million_tokens = row.spot_run_hours = row.spot_run_usd = std::nullopt;
  row.price_source = row.price_retrieved = "";
  if (price.currency != "USD") return;
  row.price_source = machine.price.on_demand.source;
  row.price_retrieved = machine.price.on_demand.retrieved;
  HourlyPrices prices;
  if (price.on_demand > 0) prices.on_demand_usd = price.on_demand;
  if (price.spot > 0) prices.spot_usd = price.spot;
  const bool has_storage = std::any_of(machine.spec.tiers.begin(), machine.spec.tiers.end(),
                                       [](const Tier& tier) { return tier.kind == TierKind::nvme; });
  if (!has_storage) {
    prices.storage_usd = storage_usd_per_hour(settings.attached_storage_gb, machine.price.storage_usd_per_gb_month);
  }
  prices.interruptions_per_hour =
      settings.interruptions_per_hour >= 0 ? settings.interruptions_per_hour : machine.price.interruptions_per_hour;
  const Work work{.iteration_seconds = row.iteration_seconds.value_or(0),
                  .tokens_per_iteration = row.tokens_per_iteration,
                  .run_tokens = settings.run_tokens};
  if (const auto cost = cost_on_demand(prices, work)) {
    row.usd_per_hour = cost->usd_per_hour;
    if (row.fits) {
      row.usd_per_iteration = cost->usd_per_iteration;
      row.usd_per_million_tokens = cost->usd_per_million_tokens;
      row.run_hours = cost->run_hours;
      row.run_usd = cost->run_usd;
    }
  }
  if (const auto spot = cost_on_spot(prices, work, settings.checkpoints)) {
    row.spot_usd_per_hour = spot->cost.usd_per_hour;
    row.spot_slowdown = spot->slowdown;
    if (spot->interval_seconds > 0) row.spot_checkpoint_interval_seconds = spot->interval_seconds;
    if (row.fits) {
      row.spot_usd_per_million_tokens = spot->cost.usd_per_million_tokens;
      row.spot_run_hours = spot->cost.run_hours;
      row.spot_run_usd = spot->cost.run_usd;
    }
  }
}

void mark_fronts(std::vector<SweepRow>& rows) {
  std::map<std::string, std::vector<std::size_t>> workloads;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].on_front = false;
    if (rows[i].fits && rows[i].policy != "ideal" && rows[i].iteration_seconds && rows[i].usd_per_iteration) {
      workloads[rows[i].workload].push_back(i);
    }
  }
  for (const auto& [workload, members] : workloads) {
    std::vector<TimeAndCost> points;
    for (const std::size_t i : members) points.push_back({*rows[i].iteration_seconds, *rows[i].usd_per_iteration});
    const std::vector<bool> on_front = pareto_front(points);
    for (std::size_t i = 0; i < members.size(); ++i) rows[members[i]].on_front = on_front[i];
  }
}

SweepResume resume(const SweepPlan& plan, SweepStore& store) {
  std::set<std::string> keys;
  for (const SweepUnit& unit : plan.units) {
    for (const PlannedRow& row : unit.rows) keys.insert(row.key);
  }
  SweepResume resumed;
  std::vector<std::string> others;
  for (const SweepRow& row : store.rows()) {
    keys.contains(row.key) ? void(resumed.done.insert(row.key)) : others.push_back(row.key);
  }
  if (resumed.done.empty() && !others.empty()) {
    throw Error("the results file holds " + std::to_string(others.size()) +
                " rows of another sweep, of other inputs or of another version of the program; name another file, or "
                "remove it");
  }
  if (plan.part && !others.empty()) {
    throw Error("the results file holds " + std::to_string(others.size()) +
                " rows that are not of this part of the sweep; name a file of its own for each part");
  }
  if (!others.empty()) store.remove(others);
  resumed.dropped = others.size();
  return resumed;
}

Answer answer_units(const SweepPlan& plan, const SweepTools& tools) {
  const auto runner = std::make_shared<SweepRunner>(plan, tools);
  return [runner, &plan](const std::string& task) {
    const nlohmann::json json = nlohmann::json::parse(task);
    return encode_rows(
        runner->run(plan.units.at(json["unit"].get<std::size_t>()), json["skip"].get<std::set<std::string>>()));
  };
}

void run_sweep(const SweepPlan& plan, const SweepTools& tools, SweepStore& store, const SweepResume& resumed,
               std::size_t threads, const SweepProgress& progress, RankLeader* leader) {
  std::vector<const SweepUnit*> units;
  const std::uint64_t rows = row_count(plan);
  for (const SweepUnit& unit : plan.units) {
    if (std::any_of(unit.rows.begin(), unit.rows.end(),
                    [&](const PlannedRow& row) { return !resumed.done.contains(row.key); })) {
      units.push_back(&unit);
    }
  }
  if (!units.empty()) store.set_about({});  // until its end it is no whole sweep
  std::uint64_t done = resumed.done.size();
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
    leader->distribute(tasks, [&](std::string&& answer) { take(decode_rows(answer)); });
  } else {
    SweepRunner runner(plan, tools);
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
  mark_fronts(rows);
  std::vector<SweepRow> changed;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != before[i]) changed.push_back(rows[i]);
  }
  store.add(changed);
  store.set_about({{"name", plan.file.name},
                   {"description", plan.file.description},
                   {"file", plan.file.file},
                   {"version", plan.version},
                   {"combinations", std::to_string(plan.combinations)},
                   {"combinations_sha256", plan.sha256},
                   {"prices_sha256", plan.prices_sha256},
                   {"budget_usd_per_hour", std::to_string(plan.file.cost.budget_usd_per_hour)}});
}

}  // namespace tencache
