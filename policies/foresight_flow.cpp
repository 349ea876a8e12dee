// What foresight does whenever something has happened, step by step as numbered in foresight.cpp:
//   3. look_ahead moves the horizon.
//   4. fetch_from, for every tier, fetches what is missing up to it.
//   5. clean_to copies down what will have to leave.
//   6. make_room names who leaves, for a prefetch or an op.
//   7. tend_host does the same between CPU memory and storage: read_ahead, make_host_room, sink.
#include "policies/foresight_flow.h"

#include <algorithm>
#include <utility>

namespace tencache {

void ForesightFlow::on(const Event& event, const View& view, Actions& actions) {
  const bool gpu = event.device == Device::gpu;
  switch (event.kind) {
    case EventKind::schedule_deviated:
      known_ = false;
      return;
    case EventKind::tensor_freed:
      forget(event.tensor, view);
      return;
    case EventKind::op_issued:
      if (view.schedule == nullptr || event.op == none) return;
      if (!known_) start(view);  // the schedule is found again
      issued(event, view);
      break;
    case EventKind::op_ready:
      if (!known_ || event.op == none || !gpu) return;
      in_use_ = future_.alive(gpu_);
      waits_for_ = 0;
      break;
    case EventKind::op_done:
      if (!known_ || event.op == none) return;
      done(event, view);
      if (gpu) return;  // the next one is issued at once
      break;
    case EventKind::transfer_done:
      if (!known_) return;
      arrived(event, view);
      break;
    case EventKind::refused:
      if (!known_ || event.chunk == none) return;
      std::erase_if(flights_, [&](const Flight& f) { return f.chunk == event.chunk; });
      if (event.chunk < outgoing_.size()) outgoing_[event.chunk] = 0;
      for (TierId tier = 0; tier < shelves_.size(); ++tier) refresh(event.chunk, tier, view);
      return;  // not at once again
    default:
      return;
  }
  look_ahead(view);
  for (const TierId tier : sources_) fetch_from(tier, view, actions);
  if (cpu_ != no_tier) clean_to(cpu_, view, actions);
  for (const Store& store : stores_) {
    if (store.by_gpu) clean_to(store.tier, view, actions);
  }
  if (cpu_ != no_tier) tend_host(view, actions);
}

// Takes the cursor through the chunks of the uses that are wanted, up to `end`; false where `visit` stops it.
template <typename Wanted, typename Visit>
bool ForesightFlow::walk(Cursor& cursor, Cursor end, const View& view, Wanted wanted, Visit visit) {
  for (; cursor < end; cursor = {cursor.op + 1, 0, 0}) {
    const auto uses = view.schedule->uses(index(cursor.op));
    for (; cursor.use < uses.size(); ++cursor.use, cursor.chunk = 0) {
      const TensorId tensor = view.memory_tensor(uses[cursor.use].tensor);
      if (tensor == none || !wanted(uses[cursor.use], tensor)) continue;
      for (; cursor.chunk < view.memory.chunk_count(tensor); ++cursor.chunk) {
        if (!(cursor < end) || !visit(view.memory.first_chunk(tensor) + cursor.chunk)) return false;
      }
    }
  }
  return true;
}

// ---- Step 3: the horizon --------------------------------------------------------------------------------------------

// The GPU has no copy and needs one at that place: cursors that have passed it go back.
void ForesightFlow::absent(ChunkId chunk, Place place, const View& view) {
  if (place > horizon_.op || view.memory.copy(chunk, 0).state != CopyState::absent) return;
  if (place < horizon_.op) need(index(place), view.memory.footprint(chunk, 0));
  if (place == horizon_.op) horizon_ = std::min(horizon_, Cursor{place, 0, 0});
  for (Cursor& cursor : fetched_) {
    if (place <= cursor.op) cursor = {place, 0, 0};
  }
}

void ForesightFlow::need(OpIndex op, Bytes bytes) {
  needed_at_[op] += bytes;
  needed_bytes_ += bytes;
}

void ForesightFlow::got(OpIndex op, Bytes bytes) {
  const Bytes taken = std::min(bytes, needed_at_[op]);
  needed_at_[op] -= taken;
  needed_bytes_ -= taken;
}

// Room that would be lacking if everything up to the place, and `more`, were there by then.
std::int64_t ForesightFlow::excess(Place place, Bytes more, const View& view) const {
  std::int64_t peak = future_.alive(place);
  if (!peaks_.empty()) peak = std::max(peak, peaks_.front().second);
  Bytes unreserved = 0;
  for (const Flight& flight : flights_) {
    if (flight.to == 0 && view.memory.copy(flight.chunk, 0).state == CopyState::absent) unreserved += flight.bytes;
  }
  const Bytes lasting = shelves_[0].clean_beyond(index(gpu_), index(place), place == gpu_ + op_count_);
  const auto n = [](Bytes bytes) { return static_cast<std::int64_t>(bytes); };
  return n(view.memory.used(0)) - n(view.memory.leaving(0)) + n(unreserved + waits_for_ + needed_bytes_ + more) +
         (peak - in_use_) - n(lasting) - n(view.memory.capacity(0));
}

void ForesightFlow::look_ahead(const View& view) {
  if (horizon_.op <= gpu_) {
    horizon_ = {gpu_ + 1, 0, 0};
    peaks_.clear();
    std::fill(needed_at_.begin(), needed_at_.end(), 0);
    needed_bytes_ = 0;
  }
  const auto fits = [&](Bytes more) {
    held_up_by_ = std::max<std::int64_t>(0, excess(horizon_.op, more, view));
    return held_up_by_ == 0;
  };
  const auto wanted = [&](const Use& use, TensorId tensor) {
    return use.read ? needed_[use.tensor].gpu == horizon_.op : view.memory.persistent(tensor);
  };
  const auto admit = [&](ChunkId chunk) {
    if (view.memory.copy(chunk, 0).state != CopyState::absent) return true;
    if (!fits(view.memory.footprint(chunk, 0))) return false;
    need(index(horizon_.op), view.memory.footprint(chunk, 0));
    return true;
  };
  held_up_by_ = 0;
  while (horizon_.op < gpu_ + op_count_) {
    const Cursor next{horizon_.op + 1, 0, 0};
    if (future_.device(index(horizon_.op)) == Device::gpu && !fits(0)) return;
    const std::int64_t alive = future_.alive(horizon_.op);
    if (future_.device(index(horizon_.op)) == Device::gpu && !walk(horizon_, next, view, wanted, admit)) return;
    horizon_ = next;
    while (!peaks_.empty() && peaks_.back().second <= alive) peaks_.pop_back();
    peaks_.emplace_back(next.op - 1, alive);
  }
}

// ---- Step 4: fetching -----------------------------------------------------------------------------------------------

TierId ForesightFlow::source_of(ChunkId chunk, const View& view) const {
  for (const TierId tier : sources_) {
    if (view.memory.valid(chunk, tier) && view.memory.copy(chunk, tier).writers == 0) return tier;
  }
  return no_tier;
}

void ForesightFlow::fetch_from(TierId tier, const View& view, Actions& actions) {
  Cursor& cursor = fetched_[tier];
  if (cursor.op <= gpu_) cursor = {gpu_ + 1, 0, 0};
  Bytes underway = flying(tier, 0);
  const auto wanted = [&](const Use& use, TensorId tensor) {
    return future_.device(index(cursor.op)) == Device::gpu && use.read && !view.dead(tensor) &&
           needed_[use.tensor].gpu == cursor.op;
  };
  walk(cursor, horizon_, view, wanted, [&](ChunkId chunk) {
    if (view.memory.copy(chunk, 0).state != CopyState::absent || source_of(chunk, view) != tier) return true;
    if (coming(chunk, 0) || (cpu_ != no_tier && coming(chunk, cpu_))) return true;
    constexpr std::size_t most_flights = 256;
    if (underway >= window() || flights_.size() > most_flights) return false;
    ask(Verb::fetch, chunk, tier, 0, view, actions);
    underway += view.memory.footprint(chunk, 0);
    got(index(cursor.op), view.memory.footprint(chunk, 0));
    return true;
  });
}

// ---- Transfers asked for --------------------------------------------------------------------------------------------

bool ForesightFlow::coming(ChunkId chunk, TierId to) const {
  return std::any_of(flights_.begin(), flights_.end(),
                     [chunk, to](const Flight& f) { return f.chunk == chunk && f.to == to; });
}

Bytes ForesightFlow::flying(TierId from, TierId to) const {
  Bytes bytes = 0;
  for (const Flight& flight : flights_) {
    if (flight.from == from && flight.to == to) bytes += flight.bytes;
  }
  return bytes;
}

// Nothing is on the link, so what was to be cleaned over it and has not arrived was stopped.
void ForesightFlow::land_lost(TierId from, TierId to, const View& view) {
  if (view.transfers_on(view.machine.link_between(from, to)) > 0) return;
  std::erase_if(flights_, [&](const Flight& f) {
    if (f.from != from || f.to != to) return false;
    outgoing_[f.chunk] = static_cast<std::uint8_t>(outgoing_[f.chunk] & ~(1u << from));
    return true;
  });
}

void ForesightFlow::ask(Verb verb, ChunkId chunk, TierId from, TierId to, const View& view, Actions& actions) {
  const TensorId tensor = view.memory.tensor_of(chunk);
  const std::uint32_t number = chunk - view.memory.first_chunk(tensor);
  if (verb == Verb::fetch) {
    actions.push({.verb = verb, .tier = to, .tensor = tensor, .chunk = number});
  } else {
    actions.push({.verb = verb, .tier = from, .destination = to, .tensor = tensor, .chunk = number});
    outgoing_[chunk] = static_cast<std::uint8_t>(outgoing_[chunk] | 1u << from);
    shelves_[from].take(chunk);
  }
  flights_.push_back({chunk, from, to, view.memory.footprint(chunk, to)});
}

// ---- Step 5: cleaning -----------------------------------------------------------------------------------------------

void ForesightFlow::clean_to(TierId to, const View& view, Actions& actions) {
  land_lost(0, to, view);
  Shelf& shelf = shelves_[0];
  for (Bytes underway = flying(0, to); underway < window();) {
    const ChunkId chunk = to_clean(to, underway);
    if (chunk == none) return;
    const Shelf::Kind kind = shelf.kind(chunk);
    if (!view.memory.evictable(chunk, 0) || view.memory.valid_elsewhere(chunk, 0)) {
      refresh(chunk, 0, view);
      if (shelf.kind(chunk) == kind) return;
      continue;
    }
    const Bytes bytes = view.memory.footprint(chunk, to);
    if (view.memory.free(to) < bytes + flying(0, to)) return;
    // What is cleaned against the plan is worth its copy all the same.
    if (const TensorId id = view.program_tensor(view.memory.tensor_of(chunk)); id != none) due_now_[id] = 1;
    if (to != cpu_) budget_left_ -= std::min(budget_left_, bytes);
    ask(Verb::clean, chunk, 0, to, view, actions);
    underway += bytes;
  }
}

ChunkId ForesightFlow::to_clean(TierId to, Bytes underway) const {
  const Shelf& shelf = shelves_[0];
  const std::uint32_t due = shelf.farthest(Shelf::due, index(gpu_));
  if (to != cpu_) return due == none || budget_left_ == 0 ? none : shelf.first(Shelf::due, due);
  if (const std::uint32_t op = shelf.nearest(Shelf::owed, index(cpu_done_)); op != none) {
    return shelf.first(Shelf::owed, op);
  }
  if (due != none) return shelf.first(Shelf::due, due);
  if (held_up_by_ <= static_cast<std::int64_t>(underway)) return none;
  const std::uint32_t op = shelf.farthest(Shelf::dirty, index(gpu_));
  if (op == none || (op != shelf.never() && place_of(op) <= horizon_.op)) return none;
  return shelf.first(Shelf::dirty, op);
}

// ---- Steps 4 and 6: who leaves --------------------------------------------------------------------------------------

void ForesightFlow::make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) {
  if (!known_ || request.tier >= shelves_.size()) {
    coldest_victims(request, view, victims);
    return;
  }
  Bytes found = 0;
  const auto add = [&](std::initializer_list<Shelf::Kind> list, Place floor) {
    for (const Shelf::Kind kind : list) choose(request, kind, floor, view, victims, found);
  };
  if (request.prefetch) {
    const TensorId id = view.program_tensor(view.memory.tensor_of(request.incoming));
    const Place needed = id == none || request.tier != 0 ? never : needed_[id].gpu;
    add({Shelf::spare, Shelf::clean}, needed == never ? gpu_ : needed);
    return;
  }
  add({Shelf::spare, Shelf::clean, Shelf::due, Shelf::dirty, Shelf::owed}, gpu_);
}

