// The time that a kernel takes on a GPU, by what it computes and on which shape. One model for generated traces,
// recordings without times and durations that are carried over to another GPU.
//
//   matmul      tiles on multiprocessors, wave by wave, beside the memory's traffic; where measured times of such
//               products are at hand, corrected by those of the nearest shapes
//   attention   share of the peak by generation of the kernel, head dimension and length (Dao et al. 2022 to 2024)
//   the others  memory traffic over the share of the bandwidth that kernels of the kind reach
//
// and a fixed time of every kernel. Products whose operands are in fp8 (Kernel::fp8) have their own peak, constants and
// measured times, in a trace of any precision. A matmul whose shape is not known is the larger of its arithmetic over
// the peak's share and its traffic over the bandwidth's (the roofline, Williams et al. 2009). docs/durations.md has the
// sources of the constants and what the model was held against.
#pragma once

#include <cstdint>

#include "core/trace.h"
#include "traces/generate/gpu_spec.h"

namespace tencache {

class KernelModel {
 public:
  // Throws Error if the GPU has no such precision. fp8: as bf16, with the kernels that say so in fp8.
  KernelModel(GpuSpec gpu, Precision precision);

  // Of the duration, what starting one kernel takes.
  Nanoseconds start_ns(const Kernel& kernel) const;
  // Of everything that an op launches. `flops` and `bytes` are its sums. `packed`: of a product, the bytes of its second
  // operand where that is stored in fewer bits than the precision's and expanded in registers; else 0. Throws Error for
  // a product in fp8 if the GPU does not compute in that.
  Nanoseconds duration_ns(const Kernel& kernel, std::uint64_t flops, Bytes bytes, Bytes packed = 0) const;
  // What an attention kernel takes longer where it also writes the keys and values of its queries into a KV cache, as
  // those of serving engines do; 0 where nothing is known of it.
  Nanoseconds cache_write_ns(const Kernel& kernel) const;
  // `bytes` cross this rank's link to the other `ranks` - 1; `bandwidth` 0: the GPU's own interconnect.
  Nanoseconds collective_ns(std::uint64_t ranks, Bytes bytes, BytesPerSecond bandwidth = 0) const;
  // Whether the shape lies beyond those that the GPU was measured at, or nothing was measured.
  bool extrapolates(const Kernel& kernel) const;
  // Median error of times of this kind, as found on shapes that nothing was fitted on.
  double error_of(KernelKind kind) const { return gpu_.kernels.error[static_cast<std::size_t>(kind)]; }

  const GpuSpec& gpu() const { return gpu_; }
  Precision precision() const { return precision_; }

 private:
  struct Nearest {
    double log_correction = 0;
    double distance = 0;  // to the nearest, in doublings of m, n, k
  };
  // A measured product: where it lies, and the logarithm of measured ÷ modelled.
  struct Point {
    std::array<double, 3> at;
    double log_ratio;
  };
  // Without correction.
  double matmul_seconds(double batch, double m, double n, double k, bool unaligned, bool fp8, Bytes packed = 0) const;
  double attention_seconds(const Kernel& kernel, double flops, double bytes) const;
  const AttentionConstants* attention_constants(const Kernel& kernel) const;
  std::vector<Point> points_of(const std::vector<MeasuredMatmul>& measured, bool fp8) const;
  Nearest nearest(const Kernel& kernel) const;
  double bandwidth_of(KernelKind kind) const;
  double start_of(KernelKind kind) const;

  GpuSpec gpu_;
  Precision precision_;
  double peak_ = 0;
  std::vector<Point> points_;      // of 16-bit precisions
  std::vector<Point> points_fp8_;  // of products in fp8
};

}  // namespace tencache
