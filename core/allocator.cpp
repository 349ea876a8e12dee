#include "core/allocator.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "core/caching_allocator.h"
#include "core/check.h"
#include "core/error.h"

namespace tencache {
namespace {

class ExactAllocator final : public Allocator {
 public:
  using Allocator::Allocator;
  std::optional<std::uint64_t> allocate(Bytes bytes, bool) override {
    if (bytes > free()) return std::nullopt;
    used_ += bytes;
    return 0;
  }
  void release(std::uint64_t, Bytes bytes) override {
    TENCACHE_CHECK(bytes <= used_);
    used_ -= bytes;
  }
  bool addressed() const override { return false; }
};

// Holes by address, coalesced on release. Best fit and two-ended first fit differ only in which hole they take.
class HoleAllocator final : public Allocator {
 public:
  HoleAllocator(Bytes capacity, bool two_ended) : Allocator(capacity), two_ended_(two_ended) {
    if (capacity > 0) add_hole(0, capacity);
  }

  std::optional<std::uint64_t> allocate(Bytes bytes, bool high_end) override {
    const auto hole = two_ended_ ? first_fit(bytes, high_end) : best_fit(bytes);
    if (hole == by_offset_.end()) return std::nullopt;
    const auto [offset, size] = *hole;
    remove_hole(offset, size);
    used_ += bytes;
    if (two_ended_ && high_end) {
      if (size > bytes) add_hole(offset, size - bytes);
      return offset + size - bytes;
    }
    if (size > bytes) add_hole(offset + bytes, size - bytes);
    return offset;
  }

  void release(std::uint64_t offset, Bytes bytes) override {
    TENCACHE_CHECK(bytes <= used_);
    used_ -= bytes;
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.end() && offset + bytes == next->first) {
      const auto [next_offset, next_size] = *next;
      remove_hole(next_offset, next_size);
      bytes += next_size;
    }
    auto previous = by_offset_.lower_bound(offset);
    if (previous != by_offset_.begin()) {
      const auto [previous_offset, previous_size] = *std::prev(previous);
      TENCACHE_CHECK(previous_offset + previous_size <= offset);
      if (previous_offset + previous_size == offset) {
        remove_hole(previous_offset, previous_size);
        offset = previous_offset;
        bytes += previous_size;
      }
    }
    add_hole(offset, bytes);
  }

