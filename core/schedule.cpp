#include "core/schedule.h"

#include <algorithm>

#include "core/check.h"

namespace tencache {

Schedule::Schedule(const Trace& trace) : tensor_count_(trace.tensors.size()) {
  TENCACHE_CHECK(trace.accesses.size() < none);
  first_use_of_op_.reserve(trace.ops.size() + 1);
  uses_.reserve(trace.accesses.size());
  std::vector<std::uint32_t> seen(tensor_count_, none);  // place in uses_ within the present op
  for (const Op& op : trace.ops) {
    const std::uint32_t begin = static_cast<std::uint32_t>(uses_.size());
    first_use_of_op_.push_back(begin);
    const auto add = [&](TensorId tensor, bool write) {
      if (seen[tensor] == none || seen[tensor] < begin) {
        seen[tensor] = static_cast<std::uint32_t>(uses_.size());
        uses_.push_back({tensor, !write, write});
      } else if (write) {
        uses_[seen[tensor]].write = true;
      }
    };
    for (TensorId tensor : trace.reads(op)) add(tensor, false);
    for (TensorId tensor : trace.writes(op)) add(tensor, true);
  }
  first_use_of_op_.push_back(static_cast<std::uint32_t>(uses_.size()));
}

// Counts, then fills from the back: each tensor's end moves down to its begin.
void Schedule::sort_by_tensor() const {
  first_op_of_tensor_.assign(tensor_count_ + 1, 0);
  for (const Use& use : uses_) ++first_op_of_tensor_[use.tensor];
  for (std::size_t i = 1; i < first_op_of_tensor_.size(); ++i) first_op_of_tensor_[i] += first_op_of_tensor_[i - 1];
  ops_.resize(uses_.size());
  for (OpIndex op = static_cast<OpIndex>(op_count()); op-- > 0;) {
    for (const Use& use : uses(op)) ops_[--first_op_of_tensor_[use.tensor]] = op;
  }
}

std::uint32_t Schedule::distance_to_next_use(TensorId tensor, OpIndex op) const {
  const auto ops = ops_of(tensor);
  if (ops.empty()) return none;
  const auto next = std::upper_bound(ops.begin(), ops.end(), op);
  if (next != ops.end()) return *next - op;
  return ops.front() + static_cast<OpIndex>(op_count()) - op;
}

}  // namespace tencache
