#include "policies/planning/memory_profile.h"

#include <algorithm>

#include "core/check.h"

namespace tencache {

// A leaf that crosses the limit changes sides. The tree finds those: a node knows how low those above the limit are,
// and how high the others.

MemoryProfile::MemoryProfile(const Kernels& kernels, Bytes limit)
    : limit_(static_cast<std::int64_t>(limit)),
      durations_ns_(kernels.durations_ns),
      over_(std::vector<std::int64_t>(kernels.ops.size(), 0)) {
  while (leaf_count_ < durations_ns_.size()) leaf_count_ *= 2;
  nodes_.resize(2 * leaf_count_);
  for (std::size_t kernel = 0; kernel < durations_ns_.size(); ++kernel) set_leaf(leaf_count_ + kernel, 0);
  build();
}

MemoryProfile::MemoryProfile(const Kernels& kernels, const Trace& trace, Bytes limit, KernelIndex allocated_ahead,
                             Bytes granularity)
    : MemoryProfile(kernels, limit) {
  std::vector<std::int64_t> change(kernels.ops.size() + 1, 0);
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    const std::span<const KernelIndex> uses = kernels.uses_of(tensor);
    if (uses.empty()) continue;
    const Bytes rounded = (trace.tensors[tensor].bytes + granularity - 1) / granularity * granularity;
    const std::int64_t bytes = static_cast<std::int64_t>(rounded);
    const bool persistent = trace.tensors[tensor].persistent;
    const KernelIndex born = persistent ? 0 : std::max<KernelIndex>(uses.front() - allocated_ahead, 0);
    change[static_cast<std::size_t>(born)] += bytes;
    change[persistent ? kernels.ops.size() : static_cast<std::size_t>(uses.back()) + 1] -= bytes;
  }
  std::int64_t now = 0;
  for (std::size_t kernel = 0; kernel < durations_ns_.size(); ++kernel) {
    now += change[kernel];
    set_leaf(leaf_count_ + kernel, now);
  }
  build();
}

void MemoryProfile::build() {
  for (std::size_t node = leaf_count_; node-- > 1;) pull(node);
}

void MemoryProfile::set_leaf(std::size_t node, std::int64_t bytes) {
  const std::size_t kernel = node - leaf_count_;
  const bool over = bytes > limit_;
  Node& leaf = nodes_[node];
  leaf = {};
  leaf.most = bytes;
  (over ? leaf.least_over : leaf.most_under) = bytes;
  (over ? leaf.over_count : leaf.under_count) = 1;
  leaf.time_over = over ? durations_ns_[kernel] : 0;
  leaf.excess = over ? int128{bytes - limit_} * leaf.time_over : 0;
  over_.set(static_cast<KernelIndex>(kernel), leaf.time_over);
}

void MemoryProfile::raise(Node& node, std::int64_t bytes) {
  if (node.over_count + node.under_count == 0) return;
  node.added += bytes;
  node.most += bytes;
  if (node.over_count > 0) node.least_over += bytes;
  if (node.under_count > 0) node.most_under += bytes;
  node.excess += int128{bytes} * node.time_over;
}

void MemoryProfile::push(std::size_t node) {
  raise(nodes_[2 * node], nodes_[node].added);
  raise(nodes_[2 * node + 1], nodes_[node].added);
  nodes_[node].added = 0;
}

void MemoryProfile::pull(std::size_t node) {
  const Node &left = nodes_[2 * node], &right = nodes_[2 * node + 1];
  nodes_[node] = {.added = 0,
                  .most = std::max(left.most, right.most),
                  .least_over = std::min(left.least_over, right.least_over),
                  .most_under = std::max(left.most_under, right.most_under),
                  .over_count = left.over_count + right.over_count,
                  .under_count = left.under_count + right.under_count,
                  .time_over = left.time_over + right.time_over,
                  .excess = left.excess + right.excess};
}

// After the node's figures have changed: those below that are on the wrong side change sides.
void MemoryProfile::settle(std::size_t node, Range below) {
  const Node& now = nodes_[node];
  if ((now.over_count == 0 || now.least_over > limit_) && (now.under_count == 0 || now.most_under <= limit_)) return;
  if (below.length() == 1) {
    set_leaf(node, now.most);
    return;
  }
  push(node);
  const std::size_t middle = below.begin + below.length() / 2;
  settle(2 * node, {below.begin, middle});
  settle(2 * node + 1, {middle, below.end});
  pull(node);
}

