#include "studies/explain.h"

#include <algorithm>
#include <mutex>
#include <tuple>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/recompute.h"
#include "policies/layers.h"
#include "policies/planning/choose_levels.h"
#include "policies/registry.h"
#include "studies/machine_parameter.h"
#include "studies/parallel.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

constexpr double no_time = 1e15;     // bytes or parameters a second
constexpr double negligible = 1e-6;  // of an iteration

TimeParts parts_of(const Outcome& outcome) {
  TimeParts parts = parts_of(outcome.result);
  parts.rank = outcome.rank;
  return parts;
}

std::vector<StallCause> causes_of(const StallSeconds& stalls) {
  std::vector<StallCause> causes;
  for (const StallCause cause : all_causes) {
    if (stalls[cause] > 0) causes.push_back(cause);
  }
  std::ranges::stable_sort(causes, std::ranges::greater(), [&](StallCause cause) { return stalls[cause]; });
  return causes;
}

template <typename Costly>
void sort_by_stall(std::vector<Costly>& list) {
  std::ranges::stable_sort(list, std::ranges::greater(), &Costly::seconds);
}

// ---- Ops, layers and tensors, from the timeline of the window -----------------------------------------------------

// Of the steady period.
std::pair<Nanoseconds, Nanoseconds> window_of(const RunResult& result) {
  Nanoseconds begin = 0;
  for (std::size_t i = 0; i + result.period < result.iteration_ns.size(); ++i) begin += result.iteration_ns[i];
  return {begin, begin + result.window.time_ns};
}

class Breakdown {
 public:
  Breakdown(const Timeline& timeline, const RunResult& result, const Program& program, const MachineSpec& machine)
      : trace_(program.trace), machine_(machine), period_(static_cast<double>(result.period)) {
    std::tie(begin_, end_) = window_of(result);
    op_stalls_.resize(trace_.ops.size());
    tensor_stalls_.resize(trace_.tensors.size());
    // Transfers by cause in order of their end, as the timeline has them.
    for (const Span& span : timeline.spans) {
      if (span.kind == SpanKind::transfer && span.lane >= first_link_lane) {
        arrivals_[cause_of(machine_, static_cast<LinkId>(span.lane - first_link_lane))].push_back(&span);
      }
    }
    for (const Span& span : timeline.spans) {
      if (span.kind == SpanKind::stall && span.lane == 0) add(span);
    }
  }

  void write(Explanation& explanation) const {
    std::map<std::string, StallSeconds> layers;
    for (OpIndex id = 0; id < op_stalls_.size(); ++id) {
      const StallSeconds& stalls = op_stalls_[id];
      if (sum_of(stalls) <= 0) continue;
      const Op& op = trace_.ops[id];
      explanation.ops.push_back({id, std::string(trace_.name(op)), std::string(trace_.module(op)),
                                 std::string(to_string(op.phase)), sum_of(stalls), stalls});
      StallSeconds& layer = layers[std::string(layer_of_module(trace_.module(op)))];
      for (const StallCause cause : all_causes) layer[cause] += stalls[cause];
    }
    for (auto& [layer, stalls] : layers) explanation.layers.push_back({layer, sum_of(stalls), stalls});
    for (TensorId id = 0; id < tensor_stalls_.size(); ++id) {
      const StallSeconds& stalls = tensor_stalls_[id];
      if (sum_of(stalls) <= 0) continue;
      const Tensor& tensor = trace_.tensors[id];
      explanation.tensors.push_back({id, std::string(trace_.name(tensor)), std::string(to_string(tensor.role)),
                                     tensor.bytes, no_seconds, sum_of(stalls), stalls});
    }
    sort_by_stall(explanation.ops);
    sort_by_stall(explanation.layers);
    sort_by_stall(explanation.tensors);
    explanation.stalls_of_no_tensor_seconds = without_tensor_;
  }

