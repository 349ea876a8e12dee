// What a GPU can do, and the time that a kernel takes on it by the roofline model (Williams et al., CACM 2009): the
// larger of its arithmetic over the reachable rate and its memory traffic over the reachable bandwidth, plus a fixed
// cost. The reachable share of each peak (the "efficiency") is stated with its source in configs/gpus.yaml.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/machine_spec.h"
#include "core/trace.h"
#include "core/units.h"

namespace tencache {

enum class Precision : std::uint8_t { fp16, bf16, fp32 };
std::string_view to_string(Precision precision);
std::optional<Precision> parse_precision(std::string_view text);
inline Bytes bytes_of(Precision precision) { return precision == Precision::fp32 ? 4 : 2; }

struct GpuSpec {
  std::string name;  // "l40s"
  Bytes memory = 0;  // as the device has it, before context and workspaces
  BytesPerSecond memory_bandwidth = 0;
  // Peak rates of dense products, floating-point operations per second; 0: the GPU has none in that precision.
  double fp16_flops = 0, bf16_flops = 0, fp32_flops = 0;
  // Shares of the peaks that kernels reach.
  double matmul_efficiency = 1;           // large products
  double attention_efficiency = 1;        // fused (flash) attention
  double memory_efficiency = 1;           // kernels bound by memory
  Nanoseconds kernel_overhead_ns = 0;     // of every kernel, beyond the roofline
  Nanoseconds launch_gap_ns = 0;          // idle before every kernel: the host launches one at a time
  BytesPerSecond interconnect = 0;        // between GPUs of one host, one direction
  Nanoseconds collective_latency_ns = 0;  // of every collective and send
  std::vector<Fact> facts;
};

class Roofline {
 public:
  // Throws Error if the GPU has no such precision.
  Roofline(GpuSpec gpu, Precision precision);

  Nanoseconds kernel_ns(KernelKind kind, std::uint64_t flops, Bytes bytes) const;
  // `bytes` cross this rank's link to the others; `bandwidth` 0: the GPU's own interconnect.
  Nanoseconds collective_ns(Bytes bytes, BytesPerSecond bandwidth = 0) const;
  const GpuSpec& gpu() const { return gpu_; }

 private:
  GpuSpec gpu_;
  double matmul_flops_ = 0, attention_flops_ = 0, bandwidth_ = 0;
};

}  // namespace tencache
