#include "core/schedule.h"

#include <algorithm>

namespace tencache {

Schedule::Schedule(const Trace& trace) {
  first_use_of_op_.reserve(trace.ops.size() + 1);
  uses_.reserve(trace.accesses.size());
  first_op_of_tensor_.assign(trace.tensors.size() + 1, 0);
  std::vector<std::uint64_t> seen(trace.tensors.size(), ~std::uint64_t{0});  // place in uses_ within the present op
  for (const Op& op : trace.ops) {
    const std::uint64_t begin = uses_.size();
    first_use_of_op_.push_back(begin);
    const auto add = [&](TensorId tensor, bool write) {
      if (seen[tensor] == ~std::uint64_t{0} || seen[tensor] < begin) {
        seen[tensor] = uses_.size();
        uses_.push_back({tensor, !write, write});
        ++first_op_of_tensor_[tensor + 1];
      } else if (write) {
        uses_[seen[tensor]].write = true;
      }
    };
    for (TensorId tensor : trace.reads(op)) add(tensor, false);
    for (TensorId tensor : trace.writes(op)) add(tensor, true);
  }
  first_use_of_op_.push_back(uses_.size());
  for (std::size_t i = 1; i < first_op_of_tensor_.size(); ++i) first_op_of_tensor_[i] += first_op_of_tensor_[i - 1];
  ops_.resize(uses_.size());
  std::vector<std::uint64_t> next(first_op_of_tensor_.begin(), first_op_of_tensor_.end() - 1);
  for (OpIndex op = 0; op + 1 < first_use_of_op_.size(); ++op) {
    for (const Use& use : uses(op)) ops_[next[use.tensor]++] = op;
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