 private:
  void add(const Span& stall) {
    const Nanoseconds begin = std::max(stall.start_ns, begin_), end = std::min(stall.end_ns, end_);
    if (end <= begin) return;
    const double seconds = to_seconds(end - begin) / period_;
    if (stall.op < op_stalls_.size()) op_stalls_[stall.op][stall.cause] += seconds;
    const std::vector<const Span*>& arrivals = arrivals_[stall.cause];
    const auto after = std::upper_bound(arrivals.begin(), arrivals.end(), stall.end_ns,
                                        [](Nanoseconds time, const Span* span) { return time < span->end_ns; });
    // The last that ended by then, if it ended within the stall.
    if (after == arrivals.begin() || (*(after - 1))->end_ns <= stall.start_ns ||
        (*(after - 1))->tensor >= tensor_stalls_.size()) {
      without_tensor_ += seconds;
      return;
    }
    tensor_stalls_[(*(after - 1))->tensor][stall.cause] += seconds;
  }

  const Trace& trace_;
  const MachineSpec& machine_;
  double period_;
  Nanoseconds begin_ = 0, end_ = 0;
  EnumMap<StallCause, std::vector<const Span*>> arrivals_;
  std::vector<StallSeconds> op_stalls_, tensor_stalls_;
  double without_tensor_ = 0;
};

// ---- Recomputation ------------------------------------------------------------------------------------------------

// The layer of the trace's choices that the module is in; else its own.
std::string layer_with_choice(const Trace& trace, std::string_view module) {
  for (const RecomputeChoice& choice : trace.choices) {
    const std::string_view layer = trace.names[choice.module];
    if (module.starts_with(layer) && (module.size() == layer.size() || module[layer.size()] == '.')) {
      return std::string(layer);
    }
  }
  return std::string(layer_of_module(module));
}

// `trace`: with its choices, if it has any; of the program ran `timeline`.
std::optional<ExplainedRecomputation> recomputation_in(const Timeline& timeline, const Outcome& outcome,
                                                       const Trace& trace) {
  const Trace& program = outcome.program.trace;
  const std::vector<bool> again = recomputed_ops(program);
  if (trace.choices.empty() && std::ranges::find(again, true) == again.end()) return std::nullopt;
  std::vector<double> seconds(program.ops.size());
  const auto [begin, end] = window_of(outcome.result);
  for (const Span& span : timeline.spans) {
    const bool runs = span.lane == 0 && (span.kind == SpanKind::op || span.kind == SpanKind::gap);
    if (!runs || span.op >= again.size() || !again[span.op] || span.start_ns < begin || span.end_ns > end) continue;
    seconds[span.op] += to_seconds(span.end_ns - span.start_ns) / static_cast<double>(outcome.result.period);
  }
  std::map<NameId, double> modules;
  for (OpIndex op = 0; op < program.ops.size(); ++op) {
    if (again[op]) modules[program.ops[op].module] += seconds[op];
  }
  std::map<std::string, double> layers;
  for (const auto& [module, time] : modules) layers[layer_with_choice(trace, program.names[module])] += time;
  ExplainedRecomputation found;
  for (const auto& [layer, time] : layers) {
    found.seconds += time;
    found.layers.push_back({.layer = layer, .seconds = time});
  }
  std::ranges::stable_sort(found.layers, std::ranges::greater(), &RecomputedLayer::seconds);
  return found;
}

// Of each rank, in order; those that no op uses are the first's.
std::vector<std::vector<TensorId>> tensors_by_rank(const Trace& trace) {
  std::vector<std::uint32_t> rank_of(trace.tensors.size(), 0);
  for (const Op& op : trace.ops) {
    for (const TensorId tensor : trace.reads(op)) rank_of[tensor] = op.rank;
    for (const TensorId tensor : trace.writes(op)) rank_of[tensor] = op.rank;
  }
  std::vector<std::vector<TensorId>> tensors(rank_count(trace));
  for (TensorId tensor = 0; tensor < rank_of.size(); ++tensor) tensors[rank_of[tensor]].push_back(tensor);
  return tensors;
}

