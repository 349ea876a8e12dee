// A training iteration in the shape of a transformer, of any number of ops: what the benchmarks of scale run.
#pragma once

#include <cstdint>

#include "core/machine_spec.h"
#include "core/trace.h"

namespace tencache {

struct SyntheticTrace {
  Trace trace;
  Bytes peak_bytes = 0;    // the most that is alive at once
  Bytes tensor_bytes = 0;  // of all tensors
};

// At least `op_count` ops, in whole layers of 32: 8 forward, 16 backward, 8 of the optimizer, three to seven accesses
// each, 3.5 on average. Each op, tensor and layer has a name of its own.
SyntheticTrace synthetic_trace(std::uint32_t op_count);

// A GPU with half of the peak, CPU memory without limit, PCIe 4.0.
MachineSpec synthetic_machine(const SyntheticTrace& made);

}  // namespace tencache
