// The least memory with which a policy runs a trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "studies/policy_run.h"

namespace tencache {

// Of each rank of the trace the first that has the same ops, tensors (but for their names) and machine.
std::vector<std::size_t> alike_ranks(const Trace& trace, const MachineSpec& machine);

// What does not fit shows in the first iterations, and what a plan makes faster it does not make fit. An early try runs
// two of them and tells a planner that simulates of each try that it does not fit, so that it does without; a planned
// one runs as many with its plan, a whole one eight.
enum class Tried : std::uint8_t { early, planned, whole };
// What the policy refuses, or the machine cannot serve, does not fit.
Outcome try_policy(const Trace& trace, const MachineSpec& machine, const std::string& policy,
                   const std::map<std::string, std::string>& settings, const RunLimits& limits, Tried tried);

// What a run tells of where the least memory lies.
struct KnownRun {
  bool fits = false;
  std::vector<Bytes> peak_bytes = {};  // where it fits, by tier: of the rank that uses most
  Bytes least_bytes = 0;  // of the GPU: its largest op as it was placed, with what persists and no other tier takes
};
KnownRun known_run(const Outcome& outcome, const MachineSpec& machine);

// The least capacity of the tier (of every rank) with which the policy's run fits, all else as the machine has it: in
// whole MiB, of more than a GiB to a 1,024th, by bisection between 0 (not of the GPU) and room for every tensor twice
// over, so that it takes for granted that more never hurts. Where all ranks are alike, one is searched for, with its
// part of what they share, and all of them confirm what it says. `as_is`: the run on the machine as it is, if it is
// known; where it fits, the tier's own capacity is the answer where no whole MiB below does. nullopt: no capacity of
// that tier is enough.
std::optional<Bytes> minimum_capacity(const Trace& trace, const MachineSpec& machine, TierId tier,
                                      const std::string& policy, const std::map<std::string, std::string>& settings,
                                      const RunLimits& limits, const std::optional<KnownRun>& as_is);

// Where no capacity of one tier alone is enough: the least of the tier with all others but the GPU unlimited, or else
// with the GPU unlimited too; and how much more of `other`, the slowest other tier, does with just that and the rest as
// the machine has it (no_tier: more of several is needed). nullopt: none does at all.
struct JointMinimum {
  Bytes bytes = 0;
  TierId other = no_tier;
  Bytes more = 0;
};
std::optional<JointMinimum> joint_minimum(const Trace& trace, const MachineSpec& machine, TierId tier,
                                          const std::string& policy, const std::map<std::string, std::string>& settings,
                                          const RunLimits& limits);

}  // namespace tencache