// ---- Simulations --------------------------------------------------------------------------------------------------

class Explaining {
 public:
  explicit Explaining(const ExplainRequest& request) : request_(request) {}

  Explanation run() {
    Timeline timeline;
    std::vector<Timeline> others;
    make_policy(request_.policy, request_.settings);  // a wrong name or option is bad usage
    try {
      explanation_.outcome = run_policy(*request_.trace, *request_.machine, request_.policy, request_.settings,
                                        request_.limits, {.timeline = &timeline, .other_timelines = &others});
    } catch (const Error& error) {  // what the machine cannot serve, such as staging buffers too small
      explanation_.outcome.policy = request_.policy;
      explanation_.outcome.result.fits = false;
      explanation_.outcome.result.misfit = error.what();
    }
    const Outcome& outcome = explanation_.outcome;
    explanation_.run = parts_of(outcome);
    explanation_.simulations = done_ = 1;
    if (!outcome.result.fits) return std::move(explanation_);
    const Timeline& slowest = outcome.rank == 0 ? timeline : others[outcome.rank - 1];
    Breakdown(slowest, outcome.result, outcome.program, request_.machine->of_rank(outcome.rank)).write(explanation_);
    explanation_.recomputation = recomputation_in(slowest, outcome, *request_.trace);
    prepare();
    on_all_cores(tasks_.size(), [&](std::size_t i) { tasks_[i](); });
    finish();
    return std::move(explanation_);
  }

 private:
  // Every simulation but that of the run itself; the steps, which follow from each other, are one task and come first.
  void prepare() {
    rank_tensors_ = tensors_by_rank(*request_.trace);
    const StallSeconds& stalls = explanation_.run.stall_seconds;
    for (const StallCause cause : causes_of(stalls)) {
      explanation_.causes.push_back(
          {.cause = cause, .attributed_seconds = stalls[cause], .change = texts_of(cause).without, .without = {}});
    }
    add_changes();
    if (!explanation_.causes.empty()) {
      tasks_.emplace_back([this] { take_steps(); });
      expected_ += 2 * explanation_.causes.size();
    }
    for (ExplainedCause& cause : explanation_.causes) {
      tasks_.emplace_back([this, &cause] { cause.without = simulate_without({cause.cause}); });
    }
    if (explanation_.recomputation && !request_.trace->choices.empty()) add_levels(*explanation_.recomputation);
    std::size_t confirmed = 0;
    for (CostlyTensor& tensor : explanation_.tensors) {
      if (confirmed == request_.tensors_confirmed) break;
      const std::vector<TensorId> own = in_the_trace(tensor.tensor);
      if (own.empty()) continue;
      ++confirmed;
      tasks_.emplace_back([this, &tensor, own] {
        Trace trace = *request_.trace;
        for (const TensorId id : own) trace.tensors[id].bytes = 1;
        tensor.without = simulate(trace, *request_.machine, request_.policy, request_.settings);
      });
    }
    for (ExplainedChange& change : explanation_.changes) {
      tasks_.emplace_back([this, &change] { simulate_change(change); });
    }
    expected_ += confirmed + explanation_.changes.size();
  }

