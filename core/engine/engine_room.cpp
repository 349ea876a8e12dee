// Room in the tiers: what leaves so that something can come, copies that take memory and give it back, staging buffers.
#include <algorithm>

#include "core/check.h"
#include "core/engine/engine.h"
#include "core/error.h"

namespace tencache {

bool Engine::reserve_destination(ChunkId chunk, TierId tier) {
  if (memory_.copy(chunk, tier).state != CopyState::absent) return false;
  if (take_copy(chunk, tier)) return true;
  const Because because(*this, {.reason = Reason::reclaim, .chunk = chunk});
  reclaim(tier, memory_.footprint(chunk, tier));
  return take_copy(chunk, tier);
}

// Gives up copies that the GPU holds too; they are the coldest of their tier.
void Engine::reclaim(TierId tier, Bytes bytes) {
  if (tier == 0) return;
  for (ChunkId chunk = memory_.coldest(tier); chunk != none && memory_.free(tier) < bytes;) {
    const ChunkId next = memory_.warmer(chunk, tier);
    if (!memory_.valid(chunk, 0)) return;
    const Copy& copy = memory_.copy(chunk, tier);
    if (memory_.evictable(chunk, tier) && copy.readers == 0 && can_drop(chunk, tier)) {
      decide(Decision::Kind::drop, chunk, tier, no_tier);
      drop_copy(chunk, tier);
    }
    chunk = next;
  }
}

// Starts enough evictions that `bytes` will be free: asks the policy, then, for an op, takes the coldest. `first` is
// the chunk that found no room.
void Engine::make_room(TierId tier, Bytes bytes, bool prefetch, ChunkId incoming, ChunkId first, Priority priority) {
  std::uint64_t& asked = asked_epoch_[tier][prefetch ? 1 : 0];
  bool counts = asked != epoch_;
  const auto lacking = [&]() -> Bytes {
    const Bytes have = memory_.free(tier) + memory_.leaving(tier);
    if (have < bytes) return bytes - have;
    // Enough in sum, and yet no place: holes too small, or buffers of the wrong size. Wait for what is leaving first.
    if (memory_.leaving(tier) > 0 || memory_.has_room(first, tier)) return 0;
    if (counts) ++counters_.placeless[tier];
    counts = false;
    return 1;
  };
  if (lacking() == 0) return;
  if (asked == epoch_) return;
  asked = epoch_;
  const RoomRequest request{tier, lacking(), prefetch, incoming};
  Why why{.reason = Reason::room, .prefetch = prefetch, .chunk = first};
  if (!prefetch) why.op = lanes_[tier == lanes_[0].tier ? 0 : 1].active.back().op;
  const Because for_room(*this, why);
  std::vector<ChunkId> victims;
  policy_.make_room(request, view(), victims);
  Refusal refusal = Refusal::none;
  for (const ChunkId chunk : victims) {
    if (chunk < memory_.chunk_total()) evict(chunk, tier, no_tier, priority, refusal);
  }
  if (prefetch || !layout_.fallback_eviction || lacking() == 0) return;
  why.reason = Reason::coldest;
  const Because as_fallback(*this, why);
  for (ChunkId chunk = memory_.coldest(tier); chunk != none && lacking() > 0;) {
    const ChunkId next = memory_.warmer(chunk, tier);
    if (memory_.evictable(chunk, tier) && evict(chunk, tier, no_tier, priority, refusal))
      ++counters_.fallback_evictions;
    chunk = next;
  }
}

// The waiting op's share of the wanted room became real.
void Engine::room_taken(std::uint8_t index, ActiveOp& op, ChunkId chunk) {
  const TierId tier = lanes_[index].tier;
  const Bytes footprint = memory_.footprint(chunk, tier);
  TENCACHE_CHECK(op.room_needed >= footprint && room_wanted_[tier] >= footprint);
  op.room_needed -= footprint;
  room_wanted_[tier] -= footprint;
}

bool Engine::take_copy(ChunkId chunk, TierId tier) {
  const Bytes used_before = memory_.used(tier);
  if (!memory_.reserve(chunk, tier)) return false;
  try {
    map_copy(chunk, tier);
  } catch (...) {
    memory_.release(chunk, tier);
    throw;
  }
  sample_occupancy(chunk, tier, used_before);
  return true;
}

void Engine::free_copy(ChunkId chunk, TierId tier) {
  const Place place{tier, memory_.copy(chunk, tier).offset};
  const Bytes used_before = memory_.used(tier);
  memory_.release(chunk, tier);
  machine_.unmap(memory_.tensor_of(chunk), chunk, memory_.begin_of(chunk), memory_.bytes_of(chunk), place);
  sample_occupancy(chunk, tier, used_before);
}

void Engine::drop_copy(ChunkId chunk, TierId tier) {
  if (memory_.copy(chunk, tier).readers > 0) {
    memory_.condemn(chunk, tier);
  } else {
    free_copy(chunk, tier);
  }
}

void Engine::invalidate(ChunkId chunk, TierId tier) {
  for (TransferId id = first_of_chunk_[chunk]; id != none;) {
    Transfer& t = transfers_[id];
    const TransferId next = t.next_of_chunk;
    if (t.to == tier && t.in_flight) {
      t.discard = true;
      machine_.cancel(t.fence);
    } else if (!t.in_flight && (t.to == tier || (t.from == tier && t.hop == 0))) {
      withdraw(id);
    }
    id = next;
  }
  const CopyState state = memory_.copy(chunk, tier).state;
  if (state == CopyState::valid) {
    decide(Decision::Kind::release, chunk, tier, no_tier);
    drop_copy(chunk, tier);
  } else if (state == CopyState::reserved) {
    memory_.condemn(chunk, tier);  // its transfer is under way and will find itself discarded
  }
}

void Engine::sample_occupancy(ChunkId chunk, TierId tier, Bytes used_before) {
  if (options_.timeline == nullptr) return;
  const TensorId tensor = memory_.tensor_of(chunk);
  const Bytes used = memory_.used(tier);
  options_.timeline->occupancy.push_back(
      {now_, tier, memory_.role(tensor), tensor, used, static_cast<std::int64_t>(used - used_before)});
}

bool Engine::room_for_fetch(TransferId id) {
  const ChunkId chunk = transfers_[id].chunk;
  const TierId to = transfers_[id].to;
  if (memory_.copy(chunk, to).state != CopyState::absent) return false;  // its former life is still being copied
  const bool wanted = memory_.copy(chunk, to).pins > 0;
  const Bytes footprint = memory_.footprint(chunk, to);
  if (!wanted && room_wanted_[to] > 0 && memory_.free(to) < room_wanted_[to] + footprint) return false;
  const std::uint8_t lane = to == lanes_[0].tier ? 0 : 1;
  if (!take_copy(chunk, to)) {
    Bytes bytes = footprint;
    if (wanted) {
      bytes = lanes_[lane].active.back().room_needed;
    } else if (const TransferId behind = transfers_[id].next; behind != none) {
      bytes += memory_.footprint(transfers_[behind].chunk, to);  // two ahead, so that both directions run at once
    }
    make_room(to, bytes, !wanted, chunk, chunk, wanted ? urgent : normal);
    if (!source_stands(id)) return false;  // it was given up to make room: the next round seeks another
    if (!take_copy(chunk, to)) {
      transfers_[id].lateness.room_ns = -1;  // blocked
      return false;
    }
  }
  Lateness& late = transfers_[id].lateness;
  if (late.room_ns < 0) late.room = last_room_cause_[to];
  late.room_ns = late.room_ns < 0 ? now_ : late.asked_ns;
  late.first_hop_ns = late.room_ns;
  if (wanted) {
    TENCACHE_CHECK(lanes_[lane].waiting);
    room_taken(lane, lanes_[lane].active.back(), chunk);
  }
  return true;
}

bool Engine::take_staging(Transfer& t) {
  const Bytes bytes = memory_.bytes_of(t.chunk);
  const std::uint32_t count = static_cast<std::uint32_t>((bytes + spec_.staging.bytes - 1) / spec_.staging.bytes);
  if (count > staging_used_.size()) {
    throw Error("machine '" + spec_.name + "': a chunk of " + format_bytes(bytes) + " needs " + std::to_string(count) +
                " staging buffers of " + format_bytes(spec_.staging.bytes) + ", there are " +
                std::to_string(staging_used_.size()) + "; raise staging.count or staging.bytes, or use smaller chunks");
  }
  std::uint32_t run = 0;
  for (std::uint32_t i = 0; i < staging_used_.size(); ++i) {
    run = staging_used_[i] ? 0 : run + 1;
    if (run < count) continue;
    t.staging_first = i + 1 - count;
    t.staging_count = count;
    std::fill_n(staging_used_.begin() + t.staging_first, count, true);
    return true;
  }
  return false;
}

void Engine::free_staging(Transfer& t) {
  std::fill_n(staging_used_.begin() + t.staging_first, t.staging_count, false);
  t.staging_count = 0;
}

}  // namespace tencache
