// What copies cost a live program beyond the time that their links take: a small program of its own, run on this
// computer with and without room for its tensors, against the same two runs simulated.
#pragma once

#include "core/machine_spec.h"
#include "executor/calibrate.h"

namespace tencache {

// `machine` is calibrated, its first two tiers the GPU's and the CPU's, its first two links between them. Returns the
// seconds that a copy costs the thread that computes: the difference of the two measured step times less that of the
// simulated ones, over the copies of a step. Not below 0. Median of several pairs of runs.
MeasuredMedian measure_host_cost(const MachineSpec& machine, bool quick);

}  // namespace tencache
