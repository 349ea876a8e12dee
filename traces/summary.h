// What is in a trace: the figures of `tencache info`.
#pragma once

#include <array>
#include <cstdint>

#include "core/trace.h"

namespace tencache {

struct OpTotal {
  std::uint64_t count = 0;
  Nanoseconds duration_ns = 0;

  void add(Nanoseconds duration) {
    ++count;
    duration_ns += duration;
  }
};

struct TensorTotal {
  std::uint64_t count = 0;
  Bytes bytes = 0;

  void add(Bytes of_one) {
    ++count;
    bytes += of_one;
  }
};

// The op with the most bytes, the first of equals.
struct LargestOp {
  Bytes bytes = 0;
  OpIndex op = none;

  void offer(Bytes of_op, OpIndex index) {
    if (op == none || of_op > bytes) *this = {of_op, index};
  }
};

struct TraceSummary {
  TraceHeader header;  // provenance

  // Of all devices and ranks. Their time one after the other is the iteration where nothing overlaps.
  OpTotal all_ops;
  std::array<std::array<OpTotal, 2>, phase_count> ops;  // [phase][device]
  std::array<OpTotal, kernel_kind_count> kernels;       // [kind]
  std::uint64_t step_count = 0;                         // highest step + 1; 0: no op has a step
  std::uint64_t module_count = 0;                       // distinct names, without "none"
  std::uint64_t rank_count = 0;                         // highest rank + 1

  TensorTotal all_tensors;
  std::array<TensorTotal, role_count> tensors;  // [role]
  TensorTotal gradients_of_step;  // that the optimizer's step reads: of parameters; the others are activations'
  TensorTotal persistent;
  TensorTotal unused;  // of no op

  // The bytes alive at once, wherever they are: persistent tensors always, the others from their first to their last
  // use, both included.
  LargestOp peak_demand;
  // The distinct tensors of one op: less GPU memory than this and it cannot run. Of all ops, and of those on the GPU.
  LargestOp working_set, gpu_working_set;

  // Sums over the ops of all devices and ranks.
  Nanoseconds gap_ns = 0;
  Nanoseconds beside_ns = 0;    // of the ops on the communication stream
  Nanoseconds measured_ns = 0;  // of the ops whose duration's source is `measured`
  std::uint64_t flops = 0;      // 0: unknown
  Bytes traffic_bytes = 0;      // of the kernels; 0: unknown

  bool kernels_known() const { return kernels[static_cast<std::size_t>(KernelKind::unknown)].count < all_ops.count; }
  // 0 … 1; 1 where there is no compute time at all.
  double measured_share() const {
    const Nanoseconds compute_ns = all_ops.duration_ns;
    return compute_ns == 0 ? 1.0 : static_cast<double>(measured_ns) / static_cast<double>(compute_ns);
  }
};

// Of a valid trace. One pass over ops and tensors each, linear time.
TraceSummary summarize(const Trace& trace);

}  // namespace tencache
