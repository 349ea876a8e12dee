#include "core/engine/room_maker.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tencache {

using Because = PolicySession::Because;

RoomMaker::RoomMaker(EngineState& state, PolicySession& session, Evict evict)
    : state_(state), session_(session), evict_(std::move(evict)) {
  if (const Program* program = state_.program->program(); program != nullptr) {
    const std::vector<Tensor>& tensors = program->trace.tensors;
    stores_as_is_ = std::ranges::all_of(tensors, [](const Tensor& tensor) { return tensor.stored_bytes == 0; });
  }
  last_cause_.fill(StallCause::memory);
}

bool RoomMaker::take(ChunkId chunk, TierId tier, LinkId link) {
  const MappedFor what = link == no_link ? MappedFor::op : MappedFor::copy;
  return state_.copies.take(chunk, tier, what) ||
         (make_hole(chunk, 0, tier, link) && state_.copies.take(chunk, tier, what));
}

bool RoomMaker::clear(TierId tier, Bytes bytes) {
  const auto cleared = [&] { return has_hole(none, bytes, tier) || make_hole(none, bytes, tier, no_link); };
  return cleared() || (make_room(tier, bytes, false, none, none, Priority::urgent) && cleared());
}

bool RoomMaker::has_hole(ChunkId chunk, Bytes bytes, TierId tier) const {
  return chunk == none ? state_.memory.allocator(tier).has_room(bytes) : state_.memory.has_room(chunk, tier);
}

// Who is being copied stays, and whom an op that has started or a program holds. An op that waits finds its tensors
// elsewhere.
std::vector<Relocation> RoomMaker::find_hole(ChunkId incoming, Bytes bytes, TierId tier) const {
  if (!state_.memory.movable(tier)) return {};
  std::vector<ChunkId> waited_with;  // as often as it is pinned
  for (const OpLane& lane : state_.lanes) {
    if (!lane.waiting || lane.tier != tier || lane.active.back().started) continue;
    for (const Use& use : lane.active.back().uses) {
      if (use.tensor == none) continue;
      for (const ChunkId chunk : state_.memory.chunks_of(use.tensor)) waited_with.push_back(chunk);
    }
  }
  const auto stays = [&](ChunkId chunk) {
    const Copy& copy = state_.memory.copy(chunk, tier);
    return !copy.valid() || copy.readers > 0 || copy.pins > std::ranges::count(waited_with, chunk);
  };
  return incoming == none ? state_.memory.allocator(tier).make_hole(bytes, stays)
                          : state_.memory.make_hole(incoming, tier, stays);
}

bool RoomMaker::make_hole(ChunkId chunk, Bytes bytes, TierId tier, LinkId link) {
  const std::vector<Relocation> moves = find_hole(chunk, bytes, tier);
  if (moves.empty()) return false;
  const Because because(session_, {.reason = Reason::hole, .chunk = chunk});
  ++state_.ledger.counters().tiers[tier].holes;
  for (const Relocation& move : moves) {
    session_.decide_move(move, tier);
    const Nanoseconds takes_ns = state_.copies.move(move, tier, link);
    state_.ledger.moved(move, state_.memory.tensor_of(move.chunk), tier, link, takes_ns);
    // Where completions promise order the host goes on, and the op is observed to have waited.
    if (link == no_link && !state_.ledger.observes()) state_.lanes.waiting_in(tier).times.moving_ns += takes_ns;
  }
  return true;
}

bool RoomMaker::reserve(ChunkId chunk, TierId tier) {
  if (state_.memory.copy(chunk, tier).state != CopyState::absent) return false;
  if (state_.copies.take(chunk, tier, MappedFor::copy)) return true;
  const Because because(session_, {.reason = Reason::reclaim, .chunk = chunk});
  reclaim(tier, state_.memory.footprint(chunk, tier));
  return state_.copies.take(chunk, tier, MappedFor::copy);
}

bool RoomMaker::reclaimable(ChunkId chunk, TierId tier) const {
  const Copy& copy = state_.memory.copy(chunk, tier);
  return copy.evictable() && copy.readers == 0 && state_.can_drop(chunk, tier);
}

// Gives up copies that the GPU holds too; they are the coldest of their tier.
void RoomMaker::reclaim(TierId tier, Bytes bytes) {
  if (tier == 0) return;
  for (ChunkId chunk = state_.memory.coldest(tier); chunk != none && state_.memory.free(tier) < bytes;) {
    const ChunkId next = state_.memory.warmer(chunk, tier);
    if (!state_.memory.valid(chunk, 0)) return;
    if (reclaimable(chunk, tier)) {
      session_.decide(Decision::Kind::drop, chunk, tier, no_tier);
      state_.copies.drop(chunk, tier);
    }
    chunk = next;
  }
}

bool RoomMaker::reclaims(TierId tier) const {
  ChunkId chunk = state_.memory.coldest(tier);
  while (chunk != none && state_.memory.valid(chunk, 0)) {
    if (reclaimable(chunk, tier)) return true;
    chunk = state_.memory.warmer(chunk, tier);
  }
  return false;
}

