#include "studies/policy_run.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "core/error.h"
#include "core/remark.h"
#include "policies/registry.h"
#include "sim/rehearse.h"
#include "sim/simulate.h"
#include "studies/bound.h"
#include "traces/transform/lower.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

void simulate_one(const Trace& trace, const MachineSpec& machine, Policy& policy, const RunLimits& limits,
                  Outcome& outcome, const Recorders& recorders) {
  prepare(trace, policy, machine, recorders.rehearse ? recorders.rehearse : rehearse);
  outcome.program = lower(trace, policy, machine, &outcome.levels);
  EngineOptions options;
  options.timeline = recorders.timeline;
  options.on_decision = recorders.on_decision;
  options.on_iteration = recorders.on_iteration;
  options.rehearse = recorders.rehearse;
  SimulatedFaults faults{.plan = recorders.faults};
  outcome.result = simulate(outcome.program, machine, policy, limits, std::move(options), &faults);
  outcome.faults = faults.counts;
}

void simulate_several(const Trace& trace, const MachineSpec& whole, const std::map<std::string, std::string>& settings,
                      const RunLimits& limits, Outcome& outcome, const Recorders& recorders) {
  const std::vector<Trace> traces = split_ranks(trace);
  if (traces.size() > whole.rank_count()) {
    throw Error("the trace has " + std::to_string(traces.size()) + " ranks, machine '" + whole.name + "' has " +
                std::to_string(whole.rank_count()) + "; take a machine with as many ranks");
  }
  outcome.ranks.resize(traces.size());
  std::vector<Timeline>* others = recorders.other_timelines;
  if (others != nullptr) {
    const bool keeps_spans = recorders.timeline == nullptr || recorders.timeline->keeps_spans;
    others->assign(traces.size() - 1, Timeline{.keeps_spans = keeps_spans});
  }
  std::vector<MadePolicy> policies;
  std::vector<RankRun> runs;
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    const MachineSpec& machine = whole.of_rank(rank);
    policies.push_back(make_policy(outcome.policy, settings));
    prepare(traces[rank], *policies.back().policy, machine, recorders.rehearse ? recorders.rehearse : rehearse);
    outcome.ranks[rank].program = lower(traces[rank], *policies.back().policy, machine);
    EngineOptions options;
    options.on_iteration = recorders.on_iteration;
    options.rehearse = recorders.rehearse;
    if (rank == 0) {
      options.timeline = recorders.timeline;
      options.on_decision = recorders.on_decision;
    } else if (others != nullptr) {
      options.timeline = &(*others)[rank - 1];
    }
    runs.push_back({.program = &outcome.ranks[rank].program,
                    .machine = &machine,
                    .policy = policies.back().policy.get(),
                    .options = std::move(options)});
  }
  SimulatedFaults faults{.plan = recorders.faults};
  RanksResult result = simulate_ranks(runs, limits, &faults);
  outcome.faults = faults.counts;
  std::uint64_t events = 0;
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    outcome.ranks[rank].result = std::move(result.ranks[rank]);
    events += outcome.ranks[rank].result.simulated_events;
  }
  outcome.rank = result.slowest;
  outcome.program = outcome.ranks[outcome.rank].program;
  outcome.result = outcome.ranks[outcome.rank].result;
  outcome.result.simulated_events = events;
}

// Of a step as it was lowered. Ranks that only average gradients have no collectives in their forward pass.
StepNeeds needs_of(const Trace& ran) {
  StepNeeds needs;
  for (const Op& op : ran.ops) {
    const bool of_backward = op.phase == Phase::backward, of_optimizer = op.phase == Phase::optimizer;
    needs.training = needs.training || of_backward || of_optimizer;
    needs.placed = needs.placed || (op.device == Device::cpu && op.placeable && !of_optimizer) ||
                   (op.rendezvous != 0 && !of_backward && !of_optimizer);
  }
  return needs;
}

bool moves_anything(const Outcome& outcome) {
  const auto moves = [](const RunResult& result) {
    return !result.fits || std::ranges::any_of(result.window.links, [](const auto& link) { return link.bytes > 0; });
  };
  return outcome.ranks.empty()
             ? moves(outcome.result)
             : std::ranges::any_of(outcome.ranks, [&](const RankOutcome& rank) { return moves(rank.result); });
}

RunsWith system_of(const Outcome& outcome) {
  const RunsWith system = runs_with(counterparts_of(outcome.policy), needs_of(outcome.program.trace));
  // Parts of a model on several ranks without offloading are DeepSpeed's ZeRO and pipelines, whatever the policy.
  const bool only_parts = system == RunsWith::artifact || system == RunsWith::nothing;
  return only_parts && !moves_anything(outcome) ? RunsWith::deepspeed : system;
}

}  // namespace

void naming_policy(const std::string& policy, const std::function<void()>& call) {
  const auto fail = [&policy](const std::string& what) {
    throw PolicyFailure("policy '" + policy + "' failed: " + what);
  };
  try {
    call();
  } catch (const Error&) {
    throw;
  } catch (const PolicyFailure&) {
    throw;
  } catch (const std::runtime_error& error) {
    fail(error.what());
  } catch (const std::logic_error& error) {
    fail(error.what());
  } catch (const std::bad_alloc&) {
    fail("this computer has not enough memory; are its chunks very small (chunk_bytes)?");
  }
}

RunLimits limits_of(std::uint64_t iterations) {
  if (iterations == 0) return {};
  return {.max_iterations = iterations, .until_steady = false};
}

Outcome run_policy(const Trace& trace, const MachineSpec& machine, const std::string& policy,
                   const std::map<std::string, std::string>& settings, const RunLimits& limits,
                   const Recorders& recorders) {
  doing("simulating " + policy);
  Outcome outcome;
  outcome.policy = policy;
  naming_policy(policy, [&] {
    MadePolicy made = make_policy(policy, settings);
    outcome.options = std::move(made.options);
    if (rank_count(trace) > 1) {
      simulate_several(trace, machine, settings, limits, outcome, recorders);
    } else {
      simulate_one(trace, machine, recorders.policy ? *recorders.policy : *made.policy, limits, outcome, recorders);
    }
  });
  outcome.runs_with = system_of(outcome);
  return outcome;
}

References references_of(const Trace& trace, const MachineSpec& machine, const RunLimits& limits,
                         const Recorders& recorders) {
  const Outcome ideal = run_policy(trace, machine, "ideal", {}, limits, recorders);
  doing("lower bound");
  Bound bound = lower_bound_of(trace, machine);
  return {.ideal_seconds = ideal.result.iteration_seconds(),
          .bound_seconds = bound.seconds,
          .bound_term = bound.term,
          .bounds = bound,
          .binding = std::move(bound.binding),
          .bound_rank = bound.rank,
          .recorded_bound_seconds = recorded_bound_seconds(trace, machine)};
}

double References::bound_of(const RunResult& result) const {
  return bounds ? least_seconds(*bounds, result.steady, result.period) : bound_seconds;
}

Outcome refused(const std::string& policy, const Error& error) {
  Outcome outcome;
  outcome.policy = policy;
  outcome.result.fits = false;
  outcome.result.misfit = error.what();
  return outcome;
}

}  // namespace tencache
