// What the policies that leave the optimizer to the CPU have in common.
#pragma once

#include <vector>

#include "core/trace.h"

namespace tencache {

// Whether the op is an update that the CPU can take: one that the trace says may be placed or, recorded on the GPU, one
// that writes a persistent tensor other than an input.
bool is_update(const Trace& trace, const Op& op);

// Policy::place: all of these on the CPU.
void place_updates_on_cpu(const Trace& trace, std::vector<Device>& devices);

// Policy::order: by the op that completes what the group reads; of equal ones as they were. So in the order of the
// backward pass, and as recorded where a barrier, such as clipping by the global norm, comes before them all.
void order_as_ready(const Trace& trace, std::vector<std::int32_t>& groups);

}  // namespace tencache