// If there were room: there is no copy of it on the way, nor in a tier below, and all of these take what has room.
bool RoomMaker::could_go_anywhere(ChunkId chunk, TierId tier) const {
  if (state_.transfers.first_of(chunk) != none) return false;
  for (TierId below = static_cast<TierId>(tier + 1); below < state_.memory.tier_count(); ++below) {
    if (state_.memory.copy(chunk, below).state != CopyState::absent || state_.wanted(chunk, below)) {
      return false;
    }
    if (state_.layout.allocators[below].kind != AllocatorKind::exact) return false;
  }
  return true;
}

// No larger chunk finds room in the tiers below, even if these give up what they can.
Bytes RoomMaker::most_below(TierId tier) const {
  Bytes most = 0;
  for (TierId below = static_cast<TierId>(tier + 1); below < state_.memory.tier_count(); ++below) {
    if (state_.routes[tier][below].hops == 0) continue;
    if (reclaims(below) || !stores_as_is_ || state_.layout.allocators[below].kind != AllocatorKind::exact)
      return std::numeric_limits<Bytes>::max();
    most = std::max(most, state_.memory.free(below));
  }
  return most;
}

bool RoomMaker::make_room(TierId tier, Bytes bytes, bool prefetch, ChunkId incoming, ChunkId first, Priority priority) {
  std::uint64_t& asked = asked_[tier][prefetch ? 1 : 0];
  bool counts = asked != state_.moment.input;
  const auto lacking = [&]() -> Bytes {
    const Bytes have = state_.memory.free(tier) + state_.memory.leaving(tier);
    if (have < bytes) return bytes - have;
    // Enough in sum, and yet no place: holes too small, or buffers of the wrong size. Wait for what is leaving first.
    if (state_.memory.leaving(tier) > 0 || has_hole(first, bytes, tier) || !find_hole(first, bytes, tier).empty())
      return 0;
    if (counts) ++state_.ledger.counters().tiers[tier].placeless;
    counts = false;
    return 1;
  };
  if (lacking() == 0) return false;
  if (asked == state_.moment.input) return false;
  asked = state_.moment.input;
  Why why{.reason = Reason::room, .prefetch = prefetch, .chunk = first};
  if (!prefetch) why.op = state_.lanes.waiting_in(tier).times.op;
  const Because for_room(session_, why);
  std::vector<ChunkId> victims = std::exchange(victims_, {});
  // While the tiers below are full, thousands of chunks may be asked in vain.
  Bytes most = most_below(tier);
  const auto leaves = [&](ChunkId chunk) {
    const Bytes bytes = state_.memory.bytes_of(chunk);
    if (bytes > most && !state_.can_drop(chunk, tier)) return false;
    const Refusal refusal = evict_(chunk, tier, priority);
    if (refusal == Refusal::none) return true;
    if (refusal == Refusal::no_room && could_go_anywhere(chunk, tier)) most = std::min(most, bytes - 1);
    return false;
  };
  const auto asks = [&] {  // whether something left at once
    victims.clear();
    session_.ask_for_room({tier, lacking(), prefetch, incoming}, victims);
    const Bytes free = state_.memory.free(tier);
    for (const ChunkId chunk : victims) {
      if (chunk < state_.memory.chunk_total()) leaves(chunk);
    }
    return state_.memory.free(tier) > free;
  };
  // No one knows beforehand how much has to leave for a hole, and a drop has no end after which to ask again.
  while (asks() && !prefetch && state_.memory.movable(tier) && lacking() > 0) {
  }
  victims_ = std::move(victims);
  if (prefetch || !state_.layout.fallback_eviction || lacking() == 0) return true;
  why.reason = Reason::coldest;
  const Because as_fallback(session_, why);
  const Evictable known = state_.memory.take_evictable(tier);
  const auto none_can_leave = [&] {  // victims that keep their room become useless without the memory's knowing
    return most < known.least && !known.shared && state_.layout.free_dead != FreeDead::when_victim;
  };
  ChunkId chunk = state_.memory.coldest(tier);
  while (chunk != none && lacking() > 0 && !none_can_leave()) {
    const ChunkId next = state_.memory.warmer(chunk, tier);
    if (state_.memory.evictable(chunk, tier)) {
      if (leaves(chunk)) {
        ++state_.ledger.counters().fallback_evictions;
      } else {
        state_.memory.add_evictable(chunk, tier);
      }
    }
    chunk = next;
  }
  if (chunk != none) state_.memory.add_evictable(tier, known);
  return true;
}

void RoomMaker::shrink(TierId tier) {
  if (state_.memory.excess(tier) == 0) return;
  const Because revoked(session_, {.reason = Reason::revoked});
  std::vector<ChunkId> victims;
  session_.ask_for_room({.tier = tier, .bytes = state_.memory.excess(tier)}, victims);
  const auto give_up = [&](ChunkId chunk) {
    if (chunk < state_.memory.chunk_total() && state_.memory.evictable(chunk, tier)) {
      evict_(chunk, tier, Priority::urgent);
    }
  };
  for (const ChunkId chunk : victims) {
    if (state_.memory.excess(tier) > 0) give_up(chunk);
  }
  for (ChunkId chunk = state_.memory.coldest(tier); chunk != none && state_.memory.excess(tier) > 0;) {
    const ChunkId next = state_.memory.warmer(chunk, tier);
    give_up(chunk);
    chunk = next;
  }
}

}  // namespace tencache
