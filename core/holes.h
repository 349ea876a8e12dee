// The free ranges of an address range. Neighbours are one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/check.h"
#include "core/units.h"

namespace tencache {

struct Hole {
  std::uint64_t begin = 0;
  Bytes bytes = 0;
  std::uint64_t end() const { return begin + bytes; }
};

class Holes {
 public:
  explicit Holes(Bytes capacity) {
    if (capacity > 0) add(0, capacity);
  }

  // The smallest that holds so many bytes; of several the lowest.
  std::optional<Hole> best_fit(Bytes bytes) const {
    const auto found = by_size_.lower_bound({bytes, 0});
    if (found == by_size_.end()) return std::nullopt;
    return Hole{found->second, found->first};
  }
  // The lowest that holds so many bytes, or the highest.
  std::optional<Hole> first_fit(Bytes bytes, bool highest) const {
    const auto fits = [bytes](const auto& hole) { return hole.second >= bytes; };
    if (highest) {
      const auto found = std::find_if(by_offset_.rbegin(), by_offset_.rend(), fits);
      return found == by_offset_.rend() ? std::nullopt : std::optional(Hole{found->first, found->second});
    }
    const auto found = std::find_if(by_offset_.begin(), by_offset_.end(), fits);
    return found == by_offset_.end() ? std::nullopt : std::optional(Hole{found->first, found->second});
  }
  Bytes largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  const std::map<std::uint64_t, Bytes>& by_offset() const { return by_offset_; }
  const std::set<std::pair<Bytes, std::uint64_t>>& by_size() const { return by_size_; }

  // All of the range is free.
  void take(std::uint64_t offset, Bytes bytes) {
    auto found = by_offset_.upper_bound(offset);
    TENCACHE_CHECK(found != by_offset_.begin());
    const auto [begin, size] = *--found;
    TENCACHE_CHECK(offset + bytes <= begin + size);
    remove(begin, size);
    if (begin < offset) add(begin, offset - begin);
    if (offset + bytes < begin + size) add(offset + bytes, begin + size - offset - bytes);
  }
  // None of it is.
  void give(std::uint64_t offset, Bytes bytes) {
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.end() && offset + bytes == next->first) {
      const auto [next_offset, next_size] = *next;
      remove(next_offset, next_size);
      bytes += next_size;
    }
    auto previous = by_offset_.lower_bound(offset);
    if (previous != by_offset_.begin()) {
      const auto [previous_offset, previous_size] = *std::prev(previous);
      TENCACHE_CHECK(previous_offset + previous_size <= offset);
      if (previous_offset + previous_size == offset) {
        remove(previous_offset, previous_size);
        offset = previous_offset;
        bytes += previous_size;
      }
    }
    add(offset, bytes);
  }

 private:
  void add(std::uint64_t offset, Bytes bytes) {
    by_offset_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
  }
  void remove(std::uint64_t offset, Bytes bytes) {
    by_offset_.erase(offset);
    by_size_.erase({bytes, offset});
  }

  std::map<std::uint64_t, Bytes> by_offset_;
  std::set<std::pair<Bytes, std::uint64_t>> by_size_;
};

}  // namespace tencache
