// The blocks of a caching allocator, and what it has of the device: ranges of addresses ("segments"), the memory behind
// them, and the calls of the device so far.
#pragma once

#include <compare>
#include <cstdint>
#include <set>
#include <vector>

#include "core/units.h"

namespace tencache {

// Of PyTorch's allocator: requests are rounded up to multiples of the first, and those above the second are large.
inline constexpr Bytes least_block = 512, largest_small_request = MiB;

// The blocks of a caching allocator (caching_allocator.h): side by side in their segments, handed out, free, or
// addresses that are not mapped yet.
enum class BlockPool : std::uint8_t { small, large };

struct CachingBlock {
  std::uint64_t address = 0;
  Bytes bytes = 0;
  Bytes requested = 0, rounded = 0;          // of one that is handed out
  std::uint64_t free_since = 0;              // lookups of the pool, when it became free
  std::uint32_t previous = ~0u, next = ~0u;  // in its segment
  std::uint32_t segment = 0;
  std::uint32_t stream = 0;
  BlockPool pool = BlockPool::small;
  bool handed_out = false, mapped = true;

  bool whole() const { return previous == ~0u && next == ~0u; }  // it is all of its segment
};

// By stream, size (of free blocks) and address.
struct BlockKey {
  std::uint32_t stream = 0;
  Bytes bytes = 0;
  std::uint64_t address = 0;
  auto operator<=>(const BlockKey&) const = default;
};

class CachingBlocks {
 public:
  using Id = std::uint32_t;
  static constexpr Id none = ~Id{0};

  template <bool by_size>
  struct Before {
    const std::vector<CachingBlock>* blocks;
    using is_transparent = void;
    BlockKey key(const BlockKey& key) const { return key; }
    BlockKey key(Id id) const {
      const CachingBlock& block = (*blocks)[id];
      return {block.stream, by_size ? block.bytes : 0, block.address};
    }
    template <typename One, typename Other>
    bool operator()(const One& one, const Other& other) const {
      return key(one) < key(other);
    }
  };
  using Free = std::set<Id, Before<true>>;
  using Unmapped = std::set<Id, Before<false>>;

  CachingBlocks() = default;
  CachingBlocks(const CachingBlocks&) = delete;
  CachingBlocks& operator=(const CachingBlocks&) = delete;

  // References end with the next `add` and `cut`.
  CachingBlock& operator[](Id id) { return blocks_[id]; }
  const CachingBlock& operator[](Id id) const { return blocks_[id]; }

  // In no set.
  Id add(const CachingBlock& block);
  // Of a block in no set: what lies behind its first `bytes` becomes a block of its own, in no set either.
  Id cut(Id block, Bytes bytes);
  // Of a block that is in no set, with its neighbours that are as it is (free, or not mapped): put into its set.
  Id merge(Id block);
  // Out of its set, and out of its segment.
  void remove(Id block);

  void put_free(Id block);
  void put_unmapped(Id block) { unmapped_[static_cast<int>(blocks_[block].pool)].insert(block); }
  void take_out(Id block);

  const Free& free(BlockPool pool) const { return free_[static_cast<int>(pool)]; }
  const Unmapped& unmapped(BlockPool pool) const { return unmapped_[static_cast<int>(pool)]; }
  // The smallest free block of that size or more; the end where there is none.
  Free::const_iterator smallest_of(BlockPool pool, std::uint32_t stream, Bytes bytes) const;
  // Blocks that are free age with each lookup of their pool.
  void look_up(BlockPool pool) { ++lookups_[static_cast<int>(pool)]; }
  std::uint64_t age(Id block) const {
    return lookups_[static_cast<int>(blocks_[block].pool)] - blocks_[block].free_since;
  }

 private:
  bool joins(Id block, Id other) const;

  std::vector<CachingBlock> blocks_;
  std::vector<Id> spare_;
  Free free_[2] = {Free(Before<true>{&blocks_}), Free(Before<true>{&blocks_})};
  Unmapped unmapped_[2] = {Unmapped(Before<false>{&blocks_}), Unmapped(Before<false>{&blocks_})};
  std::uint64_t lookups_[2] = {0, 0};
};

class CachingSegments {
 public:
  // The first segment begins at this address.
  explicit CachingSegments(std::uint64_t first_address) : next_address_(first_address) {}

  // A new segment without memory, as one block that is mapped and in no set.
  CachingBlock add(BlockPool pool, std::uint32_t stream, Bytes bytes);
  // One call of the device each. Of whole segments, or of pages of expandable ones.
  void map(std::uint32_t segment, Bytes bytes);
  void unmap(std::uint32_t segment, Bytes bytes);
  // Of one block of the segment.
  void hand_out(std::uint32_t segment) {
    if (segments_[segment].handed_out++ == 0) idle_ -= segments_[segment].reserved;
  }
  void take_back(std::uint32_t segment) {
    if (--segments_[segment].handed_out == 0) idle_ += segments_[segment].reserved;
  }

  std::uint64_t address(std::uint32_t segment) const { return segments_[segment].address; }
  Bytes reserved() const { return reserved_; }
  Bytes idle() const { return idle_; }  // reserved by segments without a block that is handed out
  std::uint64_t device_allocations() const { return device_allocations_; }
  std::uint64_t device_frees() const { return device_frees_; }

 private:
  struct Segment {
    std::uint64_t address = 0;
    Bytes reserved = 0;
    std::uint64_t handed_out = 0;  // blocks
  };

  std::vector<Segment> segments_;
  std::uint64_t next_address_;
  Bytes reserved_ = 0, idle_ = 0;
  std::uint64_t device_allocations_ = 0, device_frees_ = 0;
};

}  // namespace tencache
