#include "traces/generate/gpu_time.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "traces/generate/kernel_model.h"
#include "traces/transform/rescale.h"

namespace tencache {
namespace {

constexpr double median_of_normal = 0.6745;  // of |x|, x of standard deviation 1

bool is_modelled(const Op& op) { return op.device == Device::gpu && op.duration_source == DurationSource::modelled; }

// Twelve uniform numbers less 6 are nearly normal, and a polynomial mends what is missing: within 0.001 up to three
// standard deviations (Teichroew; Knuth, The Art of Computer Programming, 3.4.1). No logarithm, whose last bit
// differs between C libraries.
double normal(std::mt19937_64& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += static_cast<double>(random() >> 11) * 0x1p-53;
  const double r = sum / 4, r2 = r * r;
  return ((((0.029899776 * r2 + 0.008355968) * r2 + 0.076542912) * r2 + 0.252408784) * r2 + 3.949846138) * r;
}

// For the same reason: the series, of so small a part that it ends soon, and squared again.
double exponential(double x) {
  constexpr int halvings = 8;
  x /= 1 << halvings;
  double term = 1, sum = 1;
  for (int i = 1; i <= 12; ++i) sum += term *= x / i;
  for (int i = 0; i < halvings; ++i) sum *= sum;
  return sum;
}

// FNV-1a: each GPU's draws are its own.
std::uint64_t hash_of(const std::string& name) {
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100'0000'01b3;
  return hash;
}

}  // namespace

KernelKind kernel_of_error(const Trace& trace, const Op& op) {
  if (op.rendezvous != 0) return KernelKind::collective;
  const KernelKind kind = trace.kernel(op).kind;
  return kind == KernelKind::unknown ? KernelKind::elementwise : kind;
}

double error_of(const KernelConstants& constants, KernelKind kind) {
  const double error = constants.error[static_cast<std::size_t>(kind)];
  return error > 0 ? error : constants.error[static_cast<std::size_t>(KernelKind::elementwise)];
}

std::optional<GpuTime> gpu_time_of(const Trace& trace, const GpuSpec& gpu) {
  if (std::none_of(trace.ops.begin(), trace.ops.end(), is_modelled)) return std::nullopt;
  const Precision wanted = parse_enum<Precision>(trace.header.precision).value_or(Precision::fp32);
  const KernelModel model(gpu, precision_on(gpu, wanted));
  // Few kernels stand in many ops, and to look up a product's neighbours takes a while.
  enum class Known : std::uint8_t { not_yet, inside, beyond };
  std::vector<Known> known(trace.kernels.size(), Known::not_yet);
  const auto extrapolates = [&](const Op& op) {
    const Kernel& kernel = trace.kernel(op);
    // Of a product whose shape nobody knows.
    if (kernel.kind == KernelKind::unknown && op.rendezvous == 0 && op.flops != 0) return true;
    Known& answer = known[op.kernel];
    if (answer == Known::not_yet) answer = model.extrapolates(kernel) ? Known::beyond : Known::inside;
    return answer == Known::beyond;
  };
  GpuTime result{.gpu = gpu.name, .stack = trace.header.stack, .measured = gpu.kernels.measured};
  // Whole nanoseconds, so that the order of the ops is of no account.
  std::array<Nanoseconds, kernel_kind_count> by_kind{};
  Nanoseconds all = 0, beyond = 0;
  std::uint64_t ranks = 1;
  for (const Op& op : trace.ops) {
    if (op.device != Device::gpu) continue;
    ranks = std::max<std::uint64_t>(ranks, op.rank + 1u);
    all += op.duration_ns;
    if (!is_modelled(op)) continue;
    by_kind[static_cast<std::size_t>(kernel_of_error(trace, op))] += op.duration_ns;
    if (extrapolates(op)) beyond += op.duration_ns;
  }
  double squares = 0;
  for (std::size_t kind = 0; kind < kernel_kind_count; ++kind) {
    KernelTime& of_kind = result.by_kernel[kind];
    of_kind.seconds = to_seconds(by_kind[kind]) / static_cast<double>(ranks);
    of_kind.error = error_of(gpu.kernels, static_cast<KernelKind>(kind));
    if (wanted == Precision::fp8 && static_cast<KernelKind>(kind) == KernelKind::matmul) {
      of_kind.error = std::max(of_kind.error, gpu.kernels.error_fp8);  // products are of both
    }
    squares += of_kind.seconds * of_kind.error * of_kind.seconds * of_kind.error;
  }
  result.seconds = to_seconds(all) / static_cast<double>(ranks);
  if (all > 0) {
    result.error = std::sqrt(squares) / result.seconds;
    result.extrapolated_share = static_cast<double>(beyond) / static_cast<double>(all);
  }
  return result;
}

std::vector<KernelFactors> draw_kernel_factors(const GpuTime& time, std::uint64_t seed, std::uint64_t samples) {
  std::mt19937_64 random(seed ^ hash_of(time.gpu));
  std::vector<KernelFactors> result(samples);
  for (KernelFactors& factors : result) {
    for (std::size_t kind = 0; kind < kernel_kind_count; ++kind) {
      factors[kind] = exponential(time.by_kernel[kind].error / median_of_normal * normal(random));
    }
  }
  return result;
}

Trace with_kernel_factors(Trace trace, const KernelFactors& factors) {
  for (Op& op : trace.ops) {
    if (!is_modelled(op)) continue;
    const double factor = factors[static_cast<std::size_t>(kernel_of_error(trace, op))];
    op.duration_ns = std::llround(static_cast<double>(op.duration_ns) * factor);
  }
  return trace;
}

}  // namespace tencache