// Those needed after `floor`, the farthest first.
void ForesightFlow::choose(const RoomRequest& request, Shelf::Kind kind, Place floor, const View& view,
                           std::vector<ChunkId>& victims, Bytes& found) {
  Shelf& shelf = shelves_[request.tier];
  const OpIndex now = index(gpu_);
  const bool free = kind == Shelf::clean || kind == Shelf::spare;
  for (std::uint32_t op = shelf.farthest(kind, now); op != none && found < request.bytes;
       op = shelf.nearer(kind, op, now)) {
    if (op != shelf.never() && place_of(op) <= floor) return;
    for (ChunkId chunk = shelf.first(kind, op); chunk != none && found < request.bytes;) {
      const ChunkId next = shelf.next(chunk);
      if (!view.memory.evictable(chunk, request.tier) || (free && !view.memory.valid_elsewhere(chunk, request.tier))) {
        refresh(chunk, request.tier, view);
      } else {
        victims.push_back(chunk);
        found += view.memory.footprint(chunk, request.tier);
        shelf.take(chunk);
        if (free && request.tier == 0 && op != shelf.never()) {
          const Place place = place_of(op);  // as `absent`, though it is still there
          if (place < horizon_.op) need(op, view.memory.footprint(chunk, 0));
          for (Cursor& cursor : fetched_) {
            if (place <= cursor.op) cursor = {place, 0, 0};
          }
          for (Store& store : stores_) {
            if (place <= store.read.op) store.read = {place, 0, 0};
          }
        }
      }
      chunk = next;
    }
  }
}

