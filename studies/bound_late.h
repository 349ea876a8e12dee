// The ops that run, or may run, on the CPU's lane, and what they and the GPU's later ops need together.
#pragma once

#include <vector>

#include "core/schedule.h"
#include "studies/bound_trace.h"

namespace tencache {

// In order; those of the trace's movable ops in their order.
std::vector<LateOp> late_ops(const BoundTrace& trace, const MachineSpec& machine, const Schedule& schedule);

// A round: from a place of the iteration, the begin of a unit on the GPU's lane, to the same place an iteration later.
// In it run all fixed GPU ops and each late op once that waits for a GPU op behind the place, and that a GPU op before
// the place waits for in the next iteration: on whichever lane, at whatever time. By place, bytes of
// - in: what these late ops and the GPU ops behind the place use that the round does not make before: persistent
//   tensors that no op writes without reading, what GPU ops before the place have made (activations), and what one of
//   the late ops made in the iteration before (parameters that the update casts).
// - out: the persistent tensors of them that they update.
// A run's last iteration, which has no next one, has these ops behind the place, too. With a next iteration after it
// - round_in: and the persistent tensors that GPU ops before the place use;
// - round_out: and those that these update, and what they make that is used behind the place.
struct LateDemand {
  std::vector<double> in, out, round_in, round_out;
};
LateDemand late_demand(const BoundTrace& trace, const MachineSpec& machine);

}  // namespace tencache
