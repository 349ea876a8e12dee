// What FlexGen's linear program is asked of a trace's block on a machine.
#pragma once

#include "core/machine_spec.h"
#include "core/trace.h"
#include "policies/block_slots.h"
#include "policies/flexgen/cost_model.h"

namespace tencache {

struct FlexgenQuestion {
  FlexgenModel model;
  FlexgenRates rates;
  FlexgenBlock block;
  FlexgenMemory memory;  // that may be filled: 0.8 of each
};

// Widths and rates of products are those of the trace's kernels, rates of copies those of the machine's links. `pinned`:
// weights in CPU memory are page-locked. Throws Error if the trace is not that of a generation.
FlexgenQuestion ask_flexgen(const MachineSpec& machine, const Trace& trace, const BlockSlots& slots, bool pinned);

}  // namespace tencache