// ---- Step 7: CPU memory as a cache of what lies in storage ----------------------------------------------------------

void ForesightFlow::tend_host(const View& view, Actions& actions) {
  host_now_ = host_base();
  dropped_ = 0;
  for (Store& store : stores_) {
    if (store.by_cpu) read_ahead(store, view, actions);
  }
  make_host_room(0, host_floor(), view, actions);
  for (Store& store : stores_) {
    if (store.by_cpu) sink(store, view, actions);
  }
}

// The op before the first that one of the devices has to do yet: needs are counted from there.
ForesightFlow::Place ForesightFlow::host_base() const {
  if (cpu_ops_.empty()) return gpu_;
  const auto next = std::upper_bound(cpu_ops_.begin(), cpu_ops_.end(), index(cpu_done_));
  return std::min(gpu_, following(cpu_done_, next == cpu_ops_.end() ? cpu_ops_.front() : *next) - 1);
}

// What is needed up to there stays: it was read ahead, or the GPU has nothing to copy down that is needed earlier.
ForesightFlow::Place ForesightFlow::host_floor() const {
  Place floor = gpu_ + op_count_;
  for (const Store& store : stores_) floor = std::min(floor, store.read.op);
  const std::uint32_t due = shelves_[0].farthest(Shelf::due, index(gpu_));
  if (due != none && due != shelves_[0].never()) floor = std::min(floor, place_of(due));
  return floor;
}

