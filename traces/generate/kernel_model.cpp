#include "traces/generate/kernel_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace tencache {
namespace {

struct Tile {
  double rows, columns;
};
// What cuBLAS has for 16-bit products, as far as the choice matters.
constexpr std::array tiles{Tile{256, 128}, Tile{128, 256}, Tile{128, 128}, Tile{128, 64}, Tile{64, 128}, Tile{64, 64}};
constexpr std::array splits{1.0, 2.0, 4.0, 8.0};

// Found once for all GPUs, on the tables of configs/kernels.
constexpr double overlap = 3.5;           // of arithmetic and traffic: the norm by which they add up
constexpr double cache_kept = 0.66;       // share of the L2 cache that operands may take and stay
constexpr double cache_transition = 0.5;  // from there on, how much more until none stays, as a share of it
constexpr double throttling = 0.09;       // what a product of 1 ms takes longer than by the clock of one of 0.1 ms
constexpr double throttling_from_s = 1e-4;
constexpr double attention_block = 128;  // queries
constexpr std::size_t neighbours = 8;
constexpr double neighbour_softening = 0.05;  // squared doublings
constexpr double extrapolated_from = 2;       // doublings from the nearest measured shape

// Two uses of the GPU that go on beside each other.
double added(double a, double b) { return std::pow(std::pow(a, overlap) + std::pow(b, overlap), 1 / overlap); }

}  // namespace

KernelModel::KernelModel(GpuSpec gpu, Precision precision) : gpu_(std::move(gpu)), precision_(precision) {
  peak_ = gpu_.peak(precision);
  if (peak_ <= 0) {
    std::string valid;
    for (std::size_t i = 0; i < enum_texts<Precision>.size(); ++i) {
      if (gpu_.peak(static_cast<Precision>(i)) <= 0) continue;
      valid += (valid.empty() ? "" : ", ") + std::string(enum_texts<Precision>[i]);
    }
    throw Error("GPU '" + gpu_.name + "' does not compute in " + std::string(to_string(precision)) + "; valid are " +
                valid);
  }
  if (precision == Precision::fp8) peak_ = gpu_.bf16_flops;  // of all but the products that are marked
  if (gpu_.fp8_flops > 0) {
    // A file of kernels from before fp8 has no constants for it.
    if (gpu_.kernels.matmul_fp8.start_ns == 0) gpu_.kernels.matmul_fp8 = gpu_.kernels.matmul;
    points_fp8_ = points_of(gpu_.kernels.measured_matmuls_fp8, true);
  }
  if (!stored_in_fp32(precision)) points_ = points_of(gpu_.kernels.measured_matmuls, false);  // measured in 16 bits
}

std::vector<KernelModel::Point> KernelModel::points_of(const std::vector<MeasuredMatmul>& measured, bool fp8) const {
  std::vector<Point> points;
  points.reserve(measured.size());
  for (const MeasuredMatmul& product : measured) {
    const auto m = static_cast<double>(product.m), n = static_cast<double>(product.n);
    const auto k = static_cast<double>(product.k);
    const double modelled = matmul_seconds(1, m, n, k, false, fp8);
    points.push_back(
        {{std::log2(m), std::log2(n), std::log2(k)}, std::log(static_cast<double>(product.time_ns) * 1e-9 / modelled)});
  }
  return points;
}

