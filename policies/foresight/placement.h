// Step 1 of foresight.cpp: where the optimizer's updates run, in which order, and where tensors start. All of it is
// pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/machine_spec.h"
#include "core/policy.h"
#include "core/trace.h"

namespace tencache {

// What the CPU updates starts in CPU memory, since it may have no way there from elsewhere; so does a role most of
// which no op writes (frozen weights), if it fits, since nothing would ever bring it there. Where all would start there
// and not fit, the rest starts on the GPU: else what need never lie in storage would take iterations to come up.
void choose_initial_tiers(const Trace& trace, const MachineSpec& machine, Layout& layout);

// Moves that share of the updates' bytes from the GPU to the CPU: the last ones, whose parameters the next forward pass
// needs last.
void place_share(const Trace& trace, double share, std::vector<Device>& devices);

// Moves the updates that the GPU takes many times as long for as for others of their bytes, those of small tensors:
// mostly launches, while the CPU takes next to nothing for them.
void place_launches(const Trace& trace, std::vector<Device>& devices);

// Moves what reads only what updates on the CPU read, norms of their gradients: the CPU takes them while it waits for
// the norm of all gradients, and nothing is copied for them.
void place_norms(const Trace& trace, std::vector<Device>& devices);

// What the GPU's lane computes, if ops run there.
Nanoseconds gpu_time(const Trace& trace, const std::vector<Device>& devices);

// Sub-groups in the order in which the next iteration first reads what they write.
void order_by_next_use(const Trace& trace, std::vector<std::int32_t>& groups);

// Whether no op writes most of what persists, as when text is generated.
bool is_mostly_read(const Trace& trace);

// Whether updates of the trace could run on the CPU: the machine has one, states its rate and links it with the GPU
// both ways, and there is more than updates (a live program asks about each alone: there is nothing to weigh it
// against).
bool may_share_updates(const Trace& trace, const MachineSpec& machine);
// Whether what the CPU could update is more than its memory, and comes from storage by way of the GPU only: then little
// decides whether a share fits.
bool is_tight_for_updates(const Trace& trace, const MachineSpec& machine);
// The share that an estimate takes to be fastest, in sixteenths. May_share_updates.
double estimate_share(const Trace& trace, const MachineSpec& machine);

}  // namespace tencache
