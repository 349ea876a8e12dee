#include "core/caching_allocator.h"

#include <algorithm>
#include <bit>

#include "core/check.h"

namespace tencache {
namespace {

constexpr Bytes small_segment = 2 * MiB;
constexpr Bytes first_own_segment = 10 * MiB;  // requests from here on get a segment of their size
constexpr Bytes segment_granularity = 2 * MiB;
constexpr Bytes largest_unsplit_rest = MiB;  // of the pool of large blocks

}  // namespace

CachingAllocator::CachingAllocator(CachingSettings settings, Bytes device_bytes)
    : settings_(settings), device_bytes_(device_bytes), segments_(small_segment) {}

// ---- Sizes ----------------------------------------------------------------------------------------------------------

Bytes CachingAllocator::rounded(Bytes bytes) const {
  if (bytes < least_block) return least_block;
  const auto above = static_cast<int>(std::bit_width(bytes)) - static_cast<int>(std::bit_width(MiB));
  const std::uint64_t divisions = settings_.power2_divisions[static_cast<std::size_t>(std::clamp(above, 0, 15))];
  if (divisions <= 1 || bytes <= least_block * divisions) return round_up(bytes, least_block);
  if (std::has_single_bit(bytes)) return bytes;
  const Bytes step = std::bit_floor(bytes) / std::bit_floor(divisions);
  return step == 0 ? std::bit_ceil(bytes) : round_up(bytes, step);
}

Bytes CachingAllocator::segment_size(Bytes rounded) const {
  if (rounded <= largest_small_request) return small_segment;
  if (rounded < first_own_segment) return settings_.large_segment_size;
  return round_up(rounded, segment_granularity);
}

bool CachingAllocator::takes_rest(BlockPool pool, Bytes block, Bytes rounded) const {
  const Bytes rest = block - rounded;
  if (pool == BlockPool::small || settings_.expandable_segments) return rest < least_block;
  return rounded >= settings_.max_split_size || rest <= largest_unsplit_rest;
}

// ---- Requests -------------------------------------------------------------------------------------------------------

std::optional<CachingAllocator::Address> CachingAllocator::allocate(Bytes bytes, Stream stream) {
  TENCACHE_CHECK(bytes > 0);
  const Bytes size = rounded(bytes);
  const BlockPool pool = size <= largest_small_request ? BlockPool::small : BlockPool::large;
  blocks_.look_up(pool);
  Id block = find_free(pool, stream, size);
  if (block == none) {
    if (settings_.memory_fraction && settings_.garbage_collection_threshold > 0) collect_garbage();
    block = new_segment(pool, stream, size);
    if (block == none && give_back_for(stream, size)) block = new_segment(pool, stream, size);
    if (block == none) {
      empty_cache();
      ++retries_;
      block = new_segment(pool, stream, size);
    }
  }
  if (block == none) return std::nullopt;
  return hand_out(block, bytes, size);
}

bool CachingAllocator::can_allocate(Bytes bytes, Stream stream) const {
  TENCACHE_CHECK(bytes > 0 && !settings_.expandable_segments);
  const Bytes size = rounded(bytes), segment = segment_size(size);
  const BlockPool pool = size <= largest_small_request ? BlockPool::small : BlockPool::large;
  if (find_free(pool, stream, size) != none || may_reserve(segment)) return true;
  Bytes whole = 0;  // what can be given back
  for (const BlockPool one : {BlockPool::small, BlockPool::large}) {
    for (const Id id : blocks_.free(one)) whole += blocks_[id].whole() ? blocks_[id].bytes : 0;
  }
  return segment <= allowed() && segments_.reserved() - whole <= allowed() - segment;
}

// A free block beside addresses that are not mapped yet counts as if they were: it is kept for larger requests.
Bytes CachingAllocator::room_beside(Id block) const {
  const CachingBlock& of = blocks_[block];
  const bool grows = of.next != none && !blocks_[of.next].mapped;
  return of.bytes + (grows ? blocks_[of.next].bytes : 0);
}

CachingAllocator::Id CachingAllocator::find_free(BlockPool pool, Stream stream, Bytes bytes) const {
  auto found = blocks_.smallest_of(pool, stream, bytes);
  if (found == blocks_.free(pool).end()) return none;
  if (settings_.expandable_segments) {
    for (auto next = std::next(found); next != blocks_.free(pool).end() && blocks_[*next].stream == stream &&
                                       room_beside(*next) < room_beside(*found);
         ++next) {
      found = next;
    }
  }
  const Bytes size = blocks_[*found].bytes;
  if (bytes < settings_.max_split_size && size >= settings_.max_split_size) return none;
  if (bytes >= settings_.max_split_size && size >= bytes + settings_.max_non_split_rounding) return none;
  return *found;
}

CachingAllocator::Address CachingAllocator::hand_out(Id id, Bytes requested, Bytes rounded) {
  const BlockPool pool = blocks_[id].pool;
  blocks_.take_out(id);
  if (!takes_rest(pool, blocks_[id].bytes, rounded)) blocks_.put_free(blocks_.cut(id, rounded));
  CachingBlock& block = blocks_[id];
  block.handed_out = true;
  block.requested = requested;
  block.rounded = rounded;
  segments_.hand_out(block.segment);
  requested_ += requested;
  rounding_ += rounded - requested;
  allocated_ += block.bytes;
  handed_out_.emplace(block.address, id);
  return block.address;
}

void CachingAllocator::release(Address address) {
  const auto found = handed_out_.find(address);
  TENCACHE_CHECK(found != handed_out_.end());
  const Id id = found->second;
  handed_out_.erase(found);
  CachingBlock& block = blocks_[id];
  block.handed_out = false;
  segments_.take_back(block.segment);
  requested_ -= block.requested;
  rounding_ -= block.rounded - block.requested;
  allocated_ -= block.bytes;
  blocks_.merge(id);
}

Bytes CachingAllocator::block_bytes(Address address) const { return blocks_[handed_out_.at(address)].bytes; }

// ---- The device -----------------------------------------------------------------------------------------------------

Bytes CachingAllocator::allowed() const {
  if (!settings_.memory_fraction) return device_bytes_;
  return static_cast<Bytes>(*settings_.memory_fraction * static_cast<double>(device_bytes_));
}

bool CachingAllocator::may_reserve(Bytes bytes) const {
  return bytes <= allowed() && segments_.reserved() <= allowed() - bytes;
}

CachingAllocator::Id CachingAllocator::new_segment(BlockPool pool, Stream stream, Bytes bytes) {
  if (settings_.expandable_segments) return grow(pool, stream, bytes);
  const Bytes size = segment_size(bytes);
  if (!may_reserve(size)) return none;
  const CachingBlock block = segments_.add(pool, stream, size);
  segments_.map(block.segment, size);
  const Id id = blocks_.add(block);
  blocks_.put_free(id);
  return id;
}

Bytes CachingAllocator::page(BlockPool pool) const {
  return pool == BlockPool::small ? small_segment : settings_.large_segment_size;
}

// The lowest addresses of an expandable segment that hold `bytes`, free or not mapped: their first block.
CachingAllocator::Id CachingAllocator::place_to_grow(BlockPool pool, Stream stream, Bytes bytes) {
  const auto usable = [&](Id block) { return block != none && !blocks_[block].handed_out; };
  const CachingBlocks::Unmapped& unmapped = blocks_.unmapped(pool);
  for (auto it = unmapped.lower_bound(BlockKey{stream, 0, 0}); it != unmapped.end() && blocks_[*it].stream == stream;
       ++it) {
    const Id first = usable(blocks_[*it].previous) ? blocks_[*it].previous : *it;
    Bytes room = 0;
    for (Id at = first; room < bytes && usable(at); at = blocks_[at].next) room += blocks_[at].bytes;
    if (room >= bytes) return first;
  }
  CachingBlock all = segments_.add(pool, stream, round_up(device_bytes_ + device_bytes_ / 8, page(pool)));
  all.mapped = false;
  const Id id = blocks_.add(all);
  blocks_.put_unmapped(id);
  return all.bytes < bytes ? none : id;
}

CachingAllocator::Id CachingAllocator::grow(BlockPool pool, Stream stream, Bytes bytes) {
  Id block = place_to_grow(pool, stream, bytes);
  if (block == none) return none;
  if (!blocks_[block].mapped && !map(block, std::min(blocks_[block].bytes, bytes), block)) return none;
  while (blocks_[block].bytes < bytes) {
    const Id beyond = blocks_[block].next;
    const Bytes missing = bytes - blocks_[block].bytes;
    if (!map(beyond, std::min(missing, blocks_[beyond].bytes), block)) return none;
  }
  return block;
}

// The beginning of a block that is not mapped, in whole pages. `mapped`: it, with the free blocks beside it.
bool CachingAllocator::map(Id id, Bytes bytes, Id& mapped) {
  const Bytes size = std::min(round_up(bytes, page(blocks_[id].pool)), blocks_[id].bytes);
  if (!may_reserve(size)) return false;
  blocks_.take_out(id);
  if (size < blocks_[id].bytes) blocks_.put_unmapped(blocks_.cut(id, size));
  blocks_[id].mapped = true;
  segments_.map(blocks_[id].segment, size);
  mapped = blocks_.merge(id);
  return true;
}

void CachingAllocator::give_back(Id id) {
  const CachingBlock& block = blocks_[id];
  TENCACHE_CHECK(block.whole() && !block.handed_out);
  segments_.unmap(block.segment, block.bytes);
  blocks_.remove(id);
}

// The whole pages inside a free block of an expandable segment.
void CachingAllocator::unmap(Id id) {
  const Bytes page = this->page(blocks_[id].pool);
  const Bytes offset = blocks_[id].address - segments_.address(blocks_[id].segment);
  const Bytes begin = round_up(offset, page);
  const Bytes end = (offset + blocks_[id].bytes) / page * page;
  if (begin >= end) return;
  blocks_.take_out(id);
  if (const Bytes length = end - offset; length < blocks_[id].bytes) blocks_.put_free(blocks_.cut(id, length));
  if (begin > offset) {
    const Id pages = blocks_.cut(id, begin - offset);
    blocks_.put_free(id);
    id = pages;
  }
  blocks_[id].mapped = false;
  segments_.unmap(blocks_[id].segment, end - begin);
  blocks_.merge(id);
}

void CachingAllocator::empty_cache() {
  for (const BlockPool pool : {BlockPool::large, BlockPool::small}) {
    const std::vector<Id> all(blocks_.free(pool).begin(), blocks_.free(pool).end());
    for (const Id id : all) {
      if (settings_.expandable_segments) {
        unmap(id);
      } else if (blocks_[id].whole()) {
        give_back(id);
      }
    }
  }
}

// The oldest whole segments of large blocks, by lookups since they were freed.
void CachingAllocator::collect_garbage() {
  if (settings_.expandable_segments) return;
  const auto limit = static_cast<Bytes>(settings_.garbage_collection_threshold * static_cast<double>(allowed()));
  if (segments_.reserved() <= limit) return;
  const Bytes wanted = segments_.reserved() - limit;
  std::vector<Id> whole;
  for (const Id id : blocks_.free(BlockPool::large)) {
    if (blocks_[id].whole()) whole.push_back(id);
  }
  Bytes got = 0;
  while (got < wanted && !whole.empty()) {
    std::uint64_t ages = 0;
    for (const Id id : whole) ages += blocks_.age(id);
    const double mean = static_cast<double>(ages) / static_cast<double>(whole.size());
    std::erase_if(whole, [&](Id id) {
      if (static_cast<double>(blocks_.age(id)) < mean) return false;
      got += blocks_[id].bytes;
      give_back(id);
      return true;
    });
  }
}

// With a largest size to split: whole blocks of that size and more, enough for the request. False: there are not enough.
bool CachingAllocator::give_back_for(Stream stream, Bytes bytes) {
  if (settings_.max_split_size >= unlimited || settings_.expandable_segments) return false;
  const Bytes wanted = std::max(bytes, settings_.max_split_size);
  if (const auto found = blocks_.smallest_of(BlockPool::large, stream, wanted);
      found != blocks_.free(BlockPool::large).end()) {
    give_back(*found);
    return true;
  }
  std::vector<Id> from_the_largest;
  for (const Id id : blocks_.free(BlockPool::large)) {
    const CachingBlock& block = blocks_[id];
    if (block.stream == stream && block.bytes >= settings_.max_split_size) {
      from_the_largest.insert(from_the_largest.begin(), id);
    }
  }
  Bytes got = 0;
  for (const Id id : from_the_largest) {
    if (got >= wanted) break;
    got += blocks_[id].bytes;
    give_back(id);
  }
  return got >= wanted;
}

// ---- Figures --------------------------------------------------------------------------------------------------------

Bytes CachingAllocator::largest_free() const {
  Bytes largest = 0;
  for (const BlockPool pool : {BlockPool::small, BlockPool::large}) {
    for (const Id id : blocks_.free(pool)) largest = std::max(largest, blocks_[id].bytes);
  }
  return largest;
}

AllocatorFigures CachingAllocator::figures() const {
  AllocatorFigures now;
  now.requested = requested_;
  now.allocated = allocated_;
  now.reserved = segments_.reserved();
  now.rounding = rounding_;
  now.unsplit = allocated_ - requested_ - rounding_;
  now.idle = segments_.idle();
  now.in_holes = now.reserved - allocated_ - now.idle;
  now.device_allocations = segments_.device_allocations();
  now.device_frees = segments_.device_frees();
  now.retries = retries_;
  return now;
}

std::vector<BlockView> CachingAllocator::blocks() const {
  std::vector<BlockView> all;
  for (const BlockPool pool : {BlockPool::small, BlockPool::large}) {
    for (const Id id : blocks_.free(pool))
      all.push_back({blocks_[id].address, blocks_[id].bytes, blocks_[id].segment, false});
  }
  for (const auto& [address, id] : handed_out_) {
    all.push_back({address, blocks_[id].bytes, blocks_[id].segment, true});
  }
  std::ranges::sort(all, {}, &BlockView::address);
  return all;
}

}  // namespace tencache