  bool has_room(Bytes bytes) const override { return by_size_.lower_bound({bytes, 0}) != by_size_.end(); }
  Bytes largest_free() const override { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  using Holes = std::map<std::uint64_t, Bytes>;

  Holes::iterator best_fit(Bytes bytes) {
    const auto found = by_size_.lower_bound({bytes, 0});
    return found == by_size_.end() ? by_offset_.end() : by_offset_.find(found->second);
  }
  Holes::iterator first_fit(Bytes bytes, bool high_end) {
    const auto fits = [bytes](const auto& hole) { return hole.second >= bytes; };
    if (!high_end) return std::find_if(by_offset_.begin(), by_offset_.end(), fits);
    const auto found = std::find_if(by_offset_.rbegin(), by_offset_.rend(), fits);
    return found == by_offset_.rend() ? by_offset_.end() : std::prev(found.base());
  }
  void add_hole(std::uint64_t offset, Bytes bytes) {
    by_offset_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
  }
  void remove_hole(std::uint64_t offset, Bytes bytes) {
    by_offset_.erase(offset);
    by_size_.erase({bytes, offset});
  }

  bool two_ended_;
  Holes by_offset_;
  std::set<std::pair<Bytes, std::uint64_t>> by_size_;
};

// Free lists of buffers, one block a class; fixed buffers are the case of one class.
class ClassAllocator final : public Allocator {
 public:
  ClassAllocator(std::vector<SizeClass> classes, Bytes capacity) : Allocator(capacity) {
    std::sort(classes.begin(), classes.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    std::uint64_t offset = 0;
    for (const SizeClass& size_class : classes) {
      Class& made = classes_.emplace_back(Class{size_class.bytes, offset, {}});
      if (size_class.count != 0 && size_class.bytes > (capacity - offset) / size_class.count) {
        throw Error("the layout's buffers (" + std::to_string(size_class.count) + " of " +
                    format_bytes(size_class.bytes) + ") do not fit into " + format_bytes(capacity));
      }
      for (std::uint64_t i = size_class.count; i-- > 0;) made.free.push_back(offset + i * size_class.bytes);
      made.count = size_class.count;
      offset += size_class.count * size_class.bytes;
    }
    capacity_ = offset;
  }

  std::optional<std::uint64_t> allocate(Bytes bytes, bool) override {
    Class* size_class = class_of(bytes);
    if (size_class == nullptr || size_class->free.empty()) return std::nullopt;
    const std::uint64_t offset = size_class->free.back();
    size_class->free.pop_back();
    used_ += size_class->bytes;
    padding_ += size_class->bytes - bytes;
    return offset;
  }
  void release(std::uint64_t offset, Bytes bytes) override {
    Class* size_class = class_of(bytes);
    TENCACHE_CHECK(size_class != nullptr && (offset - size_class->begin) % size_class->bytes == 0);
    size_class->free.push_back(offset);
    used_ -= size_class->bytes;
    padding_ -= size_class->bytes - bytes;
  }
  bool has_room(Bytes bytes) const override {
    const Class* size_class = const_cast<ClassAllocator*>(this)->class_of(bytes);
    return size_class != nullptr && !size_class->free.empty();
  }
  Bytes footprint(Bytes bytes) const override {
    const Class* size_class = const_cast<ClassAllocator*>(this)->class_of(bytes);
    return size_class == nullptr ? bytes : size_class->bytes;
  }
  Bytes largest_free() const override {
    const auto found = std::find_if(classes_.rbegin(), classes_.rend(), [](const Class& c) { return !c.free.empty(); });
    return found == classes_.rend() ? 0 : found->bytes;
  }
  Bytes padding() const override { return padding_; }
  bool could_hold(Bytes bytes) const override {
    const Class* size_class = const_cast<ClassAllocator*>(this)->class_of(bytes);
    return size_class != nullptr && size_class->count > 0;
  }

 private:
  struct Class {
    Bytes bytes;
    std::uint64_t begin;
    std::vector<std::uint64_t> free;
    std::uint64_t count = 0;
  };
  Class* class_of(Bytes bytes) {
    const auto found =
        std::lower_bound(classes_.begin(), classes_.end(), bytes, [](const Class& a, Bytes b) { return a.bytes < b; });
    return found == classes_.end() ? nullptr : &*found;
  }

  std::vector<Class> classes_;
  Bytes padding_ = 0;
};

class CachingTier final : public Allocator {
 public:
  explicit CachingTier(Bytes capacity) : Allocator(capacity), allocator_({}, capacity) {}

  std::optional<std::uint64_t> allocate(Bytes bytes, bool) override {
    if (!allocator_.can_allocate(bytes)) return std::nullopt;  // a request that fails empties the cache
    const std::optional<std::uint64_t> address = allocator_.allocate(bytes);
    TENCACHE_CHECK(address.has_value());
    requested_ += bytes;
    used_ = allocator_.allocated();
    return address;
  }
  void release(std::uint64_t offset, Bytes bytes) override {
    allocator_.release(offset);
    requested_ -= bytes;
    used_ = allocator_.allocated();
  }
  bool has_room(Bytes bytes) const override { return allocator_.can_allocate(bytes); }
  Bytes footprint(Bytes bytes) const override { return allocator_.rounded(bytes); }
  bool could_hold(Bytes bytes) const override {
    return allocator_.segment_size(allocator_.rounded(bytes)) <= capacity_;
  }
  Bytes largest_free() const override { return std::max(allocator_.largest_free(), capacity_ - allocator_.reserved()); }
  Bytes padding() const override { return used_ - requested_; }

 private:
  CachingAllocator allocator_;
  Bytes requested_ = 0;
};

}  // namespace

std::unique_ptr<Allocator> make_allocator(const AllocatorSpec& spec, Bytes capacity) {
  switch (spec.kind) {
    case AllocatorKind::exact:
      return std::make_unique<ExactAllocator>(capacity);
    case AllocatorKind::best_fit:
      return std::make_unique<HoleAllocator>(capacity, false);
    case AllocatorKind::two_ended:
      return std::make_unique<HoleAllocator>(capacity, true);
    case AllocatorKind::caching:
      return std::make_unique<CachingTier>(capacity);
    case AllocatorKind::size_classes:
    case AllocatorKind::fixed_buffers:
      TENCACHE_CHECK(!spec.classes.empty() && (spec.kind == AllocatorKind::size_classes || spec.classes.size() == 1));
      return std::make_unique<ClassAllocator>(spec.classes, capacity);
  }
  TENCACHE_CHECK(false);
}

}  // namespace tencache
