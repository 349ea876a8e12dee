// How much memory a policy's run takes, tier by tier, and the least with which it runs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "core/machine_spec.h"
#include "core/metrics.h"
#include "core/timeline.h"

namespace tencache {

// The most that a tier holds at once.
struct TierPeak {
  Bytes startup = 0;  // until the first iteration is over, persistent tensors laid out before it included
  Bytes steady = 0;   // in the window that results are of
  // Of a CPU tier whose machine rounds page-locked allocations up to powers of two (AllocationCost): the most over the
  // run if what each tensor has there is an allocation of its own, as PyTorch's caching host allocator makes them.
  // 0: sizes are not rounded.
  Bytes pinned = 0;
};
// By tier, of one rank; the timeline is of the whole run.
std::vector<TierPeak> tier_peaks(const Timeline& timeline, const RunResult& result, const MachineSpec& machine);

// Of each rank of the trace the first that has the same ops, tensors (but for their names) and machine.
std::vector<std::size_t> alike_ranks(const Trace& trace, const MachineSpec& machine);

// The least capacity of the tier (of every rank) with which the policy's run fits, all else as the machine has it: in
// whole MiB, by bisection between 0 (not of the GPU) and room for every tensor twice over, so that it takes for granted
// that more never hurts. Where all ranks are alike, one is searched for, with its part of what they share, and all of
// them confirm what it says. `fits_machine`: it fits as it is; then the tier's own capacity is the answer where no
// whole MiB below does. nullopt: no capacity of that tier is enough.
std::optional<Bytes> minimum_capacity(const Trace& trace, const MachineSpec& machine, TierId tier,
                                      const std::string& policy, const std::map<std::string, std::string>& settings,
                                      const RunLimits& limits, bool fits_machine);

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
