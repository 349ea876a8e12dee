// What a trace asks of a machine's memory, op by op: whether it can fit, and what overflows first.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/trace.h"

namespace tencache {

// Bytes of distinct tensors at one op.
struct BytesAtOp {
  Bytes bytes = 0;
  OpIndex op = none;  // none: there is no such op
  std::array<Bytes, role_count> by_role{};
};

// Of the ops of one rank. A tensor belongs to the rank of the first op that uses it, and lives by the uses of that
// rank; an unused one belongs to rank 0.
struct Demand {
  BytesAtOp persistent;  // always alive; no op
  BytesAtOp peak;        // alive at once, wherever they are; the first op of equals
  // What one op touches that every policy runs on the GPU: with less GPU memory no policy can run it. Placeable ops do
  // not count, since a policy may run them on the CPU.
  BytesAtOp largest_gpu_op;
  Bytes largest_placed_op = 0;  // what one op touches that the trace places on the GPU, placeable ones included
  // By op of the rank, in order: the bytes alive. A tensor that is not persistent lives from its first to its last use,
  // both included.
  std::vector<OpIndex> ops;
  std::vector<Bytes> alive;

  // The first op at which more than `capacity` is alive; none if there is none.
  OpIndex first_above(Bytes capacity) const;
};

// Of a valid trace, a demand for each rank; each tensor's size is rounded up to a multiple of `granularity`, as a tier
// takes it (Tier::granularity). Linear time.
std::vector<Demand> demands_of(const Trace& trace, Bytes granularity = 1);

// What is alive at `op`, a member of `demand.ops`, with its roles.
BytesAtOp alive_at(const Trace& trace, OpIndex op);

}  // namespace tencache
