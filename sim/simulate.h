// Simulations: lowered programs on simulated machines under policies.
#pragma once

#include <span>
#include <vector>

#include "core/engine/engine.h"
#include "core/fault_plan.h"

namespace tencache {

// A plan that disturbs a simulation, and what it came to; `plan` null: none does.
struct SimulatedFaults {
  const FaultPlan* plan = nullptr;
  FaultCounts counts = {};  // of all ranks
};

// One program of one rank. A program that does not fit is a result (`fits` false). Deterministic; nothing is kept
// between calls. With faults it throws Error where it cannot go on.
RunResult simulate(const Program& program, const MachineSpec& machine, Policy& policy, const RunLimits& limits = {},
                   EngineOptions options = {}, SimulatedFaults* faults = nullptr);

// One rank of several: everything outlives the call.
struct RankRun {
  const Program* program = nullptr;
  const MachineSpec* machine = nullptr;
  Policy* policy = nullptr;
  EngineOptions options = {};
};

struct RanksResult {
  std::size_t slowest = 0;       // the first of those that take longest; where one does not fit, that one
  std::vector<RunResult> ranks;  // where one does not fit, all say so
};

// The ranks run on one clock, each under its own policy; what they share is said by their machines (Resource::shared),
// what they wait for by Op::rendezvous: the n-th op with a key starts when every rank that has the key has come to its
// n-th. A rank's iterations end for itself. They stop together: when the state of all at an iteration's end of rank 0
// recurs, or each after `max_iterations`. Throws Error where ranks have a key unequally often, or wait for each other
// for ever.
RanksResult simulate_ranks(std::span<const RankRun> runs, const RunLimits& limits = {},
                           SimulatedFaults* faults = nullptr);

}  // namespace tencache