// For what comes from the GPU.
Bytes ForesightFlow::reserve(const View& view) const {
  constexpr Bytes most_share = 8, windows = 8;
  return std::min(view.memory.capacity(cpu_) / most_share, windows * window());
}

// Until there are so many bytes and the reserve. What is dropped is needed after `floor`.
bool ForesightFlow::make_host_room(Bytes bytes, Place floor, const View& view, Actions& actions) {
  while (view.memory.free(cpu_) + dropped_ < bytes + reserve(view)) {
    if (drop_from_host(Shelf::spare, host_now_, view, actions)) continue;
    if (stores_.empty() || !drop_from_host(Shelf::clean, floor, view, actions)) return false;
  }
  return true;
}

bool ForesightFlow::drop_from_host(Shelf::Kind kind, Place floor, const View& view, Actions& actions) {
  Shelf& shelf = shelves_[cpu_];
  const std::uint32_t op = shelf.farthest(kind, index(host_now_));
  if (op == none || (op != shelf.never() && host_place(op) <= floor)) return false;
  const ChunkId chunk = shelf.first(kind, op);
  const bool stored = store_of(chunk, view) != no_tier;
  const bool on_gpu = view.memory.valid(chunk, 0) && !view.memory.copy(chunk, 0).evicting;
  if (!view.memory.evictable(chunk, cpu_) || !(kind == Shelf::spare ? on_gpu : stored)) {
    refresh(chunk, cpu_, view);
    return shelf.kind(chunk) != kind;
  }
  const TensorId tensor = view.memory.tensor_of(chunk);
  actions.push({.verb = Verb::drop, .tier = cpu_, .tensor = tensor, .chunk = chunk - view.memory.first_chunk(tensor)});
  dropped_ += view.memory.footprint(chunk, cpu_);
  shelf.take(chunk);
  Shelf& gpu = shelves_[0];
  if (!stored && gpu.kind(chunk) != Shelf::off) {  // the GPU's is now the only copy
    gpu.put(chunk, Shelf::dirty, gpu.op(chunk), view.memory.footprint(chunk, 0));
  }
  return true;
}

