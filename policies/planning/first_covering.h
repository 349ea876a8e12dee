// The first of many ranges of kernels that cover one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "policies/planning/kernels.h"

namespace tencache {

// Items, numbered from 0 in the order in which they are put in, each with a range of kernels: the first that covers a
// kernel, in O(log K) and O(log² K) for each range that is put in or narrowed (a segment tree over the kernels: an item
// stands at each node that its range holds whole and the node's parent not).
class FirstCovering {
 public:
  using Item = std::uint32_t;

  explicit FirstCovering(KernelIndex kernels);
  // `from` is less than K, the range neither empty nor longer than an iteration.
  void put(KernelIndex from, KernelIndex to);
  // The first that covers the kernel, the same for a whole round, and was not taken in this round; none: there is no
  // other. One that was narrowed since may be taken again.
  std::optional<Item> take(KernelIndex kernel);
  // Within its range; an empty one takes it away.
  void narrow(Item item, KernelIndex from, KernelIndex to);
  void remove(Item item) { narrow(item, 0, 0); }
  // What was taken can be taken again.
  void end_round();

 private:
  struct Range {
    KernelIndex from = 0, to = 0;
  };
  struct Slots {  // of one iteration
    KernelIndex begin = 0, end = 0;
  };
  bool holds(const Range& range, const Slots& slots) const;
  void enter(Item item, const Range& before);
  void enter(std::size_t node, Slots below, Slots part, Item item, const Range& before);
  void drop_top(std::size_t node);
  Slots slots_of(std::size_t node) const;

  KernelIndex count_;
  std::size_t leaf_count_ = 1;                       // a power of two
  std::vector<Range> ranges_;                        // by item
  std::vector<std::vector<Item>> standing_;          // by node, heaps, the first on top; some no longer belong there
  std::vector<std::pair<std::size_t, Item>> taken_;  // from which node
};

}  // namespace tencache
