// Where foresight has updates run: a choice before the run, from what the links and the CPU would have to do.
#pragma once

#include <array>
#include <vector>

#include "core/machine_spec.h"
#include "core/trace.h"

namespace tencache {

// The roles of persistent tensors that ops of the CPU read.
std::array<bool, role_count> roles_of_cpu(const Trace& trace, const std::vector<Device>& devices);

// Moves that share of the updates' bytes from the GPU to the CPU, evenly over the step.
void place_share(const Trace& trace, double share, std::vector<Device>& devices);

// Moves the share that an estimate takes to be fastest; none if the machine states no CPU rate.
void place_updates(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices);

}  // namespace tencache
