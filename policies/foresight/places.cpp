#include "policies/foresight/places.h"

#include <algorithm>

namespace tencache {

OpPlaces::OpPlaces(const Trace& trace, OpIndex at) : op_count_(trace.ops.size()) {
  for (OpIndex op = 0; op < op_count_; ++op) {
    if (trace.ops[op].device == Device::cpu) cpu_ops_.push_back(op);
  }
  const OpIndex last = static_cast<OpIndex>(op_count_ - 1);
  gpu_ = at == none || at == last ? last : op_count_ + at;
  cpu_ = last;
}

void OpPlaces::find_slower() {
  slower_ = gpu_;
  if (cpu_ops_.empty()) return;
  const auto next = std::ranges::upper_bound(cpu_ops_, index(cpu_));
  slower_ = std::min(gpu_, following(cpu_, next == cpu_ops_.end() ? cpu_ops_.front() : *next) - 1);
}

}  // namespace tencache
