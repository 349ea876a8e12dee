#include "core/engine/mover.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/check.h"
#include "core/engine/tags.h"
#include "core/error.h"

namespace tencache {

using Because = PolicySession::Because;

Mover::Mover(const Parts& parts)
    : spec_(parts.spec),
      layout_(parts.layout),
      moment_(parts.moment),
      machine_(parts.machine),
      memory_(parts.memory),
      copies_(parts.copies),
      lives_(parts.lives),
      program_(parts.program),
      transfers_(parts.transfers),
      lanes_(parts.lanes),
      ledger_(parts.ledger),
      session_(parts.session) {
  for (TierId from = 0; from < spec_.tiers.size(); ++from) {
    for (TierId to = 0; to < spec_.tiers.size(); ++to) routes_[from][to] = find_route(from, to);
  }
}

// ---- Requests -------------------------------------------------------------------------------------------------------

Route Mover::find_route(TierId from, TierId to) const {
  Route route;
  for (const LinkId link : spec_.path_between(from, to)) {
    const BytesPerSecond bandwidth = spec_.links[link].bandwidth;
    route.bandwidth = route.hops == 0 ? bandwidth : std::min(route.bandwidth, bandwidth);
    route.links[route.hops++] = link;
  }
  return route;
}

// The valid copy that arrives soonest; the faster tier of two equals.
TierId Mover::source_for(ChunkId chunk, TierId to) const {
  TierId best = no_tier;
  for (TierId tier = 0; tier < memory_.tier_count(); ++tier) {
    if (tier == to || !memory_.valid(chunk, tier) || memory_.copy(chunk, tier).writers > 0) continue;
    if (routes_[tier][to].hops == 0) continue;
    if (best == no_tier || routes_[tier][to].bandwidth > routes_[best][to].bandwidth) best = tier;
  }
  return best;
}

bool Mover::fetch(ChunkId chunk, TierId to, Priority priority, OpIndex not_before, Refusal& refusal) {
  const Copy& copy = memory_.copy(chunk, to);
  if (copy.state == CopyState::valid) {
    if (copy.evicting) rescue(chunk, to);
    return true;
  }
  if (const TransferId coming = transfers_.find(chunk, to); coming != none) {
    if (priority == urgent) promote(coming);
    return true;
  }
  const TensorId tensor = memory_.tensor_of(chunk);
  if (copy.state != CopyState::absent || lives_.dead[tensor] != 0) {
    refusal = Refusal::stale;
    return false;
  }
  const TierId from = source_for(chunk, to);
  if (from == no_tier || arrives_on_the_way(chunk, from, to)) {
    refusal = Refusal::stale;
    return false;
  }
  if (!memory_.could_hold(chunk, to)) {
    refusal = Refusal::no_room;
    return false;
  }
  const TransferId id = add(chunk, from, to, Purpose::fetch, priority);
  session_.decide(Decision::Kind::fetch, chunk, from, to);
  if (priority != urgent && not_before != none && not_before != moment_.position) {
    transfers_.defer(id, not_before);
  } else {
    transfers_.enqueue(id, false);
  }
  return true;
}

// The path leads through a tier into which the chunk is being copied already: no second copy beside it.
bool Mover::arrives_on_the_way(ChunkId chunk, TierId from, TierId to) const {
  if (routes_[from][to].hops < 2) return false;
  const TransferId coming = transfers_.find(chunk, spec_.staging.tier);
  return coming != none && transfers_[coming].in_flight;
}

// Towards a slower tier: the room there is reserved now, so that nobody else can take it meanwhile.
bool Mover::send_out(ChunkId chunk, TierId from, TierId destination, Purpose purpose, Priority priority,
                     Refusal& refusal) {
  const Copy& copy = memory_.copy(chunk, from);
  if (copy.state != CopyState::valid || copy.writers > 0 || lives_.dead[memory_.tensor_of(chunk)] != 0) {
    refusal = Refusal::stale;
    return false;
  }
  // A prefetch of the same chunk to the same place that has not begun may never begin: an eviction takes its place.
  const auto prefetch_to = [&](TierId tier) {
    const TransferId coming = transfers_.find(chunk, tier);
    const bool replaceable = coming != none && purpose == Purpose::evict && !transfers_[coming].in_flight &&
                             transfers_[coming].hop == 0 && transfers_[coming].purpose == Purpose::fetch;
    return std::pair(coming == none || replaceable, coming);
  };
  const auto may_receive = [&](TierId tier) {
    const Copy& there = memory_.copy(chunk, tier);
    return tier != from && routes_[from][tier].hops > 0 && there.state == CopyState::absent && there.pins == 0 &&
           prefetch_to(tier).first;
  };
  TierId to = destination;
  if (destination != no_tier) {
    if (destination >= memory_.tier_count() || !may_receive(destination)) {
      refusal = Refusal::stale;
      return false;
    }
    if (!reserve_destination(chunk, destination)) to = no_tier;
  } else {
    for (to = static_cast<TierId>(from + 1); to < memory_.tier_count(); ++to) {
      if (may_receive(to) && reserve_destination(chunk, to)) break;
    }
    if (to == memory_.tier_count()) to = no_tier;
  }
  if (to == no_tier) {
    refusal = Refusal::no_room;
    return false;
  }
  if (const TransferId replaced = prefetch_to(to).second; replaced != none) withdraw(replaced);
  const TransferId id = add(chunk, from, to, purpose, priority);
  session_.decide(purpose == Purpose::evict ? Decision::Kind::evict : Decision::Kind::clean, chunk, from, to);
  transfers_.enqueue(id, false);
  return true;
}

// Whether the copy's room can go without a transfer: the value is dead, or valid somewhere else.
bool Mover::can_drop(ChunkId chunk, TierId tier) const {
  return lives_.dead[memory_.tensor_of(chunk)] != 0 || memory_.valid_elsewhere(chunk, tier);
}

bool Mover::evict(ChunkId chunk, TierId from, TierId destination, Priority priority, Refusal& refusal) {
  if (!memory_.evictable(chunk, from)) {
    refusal = Refusal::stale;
    return false;
  }
  if (can_drop(chunk, from)) {
    session_.decide(Decision::Kind::drop, chunk, from, no_tier);
    copies_.drop(chunk, from);
    return true;
  }
  if (!send_out(chunk, from, destination, Purpose::evict, priority, refusal)) return false;
  memory_.set_evicting(chunk, from, true);
  return true;
}

bool Mover::on_its_way(TensorId tensor, TierId tier) const {
  return std::ranges::any_of(memory_.chunks_of(tensor), [&](ChunkId chunk) {
    const TransferId id = transfers_.find(chunk, tier);
    return id != none && (transfers_[id].queued || transfers_[id].in_flight);
  });
}

// ---- What a policy wants --------------------------------------------------------------------------------------------

void Mover::take(const Action& action) {
  if (action.tensor >= memory_.tensor_count() || action.tier >= memory_.tier_count() ||
      lives_.doomed[action.tensor] != 0) {
    session_.refuse(Refusal::stale, action, none);
    return;
  }
  if (lanes_.out_of_patience(memory_.chunk_total())) {
    session_.refuse(Refusal::no_room, action, none);
    return;
  }
  if (action.verb == Verb::hold) {
    hold(action);
    return;
  }
  const ChunkId first = memory_.first_chunk(action.tensor);
  const std::uint32_t count = memory_.chunk_count(action.tensor);
  if (action.chunk != all_chunks && action.chunk >= count) {
    session_.refuse(Refusal::stale, action, none);
    return;
  }
  const ChunkId begin = action.chunk == all_chunks ? first : first + action.chunk;
  const ChunkId end = action.chunk == all_chunks ? first + count : begin + 1;
  for (ChunkId chunk = begin; chunk < end; ++chunk) {
    const Refusal refusal = take(action, chunk);
    if (refusal != Refusal::none) session_.refuse(refusal, action, chunk);
  }
}

void Mover::hold(const Action& action) {
  for (Lane& lane : lanes_) {
    // One that runs beside arrivals, or waits for an allocation, has started: the hold is for the next time.
    if (!lane.waiting || lane.active.back().started || lane.active.back().times.op != action.op) continue;
    lane.active.back().demand.holds.push_back({action.tensor, action.tier});
    lane.active.back().times.late = true;
    return;
  }
  lanes_.hold(action.op, {action.tensor, action.tier});
}

Refusal Mover::take(const Action& action, ChunkId chunk) {
  Refusal refusal = Refusal::none;
  const Priority priority = action.urgent ? urgent : normal;
  const TransferId coming = transfers_.find(chunk, action.tier);
  switch (action.verb) {
    case Verb::fetch:
      // What a waiting op lacks is its own affair: it asked already, or needs room and no content.
      if (memory_.copy(chunk, action.tier).state == CopyState::absent && memory_.copy(chunk, action.tier).pins > 0 &&
          coming == none) {
        return Refusal::stale;
      }
      fetch(chunk, action.tier, priority, action.not_before, refusal);
      return refusal;
    case Verb::evict:
      evict(chunk, action.tier, action.destination, priority, refusal);
      return refusal;
    case Verb::clean:
      send_out(chunk, action.tier, action.destination, Purpose::clean, action.urgent ? urgent : background, refusal);
      return refusal;
    case Verb::drop:
      if (!memory_.evictable(chunk, action.tier) || !can_drop(chunk, action.tier)) return Refusal::stale;
      evict(chunk, action.tier, no_tier, priority, refusal);
      return refusal;
    case Verb::cancel:
      if (coming == none || transfers_[coming].in_flight || transfers_[coming].hop > 0 ||
          transfers_[coming].purpose != Purpose::fetch || memory_.copy(chunk, action.tier).pins > 0) {
        return Refusal::stale;
      }
      session_.decide(Decision::Kind::cancel, chunk, transfers_[coming].from, action.tier);
      withdraw(coming);
      return refusal;
    case Verb::hold:
      break;
  }
  return refusal;
}

// ---- Room -----------------------------------------------------------------------------------------------------------

bool Mover::reserve_destination(ChunkId chunk, TierId tier) {
  if (memory_.copy(chunk, tier).state != CopyState::absent) return false;
  if (copies_.take(chunk, tier)) return true;
  const Because because(session_, {.reason = Reason::reclaim, .chunk = chunk});
  reclaim(tier, memory_.footprint(chunk, tier));
  return copies_.take(chunk, tier);
}

// Gives up copies that the GPU holds too; they are the coldest of their tier.
void Mover::reclaim(TierId tier, Bytes bytes) {
  if (tier == 0) return;
  for (ChunkId chunk = memory_.coldest(tier); chunk != none && memory_.free(tier) < bytes;) {
    const ChunkId next = memory_.warmer(chunk, tier);
    if (!memory_.valid(chunk, 0)) return;
    const Copy& copy = memory_.copy(chunk, tier);
    if (memory_.evictable(chunk, tier) && copy.readers == 0 && can_drop(chunk, tier)) {
      session_.decide(Decision::Kind::drop, chunk, tier, no_tier);
      copies_.drop(chunk, tier);
    }
    chunk = next;
  }
}

void Mover::make_room(TierId tier, Bytes bytes, bool prefetch, ChunkId incoming, ChunkId first, Priority priority) {
  std::uint64_t& asked = asked_[tier][prefetch ? 1 : 0];
  bool counts = asked != moment_.input;
  const auto lacking = [&]() -> Bytes {
    const Bytes have = memory_.free(tier) + memory_.leaving(tier);
    if (have < bytes) return bytes - have;
    // Enough in sum, and yet no place: holes too small, or buffers of the wrong size. Wait for what is leaving first.
    if (memory_.leaving(tier) > 0 || memory_.has_room(first, tier)) return 0;
    if (counts) ++ledger_.counters().placeless[tier];
    counts = false;
    return 1;
  };
  if (lacking() == 0) return;
  if (asked == moment_.input) return;
  asked = moment_.input;
  Why why{.reason = Reason::room, .prefetch = prefetch, .chunk = first};
  if (!prefetch) why.op = lanes_.waiting_in(tier).times.op;
  const Because for_room(session_, why);
  std::vector<ChunkId> victims;
  session_.ask_for_room({tier, lacking(), prefetch, incoming}, victims);
  Refusal refusal = Refusal::none;
  for (const ChunkId chunk : victims) {
    if (chunk < memory_.chunk_total()) evict(chunk, tier, no_tier, priority, refusal);
  }
  if (prefetch || !layout_.fallback_eviction || lacking() == 0) return;
  why.reason = Reason::coldest;
  const Because as_fallback(session_, why);
  for (ChunkId chunk = memory_.coldest(tier); chunk != none && lacking() > 0;) {
    const ChunkId next = memory_.warmer(chunk, tier);
    if (memory_.evictable(chunk, tier) && evict(chunk, tier, no_tier, priority, refusal)) {
      ++ledger_.counters().fallback_evictions;
    }
    chunk = next;
  }
}

// ---- Waiting transfers ----------------------------------------------------------------------------------------------

TransferId Mover::add(ChunkId chunk, TierId from, TierId to, Purpose purpose, Priority priority) {
  const TransferId id = transfers_.add(chunk);
  Transfer& t = transfers_[id];
  t.from = from;
  t.to = to;
  t.purpose = purpose;
  t.priority = priority;
  t.route = routes_[from][to];
  t.requested_at = moment_.position;
  t.lateness.asked_ns = t.lateness.room_ns = t.lateness.first_hop_ns = moment_.now;
  return id;
}

void Mover::remove(TransferId id) {
  const Transfer& t = transfers_[id];
  if (t.overlapped) --lanes_.waiting_in(t.to).demand.overlapped;
  const TensorId tensor = memory_.tensor_of(t.chunk);
  transfers_.remove(id);
  remove_if_gone(tensor);
}

void Mover::withdraw(TransferId id) {
  const Transfer& t = transfers_[id];
  TENCACHE_CHECK(!t.in_flight);
  if (t.queued) {
    transfers_.dequeue(id);
  } else {
    transfers_.undefer(id);
  }
  if (t.hop > 0) transfers_.free_staging(id);
  const bool destination_taken = t.purpose != Purpose::fetch || t.hop > 0;
  if (destination_taken) copies_.free(t.chunk, t.to);
  if (t.purpose == Purpose::evict && memory_.valid(t.chunk, t.from) && memory_.copy(t.chunk, t.from).evicting) {
    memory_.set_evicting(t.chunk, t.from, false);
  }
  remove(id);
}

void Mover::promote(TransferId id) {
  const Transfer& t = transfers_[id];
  if (layout_.promote) {
    lift(id);
  } else if (!t.queued && !t.in_flight) {  // deferred: it takes its place in the queue, but waits no longer for its op
    transfers_.undefer(id);
    transfers_.enqueue(id, false);
  }
}

void Mover::lift(TransferId id) {
  Transfer& t = transfers_[id];
  if (t.in_flight || t.priority == urgent) {
    t.priority = urgent;  // a second hop is queued as urgent
    return;
  }
  session_.decide(Decision::Kind::promote, t.chunk, t.from, t.to);
  if (t.queued) {
    transfers_.dequeue(id);
  } else {
    transfers_.undefer(id);
  }
  t.priority = urgent;
  transfers_.enqueue(id, false);
}

void Mover::lift_what_it_waits_for(const Lane& lane) {
  for (const Use& use : lane.active.back().uses) {
    if (use.tensor == none) continue;
    for (const ChunkId chunk : memory_.chunks_of(use.tensor)) {
      const TransferId id = transfers_.find(chunk, lane.tier);
      if (id != none && !transfers_[id].in_flight) lift(id);
    }
  }
  for (LinkId link = 0; link < spec_.links.size(); ++link) {
    for (TransferId id = transfers_.first_in_queue(link, normal); id != none;) {
      const TransferId next = transfers_.next_in_queue(id);
      if (transfers_[id].purpose == Purpose::evict && transfers_[id].from == lane.tier) lift(id);
      id = next;
    }
  }
}

// ---- Starting -------------------------------------------------------------------------------------------------------

bool Mover::start_from(LinkId link) {
  bool progress = false;
  while (transfers_.takes_another(link)) {
    bool started = false;
    for (std::size_t priority = 0; priority < priority_count && !started; ++priority) {
      TransferId first = transfers_.first_in_queue(link, priority);
      while (first != none && !source_stands(first)) {
        find_new_source(first);
        first = transfers_.first_in_queue(link, priority);
      }
      if (first != none) started = try_start(first);
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
    const std::uint64_t enqueued = transfers_.enqueued();
    progress = false;
    for (LinkId link = 0; link < spec_.links.size(); ++link) progress |= start_behind_blocked(link);
    progress |= transfers_.enqueued() != enqueued;
  }
}

bool Mover::start_behind_blocked(LinkId link) {
  bool progress = false;
  for (std::size_t priority = 0; priority < priority_count; ++priority) {
    for (TransferId id = transfers_.first_in_queue(link, priority); id != none && transfers_.takes_another(link);) {
      const Transfer& t = transfers_[id];
      const TransferId next = transfers_.next_in_queue(id);
      const bool prefetch = t.purpose == Purpose::fetch && t.hop == 0 && memory_.copy(t.chunk, t.to).pins == 0;
      if (!prefetch && !source_stands(id)) {
        find_new_source(id);
      } else if (!prefetch) {
        progress |= try_start(id);
      }
      // Room made for this one may have withdrawn the next; what came instead is looked at in another round.
      if (next != none) {
        const Transfer& after = transfers_[next];
        if (!after.queued || after.link() != link || after.priority != priority) break;
      }
      id = next;
    }
  }
  return progress;
}

// Taking the memory that the copy goes to, where this policy takes it afresh each time.
Nanoseconds Mover::setup_of(Bytes bytes, TierId tier) const {
  if (!layout_.allocate_each[tier]) return 0;
  const AllocationCost& cost = spec_.tiers[tier].allocation;
  if (cost.power_of_two) bytes = std::bit_ceil(bytes);
  if (cost.bandwidth == 0) return cost.per_call_ns;
  const uint128 size_ns =
      (static_cast<uint128>(bytes) * static_cast<uint128>(second_ns) + cost.bandwidth - 1) / cost.bandwidth;
  const uint128 most_ns = 1ull << 62;  // longer than any clock runs, and sums of it do not overflow
  return cost.per_call_ns + static_cast<Nanoseconds>(std::min(size_ns, most_ns));
}

bool Mover::source_stands(TransferId id) const {
  const Transfer& t = transfers_[id];
  return t.hop > 0 || (memory_.valid(t.chunk, t.from) && memory_.copy(t.chunk, t.from).writers == 0);
}

// What the transfer was to copy has left that tier since it was asked for.
void Mover::find_new_source(TransferId id) {
  const Because because(session_, {.reason = Reason::retry});
  const Transfer old = transfers_[id];
  withdraw(id);
  const bool wanted = memory_.copy(old.chunk, old.to).pins > 0;
  const bool prefetched = old.purpose == Purpose::fetch;
  if (memory_.copy(old.chunk, old.to).state != CopyState::absent || (!prefetched && !wanted)) return;
  OpDemand* demand = wanted ? &lanes_.waiting_in(old.to).demand : nullptr;
  // What was not fetched had room; now the op needs some again.
  if (!prefetched) lanes_.want_room(old.to, *demand, memory_.footprint(old.chunk, old.to));
  Refusal refusal = Refusal::none;
  if (fetch(old.chunk, old.to, prefetched ? old.priority : urgent, none, refusal)) return;
  if (wanted) demand->stranded.push_back(old.chunk);
}

bool Mover::try_start(TransferId id) {
  const Transfer& t = transfers_[id];
  if (t.hop == 0) {
    const bool staged = t.route.hops > 1;
    if (staged && !transfers_.take_staging(id, memory_.bytes_of(t.chunk))) return false;
    if (t.purpose == Purpose::fetch && !room_for_fetch(id)) {
      if (staged) transfers_.free_staging(id);
      return false;
    }
  }
  submit(id);
  return true;
}

bool Mover::room_for_fetch(TransferId id) {
  const ChunkId chunk = transfers_[id].chunk;
  const TierId to = transfers_[id].to;
  if (memory_.copy(chunk, to).state != CopyState::absent) return false;  // its former life is still being copied
  const bool wanted = memory_.copy(chunk, to).pins > 0;
  const Bytes footprint = memory_.footprint(chunk, to);
  const Bytes wanted_by_ops = lanes_.room_wanted(to);
  if (!wanted && wanted_by_ops > 0 && memory_.free(to) < wanted_by_ops + footprint) return false;
  if (!copies_.take(chunk, to)) {
    Bytes bytes = footprint;
    if (wanted) {
      bytes = lanes_.waiting_in(to).demand.room_needed;
    } else if (const TransferId behind = transfers_.next_in_queue(id); behind != none) {
      bytes += memory_.footprint(transfers_[behind].chunk, to);  // two ahead, so that both directions run at once
    }
    make_room(to, bytes, !wanted, chunk, chunk, wanted ? urgent : normal);
    if (!source_stands(id)) return false;  // it was given up to make room: the next round seeks another
    if (!copies_.take(chunk, to)) {
      transfers_[id].lateness.room_ns = -1;  // blocked
      return false;
    }
  }
  Lateness& late = transfers_[id].lateness;
  if (late.room_ns < 0) late.room = last_room_cause_[to];
  late.room_ns = late.room_ns < 0 ? moment_.now : late.asked_ns;
  late.first_hop_ns = late.room_ns;
  if (wanted) lanes_.got_room(to, lanes_.waiting_in(to).demand, footprint);
  return true;
}

// What is asserted here about the two places holds again when the machine is done (complete).
void Mover::submit(TransferId id) {
  Transfer& t = transfers_[id];
  const bool first = t.hop == 0;
  const bool last = t.hop + 1 == t.route.hops;
  TENCACHE_CHECK(source_stands(id) && (t.route.hops == 1 || t.staging.count > 0));
  TENCACHE_CHECK(memory_.copy(t.chunk, t.to).state == CopyState::reserved);
  const Place staging{spec_.staging.tier, t.staging.first};
  CopyCommand copy;
  copy.link = t.link();
  copy.tensor = memory_.tensor_of(t.chunk);
  copy.chunk = t.chunk;
  copy.begin = memory_.begin_of(t.chunk);
  copy.bytes = memory_.bytes_of(t.chunk);
  copy.from = first ? Place{t.from, memory_.copy(t.chunk, t.from).offset} : staging;
  copy.to = last ? Place{t.to, memory_.copy(t.chunk, t.to).offset} : staging;
  copy.from_staging = !first;
  copy.to_staging = !last;
  if (last) copy.setup_ns = setup_of(copy.bytes, t.to);
  if (first) memory_.add_reader(t.chunk, t.from);
  transfers_.begin(id, copy.bytes, moment_.now);
  t.fence = machine_.submit(copy, make_tag(TagKind::transfer, id));
}

// ---- Ends -----------------------------------------------------------------------------------------------------------

void Mover::complete(TransferId id, const Completion& completion) {
  const Transfer& t = transfers_[id];
  TENCACHE_CHECK(t.in_flight && t.fence == completion.fence && completion.start_ns <= completion.end_ns);
  const CopyState there = memory_.copy(t.chunk, t.to).state;
  TENCACHE_CHECK(there == CopyState::reserved || (there == CopyState::condemned && t.discard));
  TENCACHE_CHECK(t.route.hops == 1 || t.staging.count > 0);
  transfers_.end(id);
  const bool done = completion.status == CompletionStatus::done;
  const Bytes bytes = done ? memory_.bytes_of(t.chunk) : 0;
  const LinkId link = t.link();
  ledger_.copied(link, bytes,
                 {.start_ns = completion.start_ns,
                  .end_ns = completion.end_ns,
                  .kind = SpanKind::transfer,
                  .cause = cause_of(spec_, link),
                  .urgent = t.priority == urgent,
                  .lane = static_cast<std::uint8_t>(lane_count + link),
                  .iteration = moment_.iteration,
                  .op = t.requested_at,
                  .tensor = memory_.tensor_of(t.chunk),
                  .chunk = t.chunk,
                  .bytes = bytes,
                  .from = t.from,
                  .to = t.to});
  if (t.hop == 0) memory_.remove_reader(t.chunk, t.from);
  if (!done || t.discard) {
    fail(id, t.discard || completion.status == CompletionStatus::cancelled);
  } else if (t.hop + 1 == t.route.hops) {
    arrive(id);
  } else {
    Transfer& staged = transfers_[id];
    staged.lateness.first_hop_ns = completion.end_ns;
    staged.lateness.first_hop = cause_of(spec_, link);
    ++staged.hop;
    release_source(staged);
    transfers_.enqueue(id, true);
  }
}

// The first copy of an eviction is over: its room goes free unless the chunk was needed again meanwhile.
void Mover::release_source(const Transfer& t) {
  const Copy& source = memory_.copy(t.chunk, t.from);
  if (source.state == CopyState::condemned) {
    if (source.readers == 0) copies_.free(t.chunk, t.from);
    return;
  }
  if (t.purpose != Purpose::evict || source.state != CopyState::valid || !source.evicting) return;
  TENCACHE_CHECK(source.pins == 0);
  last_room_cause_[t.from] = cause_of(spec_, t.route.links[0]);
  copies_.drop(t.chunk, t.from);
}

void Mover::arrive(TransferId id) {
  const Transfer t = transfers_[id];
  if (t.hop > 0) transfers_.free_staging(id);
  if (!failures_.empty()) failures_.erase(t.chunk);
  memory_.commit(t.chunk, t.to);
  if (t.hop == 0) release_source(t);
  if (t.purpose == Purpose::fetch && layout_.exclusive_copies && memory_.valid(t.chunk, t.from) &&
      memory_.evictable(t.chunk, t.from) && memory_.copy(t.chunk, t.from).writers == 0) {
    copies_.drop(t.chunk, t.from);
  }
  tell_waiting_ops(t);
  remove(id);
  session_.emit({.kind = EventKind::transfer_done,
                 .from = t.from,
                 .to = t.to,
                 .op = moment_.position,
                 .tensor = memory_.tensor_of(t.chunk),
                 .chunk = t.chunk});
}

void Mover::tell_waiting_ops(const Transfer& t) {
  const auto was_late = [&](ActiveOp& op) {
    op.times.lateness = t.lateness;
    op.times.lateness.last = cause_of(spec_, t.link());
  };
  if (memory_.copy(t.chunk, t.to).pins > 0) {
    ActiveOp& op = lanes_.waiting_in(t.to);
    TENCACHE_CHECK(op.demand.missing > 0);
    --op.demand.missing;
    was_late(op);
  }
  for (Lane& lane : lanes_) {
    if (!lane.waiting) continue;
    ActiveOp& op = lane.active.back();
    const std::vector<ChunkId>& stranded = op.demand.stranded;
    if (std::ranges::find(stranded, t.chunk) != stranded.end()) op.demand.stranded_cause = cause_of(spec_, t.link());
    for (const Hold& hold : op.demand.holds) {
      if (hold.tensor == memory_.tensor_of(t.chunk) && hold.tier == t.to) was_late(op);
    }
  }
}

void Mover::fail(TransferId id, bool cancelled) {
  const Transfer t = transfers_[id];
  if (!cancelled && ++failures_[t.chunk] >= failures_tolerated) {
    throw Error("moving " + format_bytes(memory_.bytes_of(t.chunk)) + " of " +
                program_.title_of(memory_.tensor_of(t.chunk)) + " from '" + spec_.tiers[t.from].name + "' to '" +
                spec_.tiers[t.to].name + "' failed " + std::to_string(failures_tolerated) + " times in a row" +
                reason_of_failure(machine_) + "; check the device and the space left on it");
  }
  if (!cancelled && t.hop > 0) {  // its source may be gone: the buffer holds the only copy, so try again
    transfers_.enqueue(id, true);
    return;
  }
  if (t.staging.count > 0) transfers_.free_staging(id);
  const bool wanted = memory_.copy(t.chunk, t.to).pins > 0 && memory_.copy(t.chunk, t.to).state == CopyState::reserved;
  copies_.free(t.chunk, t.to);
  if (t.hop == 0) {  // later, what lies in that tier is none of this transfer's: perhaps another's on its way there
    const Copy& source = memory_.copy(t.chunk, t.from);
    if (t.purpose == Purpose::evict && source.state == CopyState::valid && source.evicting) {
      memory_.set_evicting(t.chunk, t.from, false);
    }
    if (source.state == CopyState::condemned && source.readers == 0) copies_.free(t.chunk, t.from);
  }
  if (wanted) {  // the op still needs it: ask again
    OpDemand& demand = lanes_.waiting_in(t.to).demand;
    lanes_.want_room(t.to, demand, memory_.footprint(t.chunk, t.to));
    demand.stranded.push_back(t.chunk);
  }
  remove(id);
  if (cancelled) return;
  ++ledger_.counters().refusals;
  session_.emit({.kind = EventKind::refused,
                 .refusal = Refusal::io_error,
                 .from = t.from,
                 .to = t.to,
                 .op = moment_.position,
                 .tensor = memory_.tensor_of(t.chunk),
                 .chunk = t.chunk});
}

// ---- Second thoughts ------------------------------------------------------------------------------------------------

// A victim that is needed again stays: taken back if its copy has not started, else it merely becomes clean.
void Mover::rescue(ChunkId chunk, TierId tier) {
  for (TransferId id = transfers_.first_of(chunk); id != none;) {
    Transfer& t = transfers_[id];
    const TransferId next = transfers_.next_of_chunk(id);
    if (t.from == tier && t.purpose == Purpose::evict) {
      if (!t.in_flight && t.hop == 0 && memory_.copy(chunk, t.to).pins == 0) {
        withdraw(id);
      } else {
        t.purpose = Purpose::clean;
        if (memory_.copy(chunk, tier).evicting) memory_.set_evicting(chunk, tier, false);
      }
    }
    id = next;
  }
}

void Mover::stop_from(ChunkId chunk, TierId tier) {
  for (TransferId id = transfers_.first_of(chunk); id != none;) {
    Transfer& t = transfers_[id];
    const TransferId next = transfers_.next_of_chunk(id);
    if (t.from == tier && t.hop == 0) {
      if (t.in_flight) {
        t.discard = true;
        machine_.cancel(t.fence);
      } else {
        withdraw(id);
      }
    }
    id = next;
  }
}

void Mover::invalidate(ChunkId chunk, TierId tier) {
  for (TransferId id = transfers_.first_of(chunk); id != none;) {
    Transfer& t = transfers_[id];
    const TransferId next = transfers_.next_of_chunk(id);
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
    session_.decide(Decision::Kind::release, chunk, tier, no_tier);
    copies_.drop(chunk, tier);
  } else if (state == CopyState::reserved) {
    memory_.condemn(chunk, tier);  // its transfer is under way and will find itself discarded
  }
}

void Mover::kill(TensorId tensor) {
  const Because because(session_, {.reason = Reason::dead});
  lives_.dead[tensor] = 1;
  for (const ChunkId chunk : memory_.chunks_of(tensor)) {
    for (TierId tier = 0; tier < memory_.tier_count(); ++tier) invalidate(chunk, tier);
  }
  lives_.born[tensor] = 0;
}

void Mover::remove_if_gone(TensorId tensor) {
  if (lives_.doomed[tensor] == 0) return;
  for (const ChunkId chunk : memory_.chunks_of(tensor)) {
    if (transfers_.first_of(chunk) != none) return;
    for (TierId tier = 0; tier < memory_.tier_count(); ++tier) {
      if (memory_.copy(chunk, tier).state != CopyState::absent) return;
    }
  }
  lives_.doomed[tensor] = 0;
  for (const ChunkId chunk : memory_.chunks_of(tensor)) failures_.erase(chunk);
  program_.gone(tensor);
  machine_.tensor_destroyed(tensor);
  memory_.remove_tensor(tensor);
}

}  // namespace tencache
