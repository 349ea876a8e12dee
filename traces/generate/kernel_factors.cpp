#include "traces/generate/kernel_factors.h"

#include <algorithm>
#include <array>

namespace tencache {
namespace {

bool can_be_modelled(const Kernel& kernel, const Op& op) {
  switch (kernel.kind) {
    case KernelKind::unknown:
    case KernelKind::collective:
      return false;
    case KernelKind::matmul:
      return kernel.shape[1] != 0;
    case KernelKind::attention:
    case KernelKind::attention_backward:
      return kernel.shape[3] != 0;
    default:
      return op.bytes > 1;  // 1: none known
  }
}

}  // namespace

std::vector<KernelFactor> kernel_factors(const Trace& trace, const KernelModel& model) {
  std::array<std::vector<double>, kernel_kind_count> ratios;
  for (const Op& op : trace.ops) {
    const Kernel& kernel = trace.kernel(op);
    const bool measured = op.duration_source == DurationSource::measured && op.duration_ns > 0;
    if (op.device != Device::gpu || !measured || op.rendezvous != 0 || !can_be_modelled(kernel, op)) continue;
    const Nanoseconds modelled = std::max<Nanoseconds>(model.duration_ns(kernel, op.flops, op.bytes), 1);
    ratios[static_cast<std::size_t>(kernel.kind)].push_back(static_cast<double>(op.duration_ns) /
                                                            static_cast<double>(modelled));
  }
  std::vector<KernelFactor> factors;
  for (std::size_t kind = 0; kind < ratios.size(); ++kind) {
    std::vector<double>& of_kind = ratios[kind];
    if (of_kind.size() < fewest_factor_ops) continue;
    std::ranges::sort(of_kind);
    const std::size_t middle = of_kind.size() / 2;
    const double median = of_kind.size() % 2 != 0 ? of_kind[middle] : (of_kind[middle - 1] + of_kind[middle]) / 2;
    factors.push_back({static_cast<KernelKind>(kind), of_kind.size(), median});
  }
  return factors;
}

}  // namespace tencache
