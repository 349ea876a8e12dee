// How much memory a policy's run takes, tier by tier, and the least with which it runs.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/engine.h"
#include "core/machine_spec.h"
#include "core/metrics.h"
#include "core/timeline.h"
#include "studies/policy_run.h"
#include "studies/workload.h"

namespace tencache {

// The most that a tier holds at once.
struct TierPeak {
  std::string name;              // of the tier
  Bytes startup_peak_bytes = 0;  // until the first iteration is over, persistent tensors laid out before it included
  Bytes steady_peak_bytes = 0;   // in the window that results are of
  // Of a CPU tier whose machine rounds page-locked allocations up to powers of two (AllocationCost): the most over the
  // run if what each tensor has there is an allocation of its own, as PyTorch's caching host allocator makes them.
  // None: sizes are not rounded.
  std::optional<Bytes> pinned_peak_bytes = {};
};
// By tier, of one rank; the timeline is of the whole run.
std::vector<TierPeak> tier_peaks(const Timeline& timeline, const RunResult& result, const MachineSpec& machine);

// Of each rank of the trace the first that has the same ops, tensors (but for their names) and machine.
std::vector<std::size_t> alike_ranks(const Trace& trace, const MachineSpec& machine);

// What does not fit shows in the first iterations, and what a plan makes faster it does not make fit. An early try runs
// two of them and tells a planner that simulates of each try that it does not fit, so that it does without.
enum class Tried : std::uint8_t { early, whole };
// What the policy refuses, or the machine cannot serve, does not fit.
Outcome try_policy(const Trace& trace, const MachineSpec& machine, const std::string& policy,
                   const std::map<std::string, std::string>& settings, const RunLimits& limits, Tried tried);

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

// What is enough of a tier where more of `more_of` is there too; none: more of several.
struct MinimumWithMore {
  std::string tier;
  Bytes bytes = 0;
  std::optional<std::string> more_of;
  std::optional<Bytes> more_bytes;
};

// Of one policy.
struct FitVerdict {
  std::string policy;
  bool fits = false;                  // whatever is page-locked
  std::optional<std::string> reason;  // why not
  std::optional<std::string> op;      // at which memory ran out
  std::optional<Bytes> bytes_missing;
  // Of the first tier of each kind, where it was searched; none: no capacity of it is enough.
  std::optional<Bytes> minimum_gpu_bytes, minimum_cpu_bytes, minimum_nvme_bytes;
  std::vector<MinimumWithMore> minimum_with_more;  // where none of several tiers alone is enough
  std::optional<bool> pinned_fits;                 // none: there is no limit
  std::optional<std::vector<TierPeak>> tiers;      // where it fits
  std::optional<double> iteration_seconds;
  std::optional<std::vector<std::pair<std::string, Bytes>>> peak_bytes;  // by tier

  Outcome outcome;                     // without its programs
  Bytes pinned = 0, pinned_limit = 0;  // of all ranks, where there is a limit

  bool fits_all() const { return fits && pinned_fits.value_or(true); }
  // Of that kind.
  std::optional<Bytes>& minimum_of(TierKind kind);
};

struct FitRequest {
  const Workload* workload = nullptr;
  std::vector<std::string> policies;
  std::map<std::string, std::string> settings;
  std::vector<TierKind> searched;  // of which kinds of tiers the least is searched
  std::optional<Bytes> pinned_limit;
  std::function<void(std::size_t done, std::size_t of, const std::string& what)> progress;  // one call at a time
};
// On all cores. Throws Error for an unknown policy or option.
std::vector<FitVerdict> judge_fit(const FitRequest& request);

}  // namespace tencache
