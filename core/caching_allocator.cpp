#include "core/caching_allocator.h"

#include <algorithm>
#include <bit>

#include "core/check.h"

namespace tencache {
namespace {

constexpr Bytes least_block = 512;
constexpr Bytes largest_small_request = MiB;
constexpr Bytes small_segment = 2 * MiB;
constexpr Bytes first_own_segment = 10 * MiB;  // requests from here on get a segment of their size
constexpr Bytes segment_granularity = 2 * MiB;
constexpr Bytes largest_unsplit_rest = MiB;  // of the pool of large blocks

}  // namespace

CachingAllocator::CachingAllocator(CachingSettings settings, Bytes device_bytes)
    : settings_(settings),
      device_bytes_(device_bytes),
      allowed_(settings.memory_fraction
                   ? static_cast<Bytes>(*settings.memory_fraction * static_cast<double>(device_bytes))
                   : device_bytes),
      free_{Free(Before<true>{&blocks_}), Free(Before<true>{&blocks_})},
      unmapped_{Unmapped(Before<false>{&blocks_}), Unmapped(Before<false>{&blocks_})},
      next_address_(small_segment) {}

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

bool CachingAllocator::takes_rest(Pool pool, Bytes block, Bytes rounded) const {
  const Bytes rest = block - rounded;
  if (pool == small || settings_.expandable_segments) return rest < least_block;
  return rounded >= settings_.max_split_size || rest <= largest_unsplit_rest;
}

// ---- Requests -------------------------------------------------------------------------------------------------------

std::optional<CachingAllocator::Address> CachingAllocator::allocate(Bytes bytes, Stream stream) {
  TENCACHE_CHECK(bytes > 0);
  const Bytes size = rounded(bytes);
  const Pool pool = size <= largest_small_request ? small : large;
  ++lookups_[pool];
  BlockId block = find_free(pool, stream, size);
  if (block == nothing) {
    if (settings_.memory_fraction && settings_.garbage_collection_threshold > 0) collect_garbage();
    block = new_segment(pool, stream, size);
    if (block == nothing && give_back_for(stream, size)) block = new_segment(pool, stream, size);
    if (block == nothing) {
      empty_cache();
      ++retries_;
      block = new_segment(pool, stream, size);
    }
  }
  if (block == nothing) return std::nullopt;
  return hand_out(block, bytes, size);
}

CachingAllocator::Free::const_iterator CachingAllocator::first_of_at_least(Pool pool, Stream stream,
                                                                           Bytes bytes) const {
  const auto found = free_[pool].lower_bound(Key{stream, bytes, 0});
  return found != free_[pool].end() && blocks_[*found].stream == stream ? found : free_[pool].end();
}

// A free block beside addresses that are not mapped yet counts as if they were: it is kept for larger requests.
Bytes CachingAllocator::room_beside(BlockId block) const {
  const Block& of = blocks_[block];
  const bool grows = of.next != nothing && !blocks_[of.next].mapped;
  return of.bytes + (grows ? blocks_[of.next].bytes : 0);
}

CachingAllocator::BlockId CachingAllocator::find_free(Pool pool, Stream stream, Bytes bytes) const {
  auto found = first_of_at_least(pool, stream, bytes);
  if (found == free_[pool].end()) return nothing;
  if (settings_.expandable_segments) {
    for (auto next = std::next(found);
         next != free_[pool].end() && blocks_[*next].stream == stream && room_beside(*next) < room_beside(*found);
         ++next) {
      found = next;
    }
  }
  const Bytes size = blocks_[*found].bytes;
  if (bytes < settings_.max_split_size && size >= settings_.max_split_size) return nothing;
  if (bytes >= settings_.max_split_size && size >= bytes + settings_.max_non_split_rounding) return nothing;
  return *found;
}

CachingAllocator::Address CachingAllocator::hand_out(BlockId id, Bytes requested, Bytes rounded) {
  const Pool pool = blocks_[id].pool;
  free_[pool].erase(id);
  if (!takes_rest(pool, blocks_[id].bytes, rounded)) {
    Block rest = blocks_[id];
    rest.address += rounded;
    rest.bytes -= rounded;
    rest.previous = id;
    const BlockId added = new_block(rest);
    if (rest.next != nothing) blocks_[rest.next].previous = added;
    blocks_[id].next = added;
    blocks_[id].bytes = rounded;
    put_free(added);
  }
  Block& block = blocks_[id];
  block.handed_out = true;
  block.requested = requested;
  block.rounded = rounded;
  ++segments_[block.segment].handed_out;
  requested_ += requested;
  rounding_ += rounded - requested;
  allocated_ += block.bytes;
  handed_out_.emplace(block.address, id);
  return block.address;
}

void CachingAllocator::release(Address address) {
  const auto found = handed_out_.find(address);
  TENCACHE_CHECK(found != handed_out_.end());
  const BlockId id = found->second;
  handed_out_.erase(found);
  Block& block = blocks_[id];
  block.handed_out = false;
  --segments_[block.segment].handed_out;
  requested_ -= block.requested;
  rounding_ -= block.rounded - block.requested;
  allocated_ -= block.bytes;
  merge(id);
}

Bytes CachingAllocator::block_bytes(Address address) const { return blocks_[handed_out_.at(address)].bytes; }

// Of a block that is in no set, with its free neighbours; puts the result into its set.
CachingAllocator::BlockId CachingAllocator::merge(BlockId id) {
  const auto joins = [&](BlockId other) {
    return other != nothing && !blocks_[other].handed_out && blocks_[other].mapped == blocks_[id].mapped;
  };
  const auto take_out = [&](BlockId other) {
    blocks_[other].mapped ? free_[blocks_[other].pool].erase(other) : unmapped_[blocks_[other].pool].erase(other);
  };
  if (const BlockId before = blocks_[id].previous; joins(before)) {
    take_out(before);
    Block& block = blocks_[id];
    block.address = blocks_[before].address;
    block.bytes += blocks_[before].bytes;
    block.previous = blocks_[before].previous;
    if (block.previous != nothing) blocks_[block.previous].next = id;
    forget(before);
  }
  if (const BlockId after = blocks_[id].next; joins(after)) {
    take_out(after);
    Block& block = blocks_[id];
    block.bytes += blocks_[after].bytes;
    block.next = blocks_[after].next;
    if (block.next != nothing) blocks_[block.next].previous = id;
    forget(after);
  }
  if (blocks_[id].mapped) {
    put_free(id);
  } else {
    unmapped_[blocks_[id].pool].insert(id);
  }
  return id;
}

CachingAllocator::BlockId CachingAllocator::new_block(const Block& block) {
  if (spare_.empty()) {
    blocks_.push_back(block);
    return static_cast<BlockId>(blocks_.size() - 1);
  }
  const BlockId id = spare_.back();
  spare_.pop_back();
  blocks_[id] = block;
  return id;
}

void CachingAllocator::put_free(BlockId id) {
  blocks_[id].free_since = lookups_[blocks_[id].pool];
  free_[blocks_[id].pool].insert(id);
}

void CachingAllocator::forget(BlockId block) { spare_.push_back(block); }

// ---- The device -----------------------------------------------------------------------------------------------------

bool CachingAllocator::may_reserve(Bytes bytes) const { return bytes <= allowed_ && reserved_ <= allowed_ - bytes; }

CachingAllocator::BlockId CachingAllocator::new_segment(Pool pool, Stream stream, Bytes bytes) {
  if (settings_.expandable_segments) return grow(pool, stream, bytes);
  const Bytes size = segment_size(bytes);
  if (!may_reserve(size)) return nothing;
  Block block;
  block.address = next_address_;
  block.bytes = size;
  block.segment = static_cast<std::uint32_t>(segments_.size());
  block.stream = stream;
  block.pool = pool;
  segments_.push_back({block.address, 0, 0, size});
  next_address_ += size;
  reserved_ += size;
  ++device_allocations_;
  const BlockId id = new_block(block);
  put_free(id);
  return id;
}

// The lowest addresses of an expandable segment that hold `bytes`, free or not mapped: their first block.
CachingAllocator::BlockId CachingAllocator::place_to_grow(Pool pool, Stream stream, Bytes bytes) {
  const auto usable = [&](BlockId block) { return block != nothing && !blocks_[block].handed_out; };
  for (auto it = unmapped_[pool].lower_bound(Key{stream, 0, 0});
       it != unmapped_[pool].end() && blocks_[*it].stream == stream; ++it) {
    const BlockId first = usable(blocks_[*it].previous) ? blocks_[*it].previous : *it;
    Bytes room = 0;
    for (BlockId at = first; room < bytes && usable(at); at = blocks_[at].next) room += blocks_[at].bytes;
    if (room >= bytes) return first;
  }
  const Bytes page = pool == small ? small_segment : settings_.large_segment_size;
  Block all;
  all.address = next_address_;
  all.bytes = round_up(device_bytes_ + device_bytes_ / 8, page);
  all.segment = static_cast<std::uint32_t>(segments_.size());
  all.stream = stream;
  all.pool = pool;
  all.mapped = false;
  segments_.push_back({all.address, page, 0, 0});
  next_address_ += all.bytes;
  if (all.bytes < bytes) return nothing;
  const BlockId id = new_block(all);
  unmapped_[pool].insert(id);
  return id;
}

CachingAllocator::BlockId CachingAllocator::grow(Pool pool, Stream stream, Bytes bytes) {
  BlockId block = place_to_grow(pool, stream, bytes);
  if (block == nothing) return nothing;
  if (!blocks_[block].mapped && !map(block, std::min(blocks_[block].bytes, bytes), block)) return nothing;
  while (blocks_[block].bytes < bytes) {
    const BlockId beyond = blocks_[block].next;
    const Bytes missing = bytes - blocks_[block].bytes;
    if (!map(beyond, std::min(missing, blocks_[beyond].bytes), block)) return nothing;
  }
  return block;
}

// The beginning of a block that is not mapped, in whole pages. `mapped`: it, with the free blocks beside it.
bool CachingAllocator::map(BlockId id, Bytes bytes, BlockId& mapped) {
  Block& block = blocks_[id];
  const Bytes size = std::min(round_up(bytes, segments_[block.segment].page), block.bytes);
  if (!may_reserve(size)) return false;
  unmapped_[block.pool].erase(id);
  if (size < block.bytes) {
    Block rest = block;
    rest.address += size;
    rest.bytes -= size;
    rest.previous = id;
    const BlockId added = new_block(rest);  // `block` is no more
    if (rest.next != nothing) blocks_[rest.next].previous = added;
    blocks_[id].next = added;
    blocks_[id].bytes = size;
    unmapped_[rest.pool].insert(added);
  }
  blocks_[id].mapped = true;
  segments_[blocks_[id].segment].reserved += size;
  reserved_ += size;
  ++device_allocations_;
  mapped = merge(id);
  return true;
}

void CachingAllocator::give_back(BlockId id) {
  const Block& block = blocks_[id];
  TENCACHE_CHECK(block.previous == nothing && block.next == nothing && !block.handed_out);
  free_[block.pool].erase(id);
  reserved_ -= block.bytes;
  segments_[block.segment].reserved = 0;
  ++device_frees_;
  forget(id);
}

// The whole pages inside a free block of an expandable segment.
void CachingAllocator::unmap(BlockId id) {
  const Segment& segment = segments_[blocks_[id].segment];
  const Bytes offset = blocks_[id].address - segment.address;
  const Bytes begin = round_up(offset, segment.page);
  const Bytes end = (offset + blocks_[id].bytes) / segment.page * segment.page;
  if (begin >= end) return;
  free_[blocks_[id].pool].erase(id);
  const auto cut = [&](Bytes at) {  // what lies behind becomes a block of its own
    Block rest = blocks_[id];
    rest.address += at;
    rest.bytes -= at;
    rest.previous = id;
    const BlockId added = new_block(rest);
    if (rest.next != nothing) blocks_[rest.next].previous = added;
    blocks_[id].next = added;
    blocks_[id].bytes = at;
    return added;
  };
  if (const Bytes length = end - offset; length < blocks_[id].bytes) put_free(cut(length));
  if (begin > offset) {
    const BlockId pages = cut(begin - offset);
    put_free(id);
    id = pages;
  }
  blocks_[id].mapped = false;
  segments_[blocks_[id].segment].reserved -= end - begin;
  reserved_ -= end - begin;
  ++device_frees_;
  merge(id);
}

void CachingAllocator::empty_cache() {
  for (const Pool pool : {large, small}) {
    const std::vector<BlockId> all(free_[pool].begin(), free_[pool].end());
    for (const BlockId id : all) {
      if (segments_[blocks_[id].segment].page > 0) {
        unmap(id);
      } else if (blocks_[id].previous == nothing && blocks_[id].next == nothing) {
        give_back(id);
      }
    }
  }
}

// The oldest whole segments of large blocks, by lookups since they were freed.
void CachingAllocator::collect_garbage() {
  const auto limit = static_cast<Bytes>(settings_.garbage_collection_threshold * static_cast<double>(allowed_));
  if (reserved_ <= limit) return;
  const Bytes wanted = reserved_ - limit;
  const auto age = [&](BlockId id) { return lookups_[large] - blocks_[id].free_since; };
  std::vector<BlockId> whole;
  for (const BlockId id : free_[large]) {
    const Block& block = blocks_[id];
    if (block.previous == nothing && block.next == nothing && segments_[block.segment].page == 0) whole.push_back(id);
  }
  Bytes got = 0;
  while (got < wanted && !whole.empty()) {
    std::uint64_t ages = 0;
    for (const BlockId id : whole) ages += age(id);
    const double mean = static_cast<double>(ages) / static_cast<double>(whole.size());
    std::erase_if(whole, [&](BlockId id) {
      if (static_cast<double>(age(id)) < mean) return false;
      got += blocks_[id].bytes;
      give_back(id);
      return true;
    });
  }
}

// With a largest size to split: whole blocks of that size and more, enough for the request. False: there are not enough.
bool CachingAllocator::give_back_for(Stream stream, Bytes bytes) {
  if (settings_.max_split_size >= unlimited) return false;
  const Bytes wanted = std::max(bytes, settings_.max_split_size);
  const auto expandable = [&](BlockId id) { return segments_[blocks_[id].segment].page > 0; };
  if (const auto found = first_of_at_least(large, stream, wanted); found != free_[large].end() && !expandable(*found)) {
    give_back(*found);
    return true;
  }
  std::vector<BlockId> from_the_largest;
  for (const BlockId id : free_[large]) {
    const Block& block = blocks_[id];
    if (block.stream == stream && block.bytes >= settings_.max_split_size && !expandable(id)) {
      from_the_largest.insert(from_the_largest.begin(), id);
    }
  }
  Bytes got = 0;
  for (const BlockId id : from_the_largest) {
    if (got >= wanted) break;
    got += blocks_[id].bytes;
    give_back(id);
  }
  return got >= wanted;
}

// ---- Figures --------------------------------------------------------------------------------------------------------

Bytes CachingAllocator::idle() const {
  Bytes sum = 0;
  for (const Segment& segment : segments_) sum += segment.handed_out == 0 ? segment.reserved : 0;
  return sum;
}

Bytes CachingAllocator::largest_free() const {
  Bytes largest = 0;
  for (const auto& pool : free_) {
    for (const BlockId id : pool) largest = std::max(largest, blocks_[id].bytes);
  }
  return largest;
}

std::vector<CachingAllocator::View> CachingAllocator::blocks() const {
  std::vector<View> all;
  for (const auto& pool : free_) {
    for (const BlockId id : pool) all.push_back({blocks_[id].address, blocks_[id].bytes, blocks_[id].segment, false});
  }
  for (const auto& [address, id] : handed_out_) {
    all.push_back({address, blocks_[id].bytes, blocks_[id].segment, true});
  }
  std::ranges::sort(all, {}, &View::address);
  return all;
}

}  // namespace tencache
