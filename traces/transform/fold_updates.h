// An optimizer's kernels made into updates, one a parameter, as policies place and order them.
//
// PyTorch's optimizers run half a dozen kernels for each parameter, or for lists of all parameters at once
// ("foreach"). Recorded as they ran, they cannot be updated on the CPU or in another order: their intermediate results
// would have to move with them, and a list is one op. What is simulated is what offloading systems run instead: for
// each parameter one kernel that reads its gradient, its states and itself.
#pragma once

#include <cstdint>
#include <string>

#include "core/trace.h"

namespace tencache {

struct FoldedUpdates {
  std::uint64_t kernels = 0;  // that were; 0: there was nothing to fold
  std::uint64_t updates = 0;  // that they became; 0: they stayed, as rule 2 found no parameter for a state
  // "the optimizer's 576 kernels are simulated as 72 updates"
  std::string to_string() const;
};

// Folds the optimizer's ops from the first that writes a parameter or a state to the last, unless some of them are
// placeable or in sub-groups: such a trace has updates already. The rules:
//  1. Ops before the first one (clipping, unscaling) stay.
//  2. What an op uses of a parameter, its gradient and its states belongs together; of an op that has a list of each,
//     the n-th of each list does.
//  3. An update reads and writes what these ops did of it, and has the most memory that their intermediate results had
//     at once for it as a workspace. It is placeable and reorderable; sub-groups have 10^9 elements, as DeepSpeed's.
//  4. All the ops' time is shared among the updates by the bytes that they touch, idle time before them as well.
// Traces where rule 2 finds no parameter for a state stay as they are (Adafactor's factors, for one), as do those of
// several ranks. Parameters that share a gradient's memory (a bucket that gradients are views of) are one update.
FoldedUpdates fold_updates(Trace& trace);

// A trace file as it is simulated: with folded updates. `folded`: what that did, where somebody wants to know.
Trace read_trace_to_simulate(const std::string& path, FoldedUpdates* folded = nullptr);

}  // namespace tencache
