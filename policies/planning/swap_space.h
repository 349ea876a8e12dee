// Where a plan puts what leaves the GPU.
#pragma once

#include <vector>

#include "core/machine_spec.h"
#include "policies/planning/bandwidth_plan.h"
#include "policies/planning/kernels.h"
#include "policies/planning/memory_profile.h"

namespace tencache {

// The tiers that a plan may swap to, the fastest first, and what it keeps there.
class SwapSpace {
 public:
  SwapSpace(const Kernels& kernels, const MachineSpec& machine, const BandwidthPlan& bandwidth);
  // The first with room for the period's tensor, from its eviction to its return; no_tier if there is none.
  TierId tier_for(const InactivePeriod& period) const;
  void take(const InactivePeriod& period, TierId tier);

 private:
  std::vector<TierId> tiers_;
  std::vector<MemoryProfile> used_;  // of each
};

}  // namespace tencache
