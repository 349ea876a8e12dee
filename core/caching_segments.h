// What a caching allocator has of the device: ranges of addresses ("segments"), the memory behind them, and the calls
// of the device so far.
#pragma once

#include <cstdint>
#include <vector>

#include "core/caching_blocks.h"
#include "core/units.h"

namespace tencache {

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
  void hand_out(std::uint32_t segment) { ++segments_[segment].handed_out; }
  void take_back(std::uint32_t segment) { --segments_[segment].handed_out; }

  std::uint64_t address(std::uint32_t segment) const { return segments_[segment].address; }
  Bytes reserved() const { return reserved_; }
  Bytes idle() const;  // reserved by segments without a block that is handed out; linear in the segments so far
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
  Bytes reserved_ = 0;
  std::uint64_t device_allocations_ = 0, device_frees_ = 0;
};

}  // namespace tencache