Nanoseconds KernelModel::duration_ns(const Kernel& kernel, std::uint64_t flops, Bytes bytes, Bytes packed) const {
  if (kernel.fp8 && gpu_.fp8_flops <= 0) {
    throw Error("GPU '" + gpu_.name + "' does not compute products in fp8; take a GPU with fp8_tflops in gpus.yaml");
  }
  double seconds = 0;
  const bool shaped =
      std::all_of(kernel.shape.begin(), kernel.shape.begin() + 4, [](std::uint64_t n) { return n != 0; });
  if (kernel.kind == KernelKind::matmul && shaped) {
    const auto number = [&](std::size_t i) { return static_cast<double>(kernel.shape[i]); };
    seconds = matmul_seconds(number(0), number(1), number(2), number(3), kernel.unaligned, kernel.fp8, packed);
    const bool of_vector = kernel.shape[1] == 1 || kernel.shape[2] == 1;  // no measured product is
    if (!of_vector && (!kernel.unaligned || precision_ == Precision::fp32)) {
      seconds *= std::exp(nearest(kernel).log_correction);
    }
    seconds = seconds / gpu_.kernels.sustained;
  } else if (kernel.kind == KernelKind::attention || kernel.kind == KernelKind::attention_backward) {
    seconds =
        attention_seconds(kernel, static_cast<double>(flops), static_cast<double>(bytes)) / gpu_.kernels.sustained;
  } else if (flops != 0) {
    const double peak = kernel.fp8 ? gpu_.fp8_flops : peak_;
    seconds = std::max(static_cast<double>(flops) / (peak * gpu_.kernels.matmul.share * gpu_.kernels.sustained),
                       static_cast<double>(bytes) / bandwidth_of(KernelKind::elementwise)) +
              gpu_.kernels.matmul.start_ns * 1e-9;
  } else {
    // Starting a kernel and its traffic overlap in part; each launch moves its share.
    const double launches = std::max<std::uint32_t>(kernel.launches, 1);
    const double start = kernel.launches == 0 ? 0 : start_of(kernel.kind) * 1e-9;
    seconds = launches * std::hypot(start, static_cast<double>(bytes) / launches / bandwidth_of(kernel.kind));
  }
  const double factor = gpu_.kernels.factor[static_cast<std::size_t>(kernel.kind)];
  return std::llround(seconds * (factor == 0 ? 1 : factor) * 1e9);
}

Nanoseconds KernelModel::start_ns(const Kernel& kernel) const {
  const double factor = gpu_.kernels.factor[static_cast<std::size_t>(kernel.kind)];
  const MatmulConstants& products = kernel.fp8 ? gpu_.kernels.matmul_fp8 : gpu_.kernels.matmul;
  const double start =
      kernel.kind == KernelKind::matmul ? products.start_ns / gpu_.kernels.sustained : start_of(kernel.kind);
  return std::llround(start * (factor == 0 ? 1 : factor));
}

double KernelModel::matmul_seconds(double batch, double m, double n, double k, bool unaligned, bool fp8,
                                   Bytes packed) const {
  const MatmulConstants& c = fp8 ? gpu_.kernels.matmul_fp8 : gpu_.kernels.matmul;
  const double peak = fp8 ? gpu_.fp8_flops : peak_;
  const double flops = 2 * batch * m * n * k;
  const double bandwidth = static_cast<double>(gpu_.memory_bandwidth);
  const auto element = static_cast<double>(bytes_of(precision_));
  const double bytes = fp8           ? batch * (m * k + k * n + 2 * m * n)
                       : packed != 0 ? element * batch * (m * k + m * n) + static_cast<double>(packed)
                                     : element * batch * (m * k + k * n + m * n);
  const double kept = cache_kept * static_cast<double>(gpu_.cache);
  const double from_memory = std::clamp((bytes / kept - 1) / cache_transition, 0.0, 1.0);
  const double traffic = bytes / bandwidth * (from_memory / c.memory_share + (1 - from_memory) / c.cache_share);
  // In fp32 a tile takes longer, what starting it costs does not.
  const bool fp32 = precision_ == Precision::fp32 && !fp8;
  const double precision_share = fp32 ? c.fp32_share : 1;
  const double depth = c.depth * (fp32 ? peak / std::max({gpu_.bf16_flops, gpu_.fp16_flops, peak}) : 1);
  // Cores for single precision read any row alike.
  // A product with a vector has kernels of its own, which wait for memory alone.
  if (m == 1 || n == 1) return c.start_ns * 1e-9 + std::max(flops / (peak * c.share), traffic);
  if (unaligned && !fp32) return c.start_ns * 1e-9 + std::max(flops / (peak * c.unaligned_share), traffic);

  const auto processors = static_cast<double>(gpu_.multiprocessors);
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : tiles) {
    const double count = batch * std::ceil(m / tile.rows) * std::ceil(n / tile.columns);
    const double rate = c.share * precision_share * c.tile_rate(tile.rows * tile.columns) * peak / processors;
    for (const double split : splits) {
      const double waves = count * split / processors;
      const double charged = std::max(1.0, waves + (std::ceil(waves) - waves) * c.tail);
      double seconds = charged * 2 * tile.rows * tile.columns * (std::ceil(k / split) + depth) / rate;
      if (split > 1) seconds += 8 * batch * m * n * split / (c.cache_share * bandwidth) + c.split_start_ns * 1e-9;
      best = std::min(best, seconds);
    }
  }
  // Long products slow down on tensor cores only: with it, NeuSight's largest models in fp32 were 8 to 15 % too slow.
  if (!fp32) best *= 1 + throttling * std::clamp(std::log10(flops / (peak * throttling_from_s)), 0.0, 1.0);
  return c.start_ns * 1e-9 + added(traffic, best);
}

