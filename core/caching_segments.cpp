#include "core/caching_segments.h"

#include "core/check.h"

namespace tencache {

CachingBlocks::Id CachingBlocks::add(const CachingBlock& block) {
  if (spare_.empty()) {
    blocks_.push_back(block);
    return static_cast<Id>(blocks_.size() - 1);
  }
  const Id id = spare_.back();
  spare_.pop_back();
  blocks_[id] = block;
  return id;
}

CachingBlocks::Id CachingBlocks::cut(Id id, Bytes bytes) {
  CachingBlock rest = blocks_[id];
  rest.address += bytes;
  rest.bytes -= bytes;
  rest.previous = id;
  const Id added = add(rest);
  if (rest.next != none) blocks_[rest.next].previous = added;
  blocks_[id].next = added;
  blocks_[id].bytes = bytes;
  return added;
}

bool CachingBlocks::joins(Id block, Id other) const {
  return other != none && !blocks_[other].handed_out && blocks_[other].mapped == blocks_[block].mapped;
}

CachingBlocks::Id CachingBlocks::merge(Id id) {
  if (const Id before = blocks_[id].previous; joins(id, before)) {
    take_out(before);
    blocks_[id].address = blocks_[before].address;
    blocks_[id].bytes += blocks_[before].bytes;
    blocks_[id].previous = blocks_[before].previous;
    if (blocks_[id].previous != none) blocks_[blocks_[id].previous].next = id;
    spare_.push_back(before);
  }
  if (const Id after = blocks_[id].next; joins(id, after)) {
    take_out(after);
    blocks_[id].bytes += blocks_[after].bytes;
    blocks_[id].next = blocks_[after].next;
    if (blocks_[id].next != none) blocks_[blocks_[id].next].previous = id;
    spare_.push_back(after);
  }
  blocks_[id].mapped ? put_free(id) : put_unmapped(id);
  return id;
}

void CachingBlocks::remove(Id id) {
  take_out(id);
  spare_.push_back(id);
}

void CachingBlocks::put_free(Id id) {
  const int pool = static_cast<int>(blocks_[id].pool);
  blocks_[id].free_since = lookups_[pool];
  free_[pool].insert(id);
}

void CachingBlocks::take_out(Id id) {
  const int pool = static_cast<int>(blocks_[id].pool);
  blocks_[id].mapped ? free_[pool].erase(id) : unmapped_[pool].erase(id);
}

CachingBlocks::Free::const_iterator CachingBlocks::smallest_of(BlockPool pool, std::uint32_t stream,
                                                               Bytes bytes) const {
  const Free& all = free(pool);
  const auto found = all.lower_bound(BlockKey{stream, bytes, 0});
  return found != all.end() && blocks_[*found].stream == stream ? found : all.end();
}

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
  if (segments_[segment].handed_out == 0) idle_ += bytes;
  ++device_allocations_;
}

void CachingSegments::unmap(std::uint32_t segment, Bytes bytes) {
  TENCACHE_CHECK(bytes <= segments_[segment].reserved);
  segments_[segment].reserved -= bytes;
  reserved_ -= bytes;
  if (segments_[segment].handed_out == 0) idle_ -= bytes;
  ++device_frees_;
}

}  // namespace tencache
