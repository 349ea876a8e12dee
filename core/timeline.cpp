#include "core/timeline.h"

namespace tencache {

std::string_view to_string(StallCause cause) {
  constexpr std::string_view texts[stall_cause_count] = {"h2d",           "d2h",    "nvme_read", "nvme_write",
                                                         "cpu_optimizer", "memory", "collective"};
  return texts[static_cast<std::size_t>(cause)];
}

StallCause cause_of(const MachineSpec& machine, LinkId link) {
  const TierKind from = machine.tiers[machine.links[link].from].kind;
  const TierKind to = machine.tiers[machine.links[link].to].kind;
  if (from == TierKind::nvme) return StallCause::nvme_read;
  if (to == TierKind::nvme) return StallCause::nvme_write;
  return to == TierKind::gpu ? StallCause::h2d : StallCause::d2h;
}

}  // namespace tencache
