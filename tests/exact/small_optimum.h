// The least mean time of an iteration that any schedule reaches, found exactly, for traces of a few ops and tensors.
#pragma once

#include <cstdint>

#include "core/trace.h"

namespace tencache {

struct Optimum {
  double units = 0;          // an iteration, mean of a steady period
  std::uint64_t states = 0;  // looked at
};

// On a GPU for `gpu_tensors` tensors and CPU memory for all, with a link each way that copies a tensor in one unit of
// time, one after the other. All tensors are of one size, all ops run on the GPU, in order, and take whole units
// (`unit_ns`): then a schedule with whole times is among the best ones, since every copy and op can be moved to the end
// of what it waits for. The engine's rules hold: a copy has room in its destination from its begin and in its source to
// its end, an op its outputs from its begin, and what it writes is copied by nobody meanwhile; values that are
// overwritten in the same iteration before they are read need not be kept. At most 8 tensors and 15 ops; the trace must
// fit.
//
// Method: D_k(s) is the least time after which k iterations can be over with the memories in state s, found by a search
// in breadth over time, from one boundary to the next. It is linear in the min-plus sense, so it becomes periodic:
// D_{k+p} = D_k + c. The least mean is c / p (the least mean cycle of the boundary states).
Optimum small_optimum(const Trace& trace, Nanoseconds unit_ns, int gpu_tensors);

}  // namespace tencache
