#include "policies/planning/swap_space.h"

#include <algorithm>

namespace tencache {

SwapSpace::SwapSpace(const Kernels& kernels, const MachineSpec& machine, const BandwidthPlan& bandwidth) {
  for (TierId tier = 1; tier < machine.tiers.size(); ++tier) {
    if (!bandwidth.exists(0, tier) || !bandwidth.exists(tier, 0)) continue;
    tiers_.push_back(tier);
    used_.emplace_back(std::vector<std::int64_t>(kernels.ops.size(), 0));
    capacity_.push_back(static_cast<std::int64_t>(machine.tiers[tier].capacity));
  }
}

TierId SwapSpace::tier_for(const InactivePeriod& period) const {
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const std::int64_t bytes = static_cast<std::int64_t>(period.bytes);
    if (used_[i].most(period.begin, period.end) + bytes <= capacity_[i]) return tiers_[i];
  }
  return no_tier;
}

std::size_t SwapSpace::number_of(TierId tier) const {
  return static_cast<std::size_t>(std::ranges::find(tiers_, tier) - tiers_.begin());
}

std::span<const TierId> SwapSpace::tiers_after(TierId tier) const {
  return std::span(tiers_).subspan(number_of(tier) + 1);
}

void SwapSpace::take(const InactivePeriod& period, TierId tier) {
  used_[number_of(tier)].add(period.begin, period.end, static_cast<std::int64_t>(period.bytes));
}

}  // namespace tencache
