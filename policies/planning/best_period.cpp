#include "policies/planning/best_period.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace tencache {

bool BestPeriod::Worth::operator<(const Worth& other) const {
  return std::tie(benefit, area, other.period) < std::tie(other.benefit, other.area, period);
}

BestPeriod::BestPeriod(std::span<const InactivePeriod> periods, KernelIndex kernels, const MemoryProfile& counted,
                       const MemoryProfile& needed, Away away)
    : periods_(periods),
      kernels_(kernels),
      counted_(counted),
      needed_(needed),
      away_(std::move(away)),
      left_(periods.size(), false) {
  for (std::size_t i = 0; i < periods_.size(); ++i) {
    if (!benefit_of(periods_[i], away_(periods_[i]))) continue;
    left_[i] = true;
    order_.push_back(i);
  }
  if (!order_.empty()) build(0, order_.size(), 0);
}

// None if no kernel of the range is above the limit.
std::optional<uint128> BestPeriod::benefit_of(const InactivePeriod& period, Range range) const {
  range.to = std::min(range.to, range.from + kernels_);  // no longer than an iteration
  if (range.empty() || needed_.time_over(range.from, range.to) == 0) return std::nullopt;
  return uint128{period.bytes} * static_cast<uint128>(time_over(range));
}

// Halves by size, by end and by begin in turn.
std::size_t BestPeriod::build(std::size_t begin, std::size_t end, int level) {
  const std::size_t at = nodes_.size();
  nodes_.push_back({.begin = begin, .end = end});
  if (end - begin <= in_leaf) {
    Worth any;
    look_at_each(nodes_[at], any);
    return at;
  }
  const auto by = [&](auto value) {
    const auto first = order_.begin();
    const auto middle = first + static_cast<std::ptrdiff_t>(begin + (end - begin) / 2);
    std::nth_element(first + static_cast<std::ptrdiff_t>(begin), middle, first + static_cast<std::ptrdiff_t>(end),
                     [&](std::size_t a, std::size_t b) {
                       return std::tuple(value(periods_[a]), a) < std::tuple(value(periods_[b]), b);
                     });
  };
  if (level % 3 == 0) by([](const InactivePeriod& period) { return period.bytes; });
  if (level % 3 == 1) by([](const InactivePeriod& period) { return period.end; });
  if (level % 3 == 2) by([](const InactivePeriod& period) { return period.begin; });
  const std::size_t middle = begin + (end - begin) / 2;
  build(begin, middle, level + 1);
  const std::size_t right = build(middle, end, level + 1);
  Node& node = nodes_[at];
  node.right = right;
  forget(node);
  add(node, nodes_[at + 1]);
  add(node, nodes_[right]);
  node.shared_ns = time_over(node.shared);
  return at;
}

void BestPeriod::forget(Node& node) {
  node.most = {};
  node.least_bytes = unlimited;
  node.most_bytes = 0;
}

void BestPeriod::add(Node& node, const Node& part) {
  if (part.empty()) return;
  const bool first = node.empty();
  node.most = {std::max(node.most.benefit, part.most.benefit), std::max(node.most.area, part.most.area),
               std::min(node.most.period, part.most.period)};
  node.least_bytes = std::min(node.least_bytes, part.least_bytes);
  node.most_bytes = std::max(node.most_bytes, part.most_bytes);
  node.first_begin = first ? part.first_begin : std::min(node.first_begin, part.first_begin);
  node.last_begin = first ? part.last_begin : std::max(node.last_begin, part.last_begin);
  node.first_end = first ? part.first_end : std::min(node.first_end, part.first_end);
  node.last_end = first ? part.last_end : std::max(node.last_end, part.last_end);
  node.shared = first ? part.shared
                      : Range{std::max(node.shared.from, part.shared.from), std::min(node.shared.to, part.shared.to)};
  if (node.shared.empty()) node.shared = {};
}

void BestPeriod::look_at_each(Node& node, Worth& best) {
  forget(node);
  for (std::size_t at = node.begin; at < node.end; ++at) {
    const std::size_t i = order_[at];
    if (!left_[i]) continue;
    const InactivePeriod& period = periods_[i];
    const Range range = away_(period);
    const std::optional<uint128> benefit = benefit_of(period, range);
    left_[i] = benefit.has_value();
    if (!benefit) continue;
    Node one;
    one.most = {*benefit, uint128{period.bytes} * static_cast<uint128>(period.length_ns), i};
    one.least_bytes = one.most_bytes = period.bytes;
    one.first_begin = one.last_begin = period.begin;
    one.first_end = one.last_end = period.end;
    one.shared = range;
    add(node, one);
    if (best < one.most) best = one.most;
  }
  node.shared_ns = time_over(node.shared);
}

// Its bound to what can be told without looking at its periods.
void BestPeriod::lower(Node& node) {
  if (node.empty() || node.lowered_in == round_) return;
  node.lowered_in = round_;
  const InactivePeriod widest{.bytes = node.least_bytes, .begin = node.first_begin, .end = node.last_end};
  const std::optional<uint128> at_most = benefit_of({.bytes = node.most_bytes}, away_(widest));
  if (!at_most) return forget(node);
  const Nanoseconds shared_ns = time_over(node.shared);
  node.most.benefit -= uint128{node.least_bytes} * static_cast<uint128>(node.shared_ns - shared_ns);
  node.shared_ns = shared_ns;
  if (node.most.benefit <= *at_most) return;
  // From now on it counts kernels that all still have.
  node.most.benefit = *at_most;
  node.shared = {};
  if (node.last_begin < node.first_end) {
    const Range all = away_({.bytes = node.most_bytes, .begin = node.last_begin, .end = node.first_end});
    if (!all.empty()) node.shared = all;
  }
  node.shared_ns = time_over(node.shared);
}

void BestPeriod::find(std::size_t at, Worth& best) {
  Node& node = nodes_[at];
  lower(node);
  if (node.empty() || !(best < node.most)) return;
  if (node.right == 0) return look_at_each(node, best);
  std::size_t first = at + 1, second = node.right;
  lower(nodes_[first]);
  lower(nodes_[second]);
  if (nodes_[first].most < nodes_[second].most) std::swap(first, second);
  find(first, best);
  find(second, best);
  forget(node);
  add(node, nodes_[first]);
  add(node, nodes_[second]);
  node.shared_ns = time_over(node.shared);
}

std::optional<std::size_t> BestPeriod::take() {
  if (nodes_.empty()) return std::nullopt;
  ++round_;
  Worth best;
  find(0, best);
  if (best.period == none_left) return std::nullopt;
  left_[best.period] = false;
  return best.period;
}

}  // namespace tencache
