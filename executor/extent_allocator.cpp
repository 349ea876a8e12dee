#include "executor/extent_allocator.h"

#include <algorithm>

#include "core/check.h"

namespace tencache {

ExtentAllocator::ExtentAllocator(Bytes capacity, Bytes page) : capacity_(capacity / page * page), page_(page) {
  TENCACHE_CHECK(page != 0 && (page & (page - 1)) == 0);
  if (capacity_ != 0) insert(0, capacity_);
}

void ExtentAllocator::insert(Bytes offset, Bytes bytes) {
  free_.emplace(offset, bytes);
  free_by_size_.emplace(bytes, offset);
}

void ExtentAllocator::remove(std::map<Bytes, Bytes>::iterator extent) {
  free_by_size_.erase({extent->second, extent->first});
  free_.erase(extent);
}

void ExtentAllocator::take_front(std::map<Bytes, Bytes>::iterator extent, Bytes bytes) {
  const auto [offset, free_bytes] = *extent;
  remove(extent);
  if (free_bytes != bytes) insert(offset + bytes, free_bytes - bytes);
  used_ += bytes;
  high_water_ = std::max(high_water_, offset + bytes);
}

bool ExtentAllocator::take(Bytes bytes, std::vector<Extent>& extents) {
  TENCACHE_CHECK(bytes % page_ == 0 && bytes != 0);
  if (bytes > capacity_ - used_) return false;
  while (bytes != 0) {
    auto best = free_by_size_.lower_bound({bytes, 0});
    if (best == free_by_size_.end()) --best;
    const Extent extent{best->second, std::min(best->first, bytes)};
    take_front(free_.find(extent.offset), extent.bytes);
    extents.push_back(extent);
    bytes -= extent.bytes;
  }
  return true;
}

bool ExtentAllocator::take_at(Extent extent) {
  TENCACHE_CHECK(extent.bytes % page_ == 0 && extent.offset % page_ == 0 && extent.bytes != 0);
  auto holder = free_.upper_bound(extent.offset);
  if (holder == free_.begin()) return false;
  --holder;
  const auto [offset, bytes] = *holder;
  if (extent.offset + extent.bytes > offset + bytes) return false;
  remove(holder);
  if (offset != extent.offset) insert(offset, extent.offset - offset);
  const Bytes end = extent.offset + extent.bytes;
  if (end != offset + bytes) insert(end, offset + bytes - end);
  used_ += extent.bytes;
  high_water_ = std::max(high_water_, end);
  return true;
}

Bytes ExtentAllocator::set_capacity(Bytes capacity) {
  capacity = capacity / page_ * page_;
  if (capacity > capacity_) {
    const Extent added{capacity_, capacity - capacity_};
    capacity_ = capacity;
    used_ += added.bytes;
    give(added);
  } else if (capacity < capacity_ && !free_.empty()) {
    const auto last = std::prev(free_.end());
    const auto [offset, bytes] = *last;
    if (offset + bytes != capacity_) return capacity_;
    remove(last);
    capacity_ = std::max(capacity, offset);
    if (capacity_ != offset) insert(offset, capacity_ - offset);
    high_water_ = std::min(high_water_, capacity_);
  }
  return capacity_;
}

void ExtentAllocator::give(Extent extent) {
  TENCACHE_CHECK(extent.bytes <= used_ && extent.offset + extent.bytes <= capacity_);
  used_ -= extent.bytes;
  auto next = free_.lower_bound(extent.offset);
  TENCACHE_CHECK(next == free_.end() || extent.offset + extent.bytes <= next->first);
  if (next != free_.end() && next->first == extent.offset + extent.bytes) {
    extent.bytes += next->second;
    const auto after = std::next(next);
    remove(next);
    next = after;
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    TENCACHE_CHECK(previous->first + previous->second <= extent.offset);
    if (previous->first + previous->second == extent.offset) {
      extent.offset = previous->first;
      extent.bytes += previous->second;
      remove(previous);
    }
  }
  insert(extent.offset, extent.bytes);
}

}  // namespace tencache
