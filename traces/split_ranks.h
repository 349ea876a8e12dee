// A trace of several ranks, taken apart.
#pragma once

#include <vector>

#include "core/trace.h"

namespace tencache {

// One more than the highest rank of an op.
std::size_t rank_count(const Trace& trace);

// One trace a rank: its ops in order, and the tensors that they use, numbered anew in their order. Tensors that no op
// uses go to rank 0. Names (and with them the keys of rendezvous) keep their ids. A trace of one rank comes back as it
// is. Throws Error when two ranks use one tensor, or a rank has no op.
std::vector<Trace> split_ranks(Trace trace);

}  // namespace tencache
