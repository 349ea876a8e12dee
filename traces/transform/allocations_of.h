// The allocations of training iterations that are given as traces, as PyTorch makes them.
#pragma once

#include <vector>

#include "core/trace.h"
#include "traces/allocations.h"

namespace tencache {

struct AllocationsOfTraces {
  // How often all traces run, one after the other in their order.
  unsigned rounds = 1;
  // Gradients live to the next iteration's first op (zero_grad at the beginning of a step); else to their last use.
  bool gradients_kept = false;
};

// Persistent tensors that a forward pass uses are there from the beginning; others (states of an optimizer) are born
// where they are first used. The rest lives from its first use to the end of the op of its last: what an op reads first
// is born before it, what it writes in the order of its writes, and what it uses last dies after it, by number. Tensors
// of another rank than the first, and those that only ops on the CPU use, are left out. Persistent tensors of several
// traces are the same where their names are; inputs of another size take the place of those before. `traces`: one or
// more, of one model; valid. Throws Error where another persistent tensor has another size in another trace.
Allocations allocations_of(const std::vector<const Trace*>& traces, const AllocationsOfTraces& how);

}  // namespace tencache
