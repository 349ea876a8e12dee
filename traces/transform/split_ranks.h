// A trace of several ranks, taken apart.
#pragma once

#include <span>
#include <vector>

#include "core/trace.h"

namespace tencache {

// One more than the highest rank of an op.
std::size_t rank_count(const Trace& trace);

// One trace a rank: its ops in order, and the tensors that they use, numbered anew in their order. A tensor that no op
// uses, such as an expert that is never chosen, goes where the one before it goes; the first ones to rank 0. Names (and
// with them the keys of rendezvous) keep their ids. A trace of one rank comes back as it is. Throws Error when two
// ranks use one tensor, or a rank has no op.
std::vector<Trace> split_ranks(Trace trace);

// Of each rank the first one that is alike: but for names, the same ops on the same tensors in the same order.
std::vector<std::size_t> alike_ranks(std::span<const Trace> ranks);

}  // namespace tencache
