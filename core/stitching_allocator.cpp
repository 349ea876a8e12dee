#include "core/stitching_allocator.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace tencache {
namespace {

constexpr Bytes chunk = 2 * MiB;  // and the segments of small blocks

}  // namespace

StitchingAllocator::StitchingAllocator(StitchingSettings settings, Bytes device_bytes)
    : settings_(settings), device_bytes_(device_bytes), segments_(chunk) {}

std::optional<StitchingAllocator::Address> StitchingAllocator::allocate(Bytes bytes, std::uint32_t stream) {
  TENCACHE_CHECK(bytes > 0);
  const BlockPool pool = bytes <= largest_small_request ? BlockPool::small : BlockPool::large;
  const Bytes size = round_up(bytes, pool == BlockPool::small ? least_block : chunk);
  const bool stitched = pool == BlockPool::large && size >= settings_.least_stitched;
  std::optional<Given> given = find(pool, stream, size);
  if (!given && stitched && settings_.before_the_device) given = stitch(stream, size);
  if (!given) given = new_segment(pool, stream, size);
  if (!given && stitched) given = stitch(stream, size);
  if (!given) {
    give_back_whole_segments();
    ++retries_;
    given = new_segment(pool, stream, size);
  }
  if (!given) return std::nullopt;
  given->requested = bytes;
  requested_ += bytes;
  allocated_ += size;
  for (const Id part : given->parts) segments_.hand_out(blocks_[part].segment);
  const Address address = blocks_[given->parts.front()].address;
  given_.emplace(address, std::move(*given));
  return address;
}

// Hands out the beginning of a free block; the rest stays free.
StitchingAllocator::Id StitchingAllocator::take(Id block, Bytes bytes) {
  blocks_.take_out(block);
  if (bytes < blocks_[block].bytes) blocks_.put_free(blocks_.cut(block, bytes));
  blocks_[block].handed_out = true;
  return block;
}

std::optional<StitchingAllocator::Given> StitchingAllocator::find(BlockPool pool, std::uint32_t stream, Bytes bytes) {
  const auto found = blocks_.smallest_of(pool, stream, bytes);
  if (found == blocks_.free(pool).end()) return std::nullopt;
  return Given{{take(*found, bytes)}};
}

std::optional<StitchingAllocator::Given> StitchingAllocator::stitch(std::uint32_t stream, Bytes bytes) {
  std::vector<Id> free;  // from the smallest
  Bytes sum = 0;
  for (const Id id : blocks_.free(BlockPool::large)) {
    if (blocks_[id].stream != stream) continue;
    free.push_back(id);
    sum += blocks_[id].bytes;
  }
  if (sum < bytes) return std::nullopt;
  Given given;
  while (bytes > 0) {
    const Bytes part = std::min(bytes, blocks_[free.back()].bytes);
    given.parts.push_back(take(free.back(), part));
    free.pop_back();
    bytes -= part;
  }
  return given;
}

std::optional<StitchingAllocator::Given> StitchingAllocator::new_segment(BlockPool pool, std::uint32_t stream,
                                                                         Bytes bytes) {
  const Bytes size = pool == BlockPool::small ? chunk : bytes;
  if (size > device_bytes_ || segments_.reserved() > device_bytes_ - size) return std::nullopt;
  const CachingBlock block = segments_.add(pool, stream, size);
  segments_.map(block.segment, size);
  const Id id = blocks_.add(block);
  blocks_.put_free(id);
  return Given{{take(id, bytes)}};
}

void StitchingAllocator::release(Address address) {
  const auto found = given_.find(address);
  TENCACHE_CHECK(found != given_.end());
  requested_ -= found->second.requested;
  for (const Id part : found->second.parts) {
    allocated_ -= blocks_[part].bytes;
    segments_.take_back(blocks_[part].segment);
    blocks_[part].handed_out = false;
    blocks_.merge(part);
  }
  given_.erase(found);
}

void StitchingAllocator::give_back_whole_segments() {
  for (const BlockPool pool : {BlockPool::large, BlockPool::small}) {
    const std::vector<Id> all(blocks_.free(pool).begin(), blocks_.free(pool).end());
    for (const Id id : all) {
      if (!blocks_[id].whole()) continue;
      segments_.unmap(blocks_[id].segment, blocks_[id].bytes);
      blocks_.remove(id);
    }
  }
}

AllocatorFigures StitchingAllocator::figures() const {
  AllocatorFigures now;
  now.requested = requested_;
  now.allocated = allocated_;
  now.reserved = segments_.reserved();
  now.rounding = allocated_ - requested_;
  now.idle = segments_.idle();
  now.in_holes = now.reserved - allocated_ - now.idle;
  now.device_allocations = segments_.device_allocations();
  now.device_frees = segments_.device_frees();
  now.retries = retries_;
  return now;
}

std::vector<BlockView> StitchingAllocator::blocks() const {
  std::vector<BlockView> all;
  const auto add = [&](Id id) {
    all.push_back({blocks_[id].address, blocks_[id].bytes, blocks_[id].segment, blocks_[id].handed_out});
  };
  for (const BlockPool pool : {BlockPool::small, BlockPool::large}) {
    for (const Id id : blocks_.free(pool)) add(id);
  }
  for (const auto& [address, given] : given_) {
    for (const Id part : given.parts) add(part);
  }
  std::ranges::sort(all, {}, &BlockView::address);
  return all;
}

}  // namespace tencache
