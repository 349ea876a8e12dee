#include "policies/planning/first_covering.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace tencache {

FirstCovering::FirstCovering(KernelIndex kernels)
    : count_(kernels), leaf_count_(std::bit_ceil(static_cast<std::size_t>(kernels))), standing_(2 * leaf_count_) {}

void FirstCovering::put(KernelIndex from, KernelIndex to) {
  ranges_.push_back({from, to});
  enter(static_cast<Item>(ranges_.size() - 1), {});
}

bool FirstCovering::holds(const Range& range, const Slots& slots) const {
  return (range.from <= slots.begin && slots.end <= range.to) ||
         (range.from <= slots.begin + count_ && slots.end + count_ <= range.to);
}

// At each node of its range, but not where it stands since its range was `before`.
void FirstCovering::enter(Item item, const Range& before) {
  const Range range = ranges_[item];
  const Slots all{0, static_cast<KernelIndex>(leaf_count_)};
  if (range.from < count_) enter(1, all, {range.from, std::min(range.to, count_)}, item, before);
  if (range.to > count_) enter(1, all, {std::max(range.from, count_) - count_, range.to - count_}, item, before);
}

void FirstCovering::enter(std::size_t node, Slots below, Slots part, Item item, const Range& before) {
  if (part.begin >= below.end || part.end <= below.begin) return;
  if (holds(ranges_[item], below)) {
    if (before.from < before.to && (node == 1 || !holds(before, slots_of(node / 2)))) return;
    standing_[node].push_back(item);
    std::ranges::push_heap(standing_[node], std::greater<>());
    return;
  }
  const KernelIndex middle = below.begin + (below.end - below.begin) / 2;
  enter(2 * node, {below.begin, middle}, part, item, before);
  enter(2 * node + 1, {middle, below.end}, part, item, before);
}

FirstCovering::Slots FirstCovering::slots_of(std::size_t node) const {
  const std::size_t level = std::bit_floor(node), length = leaf_count_ / level;
  const KernelIndex begin = static_cast<KernelIndex>((node - level) * length);
  return {begin, begin + static_cast<KernelIndex>(length)};
}

void FirstCovering::drop_top(std::size_t node) {
  std::ranges::pop_heap(standing_[node], std::greater<>());
  standing_[node].pop_back();
}

std::optional<FirstCovering::Item> FirstCovering::take(KernelIndex kernel) {
  std::size_t at = 0;
  for (std::size_t node = leaf_count_ + static_cast<std::size_t>(kernel % count_); node > 0; node /= 2) {
    const Slots slots = slots_of(node);
    while (!standing_[node].empty() && !holds(ranges_[standing_[node].front()], slots)) drop_top(node);
    if (standing_[node].empty()) continue;
    if (at == 0 || standing_[node].front() < standing_[at].front()) at = node;
  }
  if (at == 0) return std::nullopt;
  const Item item = standing_[at].front();
  drop_top(at);
  taken_.emplace_back(at, item);
  return item;
}

void FirstCovering::narrow(Item item, KernelIndex from, KernelIndex to) {
  const Range before = std::exchange(ranges_[item], {from, to});
  if (from < to) enter(item, before);
}

void FirstCovering::end_round() {
  for (const auto& [node, item] : taken_) {
    if (!holds(ranges_[item], slots_of(node))) continue;
    standing_[node].push_back(item);
    std::ranges::push_heap(standing_[node], std::greater<>());
  }
  taken_.clear();
}

}  // namespace tencache