  void add_levels(ExplainedRecomputation& recomputation) {
    const Trace& trace = *request_.trace;
    const auto add = [&](std::vector<RecomputeLevel> levels, auto put) {
      ++expected_;
      tasks_.emplace_back([this, levels = std::move(levels), put] {
        put(simulate(with_levels(*request_.trace, levels), *request_.machine, request_.policy, request_.settings));
      });
    };
    for (const RecomputeLevel level : {RecomputeLevel::keep, RecomputeLevel::block}) {
      if (all_at(trace, level) != explanation_.outcome.levels) {
        recomputation.others.push_back({.level = level, .then = {}});
      }
    }
    for (OtherRecomputation& other : recomputation.others) {
      add(all_at(trace, other.level), [&other](TimeParts parts) { other.then = std::move(parts); });
    }
    for (std::size_t i = 0; i < std::min(recomputation.layers.size(), request_.tensors_confirmed); ++i) {
      RecomputedLayer& layer = recomputation.layers[i];
      std::vector<RecomputeLevel> levels = explanation_.outcome.levels;
      for (std::size_t choice = 0; choice < levels.size(); ++choice) {
        if (trace.names[trace.choices[choice].module] == layer.layer) levels[choice] = RecomputeLevel::keep;
      }
      if (levels == explanation_.outcome.levels) continue;
      add(std::move(levels), [&layer](TimeParts parts) { layer.kept = std::move(parts); });
    }
  }

  void add_changes() {
    const MachineSpec& machine = *request_.machine;
    for (const MachineParameter& parameter : parameters_of(machine)) {
      using Kind = MachineParameter::Kind;
      const bool asked = parameter.kind != Kind::link &&
                         (parameter.kind != Kind::resource || parameter.name == "dram") &&
                         !(parameter.kind == Kind::tier && parameter.index > 1);
      const double value = value_of(parameter, machine);
      if (!asked || value <= 0 || value >= unlimited_value(parameter) / 2) continue;
      explanation_.changes.push_back({.change = parameter.name + " × 2",
                                      .kind = "machine",
                                      .name = parameter.name,
                                      .value = 2 * value,
                                      .unit = parameter.unit(),
                                      .then = {}});
    }
    for (const std::string& policy : request_.other_policies) {
      if (policy == request_.policy || policy == "ideal") continue;
      explanation_.changes.push_back(
          {.change = "policy " + policy, .kind = "policy", .name = policy, .unit = {}, .then = {}});
    }
  }

  // The tensor of the program, and its like on the other ranks, as the trace numbers them; empty: lowering added it.
  // Programs have the tensors of their rank in the trace's order.
  std::vector<TensorId> in_the_trace(TensorId tensor) const {
    const Trace& program = explanation_.outcome.program.trace;
    const std::vector<TensorId>& own = rank_tensors_[explanation_.outcome.rank];
    const std::string_view name = program.name(program.tensors[tensor]);
    const auto has_the_name = [&](TensorId id) { return request_.trace->name(request_.trace->tensors[id]) == name; };
    if (tensor >= own.size() || !has_the_name(own[tensor]) ||
        request_.trace->tensors[own[tensor]].bytes != program.tensors[tensor].bytes) {
      return {};
    }
    const auto place = std::count_if(own.begin(), own.begin() + tensor, has_the_name);
    std::vector<TensorId> found;
    for (const std::vector<TensorId>& ids : rank_tensors_) {
      auto left = place;
      const auto like =
          std::find_if(ids.begin(), ids.end(), [&](TensorId id) { return has_the_name(id) && left-- == 0; });
      if (like != ids.end()) found.push_back(*like);
    }
    return found;
  }

  TimeParts simulate(const Trace& trace, const MachineSpec& machine, const std::string& policy,
                     const std::map<std::string, std::string>& settings) {
    TimeParts parts;
    try {
      parts = parts_of(run_policy(trace, machine, policy, settings, request_.limits));
    } catch (const Error& error) {
      parts.reason = error.what();
    }
    const std::lock_guard lock(mutex_);
    ++done_;
    if (request_.progress) request_.progress(done_, std::max(expected_, done_));
    return parts;
  }

  TimeParts simulate_without(const std::vector<StallCause>& causes) {
    MachineSpec machine = *request_.machine;
    Trace trace = *request_.trace;
    for (const StallCause cause : causes) {
      machine = machine_without(machine, *request_.trace, cause);
      remove_from_trace(trace, cause);
    }
    return simulate(trace, machine, request_.policy, request_.settings);
  }

