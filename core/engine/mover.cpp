#include "core/engine/mover.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/engine/tags.h"
#include "core/error.h"

namespace tencache {

using Because = PolicySession::Because;

Mover::Mover(const Parts& parts) : parts_(parts) {
  if (const Program* program = parts_.program.program(); program != nullptr) {
    const std::vector<Tensor>& tensors = program->trace.tensors;
    stores_as_is_ = std::ranges::all_of(tensors, [](const Tensor& tensor) { return tensor.stored_bytes == 0; });
  }
  last_room_cause_.fill(StallCause::memory);
  for (LinkId link = 0; link < parts_.spec.links.size(); ++link) causes_[link] = cause_of(parts_.spec, link);
  for (TierId from = 0; from < parts_.spec.tiers.size(); ++from) {
    for (TierId to = 0; to < parts_.spec.tiers.size(); ++to) routes_[from][to] = find_route(from, to);
  }
}

// ---- Requests -------------------------------------------------------------------------------------------------------

Route Mover::find_route(TierId from, TierId to) const {
  Route route;
  for (const LinkId link : parts_.spec.path_between(from, to)) {
    const BytesPerSecond bandwidth = parts_.spec.links[link].bandwidth;
    route.bandwidth = route.hops == 0 ? bandwidth : std::min(route.bandwidth, bandwidth);
    route.links[route.hops++] = link;
  }
  return route;
}

// The valid copy that arrives soonest; the faster tier of two equals.
TierId Mover::source_for(ChunkId chunk, TierId to) const {
  TierId best = no_tier;
  for (TierId tier = 0; tier < parts_.memory.tier_count(); ++tier) {
    if (tier == to || !parts_.memory.valid(chunk, tier) || parts_.memory.copy(chunk, tier).writers > 0) continue;
    if (routes_[tier][to].hops == 0) continue;
    if (best == no_tier || routes_[tier][to].bandwidth > routes_[best][to].bandwidth) best = tier;
  }
  return best;
}

bool Mover::fetch(ChunkId chunk, TierId to, Priority priority, OpIndex not_before, Refusal& refusal) {
  const Copy& copy = parts_.memory.copy(chunk, to);
  if (copy.state == CopyState::valid) {
    if (copy.evicting) rescue(chunk, to);
    return true;
  }
  if (const TransferId coming = parts_.transfers.find(chunk, to); coming != none) {
    if (priority == Priority::urgent) promote(coming);
    return true;
  }
  const TensorId tensor = parts_.memory.tensor_of(chunk);
  if (copy.state != CopyState::absent || parts_.lives.dead[tensor] != 0) {
    refusal = Refusal::stale;
    return false;
  }
  const TierId from = source_for(chunk, to);
  if (from == no_tier || arrives_on_the_way(chunk, from, to)) {
    refusal = Refusal::stale;
    return false;
  }
  if (!parts_.memory.could_hold(chunk, to)) {
    refusal = Refusal::no_room;
    return false;
  }
  const TransferId id = add(chunk, from, to, Purpose::fetch, priority);
  parts_.session.decide(Decision::Kind::fetch, chunk, from, to);
  if (priority != Priority::urgent && not_before != none && not_before != parts_.moment.position) {
    parts_.transfers.defer(id, not_before);
  } else {
    parts_.transfers.enqueue(id, false);
  }
  return true;
}

// The path leads through a tier into which the chunk is being copied already: no second copy beside it.
bool Mover::arrives_on_the_way(ChunkId chunk, TierId from, TierId to) const {
  if (routes_[from][to].hops < 2) return false;
  const TransferId coming = parts_.transfers.find(chunk, parts_.spec.staging.tier);
  return coming != none && parts_.transfers[coming].in_flight;
}

// Towards a slower tier: the room there is reserved now, so that nobody else can take it meanwhile.
bool Mover::send_out(ChunkId chunk, TierId from, TierId destination, Purpose purpose, Priority priority,
                     Refusal& refusal) {
  const Copy& copy = parts_.memory.copy(chunk, from);
  if (copy.state != CopyState::valid || copy.writers > 0 || parts_.lives.dead[parts_.memory.tensor_of(chunk)] != 0) {
    refusal = Refusal::stale;
    return false;
  }
  // A prefetch of the same chunk to the same place that has not begun may never begin: an eviction takes its place.
  const auto prefetch_to = [&](TierId tier) {
    const TransferId coming = parts_.transfers.find(chunk, tier);
    const bool replaceable = coming != none && purpose == Purpose::evict && !parts_.transfers[coming].in_flight &&
                             parts_.transfers[coming].hop == 0 && parts_.transfers[coming].purpose == Purpose::fetch;
    return std::pair(coming == none || replaceable, coming);
  };
  const auto may_receive = [&](TierId tier) {
    const Copy& there = parts_.memory.copy(chunk, tier);
    return tier != from && routes_[from][tier].hops > 0 && there.state == CopyState::absent && there.pins == 0 &&
           prefetch_to(tier).first;
  };
  TierId to = destination;
  if (destination != no_tier) {
    if (destination >= parts_.memory.tier_count() || !may_receive(destination)) {
      refusal = Refusal::stale;
      return false;
    }
    if (!reserve_destination(chunk, destination)) to = no_tier;
  } else {
    for (to = static_cast<TierId>(from + 1); to < parts_.memory.tier_count(); ++to) {
      if (may_receive(to) && reserve_destination(chunk, to)) break;
    }
    if (to == parts_.memory.tier_count()) to = no_tier;
  }
  if (to == no_tier) {
    refusal = Refusal::no_room;
    return false;
  }
  if (const TransferId replaced = prefetch_to(to).second; replaced != none) withdraw(replaced);
  const TransferId id = add(chunk, from, to, purpose, priority);
  parts_.session.decide(purpose == Purpose::evict ? Decision::Kind::evict : Decision::Kind::clean, chunk, from, to);
  parts_.transfers.enqueue(id, false);
  return true;
}

// Whether the copy's room can go without a transfer: the value is dead, or valid somewhere else.
bool Mover::can_drop(ChunkId chunk, TierId tier) const {
  return parts_.lives.dead[parts_.memory.tensor_of(chunk)] != 0 || parts_.memory.valid_elsewhere(chunk, tier);
}

bool Mover::evict(ChunkId chunk, TierId from, TierId destination, Priority priority, Refusal& refusal) {
  if (!parts_.memory.evictable(chunk, from)) {
    refusal = Refusal::stale;
    return false;
  }
  if (can_drop(chunk, from)) {
    parts_.session.decide(Decision::Kind::drop, chunk, from, no_tier);
    parts_.copies.drop(chunk, from);
    return true;
  }
  if (!send_out(chunk, from, destination, Purpose::evict, priority, refusal)) return false;
  parts_.memory.set_evicting(chunk, from, true);
  return true;
}

bool Mover::on_its_way(TensorId tensor, TierId tier) const {
  for (const ChunkId chunk : parts_.memory.chunks_of(tensor)) {
    const TransferId id = parts_.transfers.find(chunk, tier);
    if (id != none && (parts_.transfers[id].queued || parts_.transfers[id].in_flight)) return true;
  }
  return false;
}

// ---- What a policy wants --------------------------------------------------------------------------------------------

void Mover::take(const Action& action) {
  if (action.tensor >= parts_.memory.tensor_count() || action.tier >= parts_.memory.tier_count() ||
      parts_.lives.doomed[action.tensor] != 0) {
    parts_.session.refuse(Refusal::stale, action, none);
    return;
  }
  if (parts_.lanes.out_of_patience(parts_.memory.chunk_total())) {
    parts_.session.refuse(Refusal::no_room, action, none);
    return;
  }
  if (action.verb == Verb::hold) {
    hold(action);
    return;
  }
  const ChunkId first = parts_.memory.first_chunk(action.tensor);
  const std::uint32_t count = parts_.memory.chunk_count(action.tensor);
  if (action.chunk != all_chunks && action.chunk >= count) {
    parts_.session.refuse(Refusal::stale, action, none);
    return;
  }
  const ChunkId begin = action.chunk == all_chunks ? first : first + action.chunk;
  const ChunkId end = action.chunk == all_chunks ? first + count : begin + 1;
  for (ChunkId chunk = begin; chunk < end; ++chunk) {
    const Refusal refusal = take(action, chunk);
    if (refusal != Refusal::none) parts_.session.refuse(refusal, action, chunk);
  }
}

void Mover::hold(const Action& action) {
  for (OpLane& lane : parts_.lanes) {
    // One that runs beside arrivals, or waits for an allocation, has started: the hold is for the next time.
    if (!lane.waiting || lane.active.back().started || lane.active.back().times.op != action.op) continue;
    lane.active.back().demand.holds.push_back({action.tensor, action.tier});
    lane.active.back().times.late = true;
    return;
  }
  parts_.lanes.hold(action.op, {action.tensor, action.tier});
}

Refusal Mover::take(const Action& action, ChunkId chunk) {
  Refusal refusal = Refusal::none;
  const Priority priority = action.urgent ? Priority::urgent : Priority::normal;
  const TransferId coming = parts_.transfers.find(chunk, action.tier);
  switch (action.verb) {
    case Verb::fetch:
      // What a waiting op lacks is its own affair: it asked already, or needs room and no content.
      if (parts_.memory.copy(chunk, action.tier).state == CopyState::absent &&
          parts_.memory.copy(chunk, action.tier).pins > 0 && coming == none) {
        return Refusal::stale;
      }
      fetch(chunk, action.tier, priority, action.not_before, refusal);
      return refusal;
    case Verb::evict:
      evict(chunk, action.tier, action.destination, priority, refusal);
      return refusal;
    case Verb::clean:
      send_out(chunk, action.tier, action.destination, Purpose::clean,
               action.urgent ? Priority::urgent : Priority::background, refusal);
      return refusal;
    case Verb::drop:
      if (!parts_.memory.evictable(chunk, action.tier) || !can_drop(chunk, action.tier)) return Refusal::stale;
      evict(chunk, action.tier, no_tier, priority, refusal);
      return refusal;
    case Verb::cancel:
      if (coming == none || parts_.transfers[coming].in_flight || parts_.transfers[coming].hop > 0 ||
          parts_.transfers[coming].purpose != Purpose::fetch || parts_.memory.copy(chunk, action.tier).pins > 0) {
        return Refusal::stale;
      }
      parts_.session.decide(Decision::Kind::cancel, chunk, parts_.transfers[coming].from, action.tier);
      withdraw(coming);
      return refusal;
    case Verb::hold:
      break;
  }
  return refusal;
}

// ---- Room -----------------------------------------------------------------------------------------------------------

bool Mover::reserve_destination(ChunkId chunk, TierId tier) {
  if (parts_.memory.copy(chunk, tier).state != CopyState::absent) return false;
  if (parts_.copies.take(chunk, tier, MappedFor::copy)) return true;
  const Because because(parts_.session, {.reason = Reason::reclaim, .chunk = chunk});
  reclaim(tier, parts_.memory.footprint(chunk, tier));
  return parts_.copies.take(chunk, tier, MappedFor::copy);
}

bool Mover::reclaimable(ChunkId chunk, TierId tier) const {
  const Copy& copy = parts_.memory.copy(chunk, tier);
  return copy.evictable() && copy.readers == 0 && can_drop(chunk, tier);
}

// Gives up copies that the GPU holds too; they are the coldest of their tier.
void Mover::reclaim(TierId tier, Bytes bytes) {
  if (tier == 0) return;
  for (ChunkId chunk = parts_.memory.coldest(tier); chunk != none && parts_.memory.free(tier) < bytes;) {
    const ChunkId next = parts_.memory.warmer(chunk, tier);
    if (!parts_.memory.valid(chunk, 0)) return;
    if (reclaimable(chunk, tier)) {
      parts_.session.decide(Decision::Kind::drop, chunk, tier, no_tier);
      parts_.copies.drop(chunk, tier);
    }
    chunk = next;
  }
}

bool Mover::reclaims(TierId tier) const {
  ChunkId chunk = parts_.memory.coldest(tier);
  while (chunk != none && parts_.memory.valid(chunk, 0)) {
    if (reclaimable(chunk, tier)) return true;
    chunk = parts_.memory.warmer(chunk, tier);
  }
  return false;
}

// If there were room: there is no copy of it on the way, nor in a tier below, and all of these take what has room.
bool Mover::could_go_anywhere(ChunkId chunk, TierId tier) const {
  if (parts_.transfers.first_of(chunk) != none) return false;
  for (TierId below = static_cast<TierId>(tier + 1); below < parts_.memory.tier_count(); ++below) {
    if (parts_.memory.copy(chunk, below).state != CopyState::absent || parts_.memory.copy(chunk, below).pins > 0) {
      return false;
    }
    if (parts_.layout.allocators[below].kind != AllocatorKind::exact) return false;
  }
  return true;
}

// No larger chunk finds room in the tiers below, even if these give up what they can.
Bytes Mover::most_below(TierId tier) const {
  Bytes most = 0;
  for (TierId below = static_cast<TierId>(tier + 1); below < parts_.memory.tier_count(); ++below) {
    if (routes_[tier][below].hops == 0) continue;
    if (reclaims(below) || !stores_as_is_ || parts_.layout.allocators[below].kind != AllocatorKind::exact)
      return std::numeric_limits<Bytes>::max();
    most = std::max(most, parts_.memory.free(below));
  }
  return most;
}

bool Mover::make_room(TierId tier, Bytes bytes, bool prefetch, ChunkId incoming, ChunkId first, Priority priority) {
  std::uint64_t& asked = asked_[tier][prefetch ? 1 : 0];
  bool counts = asked != parts_.moment.input;
  const auto lacking = [&]() -> Bytes {
    const Bytes have = parts_.memory.free(tier) + parts_.memory.leaving(tier);
    if (have < bytes) return bytes - have;
    // Enough in sum, and yet no place: holes too small, or buffers of the wrong size. Wait for what is leaving first.
    if (parts_.memory.leaving(tier) > 0 || parts_.memory.has_room(first, tier)) return 0;
    if (counts) ++parts_.ledger.counters().tiers[tier].placeless;
    counts = false;
    return 1;
  };
  if (lacking() == 0) return false;
  if (asked == parts_.moment.input) return false;
  asked = parts_.moment.input;
  Why why{.reason = Reason::room, .prefetch = prefetch, .chunk = first};
  if (!prefetch) why.op = parts_.lanes.waiting_in(tier).times.op;
  const Because for_room(parts_.session, why);
  std::vector<ChunkId> victims = std::exchange(victims_, {});
  victims.clear();
  parts_.session.ask_for_room({tier, lacking(), prefetch, incoming}, victims);
  // While the tiers below are full, thousands of chunks may be asked in vain.
  Bytes most = most_below(tier);
  const auto leaves = [&](ChunkId chunk) {
    const Bytes bytes = parts_.memory.bytes_of(chunk);
    if (bytes > most && !can_drop(chunk, tier)) return false;
    Refusal refusal = Refusal::none;
    if (evict(chunk, tier, no_tier, priority, refusal)) return true;
    if (refusal == Refusal::no_room && could_go_anywhere(chunk, tier)) most = std::min(most, bytes - 1);
    return false;
  };
  for (const ChunkId chunk : victims) {
    if (chunk < parts_.memory.chunk_total()) leaves(chunk);
  }
  victims_ = std::move(victims);
  if (prefetch || !parts_.layout.fallback_eviction || lacking() == 0) return true;
  why.reason = Reason::coldest;
  const Because as_fallback(parts_.session, why);
  const Evictable known = parts_.memory.take_evictable(tier);
  const auto none_can_leave = [&] {  // victims that keep their room become useless without the memory's knowing
    return most < known.least && !known.shared && parts_.layout.free_dead != FreeDead::when_victim;
  };
  ChunkId chunk = parts_.memory.coldest(tier);
  while (chunk != none && lacking() > 0 && !none_can_leave()) {
    const ChunkId next = parts_.memory.warmer(chunk, tier);
    if (parts_.memory.evictable(chunk, tier)) {
      if (leaves(chunk)) {
        ++parts_.ledger.counters().fallback_evictions;
      } else {
        parts_.memory.add_evictable(chunk, tier);
      }
    }
    chunk = next;
  }
  if (chunk != none) parts_.memory.add_evictable(tier, known);
  return true;
}

// ---- Waiting transfers ----------------------------------------------------------------------------------------------

TransferId Mover::add(ChunkId chunk, TierId from, TierId to, Purpose purpose, Priority priority) {
  const TransferId id = parts_.transfers.add(chunk);
  Transfer& t = parts_.transfers[id];
  t.from = from;
  t.to = to;
  t.purpose = purpose;
  t.priority = priority;
  t.route = routes_[from][to];
  t.bytes = parts_.memory.bytes_moved(chunk, from, to);
  t.requested_at = parts_.moment.position;
  t.lateness.asked_ns = t.lateness.room_ns = t.lateness.first_hop_ns = parts_.moment.now;
  return id;
}

void Mover::remove(TransferId id) {
  const Transfer& t = parts_.transfers[id];
  if (t.overlapped) --parts_.lanes.waiting_in(t.to).demand.overlapped;
  const TensorId tensor = parts_.memory.tensor_of(t.chunk);
  parts_.transfers.remove(id);
  remove_if_gone(tensor);
}

void Mover::withdraw(TransferId id) {
  const Transfer& t = parts_.transfers[id];
  TENCACHE_CHECK(!t.in_flight);
  if (t.queued) {
    parts_.transfers.dequeue(id);
  } else {
    parts_.transfers.undefer(id);
  }
  if (t.hop > 0) parts_.transfers.free_staging(id);
  const bool destination_taken = t.purpose != Purpose::fetch || t.hop > 0;
  if (destination_taken) parts_.copies.free(t.chunk, t.to);
  if (t.purpose == Purpose::evict && parts_.memory.valid(t.chunk, t.from) &&
      parts_.memory.copy(t.chunk, t.from).evicting) {
    parts_.memory.set_evicting(t.chunk, t.from, false);
  }
  remove(id);
}

void Mover::promote(TransferId id) {
  const Transfer& t = parts_.transfers[id];
  if (parts_.layout.promote) {
    lift(id);
  } else if (!t.queued && !t.in_flight) {  // deferred: it takes its place in the queue, but waits no longer for its op
    parts_.transfers.undefer(id);
    parts_.transfers.enqueue(id, false);
  }
}

void Mover::lift(TransferId id) {
  Transfer& t = parts_.transfers[id];
  if (t.in_flight || t.priority == Priority::urgent) {
    t.priority = Priority::urgent;  // a second hop is queued as urgent
    return;
  }
  parts_.session.decide(Decision::Kind::promote, t.chunk, t.from, t.to);
  if (t.queued) {
    parts_.transfers.dequeue(id);
  } else {
    parts_.transfers.undefer(id);
  }
  t.priority = Priority::urgent;
  parts_.transfers.enqueue(id, false);
}

void Mover::lift_what_it_waits_for(const OpLane& lane) {
  for (const Use& use : lane.active.back().uses) {
    if (use.tensor == none) continue;
    for (const ChunkId chunk : parts_.memory.chunks_of(use.tensor)) {
      const TransferId id = parts_.transfers.find(chunk, lane.tier);
      if (id != none && !parts_.transfers[id].in_flight) lift(id);
    }
  }
  for (LinkId link = 0; link < parts_.spec.links.size(); ++link) {
    for (TransferId id = parts_.transfers.first_in_queue(link, Priority::normal); id != none;) {
      const TransferId next = parts_.transfers.next_in_queue(id);
      if (parts_.transfers[id].purpose == Purpose::evict && parts_.transfers[id].from == lane.tier) lift(id);
      id = next;
    }
  }
}

// ---- Starting -------------------------------------------------------------------------------------------------------

bool Mover::start_from(LinkId link) {
  bool progress = false;
  while (parts_.transfers.takes_another(link)) {
    bool started = false;
    for (const Priority priority : every_priority) {
      TransferId first = parts_.transfers.first_in_queue(link, priority);
      while (first != none && !source_stands(first)) {
        find_new_source(first);
        first = parts_.transfers.first_in_queue(link, priority);
      }
      if (first != none && try_start(first)) {
        started = true;
        break;
      }
    }
    if (!started) break;
    progress = true;
  }
  return progress;
}

// Of a link's queue only the first of each priority may start, and one that finds no room stops those behind it. When
// nothing else is under way, what an op waits for and what makes room go past such prefetches.
void Mover::start_behind_blocked() {
  for (bool progress = true; progress;) {
    const std::uint64_t enqueued = parts_.transfers.enqueued();
    progress = false;
    for (LinkId link = 0; link < parts_.spec.links.size(); ++link) progress |= start_behind_blocked(link);
    progress |= parts_.transfers.enqueued() != enqueued;
  }
}

bool Mover::start_behind_blocked(LinkId link) {
  bool progress = false;
  for (const Priority priority : every_priority) {
    for (TransferId id = parts_.transfers.first_in_queue(link, priority);
         id != none && parts_.transfers.takes_another(link);) {
      const Transfer& t = parts_.transfers[id];
      const TransferId next = parts_.transfers.next_in_queue(id);
      const bool prefetch = t.purpose == Purpose::fetch && t.hop == 0 && parts_.memory.copy(t.chunk, t.to).pins == 0;
      if (!prefetch && !source_stands(id)) {
        find_new_source(id);
      } else if (!prefetch) {
        progress |= try_start(id);
      }
      // Room made for this one may have withdrawn the next; what came instead is looked at in another round.
      if (next != none) {
        const Transfer& after = parts_.transfers[next];
        if (!after.queued || after.link() != link || after.priority != priority) break;
      }
      id = next;
    }
  }
  return progress;
}

// Taking the memory that the copy goes to, where this policy takes it afresh each time.
Nanoseconds Mover::setup_of(const Transfer& t) const {
  if (!parts_.layout.allocate_each[t.to]) return 0;
  const AllocationCost& cost = parts_.spec.tiers[t.to].allocation;
  Bytes bytes = parts_.memory.bytes_in(t.chunk, t.to);
  if (cost.power_of_two) bytes = std::bit_ceil(bytes);
  if (cost.bandwidth == 0) return cost.per_call_ns;
  const uint128 size_ns =
      (static_cast<uint128>(bytes) * static_cast<uint128>(second_ns) + cost.bandwidth - 1) / cost.bandwidth;
  const uint128 most_ns = 1ull << 62;  // longer than any clock runs, and sums of it do not overflow
  return cost.per_call_ns + static_cast<Nanoseconds>(std::min(size_ns, most_ns));
}

// Of what arrives in a smaller form than its tier keeps it in.
Nanoseconds Mover::expansion_of(const Transfer& t) const {
  const BytesPerSecond rate = parts_.spec.tiers[t.to].expand_bandwidth;
  if (rate == 0) return 0;
  const Bytes bytes = parts_.memory.bytes_in(t.chunk, t.to);
  if (bytes <= t.bytes) return 0;
  return static_cast<Nanoseconds>((static_cast<uint128>(bytes) * static_cast<uint128>(second_ns) + rate - 1) / rate);
}

bool Mover::source_stands(TransferId id) const {
  const Transfer& t = parts_.transfers[id];
  return t.hop > 0 || (parts_.memory.valid(t.chunk, t.from) && parts_.memory.copy(t.chunk, t.from).writers == 0);
}

// What the transfer was to copy has left that tier since it was asked for.
void Mover::find_new_source(TransferId id) {
  const Because because(parts_.session, {.reason = Reason::retry});
  const Transfer old = parts_.transfers[id];
  withdraw(id);
  const bool wanted = parts_.memory.copy(old.chunk, old.to).pins > 0;
  const bool prefetched = old.purpose == Purpose::fetch;
  if (parts_.memory.copy(old.chunk, old.to).state != CopyState::absent || (!prefetched && !wanted)) return;
  OpDemand* demand = wanted ? &parts_.lanes.waiting_in(old.to).demand : nullptr;
  // What was not fetched had room; now the op needs some again.
  if (!prefetched) parts_.lanes.want_room(old.to, *demand, parts_.memory.footprint(old.chunk, old.to));
  Refusal refusal = Refusal::none;
  if (fetch(old.chunk, old.to, prefetched ? old.priority : Priority::urgent, none, refusal)) return;
  if (wanted) demand->stranded.push_back(old.chunk);
}

bool Mover::try_start(TransferId id) {
  const Transfer& t = parts_.transfers[id];
  if (t.hop == 0) {
    const bool staged = t.route.hops > 1;
    if (staged && !parts_.transfers.take_staging(id, t.bytes)) return false;
    if (t.purpose == Purpose::fetch && !room_for_fetch(id)) {
      if (staged) parts_.transfers.free_staging(id);
      return false;
    }
  }
  submit(id);
  return true;
}

bool Mover::room_for_fetch(TransferId id) {
  const ChunkId chunk = parts_.transfers[id].chunk;
  const TierId to = parts_.transfers[id].to;
  if (parts_.memory.copy(chunk, to).state != CopyState::absent) return false;  // its former life is still being copied
  const bool wanted = parts_.memory.copy(chunk, to).pins > 0;
  const Bytes footprint = parts_.memory.footprint(chunk, to);
  const Bytes wanted_by_ops = parts_.lanes.room_wanted(to);
  if (!wanted && wanted_by_ops > 0 && parts_.memory.free(to) < wanted_by_ops + footprint) return false;
  if (!parts_.copies.take(chunk, to, MappedFor::copy)) {
    Bytes bytes = footprint;
    if (wanted) {
      bytes = parts_.lanes.waiting_in(to).demand.room_needed;
    } else if (const TransferId behind = parts_.transfers.next_in_queue(id); behind != none) {
      bytes += parts_.memory.footprint(parts_.transfers[behind].chunk,
                                       to);  // two ahead, so that both directions run at once
    }
    const bool made = make_room(to, bytes, !wanted, chunk, chunk, wanted ? Priority::urgent : Priority::normal);
    if (made && !source_stands(id)) return false;  // it was given up to make room: the next round seeks another
    if (!made || !parts_.copies.take(chunk, to, MappedFor::copy)) {
      parts_.transfers[id].lateness.room_ns = -1;  // blocked
      return false;
    }
  }
  Lateness& late = parts_.transfers[id].lateness;
  if (late.room_ns < 0) late.room = last_room_cause_[to];
  late.room_ns = late.room_ns < 0 ? parts_.moment.now : late.asked_ns;
  late.first_hop_ns = late.room_ns;
  if (wanted) parts_.lanes.got_room(to, parts_.lanes.waiting_in(to).demand, footprint);
  return true;
}

// What is asserted here about the two places holds again when the machine is done (complete).
void Mover::submit(TransferId id) {
  Transfer& t = parts_.transfers[id];
  const bool first = t.hop == 0;
  const bool last = t.hop + 1 == t.route.hops;
  TENCACHE_CHECK(source_stands(id) && (t.route.hops == 1 || t.staging.count > 0));
  TENCACHE_CHECK(parts_.memory.copy(t.chunk, t.to).state == CopyState::reserved);
  const Place staging{parts_.spec.staging.tier, t.staging.first};
  CopyCommand copy;
  copy.link = t.link();
  copy.tensor = parts_.memory.tensor_of(t.chunk);
  copy.chunk = t.chunk;
  copy.begin = parts_.memory.begin_of(t.chunk);
  copy.bytes = t.bytes;
  copy.from = first ? Place{t.from, parts_.memory.offset(t.chunk, t.from)} : staging;
  copy.to = last ? Place{t.to, parts_.memory.offset(t.chunk, t.to)} : staging;
  copy.from_staging = !first;
  copy.to_staging = !last;
  if (last) copy.setup_ns = setup_of(t) + expansion_of(t);
  copy.memory = copy.from_staging || copy.to_staging
                    ? parts_.layout.staging_memory
                    : parts_.layout.copy_memory[static_cast<std::size_t>(parts_.memory.role(copy.tensor))];
  if (first) parts_.memory.add_reader(t.chunk, t.from);
  parts_.transfers.begin(id, t.bytes, parts_.moment.now);
  t.fence = parts_.machine.submit(copy, make_tag(TagKind::transfer, id));
}

// ---- Ends -----------------------------------------------------------------------------------------------------------

void Mover::complete(TransferId id, const Completion& completion) {
  const Transfer& t = parts_.transfers[id];
  TENCACHE_CHECK(t.in_flight && t.fence == completion.fence && completion.start_ns <= completion.end_ns);
  const CopyState there = parts_.memory.copy(t.chunk, t.to).state;
  TENCACHE_CHECK(there == CopyState::reserved || (there == CopyState::condemned && t.discard));
  TENCACHE_CHECK(t.route.hops == 1 || t.staging.count > 0);
  parts_.transfers.end(id);
  const bool done = completion.status == CompletionStatus::done;
  const Bytes bytes = done ? t.bytes : 0;
  const LinkId link = t.link();
  parts_.ledger.copied(link, bytes, completion.end_ns - completion.start_ns);
  if (parts_.ledger.has_timeline()) {
    parts_.ledger.add({.start_ns = completion.start_ns,
                       .end_ns = completion.end_ns,
                       .kind = SpanKind::transfer,
                       .cause = causes_[link],
                       .urgent = t.priority == Priority::urgent,
                       .lane = static_cast<std::uint8_t>(first_link_lane + link),
                       .iteration = parts_.moment.iteration,
                       .op = t.requested_at,
                       .tensor = parts_.memory.tensor_of(t.chunk),
                       .chunk = t.chunk,
                       .bytes = bytes,
                       .from = t.from,
                       .to = t.to});
  }
  if (t.hop == 0) parts_.memory.remove_reader(t.chunk, t.from);
  if (!done || t.discard) {
    fail(id, t.discard || completion.status == CompletionStatus::cancelled);
  } else if (t.hop + 1 == t.route.hops) {
    arrive(id);
  } else {
    Transfer& staged = parts_.transfers[id];
    staged.lateness.first_hop_ns = completion.end_ns;
    staged.lateness.first_hop = causes_[link];
    ++staged.hop;
    release_source(staged);
    parts_.transfers.enqueue(id, true);
  }
}

// The first copy of an eviction is over: its room goes free unless the chunk was needed again meanwhile.
void Mover::release_source(const Transfer& t) {
  const Copy& source = parts_.memory.copy(t.chunk, t.from);
  if (source.state == CopyState::condemned) {
    if (source.readers == 0) parts_.copies.free(t.chunk, t.from);
    return;
  }
  if (t.purpose != Purpose::evict || source.state != CopyState::valid || !source.evicting) return;
  TENCACHE_CHECK(source.pins == 0);
  last_room_cause_[t.from] = causes_[t.route.links[0]];
  parts_.copies.drop(t.chunk, t.from);
}

void Mover::arrive(TransferId id) {
  const Transfer t = parts_.transfers[id];
  if (t.hop > 0) parts_.transfers.free_staging(id);
  if (!failures_.empty()) failures_.erase(t.chunk);
  parts_.memory.commit(t.chunk, t.to);
  if (t.hop == 0) release_source(t);
  if (t.purpose == Purpose::fetch && parts_.layout.exclusive_copies && parts_.memory.valid(t.chunk, t.from) &&
      parts_.memory.evictable(t.chunk, t.from) && parts_.memory.copy(t.chunk, t.from).writers == 0) {
    parts_.copies.drop(t.chunk, t.from);
  }
  tell_waiting_ops(t);
  remove(id);
  parts_.session.emit({.kind = EventKind::transfer_done,
                       .from = t.from,
                       .to = t.to,
                       .op = parts_.moment.position,
                       .tensor = parts_.memory.tensor_of(t.chunk),
                       .chunk = t.chunk});
}

void Mover::tell_waiting_ops(const Transfer& t) {
  const auto was_late = [&](ActiveOp& op) {
    op.times.lateness = t.lateness;
    op.times.lateness.last = causes_[t.link()];
  };
  if (parts_.memory.copy(t.chunk, t.to).pins > 0) {
    ActiveOp& op = parts_.lanes.waiting_in(t.to);
    TENCACHE_CHECK(op.demand.missing > 0);
    --op.demand.missing;
    was_late(op);
  }
  for (OpLane& lane : parts_.lanes) {
    if (!lane.waiting) continue;
    ActiveOp& op = lane.active.back();
    const std::vector<ChunkId>& stranded = op.demand.stranded;
    if (stranded.empty() && op.demand.holds.empty()) continue;
    if (std::ranges::find(stranded, t.chunk) != stranded.end()) op.demand.stranded_cause = causes_[t.link()];
    for (const Hold& hold : op.demand.holds) {
      if (hold.tensor == parts_.memory.tensor_of(t.chunk) && hold.tier == t.to) was_late(op);
    }
  }
}

void Mover::fail(TransferId id, bool cancelled) {
  const Transfer t = parts_.transfers[id];
  if (!cancelled && ++failures_[t.chunk] >= failures_tolerated) {
    throw Error("moving " + format_bytes(parts_.memory.bytes_of(t.chunk)) + " of " +
                parts_.program.title_of(parts_.memory.tensor_of(t.chunk)) + " from '" + parts_.spec.tiers[t.from].name +
                "' to '" + parts_.spec.tiers[t.to].name + "' failed " + std::to_string(failures_tolerated) +
                " times in a row" + reason_of_failure(parts_.machine) + "; check the device and the space left on it");
  }
  if (!cancelled && t.hop > 0) {  // its source may be gone: the buffer holds the only copy, so try again
    parts_.transfers.enqueue(id, true);
    return;
  }
  if (t.staging.count > 0) parts_.transfers.free_staging(id);
  const bool wanted =
      parts_.memory.copy(t.chunk, t.to).pins > 0 && parts_.memory.copy(t.chunk, t.to).state == CopyState::reserved;
  parts_.copies.free(t.chunk, t.to);
  if (t.hop == 0) {  // later, what lies in that tier is none of this transfer's: perhaps another's on its way there
    const Copy& source = parts_.memory.copy(t.chunk, t.from);
    if (t.purpose == Purpose::evict && source.state == CopyState::valid && source.evicting) {
      parts_.memory.set_evicting(t.chunk, t.from, false);
    }
    if (source.state == CopyState::condemned && source.readers == 0) parts_.copies.free(t.chunk, t.from);
  }
  if (wanted) {  // the op still needs it: ask again
    OpDemand& demand = parts_.lanes.waiting_in(t.to).demand;
    parts_.lanes.want_room(t.to, demand, parts_.memory.footprint(t.chunk, t.to));
    demand.stranded.push_back(t.chunk);
  }
  remove(id);
  if (cancelled) return;
  ++parts_.ledger.counters().refusals;
  parts_.session.emit({.kind = EventKind::refused,
                       .refusal = Refusal::io_error,
                       .from = t.from,
                       .to = t.to,
                       .op = parts_.moment.position,
                       .tensor = parts_.memory.tensor_of(t.chunk),
                       .chunk = t.chunk});
}

// ---- Second thoughts ------------------------------------------------------------------------------------------------

// A victim that is needed again stays: taken back if its copy has not started, else it merely becomes clean.
void Mover::rescue(ChunkId chunk, TierId tier) {
  for (TransferId id = parts_.transfers.first_of(chunk); id != none;) {
    Transfer& t = parts_.transfers[id];
    const TransferId next = parts_.transfers.next_of_chunk(id);
    if (t.from == tier && t.purpose == Purpose::evict) {
      if (!t.in_flight && t.hop == 0 && parts_.memory.copy(chunk, t.to).pins == 0) {
        withdraw(id);
      } else {
        t.purpose = Purpose::clean;
        if (parts_.memory.copy(chunk, tier).evicting) parts_.memory.set_evicting(chunk, tier, false);
      }
    }
    id = next;
  }
}

void Mover::stop_transfers_from(ChunkId chunk, TierId tier) {
  for (TransferId id = parts_.transfers.first_of(chunk); id != none;) {
    Transfer& t = parts_.transfers[id];
    const TransferId next = parts_.transfers.next_of_chunk(id);
    if (t.from == tier && t.hop == 0) {
      if (t.in_flight) {
        t.discard = true;
        parts_.machine.cancel(t.fence);
      } else {
        withdraw(id);
      }
    }
    id = next;
  }
}

void Mover::discard_transfers_of(ChunkId chunk, TierId tier) {
  for (TransferId id = parts_.transfers.first_of(chunk); id != none;) {
    Transfer& t = parts_.transfers[id];
    const TransferId next = parts_.transfers.next_of_chunk(id);
    if (t.to == tier && t.in_flight) {
      t.discard = true;
      parts_.machine.cancel(t.fence);
    } else if (!t.in_flight && (t.to == tier || (t.from == tier && t.hop == 0))) {
      withdraw(id);
    }
    id = next;
  }
}

void Mover::discard_copy(ChunkId chunk, TierId tier) {
  if (parts_.memory.valid(chunk, tier)) {
    parts_.session.decide(Decision::Kind::release, chunk, tier, no_tier);
    parts_.copies.drop(chunk, tier);
  } else {
    parts_.memory.condemn(chunk, tier);  // its transfer is under way and will find itself discarded
  }
}

void Mover::kill(TensorId tensor) {
  const Because because(parts_.session, {.reason = Reason::dead});
  parts_.lives.dead[tensor] = 1;
  for (const ChunkId chunk : parts_.memory.chunks_of(tensor)) {
    for (TierId tier = 0; tier < parts_.memory.tier_count(); ++tier) invalidate(chunk, tier);
  }
  parts_.lives.born[tensor] = 0;
}

void Mover::remove_if_gone(TensorId tensor) {
  if (parts_.lives.doomed[tensor] == 0) return;
  for (const ChunkId chunk : parts_.memory.chunks_of(tensor)) {
    if (parts_.transfers.first_of(chunk) != none) return;
    for (TierId tier = 0; tier < parts_.memory.tier_count(); ++tier) {
      if (parts_.memory.copy(chunk, tier).state != CopyState::absent) return;
    }
  }
  parts_.lives.doomed[tensor] = 0;
  for (const ChunkId chunk : parts_.memory.chunks_of(tensor)) failures_.erase(chunk);
  parts_.program.gone(tensor);
  parts_.machine.tensor_destroyed(tensor);
  parts_.memory.remove_tensor(tensor);
}

}  // namespace tencache
