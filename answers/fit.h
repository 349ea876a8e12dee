// What `tencache fit` found, as JSON and for people.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answers/json.h"
#include "studies/fit.h"
#include "studies/workload.h"
#include "traces/demand.h"

namespace tencache {

// Of one policy.
struct FitVerdict {
  Outcome outcome;
  struct Minimum {
    TierId tier = no_tier;
    std::optional<Bytes> bytes;         // none: no capacity of it is enough
    std::optional<JointMinimum> joint;  // where that is so of all tiers that were searched
  };
  std::vector<Minimum> minimums;       // of the tiers that were searched
  std::vector<TierPeak> peaks;         // by tier, where it fits
  std::optional<bool> pinned_fits;     // none: there is no limit
  Bytes pinned = 0, pinned_limit = 0;  // of all ranks, where there is a limit

  bool fits() const { return outcome.result.fits && pinned_fits.value_or(true); }
};

struct FitResult {
  const Workload& workload;
  std::vector<Demand> demands, rounded;  // by rank; rounded: in whole pages of GPU memory
  std::vector<FitVerdict> verdicts;      // at least one

  bool fits() const;  // under any of the policies
};

Json fit_json(const FitResult& result);
std::string fit_text(const FitResult& result);

}  // namespace tencache
