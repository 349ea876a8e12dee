// How much memory a program's tensors take.
#pragma once

#include "core/schedule.h"
#include "core/trace.h"

namespace tencache {

// Of all persistent tensors.
Bytes persistent_bytes(const Trace& trace);

// The most that tensors which are not persistent take at once, each alive from its first use to its last; with or
// without gradients. Linear in the accesses.
Bytes peak_of_intermediates(const Trace& trace, const Schedule& schedule, bool with_gradients);

}  // namespace tencache
