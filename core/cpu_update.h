// What updates of the optimizer take on the CPU: the price by which lowering moves them, policies place them and the
// lower bound counts them.
#pragma once

#include "core/machine_spec.h"
#include "core/trace.h"

namespace tencache {

// Bytes of what the op reads and writes, a tensor that it updates in place counted twice.
Bytes bytes_touched(const Trace& trace, const Op& op);

// What an optimizer op recorded on the GPU takes on the CPU. The machine must state cpu_adam_parameters_per_second.
Nanoseconds duration_on_cpu(const Trace& trace, const Op& op, const MachineSpec& machine);

}  // namespace tencache
