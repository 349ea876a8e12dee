// The ops that run, or may run, on the CPU's lane, and what they and the GPU's later ops need together.
#pragma once

#include <vector>

#include "core/schedule.h"
#include "sim/bound_trace.h"

namespace tencache {

// In order; those of the trace's movable ops in their order.
std::vector<LateOp> late_ops(const BoundTrace& trace, const MachineSpec& machine, const Schedule& schedule);

// Bytes of persistent tensors that late ops, and the fixed GPU ops from one place of the iteration on, read and write:
// only such tensors as no op of the iteration writes without reading. Each of these late ops waits for a GPU op behind
// the place, and a GPU op before it in the next iteration waits for each of them: from the place to the place an
// iteration later all of them run once, on whichever lane.
struct LateDemand {
  double in = 0, out = 0;  // bytes
  OpIndex first = 0;       // at the place
};
LateDemand late_demand(const BoundTrace& trace, const MachineSpec& machine);

}  // namespace tencache
