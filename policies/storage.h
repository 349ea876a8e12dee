// The tiers of storage that policies offload to.
#pragma once

#include <string_view>

#include "core/machine_spec.h"

namespace tencache {

// The first tier of kind nvme, or no_tier.
TierId first_storage(const MachineSpec& machine);

// The first tier of kind nvme that the GPU reaches in both directions, directly or through staging buffers. Throws
// Error, naming the policy and what the machine lacks, if there is none.
TierId require_ssd(const MachineSpec& machine, std::string_view policy);

}  // namespace tencache
