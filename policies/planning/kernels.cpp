#include "policies/planning/kernels.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace tencache {
namespace {

std::vector<OpIndex> ops_of_gpu(const Trace& trace) {
  std::vector<OpIndex> ops;
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    if (trace.ops[op].device == Device::gpu) ops.push_back(op);
  }
  return ops;
}

std::vector<Nanoseconds> starts_without_stalls(const Trace& trace) {
  std::vector<Nanoseconds> starts_ns(1, 0);
  for (const OpIndex op : ops_of_gpu(trace)) {
    starts_ns.push_back(starts_ns.back() + trace.ops[op].occupied_ns());
  }
  return starts_ns;
}

}  // namespace

Kernels::Kernels(const Trace& trace, const Schedule& schedule)
    : Kernels(schedule, ops_of_gpu(trace), starts_without_stalls(trace)) {}

Kernels::Kernels(const Schedule& schedule, std::vector<OpIndex> of, std::vector<Nanoseconds> starts)
    : ops(std::move(of)), starts_ns(std::move(starts)) {
  TENCACHE_CHECK(!ops.empty() && starts_ns.size() == ops.size() + 1);
  std::vector<KernelIndex> kernel_of(schedule.op_count(), -1);
  for (std::size_t kernel = 0; kernel < ops.size(); ++kernel) {
    kernel_of[ops[kernel]] = static_cast<KernelIndex>(kernel);
    durations_ns.push_back(starts_ns[kernel + 1] - starts_ns[kernel]);
  }
  first_use.push_back(0);
  for (TensorId tensor = 0; tensor < schedule.tensor_count(); ++tensor) {
    for (const OpIndex op : schedule.ops_of(tensor)) {
      if (kernel_of[op] >= 0) uses.push_back(kernel_of[op]);
    }
    first_use.push_back(uses.size());
  }
}

KernelIndex Kernels::at_time(Nanoseconds time_ns) const {
  const Nanoseconds iteration_ns = starts_ns.back();
  if (iteration_ns == 0) return 0;
  const auto after = std::ranges::upper_bound(starts_ns, time_ns % iteration_ns);
  return time_ns / iteration_ns * count() + (after - starts_ns.begin()) - 1;
}

std::vector<InactivePeriod> inactive_periods(const Kernels& kernels, const Trace& trace) {
  std::vector<InactivePeriod> periods;
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    const std::span<const KernelIndex> uses = kernels.uses_of(tensor);
    for (std::size_t i = 0; i < uses.size(); ++i) {
      const bool last = i + 1 == uses.size();
      if (last && !trace.tensors[tensor].persistent) break;
      // Of the last use the period begins in the next iteration if no kernel follows: it is this one's all the same.
      KernelIndex begin = uses[i] + 1, end = last ? uses[0] + kernels.count() : uses[i + 1];
      if (begin >= end) continue;
      if (begin == kernels.count()) begin -= kernels.count(), end -= kernels.count();
      periods.push_back({tensor, trace.tensors[tensor].bytes, begin, end, kernels.between(begin, end)});
    }
  }
  return periods;
}

}  // namespace tencache
