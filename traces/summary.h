// What is in a trace: the figures of `tencache info`.
#pragma once

#include <array>
#include <cstdint>

#include "core/trace.h"

namespace tencache {

struct TraceSummary {
  struct Ops {
    std::uint64_t count = 0;
    Nanoseconds duration_ns = 0;
  };
  struct Tensors {
    std::uint64_t count = 0;
    Bytes bytes = 0;
  };

  TraceHeader header;  // provenance

  std::uint64_t op_count = 0;
  std::array<std::array<Ops, 2>, phase_count> ops;  // [phase][device]
  std::array<Ops, kernel_kind_count> kernels;       // [kind]
  std::uint64_t step_count = 0;                     // highest step + 1; 0: no op has a step
  std::uint64_t module_count = 0;                   // distinct names, without "none"
  std::uint64_t rank_count = 0;                     // highest rank + 1

  std::uint64_t tensor_count = 0;
  Bytes tensor_bytes = 0;
  std::array<Tensors, role_count> tensors;  // [role]
  Tensors gradients_of_step;  // that the optimizer's step reads: of parameters; the others are activations'
  Tensors persistent;
  Tensors unused;  // of no op

  // The bytes alive at once, wherever they are: persistent tensors always, the others from their first to their last
  // use, both included. The op with the most, the first of equals.
  Bytes peak_demand_bytes = 0;
  OpIndex peak_demand_op = none;
  // The distinct tensors of one op: less GPU memory than this and it cannot run. Of all ops, and of those on the GPU.
  Bytes largest_working_set_bytes = 0;
  OpIndex largest_working_set_op = none;
  Bytes largest_gpu_working_set_bytes = 0;
  OpIndex largest_gpu_working_set_op = none;

  // Sums over the ops of all devices and ranks. Their time one after the other, which is the iteration where nothing
  // overlaps.
  Nanoseconds compute_ns = 0;
  Nanoseconds gap_ns = 0;
  Nanoseconds measured_ns = 0;  // the part of compute_ns whose source is `measured`
  std::uint64_t flops = 0;      // 0: unknown
  Bytes traffic_bytes = 0;      // of the kernels; 0: unknown

  bool kernels_known() const { return kernels[static_cast<std::size_t>(KernelKind::unknown)].count < op_count; }
  // 0 … 1; 1 where there is no compute time at all.
  double measured_share() const {
    return compute_ns == 0 ? 1.0 : static_cast<double>(measured_ns) / static_cast<double>(compute_ns);
  }
};

// Of a valid trace. One pass over ops and tensors each, linear time.
TraceSummary summarize(const Trace& trace);

}  // namespace tencache
