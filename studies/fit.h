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
