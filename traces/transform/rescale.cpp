#include "traces/transform/rescale.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string_view>

#include "core/error.h"
#include "traces/generate/host_issue.h"

namespace tencache {
namespace {

// More than this many times what the memory traffic explains, and a measured op is taken for arithmetic.
constexpr double explained_by_memory = 2;

// Of what the op reads and writes, each tensor once.
Bytes bytes_of_distinct_tensors(const Trace& trace, const Op& op) {
  Bytes bytes = 0;
  const auto reads = trace.reads(op);
  for (const TensorId id : reads) bytes += trace.tensors[id].bytes;
  for (const TensorId id : trace.writes(op)) {
    if (std::find(reads.begin(), reads.end(), id) == reads.end()) bytes += trace.tensors[id].bytes;
  }
  return bytes;
}

bool fused_attention(std::string_view name) {
  return name.find("flash") != std::string_view::npos || name.find("scaled_dot_product") != std::string_view::npos;
}

// What the trace says that the op launches or, where it does not, what its flops and its name say.
Kernel kernel_of(const Trace& trace, const Op& op, std::uint64_t flops) {
  Kernel kernel = trace.kernel(op);
  if (kernel.kind != KernelKind::unknown) return kernel;
  kernel.kind = flops == 0                        ? KernelKind::elementwise
                : fused_attention(trace.name(op)) ? KernelKind::attention
                                                  : KernelKind::matmul;
  return kernel;
}

// Between how many ranks a collective goes, where the trace says.
std::uint64_t ranks_of(const Trace& trace, const Op& op) {
  return std::max<std::uint64_t>(trace.kernel(op).shape[0], 2);
}

Precision precision_of(const Trace& trace) {
  if (trace.header.precision.empty()) return Precision::fp32;
  if (const auto parsed = parse_enum<Precision>(trace.header.precision)) return *parsed;
  throw Error("the trace's precision '" + trace.header.precision +
              "' is unknown, so that its durations cannot be rescaled; valid are " + enum_names<Precision>());
}

class Rescaler {
 public:
  Rescaler(const GpuSpec& from, const GpuSpec& to, Precision from_precision, Precision to_precision)
      : from_(from, from_precision), to_(to, to_precision) {}

  // The op's time on the second GPU ÷ on the first.
  double ratio(const Trace& trace, const Op& op) {
    if (op.rendezvous != 0) {
      const std::uint64_t ranks = ranks_of(trace, op);
      return quotient(to_.collective_ns(ranks, op.bytes), from_.collective_ns(ranks, op.bytes));
    }
    const Bytes bytes = op.bytes != 0 ? op.bytes : bytes_of_distinct_tensors(trace, op);
    std::uint64_t flops = op.flops;
    const bool unknown = trace.kernel(op).kind == KernelKind::unknown;
    if (flops == 0 && unknown && op.duration_source == DurationSource::measured) flops = guessed_flops(op, bytes);
    const Kernel kernel = kernel_of(trace, op, flops);
    return quotient(to_.duration_ns(kernel, flops, bytes), from_.duration_ns(kernel, flops, bytes));
  }
  std::uint64_t guessed() const { return guessed_; }

 private:
  static double quotient(Nanoseconds above, Nanoseconds below) {
    return static_cast<double>(std::max<Nanoseconds>(above, 1)) / static_cast<double>(std::max<Nanoseconds>(below, 1));
  }

  // 0: its memory traffic explains its time.
  std::uint64_t guessed_flops(const Op& op, Bytes bytes) {
    const auto duration = static_cast<double>(op.duration_ns);
    const Kernel elementwise{.kind = KernelKind::elementwise};
    if (duration <= explained_by_memory * static_cast<double>(from_.duration_ns(elementwise, 0, bytes))) return 0;
    ++guessed_;
    // Found by the model itself: what so many flops take grows in proportion.
    constexpr std::uint64_t many = 1'000'000'000'000'000;
    const Kernel matmul{.kind = KernelKind::matmul};
    const auto start = static_cast<double>(from_.duration_ns(matmul, 1, 0));
    const double many_ns = static_cast<double>(from_.duration_ns(matmul, many, 0)) - start;
    return static_cast<std::uint64_t>(std::max(duration - start, 1.0) / many_ns * static_cast<double>(many));
  }

