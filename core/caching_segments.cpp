#include "core/caching_segments.h"

#include "core/check.h"

namespace tencache {

CachingBlock CachingSegments::add(BlockPool pool, std::uint32_t stream, Bytes bytes) {
  CachingBlock block;
  block.address = next_address_;
  block.bytes = bytes;
  block.segment = static_cast<std::uint32_t>(segments_.size());
  block.stream = stream;
  block.pool = pool;
  segments_.push_back({.address = next_address_});
  next_address_ += bytes;
  return block;
}

void CachingSegments::map(std::uint32_t segment, Bytes bytes) {
  segments_[segment].reserved += bytes;
  reserved_ += bytes;
  ++device_allocations_;
}

void CachingSegments::unmap(std::uint32_t segment, Bytes bytes) {
  TENCACHE_CHECK(bytes <= segments_[segment].reserved);
  segments_[segment].reserved -= bytes;
  reserved_ -= bytes;
  ++device_frees_;
}

Bytes CachingSegments::idle() const {
  Bytes idle = 0;
  for (const Segment& segment : segments_) idle += segment.handed_out == 0 ? segment.reserved : 0;
  return idle;
}

}  // namespace tencache
