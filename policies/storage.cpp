#include "policies/storage.h"

#include <string>

#include "core/error.h"

namespace tencache {

TierId first_storage(const MachineSpec& machine) {
  for (TierId tier = 0; tier < machine.tiers.size(); ++tier) {
    if (machine.tiers[tier].kind == TierKind::nvme) return tier;
  }
  return no_tier;
}

TierId require_ssd(const MachineSpec& machine, std::string_view policy) {
  for (TierId tier = 1; tier < machine.tiers.size(); ++tier) {
    if (machine.tiers[tier].kind != TierKind::nvme) continue;
    if (!machine.path_between(0, tier).empty() && !machine.path_between(tier, 0).empty()) return tier;
  }
  throw Error(
      "policy '" + std::string(policy) + "' offloads to an SSD and to nothing else, but machine '" + machine.name +
      "' has no tier of kind nvme" +
      (first_storage(machine) != no_tier ? " that its GPU can reach in both directions: state links or staging" : ""));
}

}  // namespace tencache
