#include "traces/roofline.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"

namespace tencache {
namespace {

constexpr std::array<std::string_view, 3> precision_texts{"fp16", "bf16", "fp32"};

}  // namespace

std::string_view to_string(Precision precision) { return precision_texts[static_cast<std::size_t>(precision)]; }

std::optional<Precision> parse_precision(std::string_view text) {
  for (std::size_t i = 0; i < precision_texts.size(); ++i) {
    if (precision_texts[i] == text) return static_cast<Precision>(i);
  }
  return std::nullopt;
}

Roofline::Roofline(GpuSpec gpu, Precision precision) : gpu_(std::move(gpu)) {
  const double peak = precision == Precision::fp16   ? gpu_.fp16_flops
                      : precision == Precision::bf16 ? gpu_.bf16_flops
                                                     : gpu_.fp32_flops;
  if (peak <= 0) {
    std::string valid;
    for (const auto& [name, rate] :
         {std::pair{"fp16", gpu_.fp16_flops}, {"bf16", gpu_.bf16_flops}, {"fp32", gpu_.fp32_flops}}) {
      if (rate > 0) valid += (valid.empty() ? "" : ", ") + std::string(name);
    }
    throw Error("GPU '" + gpu_.name + "' does not compute in " + std::string(to_string(precision)) + "; valid are " +
                valid);
  }
  matmul_flops_ = peak * gpu_.matmul_efficiency;
  attention_flops_ = peak * gpu_.attention_efficiency;
  bandwidth_ = static_cast<double>(gpu_.memory_bandwidth) * gpu_.memory_efficiency;
}

Nanoseconds Roofline::kernel_ns(KernelKind kind, std::uint64_t flops, Bytes bytes) const {
  double seconds = static_cast<double>(bytes) / bandwidth_;
  if (kind != KernelKind::elementwise) {
    const double rate = kind == KernelKind::matmul ? matmul_flops_ : attention_flops_;
    seconds = std::max(seconds, static_cast<double>(flops) / rate);
  }
  return gpu_.kernel_overhead_ns + std::llround(seconds * 1e9);
}

Nanoseconds Roofline::collective_ns(Bytes bytes, BytesPerSecond bandwidth) const {
  const double rate = static_cast<double>(bandwidth != 0 ? bandwidth : gpu_.interconnect);
  return gpu_.collective_latency_ns + std::llround(static_cast<double>(bytes) / rate * 1e9);
}

}  // namespace tencache
