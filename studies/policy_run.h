// One policy's run on a trace: lowered, simulated, and what it is measured against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "core/error.h"
#include "core/fault_plan.h"
#include "core/machine_spec.h"
#include "core/trace.h"
#include "policies/counterparts.h"
#include "studies/bound.h"

namespace tencache {

// What one rank of several did.
struct RankOutcome {
  Program program;
  RunResult result;
};

// One policy's run, simulated or measured.
struct Outcome {
  std::string policy;
  std::map<std::string, std::string> options;  // resolved
  Program program;                             // what ran; of several ranks, on the slowest
  RunResult result;                            // of the slowest rank
  std::size_t rank = 0;                        // the slowest
  std::vector<RankOutcome> ranks;              // of a trace of several ranks, each
  std::optional<RunsWith> runs_with = {};      // such a step, under the policy; of what was simulated
  std::vector<RecomputeLevel> levels = {};     // that the policy chose, by choice of the trace; of what was simulated
  FaultCounts faults{};                        // that were injected
  double seconds = 0;                          // that the tool took, where the caller has a clock
};

// Of what was refused: it does not fit, for that reason.
Outcome refused(const std::string& policy, const Error& error);

// What a simulation writes beside its result, and what disturbs it; each if set.
struct Recorders {
  Timeline* timeline = nullptr;                      // the spans, of several ranks those of the first
  std::vector<Timeline>* other_timelines = nullptr;  // those of ranks 1, 2, …
  DecisionSink on_decision = {};                     // of several ranks the first's decisions
  // At each iteration's end, of each rank; may throw to give up.
  std::function<void(std::uint64_t iteration)> on_iteration = {};
  Rehearse rehearse = {};             // what planners simulate with, if not sim/rehearse.h
  const FaultPlan* faults = nullptr;  // that disturbs the run
  Policy* policy = nullptr;           // of a trace of one rank, in place of a new one by its name
};

// What a policy's code threw and is no Error, with the policy's name before it.
class PolicyFailure : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Calls what asks a policy. Throws PolicyFailure in place of std::runtime_error, std::logic_error and std::bad_alloc.
void naming_policy(const std::string& policy, const std::function<void()>& call);

// That many iterations; 0: until the steady state recurs.
RunLimits limits_of(std::uint64_t iterations);

// Lowers and simulates; the ranks of a trace of several each with a policy object of their own. Nothing is kept between
// calls: threads may call it at once. Throws Error for an unknown policy or option, or if the machine lacks what the
// policy needs, or ranks; PolicyFailure.
Outcome run_policy(const Trace& trace, const MachineSpec& machine, const std::string& policy,
                   const std::map<std::string, std::string>& settings, const RunLimits& limits,
                   const Recorders& recorders = {});

// What every result is measured against.
struct References {
  double ideal_seconds = 0;
  double bound_seconds = 0;  // studies/bound.h; of a trace with choices, whatever is recomputed
  std::string bound_term;    // which term binds
  // What holds for runs that do not become steady; none: the same.
  std::optional<BoundSeconds> bounds = {};
  BoundTerm binding = {};      // of the bound, where it is known
  std::size_t bound_rank = 0;  // whose bound it is
  // Of a trace with choices: as recorded, which policies may beat.
  std::optional<double> recorded_bound_seconds = {};

  // What answers call bound_seconds, as recorded, and bound_choice_seconds, which traces with choices have; `seconds`:
  // what no policy beats.
  template <typename Answer>
  void name_bounds(Answer& answer, double seconds) const {
    answer.bound_seconds = recorded_bound_seconds.value_or(seconds);
    if (recorded_bound_seconds) answer.bound_choice_seconds = seconds;
  }
  double bound_of(const RunResult& result) const;
};
// Throws Error where the machine has too few ranks. `recorders`: of the simulation of `ideal`.
References references_of(const Trace& trace, const MachineSpec& machine, const RunLimits& limits,
                         const Recorders& recorders = {});

}  // namespace tencache
