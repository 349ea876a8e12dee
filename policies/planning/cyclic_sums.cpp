#include "policies/planning/cyclic_sums.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tencache {

CyclicSums::CyclicSums(std::vector<std::int64_t> values) : values_(std::move(values)), tree_(values_.size() + 1, 0) {
  for (std::size_t i = 1; i < tree_.size(); ++i) {
    total_ += values_[i - 1];
    tree_[i] += values_[i - 1];
    const std::size_t parent = i + (i & (~i + 1));
    if (parent < tree_.size()) tree_[parent] += tree_[i];
  }
}

void CyclicSums::set(KernelIndex kernel, std::int64_t value) {
  const std::size_t at = slot(kernel);
  const std::int64_t change = value - values_[at];
  if (change == 0) return;
  values_[at] = value;
  total_ += change;
  for (std::size_t i = at + 1; i < tree_.size(); i += i & (~i + 1)) tree_[i] += change;
}

std::int64_t CyclicSums::between(KernelIndex from, KernelIndex to) const {
  if (to < from) return -between(to, from);
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(std::min<uint128>(before(to) - before(from), most));
}

uint128 CyclicSums::before(KernelIndex kernel) const {
  const KernelIndex size = static_cast<KernelIndex>(values_.size());
  uint128 rounds = 0;
  if (kernel >= size) {  // rarely: a division takes longer than all the rest
    rounds = static_cast<uint128>(kernel / size) * static_cast<uint128>(total_);
    kernel %= size;
  }
  std::int64_t sum = 0;
  for (std::size_t i = static_cast<std::size_t>(kernel); i > 0; i &= i - 1) sum += tree_[i];
  return rounds + static_cast<uint128>(sum);
}

std::size_t CyclicSums::descend(std::int64_t amount, bool or_equal) const {
  std::size_t step = 1, at = 0;
  while (2 * step < tree_.size()) step *= 2;
  for (; step > 0; step /= 2) {
    if (at + step >= tree_.size()) continue;
    const std::int64_t sum = tree_[at + step];
    if (sum < amount || (or_equal && sum == amount)) {
      at += step;
      amount -= sum;
    }
  }
  return at;
}

KernelIndex CyclicSums::forward(KernelIndex from, std::int64_t amount) const {
  if (total_ == 0) return -1;
  const uint128 total = static_cast<uint128>(total_), target = before(from) + static_cast<uint128>(amount);
  if (target <= total) return static_cast<KernelIndex>(descend(static_cast<std::int64_t>(target), false)) + 1;
  const KernelIndex rounds = static_cast<KernelIndex>((target - 1) / total);
  const std::size_t slots = descend(static_cast<std::int64_t>((target - 1) % total) + 1, false) + 1;
  return rounds * static_cast<KernelIndex>(values_.size()) + static_cast<KernelIndex>(slots);
}

KernelIndex CyclicSums::backward(KernelIndex to, std::int64_t amount) const {
  const uint128 all = before(to), wanted = static_cast<uint128>(amount);
  if (total_ == 0 || all < wanted) return -1;
  const uint128 total = static_cast<uint128>(total_), target = all - wanted;
  if (target < total) return static_cast<KernelIndex>(descend(static_cast<std::int64_t>(target), true));
  const KernelIndex rounds = static_cast<KernelIndex>(target / total);
  const std::size_t slots = descend(static_cast<std::int64_t>(target % total), true);
  return rounds * static_cast<KernelIndex>(values_.size()) + static_cast<KernelIndex>(slots);
}

}  // namespace tencache