TierId ForesightFlow::store_of(ChunkId chunk, const View& view) const {
  for (const Store& store : stores_) {
    if (view.memory.valid(chunk, store.tier)) return store.tier;
  }
  return no_tier;
}

void ForesightFlow::read_ahead(Store& store, const View& view, Actions& actions) {
  const LinkId link = view.machine.link_between(store.tier, cpu_);
  Cursor& cursor = store.read;
  if (cursor.op <= host_now_) cursor = {host_now_ + 1, 0, 0};
  const auto wanted = [&](const Use& use, TensorId tensor) {
    const Needed& needed = needed_[use.tensor];
    const bool gpu = future_.device(index(cursor.op)) == Device::gpu;
    return use.read && !view.dead(tensor) && (gpu ? needed.gpu : needed.cpu) == cursor.op;
  };
  walk(cursor, {std::max(cursor.op, host_now_ + op_count_), 0, 0}, view, wanted, [&](ChunkId chunk) {
    if (view.memory.copy(chunk, cpu_).state != CopyState::absent || store_of(chunk, view) != store.tier) return true;
    if (view.memory.copy(chunk, 0).state != CopyState::absent || coming(chunk, 0) || coming(chunk, cpu_)) return true;
    if (view.transfers_on(link) > 1 || flying(store.tier, cpu_) >= window()) return false;
    const Bytes bytes = view.memory.footprint(chunk, cpu_) + flying(store.tier, cpu_);
    if (!make_host_room(bytes + shelves_[0].total(Shelf::due), cursor.op, view, actions)) return false;
    ask(Verb::fetch, chunk, store.tier, cpu_, view, actions);
    return true;
  });
}

// Copies down what will have to leave CPU memory, or, if it is short, whatever is needed last.
void ForesightFlow::sink(Store& store, const View& view, Actions& actions) {
  land_lost(cpu_, store.tier, view);
  const LinkId link = view.machine.link_between(cpu_, store.tier);
  Shelf& shelf = shelves_[cpu_];
  const OpIndex now = index(host_now_);
  const bool is_short = view.memory.free(cpu_) < reserve(view);
  for (Bytes underway = flying(cpu_, store.tier); underway < window() && view.transfers_on(link) < 2;) {
    Shelf::Kind kind = Shelf::due;
    std::uint32_t op = shelf.farthest(kind, now);
    if (op == none && is_short) {
      kind = Shelf::dirty;
      op = shelf.farthest(kind, now);
      if (op != none && op != shelf.never() && host_place(op) <= store.read.op) return;
    }
    if (op == none) return;
    const ChunkId chunk = shelf.first(kind, op);
    bool stored = false;
    for (const Store& other : stores_) stored |= view.memory.copy(chunk, other.tier).state != CopyState::absent;
    if (!view.memory.evictable(chunk, cpu_) || stored) {
      refresh(chunk, cpu_, view);
      if (shelf.kind(chunk) == kind) return;
      continue;
    }
    const Bytes bytes = view.memory.footprint(chunk, store.tier);
    if (view.memory.free(store.tier) < bytes + flying(cpu_, store.tier)) return;
    ask(Verb::clean, chunk, cpu_, store.tier, view, actions);
    underway += bytes;
  }
}

// The only copy is in storage: cursors that have passed where it is needed go back.
void ForesightFlow::gone_from_memory(ChunkId chunk, const View& view) {
  const TensorId id = view.program_tensor(view.memory.tensor_of(chunk));
  if (id == none || view.memory.valid(chunk, 0) || (cpu_ != no_tier && view.memory.valid(chunk, cpu_))) return;
  const Place place = std::min(needed_[id].gpu, needed_[id].cpu);
  for (Store& store : stores_) {
    if (place <= store.read.op) store.read = {place, 0, 0};
  }
}

}  // namespace tencache
