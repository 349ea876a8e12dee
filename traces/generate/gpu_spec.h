// What a GPU can do: its peaks, and the shares of them that kernels reach. Read from configs/gpus.yaml and
// configs/kernels (configs/gpu_yaml.h); traces/generate/kernel_model.h makes times of it.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/enum_names.h"
#include "core/machine_spec.h"
#include "core/trace.h"
#include "core/units.h"

namespace tencache {

// tf32: stored in fp32, products at the GPU's TF32 rate. fp8: stored and computed as bf16, but for the products of
// linear layers, which read copies of their operands in fp8 (Kernel::fp8).
enum class Precision : std::uint8_t { fp16, bf16, fp32, tf32, fp8 };
template <>
inline constexpr auto enum_texts<Precision> = std::to_array<std::string_view>({"fp16", "bf16", "fp32", "tf32", "fp8"});
inline bool stored_in_fp32(Precision precision) { return precision == Precision::fp32 || precision == Precision::tf32; }
inline Bytes bytes_of(Precision precision) { return stored_in_fp32(precision) ? 4 : 2; }

// Of matrix products, which run as tiles on the multiprocessors, a wave at a time (KernelModel::matmul_seconds).
struct MatmulConstants {
  double start_ns = 0;           // of every product, beyond its work
  double share = 1;              // of the peak, of a tile of 256 x 128 whose depth is infinite
  double half_tile = 1;          // rate of a tile of 128 x 64 ÷ that of 256 x 128
  double quarter_tile = 1;       // of 64 x 64
  double depth = 0;              // steps of k that starting and storing a tile costs
  double tail = 1;               // share of a last, partly filled wave that is lost; 1: all of it
  double memory_share = 1;       // of the memory's bandwidth
  double cache_share = 1;        // the same where all operands fit into the L2 cache
  double split_start_ns = 0;     // of adding up what tiles split in depth have made
  double fp32_share = 1;         // what fp32 products reach of their peak ÷ what 16-bit ones reach of theirs
  double unaligned_share = 0.2;  // of the peak, where rows do not begin at multiples of 16 bytes

  // Rate of a tile of so many elements ÷ that of 256 x 128.
  double tile_rate(double elements) const {
    if (elements >= 32768) return 1;
    if (elements >= 16384) return std::sqrt(half_tile);
    return elements >= 8192 ? half_tile : quarter_tile;
  }
};

// Of a fused attention kernel at one head dimension. It works in blocks of 128 queries, spread over the
// multiprocessors.
struct AttentionConstants {
  AttentionKernel kernel = AttentionKernel::unspecified;
  std::uint64_t head_dimension = 0;
  bool causal = true;
  double start_ns = 0;
  double share = 1;         // of the peak, within a long block
  double depth = 0;         // keys that starting and storing a block costs
  double tail = 0;          // share of the longest block that nothing else runs beside
  double memory_share = 1;  // of the memory's bandwidth
  double cache_share = 1;   // the same for writing new keys and values into a KV cache
  double backward = 1;      // rate of the backward pass ÷ that of the forward pass
};

// Measured times that correct the model near them.
struct MeasuredMatmul {
  std::uint64_t m = 0, n = 0, k = 0;
  Nanoseconds time_ns = 0;
};

// NCCL, between so many GPUs of one host.
struct CollectiveConstants {
  std::uint64_t ranks = 0;
  BytesPerSecond bandwidth = 0;  // of what crosses a rank's link, large messages
  Nanoseconds latency_ns = 0;
  double ns_a_root_byte = 0;  // times the root of the bytes: what filling the pipeline of chunks costs

  Nanoseconds start_ns(Bytes bytes) const {
    return latency_ns + std::llround(ns_a_root_byte * std::sqrt(static_cast<double>(bytes)));
  }
};

// How well kernels use the GPU; shared by those of one chip.
struct KernelConstants {
  std::string name;       // whose measurements these are: "h100"
  bool measured = false;  // false: means over GPUs that were
  MatmulConstants matmul;
  std::vector<MeasuredMatmul> measured_matmuls;
  // The same of products in fp8; start_ns 0: nothing is known of them.
  MatmulConstants matmul_fp8;
  std::vector<MeasuredMatmul> measured_matmuls_fp8;
  double error_fp8 = 0;  // of their times, as `error`
  std::vector<AttentionConstants> attention;
  // Of a kernel, by kind; 0: as elementwise. Products and attention have their own.
  std::array<double, kernel_kind_count> start_ns{};
  double sustained = 1;  // clock in training ÷ in a short measurement
  // Shares of the memory's bandwidth, by kind; 0: as elementwise.
  std::array<double, kernel_kind_count> bandwidth_share{};
  // Median error of each kind's times on shapes that nothing was fitted on; 0: as elementwise.
  std::array<double, kernel_kind_count> error{};
  std::vector<CollectiveConstants> collectives;
  // Of times by kind, where a recording calibrated them (`tencache calibrate --from-trace`); 0: as they are.
  std::array<double, kernel_kind_count> factor{};
  std::string calibrated_for, calibrated_from;  // GPU and recording; empty: not calibrated
  std::uint64_t calibrated_ops = 0;
};

struct GpuSpec {
  std::string name;  // "l40s"
  Bytes memory = 0;  // as the device has it, before context and workspaces
  BytesPerSecond memory_bandwidth = 0;
  Bytes cache = 0;  // L2
  std::uint32_t multiprocessors = 0;
  // Peak rates of dense products, floating-point operations per second; 0: the GPU has none in that precision.
  double fp16_flops = 0, bf16_flops = 0, fp32_flops = 0, tf32_flops = 0, fp8_flops = 0;
  BytesPerSecond interconnect = 0;                            // between GPUs of one host, one direction
  Nanoseconds collective_latency_ns = 0;                      // of every collective and send
  AttentionKernel attention = AttentionKernel::flash2;        // what PyTorch takes on it
  AttentionKernel fused_attention = AttentionKernel::flash2;  // the newest that fused stacks have for it
  double sustained = 0;  // of this board, where its power allows less than kernels.sustained; 0: as kernels has it
  KernelConstants kernels;
  std::vector<Fact> facts;

  // The peak rate; 0: it has none.
  double peak(Precision precision) const {
    switch (precision) {
      case Precision::fp16:
        return fp16_flops;
      case Precision::bf16:
        return bf16_flops;
      case Precision::fp32:
        return fp32_flops;
      case Precision::tf32:
        return tf32_flops;
      case Precision::fp8:
        return fp8_flops;
    }
    return 0;
  }
};

}  // namespace tencache
