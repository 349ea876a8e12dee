#include "core/schedule.h"

#include <algorithm>

#include "core/check.h"

namespace tencache {

void UseLister::append(const Op& op, std::vector<Use>& uses) {
  const std::size_t begin = uses.size();
  const auto add = [&](TensorId tensor, bool write) {
    std::uint32_t& place = places_[tensor];
    if (place < begin || place >= uses.size() || uses[place].tensor != tensor) {
      place = static_cast<std::uint32_t>(uses.size());
      uses.push_back({tensor, !write, write});
    } else if (write) {
      uses[place].write = true;
    }
  };
  for (const TensorId tensor : trace_.reads(op)) add(tensor, false);
  for (const TensorId tensor : trace_.writes(op)) add(tensor, true);
}

Schedule::Schedule(const Trace& trace) : trace_(trace) { TENCACHE_CHECK(trace.accesses.size() < none); }

void Schedule::list_uses() const {
  const MutexLock lock(making_);
  if (listed_) return;  // another thread was first
  UseLister lister(trace_);
  uses_.reserve(trace_.accesses.size());
  first_use_of_op_.reserve(trace_.ops.size() + 1);
  first_use_of_op_.push_back(0);
  for (const Op& op : trace_.ops) {
    lister.append(op, uses_);
    first_use_of_op_.push_back(static_cast<std::uint32_t>(uses_.size()));
  }
  listed_ = true;
}

// Counts, then fills from the back: each tensor's end moves down to its begin.
void Schedule::sort_by_tensor() const {
  if (!listed_) list_uses();
  const MutexLock lock(making_);
  if (sorted_) return;
  first_op_of_tensor_.assign(tensor_count() + 1, 0);
  for (const Use& use : uses_) ++first_op_of_tensor_[use.tensor];
  for (std::size_t i = 1; i < first_op_of_tensor_.size(); ++i) first_op_of_tensor_[i] += first_op_of_tensor_[i - 1];
  ops_.resize(uses_.size());
  for (OpIndex op = static_cast<OpIndex>(op_count()); op-- > 0;) {
    for (const Use& use : uses(op)) ops_[--first_op_of_tensor_[use.tensor]] = op;
  }
  sorted_ = true;
}

std::uint32_t Schedule::distance_to_next_use(TensorId tensor, OpIndex op) const {
  const auto ops = ops_of(tensor);
  if (ops.empty()) return none;
  const auto next = std::upper_bound(ops.begin(), ops.end(), op);
  if (next != ops.end()) return *next - op;
  return ops.front() + static_cast<OpIndex>(op_count()) - op;
}

}  // namespace tencache
