// Sums over ranges of the kernels of an iteration, which goes round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/units.h"
#include "policies/planning/kernels.h"

namespace tencache {

// Sums over ranges of kernels of a value each, not negative, that may change: O(log K) (a Fenwick tree). All of an
// iteration must sum to an int64.
class CyclicSums {
 public:
  explicit CyclicSums(std::vector<std::int64_t> values);

  std::int64_t at(KernelIndex kernel) const { return values_[slot(kernel)]; }
  void set(KernelIndex kernel, std::int64_t value);
  std::int64_t total() const { return total_; }
  // Of [from, to), or less that of [to, from); the greatest int64 if the sum is more.
  std::int64_t between(KernelIndex from, KernelIndex to) const;
  // The first `to` for which [from, to) sums to `amount` (above 0); -1 if all is 0.
  KernelIndex forward(KernelIndex from, std::int64_t amount) const;
  // The last `from` for which [from, to) sums to `amount` (above 0); -1 if that lies before kernel 0, or all is 0.
  KernelIndex backward(KernelIndex to, std::int64_t amount) const;

 private:
  std::size_t slot(KernelIndex kernel) const { return static_cast<std::size_t>(kernel) % values_.size(); }
  uint128 before(KernelIndex kernel) const;  // of [0, kernel)
  // The most slots whose sum is less than `amount`, or, with `or_equal`, at most that.
  std::size_t descend(std::int64_t amount, bool or_equal) const;

  std::vector<std::int64_t> values_, tree_;
  std::int64_t total_ = 0;
};

}  // namespace tencache