const AttentionConstants* KernelModel::attention_constants(const Kernel& kernel) const {
  const AttentionKernel wanted = kernel.attention == AttentionKernel::unspecified ? gpu_.attention : kernel.attention;
  // Of the nearest head dimension of that kernel, or of the generation that comes closest to it.
  const AttentionConstants* best = nullptr;
  std::uint64_t least = ~std::uint64_t{0};
  constexpr std::uint64_t other_kernel = 1u << 20, other_mask = 100;
  const auto apart = [](std::uint64_t a, std::uint64_t b) { return a > b ? a - b : b - a; };
  for (const AttentionConstants& candidate : gpu_.kernels.attention) {
    const std::uint64_t distance =
        other_kernel * apart(static_cast<std::uint64_t>(candidate.kernel), static_cast<std::uint64_t>(wanted)) +
        apart(candidate.head_dimension, kernel.shape[5]) + (candidate.causal != kernel.causal ? other_mask : 0);
    if (distance < least) least = distance, best = &candidate;
  }
  return best;
}

double KernelModel::attention_seconds(const Kernel& kernel, double flops, double bytes) const {
  const auto number = [&](std::size_t i) { return static_cast<double>(kernel.shape[i]); };
  const double batch = number(0), heads = number(1), queries = number(3), keys = number(4), dimension = number(5);
  const AttentionConstants* const c = attention_constants(kernel);
  const double traffic = bytes / static_cast<double>(gpu_.memory_bandwidth);
  if (c == nullptr || queries == 0) {  // recorded without its shape
    const double share = c == nullptr ? gpu_.kernels.matmul.share : c->share;
    return start_of(kernel.kind) * 1e-9 + std::max(flops / (peak_ * share), traffic);
  }
  // One query looks at each key once: kernels for it split the keys over the processors and wait for memory alone
  // (Flash-Decoding, Dao et al. 2023), unless very many heads share a key (latent attention).
  if (queries == 1) return c->start_ns * 1e-9 + std::max(traffic / c->memory_share, flops / (c->share * peak_));
  const double blocks = std::ceil(queries / attention_block);
  const double processors = static_cast<double>(gpu_.multiprocessors);
  // Keys that the blocks of a head look at; the causal ones only their own and earlier ones.
  const double looked_at = kernel.causal ? attention_block * blocks * (blocks + 1) / 2 : blocks * keys;
  const double steps = batch * heads * (looked_at + blocks * c->depth) / processors + c->tail * (keys + c->depth);
  double seconds = steps * 4 * attention_block * dimension / (c->share * peak_ / processors);
  // The backward pass computes five products instead of two.
  if (kernel.kind == KernelKind::attention_backward) seconds *= 2.5 / c->backward;
  return c->start_ns * 1e-9 + added(seconds, traffic / c->memory_share);
}

