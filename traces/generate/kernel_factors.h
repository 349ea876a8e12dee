// How far a recording's kernels are from the kernel model (traces/generate/kernel_model.h), by kind: what calibrates it
// for the software and the clocks of that recording.
#pragma once

#include <cstdint>
#include <vector>

#include "core/trace.h"
#include "traces/generate/kernel_model.h"

namespace tencache {

struct KernelFactor {
  KernelKind kind = KernelKind::unknown;
  std::uint64_t ops = 0;
  double factor = 1;  // median of measured time ÷ modelled time
};

inline constexpr std::uint64_t fewest_factor_ops = 8;

// Of GPU ops with a measured duration and a known kernel; matrix products and attention with their shapes, the others
// with their memory traffic. Kinds with at least `fewest_factor_ops`, in their order.
std::vector<KernelFactor> kernel_factors(const Trace& trace, const KernelModel& model);

}  // namespace tencache