  void simulate_change(ExplainedChange& change) {
    if (change.is_policy()) {
      change.then = simulate(*request_.trace, *request_.machine, change.name, {});
      return;
    }
    const MachineParameter parameter = parameter_named(*request_.machine, change.name);
    const bool speed = parameter.kind == MachineParameter::Kind::gpu_speed;
    change.then =
        simulate(speed ? with_gpu_speed(*request_.trace, change.value) : *request_.trace,
                 with_parameter(parameter, *request_.machine, change.value), request_.policy, request_.settings);
  }

  // Links that nothing was said to wait for, but that hold up what it waits for: gradients on their way to an update.
  std::vector<StallCause> hidden_causes(const std::vector<StallCause>& removed) const {
    std::vector<StallCause> causes;
    const Counters& window = explanation_.outcome.result.window;
    const MachineSpec& machine = request_.machine->of_rank(explanation_.outcome.rank);
    for (std::size_t link = 0; link < machine.links.size(); ++link) {
      const StallCause cause = cause_of(machine, static_cast<LinkId>(link));
      const bool known = std::find(removed.begin(), removed.end(), cause) != removed.end() ||
                         std::find(causes.begin(), causes.end(), cause) != causes.end();
      if (!known && window.links[link].bytes > 0) causes.push_back(cause);
    }
    return causes;
  }

  void take_steps() {
    TimeParts now = explanation_.run;
    std::vector<StallCause> removed;
    for (;;) {
      std::vector<StallCause> left = causes_of(now.stall_seconds);
      std::erase_if(
          left, [&](StallCause cause) { return std::find(removed.begin(), removed.end(), cause) != removed.end(); });
      if (left.empty() && sum_of(now.stall_seconds) > negligible * now.iteration_seconds) left = hidden_causes(removed);
      if (left.empty()) return;
      removed.push_back(left.front());
      TimeParts without = simulate_without(removed);
      if (!without.fits) {
        explanation_.in_turn.refused = {left.front(), texts_of(left.front()).without, *without.reason};
        return;
      }
      explanation_.in_turn.steps.push_back({left.front(), texts_of(left.front()).without,
                                            now.iteration_seconds - without.iteration_seconds,
                                            without.iteration_seconds, without});
      now = without;
    }
  }

  void finish() {
    const TimeParts& run = explanation_.run;
    for (ExplainedCause& cause : explanation_.causes) {
      if (!cause.without.fits) continue;
      cause.confirmed_seconds = run.iteration_seconds - cause.without.iteration_seconds;
      cause.still_seconds = cause.without.stall_seconds[cause.cause];
      cause.moved_seconds = cause.attributed_seconds - cause.confirmed_seconds - cause.still_seconds;
    }
    ExplainedSteps& in_turn = explanation_.in_turn;
    in_turn.attributed_seconds = sum_of(run.stall_seconds);
    for (const ExplainedStep& step : in_turn.steps) in_turn.confirmed_seconds += step.seconds;
    const double last = in_turn.steps.empty() ? run.iteration_seconds : in_turn.steps.back().iteration_seconds;
    in_turn.remainder_seconds = last - run.compute_seconds - run.gap_seconds;
    if (auto& recomputation = explanation_.recomputation) {
      const auto beyond_run = [&run](const TimeParts& then) { return then.iteration_seconds - run.iteration_seconds; };
      for (OtherRecomputation& other : recomputation->others) other.gained_seconds = beyond_run(other.then);
      for (RecomputedLayer& layer : recomputation->layers) {
        if (layer.kept) layer.gained_seconds = beyond_run(*layer.kept);
      }
    }
    for (CostlyTensor& tensor : explanation_.tensors) {
      if (tensor.without) tensor.gained_without_seconds = run.iteration_seconds - tensor.without->iteration_seconds;
    }
    for (ExplainedChange& change : explanation_.changes) {
      change.fits = change.then.fits;
      change.iteration_seconds = change.then.iteration_seconds;
      change.gained_seconds = run.iteration_seconds - change.iteration_seconds;
    }
    std::ranges::stable_sort(explanation_.changes, [](const ExplainedChange& a, const ExplainedChange& b) {
      if (a.is_policy() != b.is_policy()) return !a.is_policy();
      if (a.fits != b.fits) return a.fits;
      return a.fits && a.iteration_seconds < b.iteration_seconds;
    });
    explanation_.simulations = done_;
  }

