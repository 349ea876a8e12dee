// What a recorded call computes and moves, from the shapes of its arguments: what the kernel model needs where the
// recording has no times.
//
// Arithmetic is counted as traces/import/pytorch/op_flops.h has it, kernels and shapes are those of op_kernel.h there.
// Every other op is taken for bound by memory: each tensor read and written once; lookups (embedding, index_select,
// gather) read what they return.
#pragma once

#include <cstdint>
#include <span>

#include "traces/generate/kernel_model.h"
#include "traces/import/pytorch/calls.h"
#include "traces/import/pytorch/op_kernel.h"

namespace tencache {

struct OpCost {
  Kernel kernel;
  Precision precision = Precision::fp32;
  std::uint64_t flops = 0;
  Bytes bytes = 0;
};

// Of the whole call.
OpCost cost_of(const ExecutionTrace& trace, const Storages& storages, const CallOp& op);

// What the observer's own header finds, as a trace has it.
Kernel kernel_of(const OpKernel& found);

// The memory traffic of some of a call's uses.
Bytes traffic_of(const ExecutionTrace& trace, const Storages& storages, const CallNode& node,
                 std::span<const StorageUse> uses);

}  // namespace tencache
