#include "core/engine/mover.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/error.h"

namespace tencache {

using Because = PolicySession::Because;

Mover::Mover(EngineState& state, PolicySession& session)
    : state_(state), session_(session), rooms_(state, session, [this](ChunkId chunk, TierId from, Priority priority) {
        return evict(chunk, from, no_tier, priority);
      }) {
  for (LinkId link = 0; link < state_.spec.links.size(); ++link) causes_[link] = cause_of(state_.spec, link);
}

// ---- Requests -------------------------------------------------------------------------------------------------------

// The valid copy that arrives soonest; the faster tier of two equals.
TierId Mover::source_for(ChunkId chunk, TierId to) const {
  TierId best = no_tier;
  for (TierId tier = 0; tier < state_.memory.tier_count(); ++tier) {
    if (tier == to || !state_.memory.valid(chunk, tier) || state_.memory.copy(chunk, tier).writers > 0) continue;
    if (state_.routes[tier][to].hops == 0) continue;
    if (best == no_tier || state_.routes[tier][to].bandwidth > state_.routes[best][to].bandwidth) best = tier;
  }
  return best;
}

Refusal Mover::fetch(ChunkId chunk, TierId to, Priority priority, OpIndex not_before) {
  const Copy& copy = state_.memory.copy(chunk, to);
  if (copy.state == CopyState::valid) {
    if (copy.evicting) rescue(chunk, to);
    return Refusal::none;
  }
  if (const TransferId coming = state_.transfers.find(chunk, to); coming != none) {
    if (priority == Priority::urgent) promote(coming);
    return Refusal::none;
  }
  const TensorId tensor = state_.memory.tensor_of(chunk);
  if (copy.state != CopyState::absent || state_.lives.dead[tensor] != 0) return Refusal::stale;
  const TierId from = source_for(chunk, to);
  if (from == no_tier || arrives_on_the_way(chunk, from, to)) return Refusal::stale;
  if (!state_.memory.could_hold(chunk, to)) return Refusal::no_room;
  const TransferId id = add(chunk, from, to, Purpose::fetch, priority);
  session_.decide(Decision::Kind::fetch, chunk, from, to);
  if (priority != Priority::urgent && not_before != none && not_before != state_.moment.position) {
    state_.transfers.defer(id, not_before);
  } else {
    state_.transfers.enqueue(id, false);
  }
  return Refusal::none;
}

// The path leads through a tier into which the chunk is being copied already: no second copy beside it.
bool Mover::arrives_on_the_way(ChunkId chunk, TierId from, TierId to) const {
  if (state_.routes[from][to].hops < 2) return false;
  const TransferId coming = state_.transfers.find(chunk, state_.spec.staging.tier);
  return coming != none && state_.transfers[coming].in_flight;
}

// Towards a slower tier: the room there is reserved now, so that nobody else can take it meanwhile.
Refusal Mover::send_out(ChunkId chunk, TierId from, TierId destination, Purpose purpose, Priority priority) {
  const Copy& copy = state_.memory.copy(chunk, from);
  if (copy.state != CopyState::valid || copy.writers > 0 || state_.lives.dead[state_.memory.tensor_of(chunk)] != 0)
    return Refusal::stale;
  // A prefetch of the same chunk to the same place that has not begun may never begin: an eviction takes its place.
  const auto prefetch_to = [&](TierId tier) {
    const TransferId coming = state_.transfers.find(chunk, tier);
    const bool replaceable = coming != none && purpose == Purpose::evict && !state_.transfers[coming].in_flight &&
                             state_.transfers[coming].hop == 0 && state_.transfers[coming].purpose == Purpose::fetch;
    return std::pair(coming == none || replaceable, coming);
  };
  const auto may_receive = [&](TierId tier) {
    const Copy& there = state_.memory.copy(chunk, tier);
    return tier != from && state_.routes[from][tier].hops > 0 && there.state == CopyState::absent && there.pins == 0 &&
           prefetch_to(tier).first;
  };
  TierId to = destination;
  if (destination != no_tier) {
    if (destination >= state_.memory.tier_count() || !may_receive(destination)) return Refusal::stale;
    if (purpose == Purpose::evict && !state_.memory.keeps(destination)) return Refusal::stale;
    if (!rooms_.reserve(chunk, destination)) to = no_tier;
  } else {
    for (to = static_cast<TierId>(from + 1); to < state_.memory.tier_count(); ++to) {
      if (state_.memory.keeps(to) && may_receive(to) && rooms_.reserve(chunk, to)) break;
    }
    if (to == state_.memory.tier_count()) to = no_tier;
  }
  if (to == no_tier) return Refusal::no_room;
  if (const TransferId replaced = prefetch_to(to).second; replaced != none) withdraw(replaced);
  const TransferId id = add(chunk, from, to, purpose, priority);
  session_.decide(purpose == Purpose::evict ? Decision::Kind::evict : Decision::Kind::clean, chunk, from, to);
  state_.transfers.enqueue(id, false);
  return Refusal::none;
}

Refusal Mover::evict(ChunkId chunk, TierId from, TierId destination, Priority priority) {
  if (!state_.memory.evictable(chunk, from)) return Refusal::stale;
  if (state_.can_drop(chunk, from)) {
    session_.decide(Decision::Kind::drop, chunk, from, no_tier);
    state_.copies.drop(chunk, from);
    return Refusal::none;
  }
  const Refusal refusal = send_out(chunk, from, destination, Purpose::evict, priority);
  if (refusal == Refusal::none) state_.memory.set_evicting(chunk, from, true);
  return refusal;
}

bool Mover::on_its_way(TensorId tensor, TierId tier) const {
  for (const ChunkId chunk : state_.memory.chunks_of(tensor)) {
    const TransferId id = state_.transfers.find(chunk, tier);
    if (id != none && (state_.transfers[id].queued || state_.transfers[id].in_flight)) return true;
  }
  return false;
}

// ---- What a policy wants --------------------------------------------------------------------------------------------

void Mover::take(const Action& action) {
  if (action.tensor >= state_.memory.tensor_count() || action.tier >= state_.memory.tier_count() ||
      state_.lives.doomed[action.tensor] != 0) {
    session_.refuse(Refusal::stale, action, none);
    return;
  }
  if (state_.lanes.out_of_patience(state_.memory.chunk_total())) {
    session_.refuse(Refusal::no_room, action, none);
    return;
  }
  if (action.verb == Verb::hold) {
    hold(action);
    return;
  }
  const ChunkId first = state_.memory.first_chunk(action.tensor);
  const std::uint32_t count = state_.memory.chunk_count(action.tensor);
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
  for (OpLane& lane : state_.lanes) {
    // One that runs beside arrivals, or waits for an allocation, has started: the hold is for the next time.
    if (!lane.waiting || lane.active.back().started || lane.active.back().times.op != action.op) continue;
    lane.active.back().demand.add_hold({action.tensor, action.tier});
    lane.active.back().times.late = true;
    return;
  }
  state_.lanes.hold(action.op, {action.tensor, action.tier});
}

Refusal Mover::take(const Action& action, ChunkId chunk) {
  const Priority priority = action.urgent ? Priority::urgent : Priority::normal;
  const TransferId coming = state_.transfers.find(chunk, action.tier);
  switch (action.verb) {
    case Verb::fetch:
      // What a waiting op lacks is its own affair: it asked already, or needs room and no content.
      if (state_.memory.copy(chunk, action.tier).state == CopyState::absent && state_.wanted(chunk, action.tier) &&
          coming == none) {
        return Refusal::stale;
      }
      return fetch(chunk, action.tier, priority, action.not_before);
    case Verb::evict:
      return evict(chunk, action.tier, action.destination, priority);
    case Verb::clean:
      return send_out(chunk, action.tier, action.destination, Purpose::clean,
                      action.urgent ? Priority::urgent : Priority::background);
    case Verb::drop:
      if (!state_.memory.evictable(chunk, action.tier) || !state_.can_drop(chunk, action.tier)) return Refusal::stale;
      return evict(chunk, action.tier, no_tier, priority);
    case Verb::cancel:
      if (coming == none || state_.transfers[coming].in_flight || state_.transfers[coming].begun() ||
          state_.transfers[coming].purpose != Purpose::fetch || state_.wanted(chunk, action.tier)) {
        return Refusal::stale;
      }
      session_.decide(Decision::Kind::cancel, chunk, state_.transfers[coming].from, action.tier);
      withdraw(coming);
      return Refusal::none;
    case Verb::hold:
      break;
  }
  return Refusal::none;
}

// ---- Waiting transfers ----------------------------------------------------------------------------------------------

TransferId Mover::add(ChunkId chunk, TierId from, TierId to, Purpose purpose, Priority priority) {
  const TransferId id = state_.transfers.add(chunk);
  Transfer& t = state_.transfers[id];
  t.from = from;
  t.to = to;
  t.purpose = purpose;
  t.priority = priority;
  t.route = state_.routes[from][to];
  t.bytes = t.piece = state_.memory.bytes_moved(chunk, from, to);
  if (t.route.hops > 1 && state_.machine.pretends()) t.piece = std::min(t.bytes, state_.spec.staging.all_bytes());
  t.requested_at = state_.moment.position;
  t.lateness.asked_ns = t.lateness.room_ns = t.lateness.first_hop_ns = state_.moment.now;
  return id;
}

void Mover::remove(TransferId id) {
  const Transfer& t = state_.transfers[id];
  if (t.overlapped) --state_.lanes.waiting_in(t.to).demand.overlapped;
  const TensorId tensor = state_.memory.tensor_of(t.chunk);
  state_.lanes.doubt_hold({tensor, t.to});
  state_.transfers.remove(id);
  remove_if_gone(tensor);
}

void Mover::withdraw(TransferId id) {
  const Transfer& t = state_.transfers[id];
  TENCACHE_CHECK(!t.in_flight);
  state_.transfers.take_out(id);
  if (t.begun()) state_.transfers.free_staging(id);
  const bool destination_taken = t.purpose != Purpose::fetch || t.begun();
  if (destination_taken) state_.copies.free(t.chunk, t.to);
  if (t.purpose == Purpose::evict && state_.memory.valid(t.chunk, t.from) &&
      state_.memory.copy(t.chunk, t.from).evicting) {
    state_.memory.set_evicting(t.chunk, t.from, false);
  }
  remove(id);
}

void Mover::give_up_fetches(TierId tier) {
  for (ChunkId chunk = 0; chunk < state_.memory.chunk_total(); ++chunk) {
    const TransferId coming = state_.transfers.find(chunk, tier);
    if (coming == none || state_.transfers[coming].in_flight || state_.transfers[coming].begun()) continue;
    session_.decide(Decision::Kind::cancel, chunk, state_.transfers[coming].from, tier);
    withdraw(coming);
  }
}

void Mover::promote(TransferId id) {
  const Transfer& t = state_.transfers[id];
  if (state_.layout.promote) {
    lift(id);
  } else if (!t.queued && !t.in_flight) {  // deferred: it takes its place in the queue, but waits no longer for its op
    state_.transfers.take_out(id);
    state_.transfers.enqueue(id, false);
  }
}

void Mover::lift(TransferId id) {
  Transfer& t = state_.transfers[id];
  if (t.in_flight || t.priority == Priority::urgent) {
    t.priority = Priority::urgent;  // a second hop is queued as urgent
    return;
  }
  session_.decide(Decision::Kind::promote, t.chunk, t.from, t.to);
  state_.transfers.take_out(id);
  t.priority = Priority::urgent;
  state_.transfers.enqueue(id, false);
}

void Mover::lift_what_it_waits_for(const OpLane& lane) {
  for (const Use& use : lane.active.back().uses) {
    if (use.tensor == none) continue;
    for (const ChunkId chunk : state_.memory.chunks_of(use.tensor)) {
      const TransferId id = state_.transfers.find(chunk, lane.tier);
      if (id != none && !state_.transfers[id].in_flight) lift(id);
    }
  }
  const auto leads_out = [&](LinkId link) {  // another may have thousands of prefetches in its queue
    return std::ranges::any_of(state_.routes[lane.tier],
                               [link](const Route& route) { return std::ranges::count(route.links, link) > 0; });
  };
  for (LinkId link = 0; link < state_.spec.links.size(); ++link) {
    if (!leads_out(link)) continue;
    for (TransferId id = state_.transfers.first_in_queue(link, Priority::normal); id != none;) {
      const TransferId next = state_.transfers.next_in_queue(id);
      if (state_.transfers[id].purpose == Purpose::evict && state_.transfers[id].from == lane.tier) lift(id);
      id = next;
    }
  }
}

// ---- Starting -------------------------------------------------------------------------------------------------------

bool Mover::start_from(LinkId link) {
  bool progress = false;
  while (state_.transfers.takes_another(link)) {
    bool started = false;
    for (const Priority priority : every_priority) {
      TransferId first = state_.transfers.first_in_queue(link, priority);
      while (first != none && !source_stands(first)) {
        find_new_source(first);
        first = state_.transfers.first_in_queue(link, priority);
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
    const std::uint64_t enqueued = state_.transfers.enqueued();
    progress = false;
    for (LinkId link = 0; link < state_.spec.links.size(); ++link) progress |= start_behind_blocked(link);
    progress |= state_.transfers.enqueued() != enqueued;
  }
}

bool Mover::start_behind_blocked(LinkId link) {
  bool progress = false;
  for (const Priority priority : every_priority) {
    for (TransferId id = state_.transfers.first_in_queue(link, priority);
         id != none && state_.transfers.takes_another(link);) {
      const Transfer& t = state_.transfers[id];
      const TransferId next = state_.transfers.next_in_queue(id);
      const bool prefetch = t.purpose == Purpose::fetch && !t.begun() && state_.memory.copy(t.chunk, t.to).pins == 0;
      if (!prefetch && !source_stands(id)) {
        find_new_source(id);
      } else if (!prefetch) {
        progress |= try_start(id);
      }
      // Room made for this one may have withdrawn the next; what came instead is looked at in another round.
      if (next != none) {
        const Transfer& after = state_.transfers[next];
        if (!after.queued || after.link() != link || after.priority != priority) break;
      }
      id = next;
    }
  }
  return progress;
}

// Taking the memory that the copy goes to, where this policy takes it afresh each time.
Nanoseconds Mover::setup_of(const Transfer& t) const {
  if (!state_.layout.allocate_each[t.to]) return 0;
  const AllocationCost& cost = state_.spec.tiers[t.to].allocation;
  Bytes bytes = state_.memory.bytes_in(t.chunk, t.to);
  if (cost.power_of_two) bytes = std::bit_ceil(bytes);
  if (cost.bandwidth == 0) return cost.per_call_ns;
  const uint128 size_ns =
      (static_cast<uint128>(bytes) * static_cast<uint128>(second_ns) + cost.bandwidth - 1) / cost.bandwidth;
  const uint128 most_ns = 1ull << 62;  // longer than any clock runs, and sums of it do not overflow
  return cost.per_call_ns + static_cast<Nanoseconds>(std::min(size_ns, most_ns));
}

// Of what arrives in a smaller form than its tier keeps it in.
Nanoseconds Mover::expansion_of(const Transfer& t) const {
  const BytesPerSecond rate = state_.spec.tiers[t.to].expand_bandwidth;
  if (rate == 0) return 0;
  const Bytes bytes = state_.memory.bytes_in(t.chunk, t.to);
  if (bytes <= t.bytes) return 0;
  return static_cast<Nanoseconds>((static_cast<uint128>(bytes) * static_cast<uint128>(second_ns) + rate - 1) / rate);
}

bool Mover::source_stands(TransferId id) const {
  const Transfer& t = state_.transfers[id];
  return t.hop > 0 || (state_.memory.valid(t.chunk, t.from) && state_.memory.copy(t.chunk, t.from).writers == 0);
}

// What the transfer was to copy has left that tier since it was asked for.
void Mover::find_new_source(TransferId id) {
  const Because because(session_, {.reason = Reason::retry});
  const Transfer old = state_.transfers[id];
  withdraw(id);
  const bool wanted = state_.wanted(old.chunk, old.to);
  const bool prefetched = old.purpose == Purpose::fetch;
  if (state_.memory.copy(old.chunk, old.to).state != CopyState::absent || (!prefetched && !wanted)) return;
  OpDemand* demand = wanted ? &state_.lanes.waiting_in(old.to).demand : nullptr;
  // What was not fetched, or had begun, had room; now the op needs some again.
  if (wanted && (!prefetched || old.begun())) {
    state_.lanes.want_room(old.to, *demand, state_.memory.footprint(old.chunk, old.to));
  }
  const Refusal refusal = fetch(old.chunk, old.to, prefetched ? old.priority : Priority::urgent, none);
  if (refusal == Refusal::none) return;
  if (wanted) demand->stranded.push_back(old.chunk);
}

bool Mover::try_start(TransferId id) {
  const Transfer& t = state_.transfers[id];
  if (!t.begun()) {
    const bool staged = t.route.hops > 1;
    if (staged && !state_.transfers.take_staging(id, t.piece)) return false;
    if (t.purpose == Purpose::fetch && !room_for_fetch(id)) {
      if (staged) state_.transfers.free_staging(id);
      return false;
    }
  }
  submit(id);
  return true;
}

bool Mover::room_for_fetch(TransferId id) {
  const ChunkId chunk = state_.transfers[id].chunk;
  const TierId to = state_.transfers[id].to;
  if (state_.memory.copy(chunk, to).state != CopyState::absent) return false;  // its former life is still being copied
  const bool wanted = state_.wanted(chunk, to);
  const Bytes footprint = state_.memory.footprint(chunk, to);
  const Bytes wanted_by_ops = state_.lanes.room_wanted(to);
  if (!wanted && wanted_by_ops > 0 && state_.memory.free(to) < wanted_by_ops + footprint) return false;
  const Route& route = state_.transfers[id].route;
  const LinkId last_link = route.links[route.hops - 1];
  if (!rooms_.take(chunk, to, last_link)) {
    Bytes bytes = footprint;
    if (wanted) {
      bytes = state_.lanes.waiting_in(to).demand.room_needed;
    } else if (const TransferId behind = state_.transfers.next_in_queue(id); behind != none) {
      bytes += state_.memory.footprint(state_.transfers[behind].chunk,
                                       to);  // two ahead, so that both directions run at once
    }
    const bool made = rooms_.make_room(to, bytes, !wanted, chunk, chunk, wanted ? Priority::urgent : Priority::normal);
    if (made && !source_stands(id)) return false;  // it was given up to make room: the next round seeks another
    if (!made || !rooms_.take(chunk, to, last_link)) {
      state_.transfers[id].lateness.room_ns = -1;  // blocked
      return false;
    }
  }
  Lateness& late = state_.transfers[id].lateness;
  if (late.room_ns < 0) late.room = rooms_.last_cause(to);
  late.room_ns = late.room_ns < 0 ? state_.moment.now : late.asked_ns;
  late.first_hop_ns = late.room_ns;
  if (wanted) state_.lanes.got_room(to, state_.lanes.waiting_in(to).demand, footprint);
  return true;
}

// What is asserted here about the two places holds again when the machine is done (complete).
void Mover::submit(TransferId id) {
  Transfer& t = state_.transfers[id];
  const bool first = t.hop == 0;
  const bool last = t.hop + 1 == t.route.hops;
  TENCACHE_CHECK(source_stands(id) && (t.route.hops == 1 || t.staging.count > 0));
  TENCACHE_CHECK(state_.memory.copy(t.chunk, t.to).state == CopyState::reserved);
  const Place staging{state_.spec.staging.tier, t.staging.first};
  CopyCommand copy;
  copy.link = t.link();
  copy.tensor = state_.memory.tensor_of(t.chunk);
  copy.chunk = t.chunk;
  copy.begin = state_.memory.begin_of(t.chunk) + t.moved;
  copy.bytes = t.piece;
  copy.from = first ? Place{t.from, state_.memory.offset(t.chunk, t.from)} : staging;
  copy.to = last ? Place{t.to, state_.memory.offset(t.chunk, t.to)} : staging;
  copy.from_staging = !first;
  copy.to_staging = !last;
  if (last && t.moved == 0) copy.setup_ns = setup_of(t) + expansion_of(t);
  copy.memory = copy.from_staging || copy.to_staging
                    ? state_.layout.staging_memory
                    : state_.layout.copy_memory[static_cast<std::size_t>(state_.memory.role(copy.tensor))];
  if (first) state_.memory.add_reader(t.chunk, t.from);
  state_.transfers.begin(id, t.piece, state_.moment.now);
  t.fence = state_.machine.submit(copy, make_tag(TagKind::transfer, id));
}

// ---- Ends -----------------------------------------------------------------------------------------------------------

void Mover::complete(TransferId id, const Completion& completion) {
  const Transfer& t = state_.transfers[id];
  TENCACHE_CHECK(t.in_flight && t.fence == completion.fence && completion.start_ns <= completion.end_ns);
  const CopyState there = state_.memory.copy(t.chunk, t.to).state;
  TENCACHE_CHECK(there == CopyState::reserved || (there == CopyState::condemned && t.discard));
  TENCACHE_CHECK(t.route.hops == 1 || t.staging.count > 0);
  state_.transfers.end(id);
  const bool done = completion.status == CompletionStatus::done;
  const Bytes bytes = done ? t.piece : 0;
  const LinkId link = t.link();
  const bool observed_later = done && state_.ledger.observes();
  if (!observed_later) state_.ledger.copied(link, bytes, completion.end_ns - completion.start_ns);
  if (observed_later || state_.ledger.has_timeline()) {
    const Span span{.start_ns = completion.start_ns,
                    .end_ns = completion.end_ns,
                    .kind = SpanKind::transfer,
                    .cause = causes_[link],
                    .urgent = t.priority == Priority::urgent,
                    .lane = static_cast<std::uint8_t>(first_link_lane + link),
                    .iteration = state_.moment.iteration,
                    .op = t.requested_at,
                    .tensor = state_.memory.tensor_of(t.chunk),
                    .chunk = t.chunk,
                    .bytes = bytes,
                    .from = t.from,
                    .to = t.to};
    if (observed_later) {
      state_.ledger.expect_copy(completion.fence, span);
    } else {
      state_.ledger.add(span);
    }
  }
  if (t.hop == 0) state_.memory.remove_reader(t.chunk, t.from);
  if (!done || t.discard) {
    fail(id, t.discard || completion.status == CompletionStatus::cancelled);
  } else if (t.hop + 1 == t.route.hops) {
    if (t.moved + t.piece < t.bytes) {
      next_piece(id);
    } else {
      arrive(id);
    }
  } else {
    Transfer& staged = state_.transfers[id];
    staged.lateness.first_hop_ns = completion.end_ns;
    staged.lateness.first_hop = causes_[link];
    ++staged.hop;
    release_source(staged);
    state_.transfers.enqueue(id, true);
  }
}

void Mover::next_piece(TransferId id) {
  Transfer& t = state_.transfers[id];
  t.moved += t.piece;
  t.piece = std::min(t.piece, t.bytes - t.moved);
  t.hop = 0;
  state_.transfers.enqueue(id, true);
}

// The first copy of an eviction, of its last piece, is over: its room goes free unless the chunk was needed again
// meanwhile.
void Mover::release_source(const Transfer& t) {
  const Copy& source = state_.memory.copy(t.chunk, t.from);
  if (source.state == CopyState::condemned) {
    if (source.readers == 0) state_.copies.free(t.chunk, t.from);
    return;
  }
  if (t.moved + t.piece < t.bytes) return;
  if (t.purpose != Purpose::evict || source.state != CopyState::valid || !source.evicting) return;
  TENCACHE_CHECK(source.pins == 0);
  rooms_.left(t.from, causes_[t.route.links[0]]);
  state_.copies.drop(t.chunk, t.from);
}

void Mover::arrive(TransferId id) {
  const Transfer t = state_.transfers[id];
  if (t.hop > 0) state_.transfers.free_staging(id);
  if (!failures_.empty()) failures_.erase(t.chunk);
  state_.memory.commit(t.chunk, t.to);
  if (t.hop == 0) release_source(t);
  if (t.purpose == Purpose::fetch && state_.layout.exclusive_copies && state_.memory.valid(t.chunk, t.from) &&
      state_.memory.evictable(t.chunk, t.from) && state_.memory.copy(t.chunk, t.from).writers == 0) {
    state_.copies.drop(t.chunk, t.from);
  }
  tell_waiting_ops(t);
  remove(id);
  session_.emit({.kind = EventKind::transfer_done,
                 .from = t.from,
                 .to = t.to,
                 .op = state_.moment.position,
                 .tensor = state_.memory.tensor_of(t.chunk),
                 .chunk = t.chunk});
}

void Mover::tell_waiting_ops(const Transfer& t) {
  const auto was_late = [&](ActiveOp& op) {
    op.times.lateness = t.lateness;
    op.times.lateness.last = causes_[t.link()];
  };
  if (state_.wanted(t.chunk, t.to)) {
    ActiveOp& op = state_.lanes.waiting_in(t.to);
    TENCACHE_CHECK(op.demand.missing > 0);
    --op.demand.missing;
    was_late(op);
  }
  for (OpLane& lane : state_.lanes) {
    if (!lane.waiting) continue;
    ActiveOp& op = lane.active.back();
    const std::vector<ChunkId>& stranded = op.demand.stranded;
    if (std::ranges::find(stranded, t.chunk) != stranded.end()) op.demand.stranded_cause = causes_[t.link()];
    if (op.demand.holds.contains({state_.memory.tensor_of(t.chunk), t.to})) was_late(op);
  }
}

void Mover::fail(TransferId id, bool cancelled) {
  const Transfer t = state_.transfers[id];
  if (!cancelled && ++failures_[t.chunk] >= failures_tolerated) {
    throw Error("moving " + format_bytes(state_.memory.bytes_of(t.chunk)) + " of " +
                state_.program->title_of(state_.memory.tensor_of(t.chunk)) + " from '" +
                state_.spec.tiers[t.from].name + "' to '" + state_.spec.tiers[t.to].name + "' failed " +
                std::to_string(failures_tolerated) + " times in a row" + reason_of_failure(state_.machine) +
                "; check the device and the space left on it");
  }
  if (!cancelled && t.hop > 0) {  // its source may be gone: the buffer holds the only copy, so try again
    state_.transfers.enqueue(id, true);
    return;
  }
  if (t.staging.count > 0) state_.transfers.free_staging(id);
  const bool wanted = state_.wanted(t.chunk, t.to) && state_.memory.copy(t.chunk, t.to).state == CopyState::reserved;
  state_.copies.free(t.chunk, t.to);
  // Later, what lies in that tier is none of this transfer's: perhaps another's on its way there.
  if (t.reads_source()) {
    const Copy& source = state_.memory.copy(t.chunk, t.from);
    if (t.purpose == Purpose::evict && source.state == CopyState::valid && source.evicting) {
      state_.memory.set_evicting(t.chunk, t.from, false);
    }
    if (source.state == CopyState::condemned && source.readers == 0) state_.copies.free(t.chunk, t.from);
  }
  if (wanted) {  // the op still needs it: ask again
    OpDemand& demand = state_.lanes.waiting_in(t.to).demand;
    state_.lanes.want_room(t.to, demand, state_.memory.footprint(t.chunk, t.to));
    demand.stranded.push_back(t.chunk);
  }
  remove(id);
  if (cancelled) return;
  ++state_.ledger.counters().refusals;
  session_.emit({.kind = EventKind::refused,
                 .refusal = Refusal::io_error,
                 .from = t.from,
                 .to = t.to,
                 .op = state_.moment.position,
                 .tensor = state_.memory.tensor_of(t.chunk),
                 .chunk = t.chunk});
}

// ---- Second thoughts ------------------------------------------------------------------------------------------------

// A victim that is needed again stays: taken back if its copy has not started, else it merely becomes clean.
void Mover::rescue(ChunkId chunk, TierId tier) {
  for (TransferId id = state_.transfers.first_of(chunk); id != none;) {
    Transfer& t = state_.transfers[id];
    const TransferId next = state_.transfers.next_of_chunk(id);
    if (t.from == tier && t.purpose == Purpose::evict) {
      if (!t.in_flight && t.hop == 0 && state_.memory.copy(chunk, t.to).pins == 0) {
        withdraw(id);
      } else {
        t.purpose = Purpose::clean;
        if (state_.memory.copy(chunk, tier).evicting) state_.memory.set_evicting(chunk, tier, false);
      }
    }
    id = next;
  }
}

void Mover::discard(Transfer& t) {
  t.discard = true;
  state_.lanes.doubt_hold({state_.memory.tensor_of(t.chunk), t.to});
  state_.machine.cancel(t.fence);
}

void Mover::stop_transfers_from(ChunkId chunk, TierId tier) {
  for (TransferId id = state_.transfers.first_of(chunk); id != none;) {
    Transfer& t = state_.transfers[id];
    const TransferId next = state_.transfers.next_of_chunk(id);
    if (t.from == tier && t.reads_source()) {
      if (t.in_flight) {
        discard(t);
      } else {
        withdraw(id);
      }
    }
    id = next;
  }
}

void Mover::discard_transfers_of(ChunkId chunk, TierId tier) {
  for (TransferId id = state_.transfers.first_of(chunk); id != none;) {
    Transfer& t = state_.transfers[id];
    const TransferId next = state_.transfers.next_of_chunk(id);
    if (t.to == tier && t.in_flight) {
      discard(t);
    } else if (!t.in_flight && (t.to == tier || (t.from == tier && t.reads_source()))) {
      withdraw(id);
    }
    id = next;
  }
}

void Mover::discard_copy(ChunkId chunk, TierId tier) {
  if (state_.memory.valid(chunk, tier)) {
    session_.decide(Decision::Kind::release, chunk, tier, no_tier);
    state_.copies.drop(chunk, tier);
  } else {
    state_.memory.condemn(chunk, tier);  // its transfer is under way and will find itself discarded
  }
}

void Mover::kill(TensorId tensor) {
  const Because because(session_, {.reason = Reason::dead});
  state_.lives.dead[tensor] = 1;
  for (const ChunkId chunk : state_.memory.chunks_of(tensor)) {
    for (TierId tier = 0; tier < state_.memory.tier_count(); ++tier) invalidate(chunk, tier);
  }
  state_.lives.born[tensor] = 0;
}

void Mover::remove_if_gone(TensorId tensor) {
  if (state_.lives.doomed[tensor] == 0) return;
  for (const ChunkId chunk : state_.memory.chunks_of(tensor)) {
    if (state_.transfers.first_of(chunk) != none) return;
    for (TierId tier = 0; tier < state_.memory.tier_count(); ++tier) {
      if (state_.memory.copy(chunk, tier).state != CopyState::absent) return;
    }
  }
  state_.lives.doomed[tensor] = 0;
  if (!failures_.empty()) {
    for (const ChunkId chunk : state_.memory.chunks_of(tensor)) failures_.erase(chunk);
  }
  state_.program->gone(tensor);
  state_.machine.tensor_destroyed(tensor);
  state_.memory.remove_tensor(tensor);
}

}  // namespace tencache
