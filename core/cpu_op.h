// What ops take on the CPU: the price by which lowering moves them there, policies place them and the lower bound counts
// them.
#pragma once

#include <optional>

#include "core/machine_spec.h"
#include "core/trace.h"

namespace tencache {

// Bytes of what the op reads and writes, a tensor that it updates in place counted twice.
Bytes bytes_touched(const Trace& trace, const Op& op);

// Whether a policy may have the CPU run it (Policy::place), on a machine that has one: GPU ops of the optimizer, and
// others that the trace marks as placeable; none of the communication stream.
bool may_move_to_cpu(const Op& op);

// What an op that may move takes on the CPU. An op of the optimizer: by cpu.adam_parameters_per_second; another: as
// below. nullopt: it may not move, or the machine does not state the rate.
std::optional<Nanoseconds> duration_on_cpu(const Trace& trace, const Op& op, const MachineSpec& machine);

// What an op that is not the optimizer's takes on the CPU: OpDetail::cpu_duration_ns if the trace gives it, else the
// larger of its arithmetic and its memory traffic at the CPU's rates (the roofline; Williams et al. 2009). nullopt: the
// machine does not state them.
std::optional<Nanoseconds> forward_duration_on_cpu(const Trace& trace, const Op& op, const MachineSpec& machine);

}  // namespace tencache
