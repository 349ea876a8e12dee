#include "policies/planning/swap_space.h"

#include <algorithm>

namespace tencache {

SwapSpace::SwapSpace(const Kernels& kernels, const MachineSpec& machine, const BandwidthPlan& bandwidth) {
  for (TierId tier = 1; tier < machine.tiers.size(); ++tier) {
    if (!bandwidth.exists(0, tier) || !bandwidth.exists(tier, 0)) continue;
    tiers_.push_back(tier);
    used_.emplace_back(kernels, machine.tiers[tier].capacity);
  }
}

TierId SwapSpace::tier_for(const InactivePeriod& period) const {
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const std::int64_t bytes = static_cast<std::int64_t>(period.bytes);
    if (used_[i].most(period.begin, period.end) + bytes <= used_[i].limit()) return tiers_[i];
  }
  return no_tier;
}

void SwapSpace::take(const InactivePeriod& period, TierId tier) {
  const std::size_t i = static_cast<std::size_t>(std::ranges::find(tiers_, tier) - tiers_.begin());
  used_[i].add(period.begin, period.end, static_cast<std::int64_t>(period.bytes));
}

}  // namespace tencache