  KernelModel from_, to_;
  std::uint64_t guessed_ = 0;
};

// "NVIDIA A100-SXM4-40GB" as a100, sxm4, 40gb.
std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char letter : text) {
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0) {
      parts.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    } else if (!parts.back().empty()) {
      parts.emplace_back();
    }
  }
  return parts;
}

}  // namespace

Precision precision_on(const GpuSpec& gpu, Precision wanted) {
  const auto computes = [&](Precision precision) { return gpu.peak(precision) > 0; };
  if (computes(wanted)) return wanted;
  if (wanted == Precision::fp8) {
    throw Error("the trace's linear layers compute in fp8, which GPU '" + gpu.name +
                "' does not; name a GPU that does, or generate the trace with --precision bf16");
  }
  if (wanted == Precision::bf16 && computes(Precision::fp16)) return Precision::fp16;
  if (wanted == Precision::fp16 && computes(Precision::bf16)) return Precision::bf16;
  return Precision::fp32;
}

Rescaling rescale(Trace& trace, const GpuSpec& from, const GpuSpec& to) {
  const Precision precision = precision_of(trace);
  const Precision on_from = precision_on(from, precision), on_to = precision_on(to, precision);
  Rescaling rescaling{.from = from.name, .to = to.name, .precision = std::string(to_string(on_from))};
  if (on_to != on_from) rescaling.precision += " (" + std::string(to_string(on_to)) + " on " + to.name + ")";

  Rescaler rescaler(from, to, on_from, on_to);
  double before = 0, after = 0;
  for (Op& op : trace.ops) {
    if (op.device != Device::gpu) continue;
    ++rescaling.ops;
    before += static_cast<double>(op.duration_ns);
    op.duration_ns = std::llround(static_cast<double>(op.duration_ns) * rescaler.ratio(trace, op));
    op.duration_source = DurationSource::modelled;
    after += static_cast<double>(op.duration_ns);
  }
  rescaling.guessed = rescaler.guessed();
  if (before > 0) rescaling.factor = after / before;
  return rescaling;
}

void model_durations(Trace& trace, const GpuSpec& gpu, Nanoseconds launch_ns) {
  const KernelModel model(gpu, precision_on(gpu, precision_of(trace)));
  for (Op& op : trace.ops) {
    if (op.device != Device::gpu) continue;
    const Bytes bytes = op.bytes != 0 ? op.bytes : bytes_of_distinct_tensors(trace, op);
    op.duration_ns = op.rendezvous != 0 ? model.collective_ns(ranks_of(trace, op), bytes)
                                        : model.duration_ns(kernel_of(trace, op, op.flops), op.flops, bytes);
    op.duration_source = DurationSource::modelled;
  }
  issue(trace, launch_ns);
  trace.header.hardware = "modelled: " + gpu.name;
}

const GpuSpec* find_gpu(const std::vector<GpuSpec>& gpus, const std::string& hardware) {
  constexpr std::string_view modelled = "modelled: ";
  const std::string text = hardware.starts_with(modelled) ? hardware.substr(modelled.size()) : hardware;
  for (const GpuSpec& gpu : gpus) {
    if (gpu.name == text) return &gpu;
  }
  const std::vector<std::string> present = parts_of(text);
  const auto names_part = [&](const std::string& part) {
    return std::any_of(present.begin(), present.end(),
                       [&](const std::string& p) { return p == part || p == part + "b"; });
  };
  const GpuSpec* found = nullptr;
  std::size_t most = 0;
  for (const GpuSpec& gpu : gpus) {
    const std::vector<std::string> parts = parts_of(gpu.name);
    if (!std::all_of(parts.begin(), parts.end(), names_part) || parts.size() < most) continue;
    found = parts.size() > most ? &gpu : nullptr;
    most = parts.size();
  }
  return found;
}

}  // namespace tencache
