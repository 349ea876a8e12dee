// Where a plan puts what leaves the GPU.
#pragma once

#include <span>
#include <vector>

#include "core/machine_spec.h"
#include "policies/planning/bandwidth_plan.h"
#include "policies/planning/kernels.h"
#include "policies/planning/range_peaks.h"

namespace tencache {

// The tiers that a plan may swap to, the fastest first, and what it keeps there.
class SwapSpace {
 public:
  SwapSpace(const Kernels& kernels, const MachineSpec& machine, const BandwidthPlan& bandwidth);
  // The first with room for the period's tensor, from its eviction to its return; no_tier if there is none.
  TierId tier_for(const InactivePeriod& period) const;
  // Those that come after it when it is full.
  std::span<const TierId> tiers_after(TierId tier) const;
  void take(const InactivePeriod& period, TierId tier);

 private:
  std::size_t number_of(TierId tier) const;

  std::vector<TierId> tiers_;
  std::vector<RangePeaks> used_;        // of each
  std::vector<std::int64_t> capacity_;  // of each
};

}  // namespace tencache
