#include "policies/planning/resident_experts.h"

#include <algorithm>

#include "core/schedule.h"
#include "policies/footprint.h"

namespace tencache {

Bytes bytes_of(const Trace& trace, std::span<const TensorId> weights) {
  Bytes bytes = 0;
  for (const TensorId tensor : weights) bytes += trace.tensors[tensor].bytes;
  return bytes;
}

Bytes largest_expert(const Trace& trace, const Experts& experts) {
  Bytes most = 0;
  for (std::uint32_t layer = 0; layer < experts.layers(); ++layer) {
    for (std::size_t i = 0; i < experts.count_in(layer); ++i) {
      most = std::max(most, bytes_of(trace, experts.weights_in(layer, i)));
    }
  }
  return most;
}

std::size_t experts_that_fit(const Trace& trace, const MachineSpec& machine, const Experts& experts, Bytes buffer) {
  const Bytes one = largest_expert(trace, experts);
  if (one == 0) return 0;
  Bytes rest = peak_of_intermediates(trace, Schedule(trace), true) + buffer;
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.persistent && tensor.role != Role::expert) rest += tensor.bytes;
  }
  const Bytes capacity = machine.tiers[0].capacity;
  return rest >= capacity ? 0 : static_cast<std::size_t>((capacity - rest) / one);
}

OnGpu placed_evenly(const Experts& experts, std::size_t count) {
  OnGpu on_gpu(experts.layers());
  for (std::uint32_t layer = 0; layer < experts.layers(); ++layer) on_gpu[layer].assign(experts.count_in(layer), 0);
  bool more = count > 0;
  for (std::size_t expert = 0; more; ++expert) {
    more = false;
    for (std::uint32_t layer = 0; layer < experts.layers() && count > 0; ++layer) {
      if (expert >= on_gpu[layer].size()) continue;
      on_gpu[layer][expert] = 1;
      --count;
      more = true;
    }
  }
  return on_gpu;
}

std::vector<ExpertOps> experts_of(std::span<const DecidedOp> decided, const Trace& trace, const Experts& experts) {
  std::vector<ExpertOps> list;
  NameId module = none;
  for (std::size_t i = 0; i < decided.size(); ++i) {
    const NameId own = trace.ops[decided[i].op].module;
    if (list.empty() || own != module) list.push_back({i, i, {}});
    module = own;
    list.back().end = i + 1;
    if (!decided[i].experts.empty()) list.back().place = experts.place(decided[i].experts.front());
  }
  return list;
}

}  // namespace tencache