Nanoseconds KernelModel::cache_write_ns(const Kernel& kernel) const {
  const AttentionConstants* const c = attention_constants(kernel);
  if (c == nullptr) return 0;
  // Key and value, each read and written.
  const double elements =
      static_cast<double>(kernel.shape[0] * kernel.shape[3]) * static_cast<double>(kernel.shape[2] * kernel.shape[5]);
  const double bytes = 4 * elements * static_cast<double>(bytes_of(precision_));
  return std::llround(1e9 * bytes / (c->cache_share * static_cast<double>(gpu_.memory_bandwidth)));
}

KernelModel::Nearest KernelModel::nearest(const Kernel& kernel) const {
  const std::vector<Point>& points = kernel.fp8 ? points_fp8_ : points_;
  if (points.empty()) return {0, std::numeric_limits<double>::infinity()};
  const auto number = [&](std::size_t i) { return static_cast<double>(std::max<std::uint64_t>(kernel.shape[i], 1)); };
  const std::array<double, 3> at{std::log2(number(0) * number(1)), std::log2(number(2)), std::log2(number(3))};
  std::array<std::pair<double, double>, neighbours + 1> found;  // squared distance, log ratio; sorted
  std::size_t count = 0;
  for (const Point& point : points) {
    double squared = 0;
    for (std::size_t i = 0; i < at.size(); ++i) squared += (at[i] - point.at[i]) * (at[i] - point.at[i]);
    if (count == neighbours && squared >= found[count - 1].first) continue;
    std::size_t place = count < neighbours ? count++ : count - 1;
    for (; place > 0 && found[place - 1].first > squared; --place) found[place] = found[place - 1];
    found[place] = {squared, point.log_ratio};
  }
  double sum = 0, weights = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double weight = 1 / (found[i].first + neighbour_softening);
    sum += weight * found[i].second;
    weights += weight;
  }
  return {sum / weights, std::sqrt(found[0].first)};
}

double KernelModel::start_of(KernelKind kind) const {
  const auto& starts = gpu_.kernels.start_ns;
  const double start = starts[static_cast<std::size_t>(kind)];
  return start != 0 ? start : starts[static_cast<std::size_t>(KernelKind::elementwise)];
}

double KernelModel::bandwidth_of(KernelKind kind) const {
  const auto& shares = gpu_.kernels.bandwidth_share;
  double share = shares[static_cast<std::size_t>(kind)];
  if (share == 0) share = shares[static_cast<std::size_t>(KernelKind::elementwise)];
  return static_cast<double>(gpu_.memory_bandwidth) * (share == 0 ? 1 : share);
}

bool KernelModel::extrapolates(const Kernel& kernel) const {
  if (!gpu_.kernels.measured) return true;
  if (kernel.kind != KernelKind::matmul || (precision_ == Precision::fp32 && !kernel.fp8)) return false;
  if (precision_ == Precision::tf32 && !kernel.fp8) return true;
  return kernel.shape[1] == 0 || nearest(kernel).distance > extrapolated_from;
}

Nanoseconds KernelModel::collective_ns(std::uint64_t ranks, Bytes bytes, BytesPerSecond bandwidth) const {
  double rate = static_cast<double>(bandwidth != 0 ? bandwidth : gpu_.interconnect);
  Nanoseconds latency = gpu_.collective_latency_ns;
  if (bandwidth == 0) {
    // Measured between the nearest larger number of GPUs, or the largest.
    const CollectiveConstants* best = nullptr;
    for (const CollectiveConstants& candidate : gpu_.kernels.collectives) {
      if (best == nullptr || best->ranks < ranks) best = &candidate;
    }
    if (best != nullptr) {
      rate = static_cast<double>(best->bandwidth);
      latency = best->start_ns(bytes);
    }
  }
  return latency + std::llround(static_cast<double>(bytes) / rate * 1e9);
}

}  // namespace tencache