  const ExplainRequest& request_;
  Explanation explanation_;
  std::vector<std::vector<TensorId>> rank_tensors_;  // of the trace
  std::vector<std::function<void()>> tasks_;
  std::mutex mutex_;
  std::size_t done_ = 0, expected_ = 1;
};

void remove_from_machine(MachineSpec& machine, const Trace& trace, StallCause cause) {
  switch (cause) {
    case StallCause::cpu_optimizer:
      if (machine.cpu.adam_parameters_per_second > 0) machine.cpu.adam_parameters_per_second = no_time;
      machine.lane_uses[1].clear();
      return;
    case StallCause::cpu_compute:
      if (machine.cpu.can_compute()) {
        machine.cpu.flops_per_second = no_time;
        machine.cpu.bandwidth = static_cast<BytesPerSecond>(no_time);
      }
      machine.lane_uses[1].clear();
      return;
    case StallCause::memory: {
      Bytes all = GiB;
      for (const Tensor& tensor : trace.tensors) all += 2 * (tensor.bytes + machine.tiers.front().granularity);
      machine.tiers.front().capacity = std::max(machine.tiers.front().capacity, all);
      return;
    }
    case StallCause::collective:
      return;
    default:
      break;
  }
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    Link& link = machine.links[i];
    if (cause_of(machine, static_cast<LinkId>(i)) != cause) continue;
    link.bandwidth = static_cast<BytesPerSecond>(no_time);
    link.sustained_bandwidth = 0;
    link.latency_ns = 0;
    link.uses.clear();
  }
}

}  // namespace

StallSeconds stalls_of(const RunResult& result) {
  StallSeconds stalls;
  for (const StallCause cause : all_causes) {
    stalls[cause] = per_iteration_seconds(result, result.window.stall_ns[cause]);
  }
  return stalls;
}

TimeParts parts_of(const RunResult& result) {
  TimeParts parts;
  parts.fits = result.fits;
  if (!result.fits) {
    parts.reason = result.misfit;
    return parts;
  }
  parts.iteration_seconds = per_iteration_seconds(result, result.window.time_ns);
  parts.compute_seconds = per_iteration_seconds(result, result.window.compute_ns);
  parts.gap_seconds = per_iteration_seconds(result, result.window.gap_ns);
  parts.stall_seconds = stalls_of(result);
  return parts;
}

MachineSpec machine_without(const MachineSpec& machine, const Trace& trace, StallCause cause) {
  MachineSpec changed = machine;
  remove_from_machine(changed, trace, cause);
  for (MachineSpec& rank : changed.other_ranks) remove_from_machine(rank, trace, cause);
  return changed;
}

void remove_from_trace(Trace& trace, StallCause cause) {
  for (Op& op : trace.ops) {
    const StallCause waited_for = op.phase == Phase::optimizer ? StallCause::cpu_optimizer : StallCause::cpu_compute;
    if (op.device == Device::cpu && cause == waited_for) op.duration_ns = 0;
    if (cause == StallCause::collective) op.rendezvous = 0;
  }
}

Explanation explain(const ExplainRequest& request) {
  TENCACHE_CHECK(request.trace != nullptr && request.machine != nullptr);
  return Explaining(request).run();
}

}  // namespace tencache
