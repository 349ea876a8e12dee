// The transfer side of the engine: routes, requests, copies and what fails of them. Queues are in engine_queues.cpp,
// room in engine_room.cpp, the program side in engine.cpp.
#include <algorithm>
#include <bit>

#include "core/check.h"
#include "core/engine/engine.h"
#include "core/engine/engine_tags.h"
#include "core/error.h"

namespace tencache {
namespace {

constexpr int failures_tolerated = 3;  // of one chunk in a row, then the machine's error ends the run

}  // namespace

// ---- Routes and requests --------------------------------------------------------------------------------------------

Engine::Route Engine::find_route(TierId from, TierId to) const {
  Route route;
  for (const LinkId link : spec_.path_between(from, to)) {
    const BytesPerSecond bandwidth = spec_.links[link].bandwidth;
    route.bandwidth = route.hops == 0 ? bandwidth : std::min(route.bandwidth, bandwidth);
    route.links[route.hops++] = link;
  }
  return route;
}

// The valid copy that arrives soonest; the faster tier of two equals.
TierId Engine::source_for(ChunkId chunk, TierId to) const {
  TierId best = no_tier;
  for (TierId tier = 0; tier < memory_.tier_count(); ++tier) {
    if (tier == to || !memory_.valid(chunk, tier) || memory_.copy(chunk, tier).writers > 0) continue;
    if (routes_[tier][to].hops == 0) continue;
    if (best == no_tier || routes_[tier][to].bandwidth > routes_[best][to].bandwidth) best = tier;
  }
  return best;
}

bool Engine::request_fetch(ChunkId chunk, TierId to, Priority priority, OpIndex not_before, Refusal& refusal) {
  const Copy& copy = memory_.copy(chunk, to);
  if (copy.state == CopyState::valid) {
    if (copy.evicting) rescue(chunk, to);
    return true;
  }
  if (const TransferId coming = find_transfer(chunk, to); coming != none) {
    if (priority == urgent) promote(coming);
    return true;
  }
  const TensorId tensor = memory_.tensor_of(chunk);
  if (copy.state != CopyState::absent || dead_[tensor] != 0) {
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
  const TransferId id = new_transfer(chunk, from, to, Purpose::fetch, priority);
  Transfer& t = transfers_[id];
  decide(Decision::Kind::fetch, chunk, from, to);
  if (priority != urgent && not_before != none && not_before != position_) {
    t.not_before = not_before;
    deferred_.emplace(not_before, id);
  } else {
    enqueue(id, false);
  }
  return true;
}

// The path leads through a tier into which the chunk is being copied already: no second copy beside it.
bool Engine::arrives_on_the_way(ChunkId chunk, TierId from, TierId to) const {
  if (routes_[from][to].hops < 2) return false;
  const TransferId coming = find_transfer(chunk, spec_.staging.tier);
  return coming != none && transfers_[coming].in_flight;
}

// Towards a slower tier: the room there is reserved now, so that nobody else can take it meanwhile.
bool Engine::request_out(ChunkId chunk, TierId from, TierId destination, Purpose purpose, Priority priority,
                         Refusal& refusal) {
  const Copy& copy = memory_.copy(chunk, from);
  if (copy.state != CopyState::valid || copy.writers > 0 || dead_[memory_.tensor_of(chunk)] != 0) {
    refusal = Refusal::stale;
    return false;
  }
  // A prefetch of the same chunk to the same place that has not begun may never begin: an eviction takes its place.
  const auto prefetch_to = [&](TierId tier) {
    const TransferId coming = find_transfer(chunk, tier);
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
  const TransferId id = new_transfer(chunk, from, to, purpose, priority);
  decide(purpose == Purpose::evict ? Decision::Kind::evict : Decision::Kind::clean, chunk, from, to);
  enqueue(id, false);
  return true;
}

// Whether the copy's room can go without a transfer: the value is dead, or valid somewhere else.
bool Engine::can_drop(ChunkId chunk, TierId tier) const {
  return dead_[memory_.tensor_of(chunk)] != 0 || memory_.valid_elsewhere(chunk, tier);
}

bool Engine::evict(ChunkId chunk, TierId from, TierId destination, Priority priority, Refusal& refusal) {
  if (!memory_.evictable(chunk, from)) {
    refusal = Refusal::stale;
    return false;
  }
  if (can_drop(chunk, from)) {
    decide(Decision::Kind::drop, chunk, from, no_tier);
    drop_copy(chunk, from);
    return true;
  }
  if (!request_out(chunk, from, destination, Purpose::evict, priority, refusal)) return false;
  memory_.set_evicting(chunk, from, true);
  return true;
}

// ---- Copies ---------------------------------------------------------------------------------------------------------

bool Engine::start_transfers(LinkId link) {
  Queue& queue = queues_[link];
  bool progress = false;
  while (takes_another(queue, link)) {
    bool started = false;
    for (std::size_t priority = 0; priority < priority_count && !started; ++priority) {
      while (queue.first[priority] != none && !source_stands(queue.first[priority]))
        find_new_source(queue.first[priority]);
      if (queue.first[priority] != none) started = try_start_transfer(queue.first[priority]);
    }
    if (!started) break;
    progress = true;
  }
  return progress;
}

// Of a link's queue only the first of each priority may start, and one that finds no room stops those behind it. When
// nothing else is under way, what an op waits for and what makes room go past such prefetches.
void Engine::start_behind_blocked() {
  for (bool progress = true; progress;) {
    const std::uint64_t enqueued = enqueued_;
    progress = false;
    for (LinkId link = 0; link < spec_.links.size(); ++link) progress |= start_behind_blocked(link);
    progress |= enqueued_ != enqueued;
  }
}

bool Engine::start_behind_blocked(LinkId link) {
  const Queue& queue = queues_[link];
  bool progress = false;
  for (std::size_t priority = 0; priority < priority_count; ++priority) {
    for (TransferId id = queue.first[priority]; id != none && takes_another(queue, link);) {
      const Transfer& t = transfers_[id];
      const TransferId next = t.next;
      const bool prefetch = t.purpose == Purpose::fetch && t.hop == 0 && memory_.copy(t.chunk, t.to).pins == 0;
      if (!prefetch && !source_stands(id)) {
        find_new_source(id);
      } else if (!prefetch) {
        progress |= try_start_transfer(id);
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

bool Engine::takes_another(const Queue& queue, LinkId link) const {
  if (queue.in_flight < spec_.copies_in_flight) return true;
  if (queue.per_latency == 0 || queue.in_flight >= spec_.links[link].queue_depth) return false;
  Bytes behind_first = 0;
  for (std::size_t i = 1; i < queue.bytes_in_flight.size(); ++i) behind_first += queue.bytes_in_flight[i];
  return behind_first < queue.per_latency;
}

// Taking the memory that the copy goes to, where this policy takes it afresh each time.
Nanoseconds Engine::setup_of(Bytes bytes, TierId tier) const {
  if (!layout_.allocate_each[tier]) return 0;
  const AllocationCost& cost = spec_.tiers[tier].allocation;
  if (cost.power_of_two) bytes = std::bit_ceil(bytes);
  if (cost.bandwidth == 0) return cost.per_call_ns;
  const uint128 size_ns =
      (static_cast<uint128>(bytes) * static_cast<uint128>(second_ns) + cost.bandwidth - 1) / cost.bandwidth;
  const uint128 most_ns = 1ull << 62;  // longer than any clock runs, and sums of it do not overflow
  return cost.per_call_ns + static_cast<Nanoseconds>(std::min(size_ns, most_ns));
}

bool Engine::source_stands(TransferId id) const {
  const Transfer& t = transfers_[id];
  return t.hop > 0 || (memory_.valid(t.chunk, t.from) && memory_.copy(t.chunk, t.from).writers == 0);
}

// What the transfer was to copy has left that tier since it was asked for.
void Engine::find_new_source(TransferId id) {
  const Because because(*this, {.reason = Reason::retry});
  const Transfer old = transfers_[id];
  withdraw(id);
  const bool wanted = memory_.copy(old.chunk, old.to).pins > 0;
  if (memory_.copy(old.chunk, old.to).state != CopyState::absent || (old.purpose != Purpose::fetch && !wanted)) return;
  ActiveOp* op = wanted ? &lanes_[old.to == lanes_[0].tier ? 0 : 1].active.back() : nullptr;
  if (old.purpose != Purpose::fetch) {  // it had room; now the op needs some again
    op->room_needed += memory_.footprint(old.chunk, old.to);
    room_wanted_[old.to] += memory_.footprint(old.chunk, old.to);
  }
  Refusal refusal = Refusal::none;
  if (request_fetch(old.chunk, old.to, old.purpose == Purpose::fetch ? old.priority : urgent, none, refusal)) return;
  if (wanted) op->stranded.push_back(old.chunk);
}

bool Engine::try_start_transfer(TransferId id) {
  Transfer& t = transfers_[id];
  if (t.hop == 0) {
    const bool staged = t.route.hops > 1;
    if (staged && !take_staging(t)) return false;
    if (t.purpose == Purpose::fetch && !room_for_fetch(id)) {
      if (staged) free_staging(transfers_[id]);
      return false;
    }
  }
  submit(id);
  return true;
}

void Engine::submit(TransferId id) {
  dequeue(id);
  Transfer& t = transfers_[id];
  const bool first = t.hop == 0;
  const bool last = t.hop + 1 == t.route.hops;
  const Place staging{spec_.staging.tier, t.staging_first};
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
  t.in_flight = true;
  t.started_ns = now_;
  Queue& queue = queues_[t.link()];
  ++queue.in_flight;
  if (queue.per_latency > 0) queue.bytes_in_flight.push_back(copy.bytes);
  ++link_load_[t.link()];
  ++transfers_in_flight_;
  ++commands_;
  t.fence = machine_.submit(copy, make_tag(TagKind::transfer, id));
}

void Engine::complete_transfer(TransferId id, const Completion& completion) {
  Transfer& t = transfers_[id];
  TENCACHE_CHECK(t.in_flight && t.fence == completion.fence);
  t.in_flight = false;
  const LinkId link = t.link();
  --queues_[link].in_flight;
  --link_load_[link];
  --transfers_in_flight_;
  const bool done = completion.status == CompletionStatus::done;
  const Bytes bytes = memory_.bytes_of(t.chunk);
  if (queues_[link].per_latency > 0) {  // a link's copies end in order
    auto& in_flight = queues_[link].bytes_in_flight;
    in_flight.erase(in_flight.begin());
  }
  if (done) counters_.link_bytes[link] += bytes;
  counters_.link_busy_ns[link] += completion.end_ns - completion.start_ns;
  add_span({.start_ns = completion.start_ns,
            .end_ns = completion.end_ns,
            .kind = SpanKind::transfer,
            .cause = cause_of(spec_, link),
            .urgent = t.priority == urgent,
            .lane = static_cast<std::uint8_t>(lane_count + link),
            .iteration = iteration_,
            .op = t.requested_at,
            .tensor = memory_.tensor_of(t.chunk),
            .chunk = t.chunk,
            .bytes = done ? bytes : 0,
            .from = t.from,
            .to = t.to});
  if (t.hop == 0) memory_.remove_reader(t.chunk, t.from);
  if (!done || t.discard) {
    fail_transfer(id, t.discard || completion.status == CompletionStatus::cancelled);
  } else if (t.hop + 1 < t.route.hops) {
    next_hop(id, completion.end_ns);
  } else {
    arrive(id);
  }
}

void Engine::next_hop(TransferId id, Nanoseconds now) {
  Transfer& t = transfers_[id];
  t.lateness.first_hop_ns = now;
  t.lateness.first_hop = cause_of(spec_, t.link());
  ++t.hop;
  release_source(t);
  enqueue(id, true);
}

// The first copy of an eviction is over: its room goes free unless the chunk was needed again meanwhile.
void Engine::release_source(const Transfer& t) {
  const Copy& source = memory_.copy(t.chunk, t.from);
  if (source.state == CopyState::condemned) {
    if (source.readers == 0) free_copy(t.chunk, t.from);
    return;
  }
  if (t.purpose != Purpose::evict || source.state != CopyState::valid || !source.evicting) return;
  TENCACHE_CHECK(source.pins == 0);
  last_room_cause_[t.from] = cause_of(spec_, t.route.links[0]);
  drop_copy(t.chunk, t.from);
}

void Engine::arrive(TransferId id) {
  const Transfer t = transfers_[id];
  if (t.hop > 0) free_staging(transfers_[id]);
  if (!failures_.empty()) failures_.erase(t.chunk);
  memory_.commit(t.chunk, t.to);
  const TierId from = t.from;
  if (t.hop == 0) release_source(t);
  if (t.purpose == Purpose::fetch && layout_.exclusive_copies && memory_.valid(t.chunk, from) &&
      memory_.evictable(t.chunk, from) && memory_.copy(t.chunk, from).writers == 0) {
    drop_copy(t.chunk, from);
  }
  if (memory_.copy(t.chunk, t.to).pins > 0) {
    Lane& lane = t.to == lanes_[0].tier ? lanes_[0] : lanes_[1];
    TENCACHE_CHECK(lane.waiting);
    ActiveOp& op = lane.active.back();
    TENCACHE_CHECK(op.missing > 0);
    --op.missing;
    op.lateness = t.lateness;
    op.lateness.last = cause_of(spec_, t.link());
  }
  for (Lane& lane : lanes_) {
    if (!lane.waiting) continue;
    ActiveOp& op = lane.active.back();
    if (std::find(op.stranded.begin(), op.stranded.end(), t.chunk) != op.stranded.end())
      op.stranded_cause = cause_of(spec_, t.link());
    for (const Hold& hold : op.holds) {
      if (hold.tensor != memory_.tensor_of(t.chunk) || hold.tier != t.to) continue;
      op.lateness = t.lateness;
      op.lateness.last = cause_of(spec_, t.link());
    }
  }
  free_transfer(id);
  emit({.kind = EventKind::transfer_done,
        .from = from,
        .to = t.to,
        .op = position_,
        .tensor = memory_.tensor_of(t.chunk),
        .chunk = t.chunk});
}

// ---- Failures -------------------------------------------------------------------------------------------------------

// What the machine refuses is asked for again at once, as a copy that failed is: no decision depends on it, so that a
// log need not know.
void Engine::map_copy(ChunkId chunk, TierId tier) {
  const TensorId tensor = memory_.tensor_of(chunk);
  const Bytes bytes = memory_.bytes_of(chunk);
  for (int refused = 0;;) {
    try {
      machine_.map(tensor, chunk, memory_.begin_of(chunk), bytes, {tier, memory_.copy(chunk, tier).offset});
      return;
    } catch (const OutOfMemory&) {
      throw;
    } catch (const Error& error) {
      if (++refused < failures_tolerated) continue;
      throw Error("room for " + format_bytes(bytes) + " of " + title_of(tensor) + " in '" + spec_.tiers[tier].name +
                  "' was refused " + std::to_string(refused) + " times in a row: " + error.what());
    }
  }
}

std::string Engine::title_of(TensorId tensor) const {
  const TensorId known = !live_ ? tensor : tensor < to_program_.size() ? to_program_[tensor] : none;
  if (program_ == nullptr || known == none) return "tensor " + std::to_string(tensor);
  return "tensor '" + program_->trace.name(program_->trace.tensors[known]) + "'";
}

void Engine::fail_transfer(TransferId id, bool cancelled) {
  Transfer& t = transfers_[id];
  if (!cancelled && ++failures_[t.chunk] >= failures_tolerated) {
    throw Error("moving " + format_bytes(memory_.bytes_of(t.chunk)) + " of " + title_of(memory_.tensor_of(t.chunk)) +
                " from '" + spec_.tiers[t.from].name + "' to '" + spec_.tiers[t.to].name + "' failed " +
                std::to_string(failures_tolerated) + " times in a row" + reason_of_failure(machine_) +
                "; check the device and the space left on it");
  }
  if (!cancelled && t.hop > 0) {  // its source may be gone: the buffer holds the only copy, so try again
    enqueue(id, true);
    return;
  }
  const ChunkId chunk = t.chunk;
  const TierId from = t.from, to = t.to;
  if (t.staging_count > 0) free_staging(t);
  const bool wanted = memory_.copy(chunk, to).pins > 0 && memory_.copy(chunk, to).state == CopyState::reserved;
  free_copy(chunk, to);
  if (t.hop == 0) {  // later, what lies in that tier is none of this transfer's: perhaps another's on its way there
    if (t.purpose == Purpose::evict && memory_.valid(chunk, from) && memory_.copy(chunk, from).evicting) {
      memory_.set_evicting(chunk, from, false);
    }
    if (memory_.copy(chunk, from).state == CopyState::condemned && memory_.copy(chunk, from).readers == 0)
      free_copy(chunk, from);
  }
  if (wanted) {  // the op still needs it: ask again
    ActiveOp& op = (to == lanes_[0].tier ? lanes_[0] : lanes_[1]).active.back();
    op.room_needed += memory_.footprint(chunk, to);
    room_wanted_[to] += memory_.footprint(chunk, to);
    op.stranded.push_back(chunk);
  }
  free_transfer(id);
  if (!cancelled) {
    ++counters_.refusals;
    emit({.kind = EventKind::refused,
          .refusal = Refusal::io_error,
          .from = from,
          .to = to,
          .op = position_,
          .tensor = memory_.tensor_of(chunk),
          .chunk = chunk});
  }
}

// A victim that is needed again stays: taken back if its copy has not started, else it merely becomes clean.
void Engine::rescue(ChunkId chunk, TierId tier) {
  for (TransferId id = first_of_chunk_[chunk]; id != none;) {
    Transfer& t = transfers_[id];
    const TransferId next = t.next_of_chunk;
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

// The copy is about to be written: what is being read from it would be torn.
void Engine::stop_transfers_from(ChunkId chunk, TierId tier) {
  for (TransferId id = first_of_chunk_[chunk]; id != none;) {
    Transfer& t = transfers_[id];
    const TransferId next = t.next_of_chunk;
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

}  // namespace tencache
