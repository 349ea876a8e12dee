// What the policies that offload from the GPU to an SSD, and to nothing else, have in common.
#pragma once

#include <string_view>

#include "core/machine_spec.h"

namespace tencache {

// The first tier of kind nvme that the GPU reaches in both directions, directly or through staging buffers. Throws
// Error, naming the policy and what the machine lacks, if there is none.
TierId require_ssd(const MachineSpec& machine, std::string_view policy);

}  // namespace tencache
