// A tier whose memory is mapped once, as one range. A chunk lies in one piece of it and can be moved: where there are
// enough free bytes, and yet no hole, moving others makes one. Exactly: docs/engine.md, "Memory in which chunks move".
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/allocator.h"
#include "core/holes.h"

namespace tencache {

class MovableAllocator final : public Allocator {
 public:
  // So small a part stays free, so that few bytes have to move for a hole. What is left is the capacity.
  static constexpr Bytes spare_parts = 128;
  static constexpr Bytes usable(Bytes range) { return range - range / spare_parts; }

  explicit MovableAllocator(Bytes range) : Allocator(usable(range)), range_(range), holes_(range) {}

  std::optional<std::uint64_t> allocate(Bytes bytes, bool high_end, ChunkId chunk) override;
  void release(std::uint64_t offset, Bytes bytes) override;
  bool has_room(Bytes bytes) const override { return bytes <= largest_free(); }
  Bytes largest_free() const override { return std::min(holes_.largest(), free()); }
  bool movable() const override { return true; }
  std::vector<Relocation> make_hole(Bytes bytes, const Immovable& immovable) const override;
  void relocate(const Relocation& move) override;

 private:
  struct Block {
    Bytes bytes = 0;
    ChunkId chunk = 0;
  };

  Bytes range_;
  Holes holes_;
  std::map<std::uint64_t, Block> blocks_;  // by offset
};

}  // namespace tencache
