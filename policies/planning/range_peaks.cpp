#include "policies/planning/range_peaks.h"

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace tencache {

RangePeaks::RangePeaks(const std::vector<std::int64_t>& values) : count_(values.size()) {
  while (leaf_count_ < count_) leaf_count_ *= 2;
  nodes_.resize(2 * leaf_count_);
  for (std::size_t i = 0; i < count_; ++i) nodes_[leaf_count_ + i].most = values[i];
  for (std::size_t node = leaf_count_; node-- > 1;) update(node);
}

void RangePeaks::update(std::size_t node) {
  nodes_[node].most = std::max(nodes_[2 * node].most, nodes_[2 * node + 1].most) + nodes_[node].added;
}

template <typename Visit>
void RangePeaks::each_part(KernelIndex from, KernelIndex to, Visit visit) const {
  const std::size_t length = static_cast<std::size_t>(to - from), begin = static_cast<std::size_t>(from) % count_;
  TENCACHE_CHECK(from < to && length <= count_);
  visit(begin, std::min(begin + length, count_));
  if (begin + length > count_) visit(std::size_t{0}, begin + length - count_);
}

// From both ends upwards: what lies between them at each level is whole. What was added to nodes above is added on the
// way.
std::int64_t RangePeaks::most(KernelIndex from, KernelIndex to) const {
  std::int64_t most = std::numeric_limits<std::int64_t>::min();
  each_part(from, to, [&](std::size_t begin, std::size_t end) {
    std::size_t l = begin + leaf_count_, r = end - 1 + leaf_count_;  // both within
    std::int64_t left = nodes_[l].most, right = nodes_[r].most;
    for (; l / 2 != r / 2; l /= 2, r /= 2) {
      if (l % 2 == 0) left = std::max(left, nodes_[l + 1].most);
      if (r % 2 == 1) right = std::max(right, nodes_[r - 1].most);
      left += nodes_[l / 2].added;
      right += nodes_[r / 2].added;
    }
    std::int64_t of_part = std::max(left, right);
    for (l /= 2; l > 0; l /= 2) of_part += nodes_[l].added;
    most = std::max(most, of_part);
  });
  return most;
}

void RangePeaks::add(KernelIndex from, KernelIndex to, std::int64_t change) {
  const auto raise = [&](std::size_t node) {
    nodes_[node].most += change;
    nodes_[node].added += change;
  };
  each_part(from, to, [&](std::size_t begin, std::size_t end) {
    std::size_t l = begin + leaf_count_, r = end - 1 + leaf_count_;
    raise(l);
    if (r != l) raise(r);
    for (; l / 2 != r / 2; l /= 2, r /= 2) {
      if (l % 2 == 0) raise(l + 1);
      if (r % 2 == 1) raise(r - 1);
      update(l / 2);
      update(r / 2);
    }
    for (l /= 2; l > 0; l /= 2) update(l);
  });
}

}  // namespace tencache
