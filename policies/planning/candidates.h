// What greedy planners choose from.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace tencache {

// The greatest first. Values only fall, and one is looked at again when it comes to
// the top: then it is lowered to what it is now worth, which mostly leaves it near the top, so that this is cheaper
// than to take it out and put it back. Items are ordered by <, totally.
template <typename Item>
class Candidates {
 public:
  explicit Candidates(std::vector<Item> items) : items_(std::move(items)) {
    for (std::size_t at = items_.size(); at-- > 0;) sift_down(at, Item(items_[at]));
  }
  bool empty() const { return items_.empty(); }
  const Item& top() const { return items_.front(); }
  void pop() {
    const Item last = items_.back();
    items_.pop_back();
    if (!items_.empty()) sift_down(0, last);
  }
  // Gives the top a value that is not above its own. Whether it is still the top.
  bool lower_top(const Item& item) { return sift_down(0, item) == 0; }

 private:
  static constexpr std::size_t arity = 4;  // of the heap: fewer levels, and children that lie side by side

  std::size_t sift_down(std::size_t at, const Item& item) {
    for (std::size_t child = arity * at + 1; child < items_.size(); child = arity * at + 1) {
      const std::size_t end = std::min(child + arity, items_.size());
      for (std::size_t other = child + 1; other < end; ++other) {
        if (items_[child] < items_[other]) child = other;
      }
      if (!(item < items_[child])) break;
      items_[at] = items_[child];
      at = child;
    }
    items_[at] = item;
    return at;
  }

  std::vector<Item> items_;
};

}  // namespace tencache