template <typename Visit>
void MemoryProfile::each_part(KernelIndex from, KernelIndex to, Visit visit) const {
  const std::size_t count = durations_ns_.size(),
                    length = static_cast<std::size_t>(std::max<KernelIndex>(to - from, 0));
  TENCACHE_CHECK(length <= count);
  const std::size_t begin = static_cast<std::size_t>(from) % count;
  if (const Range part{begin, std::min(begin + length, count)}; part.length() > 0) visit(part);
  if (begin + length > count) visit(Range{0, begin + length - count});
}

void MemoryProfile::add(KernelIndex from, KernelIndex to, std::int64_t bytes) {
  each_part(from, to, [&](Range part) { add(1, {0, leaf_count_}, part, bytes); });
}

void MemoryProfile::add(std::size_t node, Range below, Range range, std::int64_t bytes) {
  if (range.begin >= below.end || range.end <= below.begin) return;
  if (range.begin <= below.begin && below.end <= range.end) {
    raise(nodes_[node], bytes);
    settle(node, below);
    return;
  }
  push(node);
  const std::size_t middle = below.begin + below.length() / 2;
  add(2 * node, {below.begin, middle}, range, bytes);
  add(2 * node + 1, {middle, below.end}, range, bytes);
  pull(node);
}

std::int64_t MemoryProfile::at(KernelIndex kernel) const {
  std::size_t node = leaf_count_ + static_cast<std::size_t>(kernel) % durations_ns_.size();
  std::int64_t bytes = nodes_[node].most;
  while (node > 1) bytes += nodes_[node /= 2].added;
  return bytes;
}

int128 MemoryProfile::excess(KernelIndex from, KernelIndex to, Bytes most) const {
  int128 sum = 0;
  each_part(from, to, [&](Range part) {
    sum += excess(1, {0, leaf_count_}, part, 0, static_cast<std::int64_t>(most));
  });
  return sum;
}

int128 MemoryProfile::excess(std::size_t node, Range below, Range range, std::int64_t added, std::int64_t most) const {
  const Node& now = nodes_[node];
  if (range.begin >= below.end || range.end <= below.begin || now.time_over == 0) return 0;
  if (range.begin <= below.begin && below.end <= range.end) {
    if (now.least_over + added - limit_ >= most) return int128{most} * now.time_over;
    if (now.most + added - limit_ <= most) return now.excess + int128{added} * now.time_over;
  }
  const std::size_t middle = below.begin + below.length() / 2;
  added += now.added;
  return excess(2 * node, {below.begin, middle}, range, added, most) +
         excess(2 * node + 1, {middle, below.end}, range, added, most);
}

std::int64_t MemoryProfile::most(KernelIndex from, KernelIndex to) const {
  std::int64_t result = std::numeric_limits<std::int64_t>::min();
  each_part(from, to, [&](Range part) { result = std::max(result, most(1, {0, leaf_count_}, part)); });
  return result;
}

std::int64_t MemoryProfile::most(std::size_t node, Range below, Range range) const {
  if (range.begin <= below.begin && below.end <= range.end) return nodes_[node].most;
  const std::size_t middle = below.begin + below.length() / 2;
  std::int64_t result = std::numeric_limits<std::int64_t>::min();
  if (range.begin < middle) result = most(2 * node, {below.begin, middle}, range);
  if (range.end > middle) result = std::max(result, most(2 * node + 1, {middle, below.end}, range));
  return result + nodes_[node].added;
}

KernelIndex MemoryProfile::last_above(KernelIndex from, KernelIndex to, std::int64_t bytes) const {
  KernelIndex last = from - 1, part_begins_at = from;
  each_part(from, to, [&](Range part) {
    const auto found = last_above(1, {0, leaf_count_}, part, bytes);
    if (found) last = part_begins_at + static_cast<KernelIndex>(*found - part.begin);
    part_begins_at += static_cast<KernelIndex>(part.length());
  });
  return last;
}

std::optional<std::size_t> MemoryProfile::last_above(std::size_t node, Range below, Range range,
                                                     std::int64_t bytes) const {
  if (range.begin >= below.end || range.end <= below.begin || nodes_[node].most <= bytes) return std::nullopt;
  if (below.length() == 1) return below.begin;
  const std::size_t middle = below.begin + below.length() / 2;
  const std::int64_t without_added = bytes - nodes_[node].added;
  const auto right = last_above(2 * node + 1, {middle, below.end}, range, without_added);
  return right ? right : last_above(2 * node, {below.begin, middle}, range, without_added);
}

KernelIndex MemoryProfile::peak() const {
  std::size_t node = 1;
  while (node < leaf_count_) node = 2 * node + (nodes_[2 * node].most >= nodes_[2 * node + 1].most ? 0 : 1);
  return static_cast<KernelIndex>(node - leaf_count_);
}

}  // namespace tencache
