#include "core/allocator.h"

#include <algorithm>
#include <string>

#include "core/caching_allocator.h"
#include "core/check.h"
#include "core/error.h"
#include "core/holes.h"
#include "core/movable_allocator.h"

namespace tencache {
namespace {

class ExactAllocator final : public Allocator {
 public:
  using Allocator::Allocator;
  std::optional<std::uint64_t> allocate(Bytes bytes, bool, ChunkId) override {
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

// Best fit and two-ended first fit differ only in which hole they take.
class HoleAllocator final : public Allocator {
 public:
  HoleAllocator(Bytes capacity, bool two_ended) : Allocator(capacity), two_ended_(two_ended), holes_(capacity) {}

  std::optional<std::uint64_t> allocate(Bytes bytes, bool high_end, ChunkId) override {
    const std::optional<Hole> hole = two_ended_ ? holes_.first_fit(bytes, high_end) : holes_.best_fit(bytes);
    if (!hole) return std::nullopt;
    const std::uint64_t offset = two_ended_ && high_end ? hole->end() - bytes : hole->begin;
    holes_.take(offset, bytes);
    used_ += bytes;
    return offset;
  }
  void release(std::uint64_t offset, Bytes bytes) override {
    TENCACHE_CHECK(bytes <= used_);
    used_ -= bytes;
    holes_.give(offset, bytes);
  }
  bool has_room(Bytes bytes) const override { return bytes <= holes_.largest(); }
  Bytes largest_free() const override { return holes_.largest(); }

 private:
  bool two_ended_;
  Holes holes_;
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

  std::optional<std::uint64_t> allocate(Bytes bytes, bool, ChunkId) override {
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

  std::optional<std::uint64_t> allocate(Bytes bytes, bool, ChunkId) override {
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
    case AllocatorKind::movable:
      return std::make_unique<MovableAllocator>(capacity - capacity % movable_unit);
    case AllocatorKind::size_classes:
    case AllocatorKind::fixed_buffers:
      TENCACHE_CHECK(!spec.classes.empty() && (spec.kind == AllocatorKind::size_classes || spec.classes.size() == 1));
      return std::make_unique<ClassAllocator>(spec.classes, capacity);
  }
  TENCACHE_CHECK(false);
}

}  // namespace tencache
