#include "policies/foresight_flow.h"

#include <algorithm>
#include <utility>

namespace tencache {
namespace {

constexpr std::size_t most_flights = 256;

}  // namespace

// ---- What happens ---------------------------------------------------------------------------------------------------

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

void ForesightFlow::issued(const Event& event, const View& view) {
  const bool gpu = event.device == Device::gpu;
  if (gpu) {
    if (event.op <= index(gpu_)) budget_left_ = budget_;  // another iteration
    gpu_ = following(gpu_, event.op);
    while (!peaks_.empty() && peaks_.front().first <= gpu_) peaks_.pop_front();
    got(event.op, needed_at_[event.op]);
    in_use_ = future_.alive(gpu_) - static_cast<std::int64_t>(future_.born(event.op));
    waits_for_ = 0;
  }
  for (const Use& use : event.uses) {
    if (use.tensor == none) continue;
    refresh_all(use.tensor, view);
    if (!gpu || !(use.read || view.memory.persistent(use.tensor))) continue;
    const ChunkId begin = view.memory.first_chunk(use.tensor);
    for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(use.tensor); ++chunk) {
      if (view.memory.copy(chunk, 0).state == CopyState::absent) waits_for_ += view.memory.footprint(chunk, 0);
    }
  }
}

void ForesightFlow::done(const Event& event, const View& view) {
  const bool gpu = event.device == Device::gpu;
  if (gpu) {
    in_use_ = future_.alive(gpu_) - static_cast<std::int64_t>(future_.died(event.op));
  } else {
    cpu_done_ = following(cpu_done_, event.op);
  }
  const Place from = gpu ? gpu_ : cpu_done_;
  const auto place = [from](std::uint32_t distance) { return distance == none ? never : from + distance; };
  const auto uses = view.schedule->uses(event.op);
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const TensorId id = uses[i].tensor;
    const Needs& after = future_.after(event.op, i);
    Needed& needed = needed_[id];
    if (gpu || uses[i].write) {
      needed.gpu = std::max(place(after.gpu), gpu_ + 1);  // a CPU op may be far behind
      needed.touch = place(after.touch);
    }
    if (!gpu || uses[i].write) needed.cpu = place(after.cpu);
    const std::size_t index = future_.use_index(event.op, i);
    away_now_[id] = away_[index];
    due_now_[id] = due_[index];
    sink_now_[id] = sink_[index];
    const TensorId tensor = view.memory_tensor(id);
    if (tensor == none) continue;
    if (future_.dies(event.op, i)) {
      forget(tensor, view);
      continue;
    }
    const ChunkId begin = view.memory.first_chunk(tensor), end = begin + view.memory.chunk_count(tensor);
    for (ChunkId chunk = begin; chunk < end && uses[i].write; ++chunk) {
      if (chunk < outgoing_.size()) outgoing_[chunk] = 0;  // stopped: it was about to be written
      if (!gpu) absent(chunk, needed.gpu, view);
    }
    refresh_all(tensor, view);
  }
}

void ForesightFlow::arrived(const Event& event, const View& view) {
  std::erase_if(flights_, [&](const Flight& f) { return f.chunk == event.chunk && f.to == event.to; });
  if (event.chunk < outgoing_.size() && event.from != no_tier) {
    outgoing_[event.chunk] = static_cast<std::uint8_t>(outgoing_[event.chunk] & ~(1u << event.from));
  }
  for (TierId tier = 0; tier < shelves_.size(); ++tier) refresh(event.chunk, tier, view);
  if (event.to == 0) return;
  if (view.machine.tiers[event.to].kind == TierKind::nvme) {
    stored_ += view.memory.bytes_of(event.chunk);
    gone_from_memory(event.chunk, view);
  }
  if (const TensorId id = view.program_tensor(event.tensor); id != none) absent(event.chunk, needed_[id].gpu, view);
}

void ForesightFlow::forget(TensorId tensor, const View& view) {
  if (shelves_.empty() || tensor == none || tensor >= view.memory.tensor_count()) return;
  const ChunkId begin = view.memory.first_chunk(tensor);
  for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(tensor); ++chunk) {
    for (Shelf& shelf : shelves_) shelf.take(chunk);
    if (chunk < outgoing_.size()) outgoing_[chunk] = 0;
  }
}

// ---- Where every chunk stands ---------------------------------------------------------------------------------------

void ForesightFlow::refresh_all(TensorId tensor, const View& view) {
  const ChunkId begin = view.memory.first_chunk(tensor);
  for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(tensor); ++chunk) {
    for (TierId tier = 0; tier < shelves_.size(); ++tier) refresh(chunk, tier, view);
  }
}

void ForesightFlow::refresh(ChunkId chunk, TierId tier, const View& view) {
  if (chunk >= outgoing_.size()) outgoing_.resize(view.memory.chunk_total(), 0);
  const TensorId tensor = view.memory.tensor_of(chunk);
  const TensorId id = view.program_tensor(tensor);
  Shelf& shelf = shelves_[tier];
  if (id == none || (tier != 0 && tier != cpu_) || !view.memory.evictable(chunk, tier) || view.dead(tensor) ||
      (outgoing_[chunk] >> tier & 1) != 0) {
    shelf.take(chunk);
    return;
  }
  const Needed& needed = needed_[id];
  const Bytes bytes = view.memory.footprint(chunk, tier);
  if (tier == 0) {
    const Shelf::Kind kind = kind_on_gpu(chunk, id, view);
    Place next = kind == Shelf::owed ? needed.cpu : needed.gpu;
    if (next == never && (kind == Shelf::due || kind == Shelf::dirty)) next = needed.touch;
    shelf.put(chunk, kind, shelf_op(next), bytes);
    return;
  }
  const bool stored = store_of(chunk, view) != no_tier;
  Place next = std::min(needed.gpu, needed.cpu);
  if (!stored && next == never) next = needed.touch;
  // What stays on the GPU until it is written again needs no copy here.
  const bool useless = view.memory.valid(chunk, 0) && due_now_[id] == 0 && needed.cpu == never;
  shelf.put(chunk,
            useless              ? Shelf::spare
            : stored             ? Shelf::clean
            : sink_now_[id] != 0 ? Shelf::due
                                 : Shelf::dirty,
            shelf_op(next), bytes);
}

Shelf::Kind ForesightFlow::kind_on_gpu(ChunkId chunk, TensorId id, const View& view) const {
  if (view.memory.valid_elsewhere(chunk, 0)) return away_now_[id] != 0 ? Shelf::spare : Shelf::clean;
  if (needed_[id].cpu != never) return Shelf::owed;
  return due_now_[id] != 0 ? Shelf::due : Shelf::dirty;
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
  held_up_by_ = 0;
  for (; horizon_.op < gpu_ + op_count_; horizon_ = {horizon_.op + 1, 0, 0}) {
    const OpIndex op = index(horizon_.op);
    if (future_.device(op) == Device::gpu && !admit(op, view)) return;
    const std::int64_t alive = future_.alive(horizon_.op);
    while (!peaks_.empty() && peaks_.back().second <= alive) peaks_.pop_back();
    peaks_.emplace_back(horizon_.op, alive);
  }
}

// Chunk by chunk; false where the horizon is held up.
bool ForesightFlow::admit(OpIndex op, const View& view) {
  const auto fits = [&](Bytes more) {
    held_up_by_ = std::max<std::int64_t>(0, excess(horizon_.op, more, view));
    return held_up_by_ == 0;
  };
  if (!fits(0)) return false;
  const auto uses = view.schedule->uses(op);
  for (; horizon_.use < uses.size(); ++horizon_.use, horizon_.chunk = 0) {
    const Use& use = uses[horizon_.use];
    const TensorId tensor = view.memory_tensor(use.tensor);
    if (tensor == none) continue;
    if (use.read ? needed_[use.tensor].gpu != horizon_.op : !view.memory.persistent(tensor)) continue;
    const ChunkId begin = view.memory.first_chunk(tensor);
    for (; horizon_.chunk < view.memory.chunk_count(tensor); ++horizon_.chunk) {
      const ChunkId chunk = begin + horizon_.chunk;
      if (view.memory.copy(chunk, 0).state != CopyState::absent) continue;
      const Bytes bytes = view.memory.footprint(chunk, 0);
      if (!fits(bytes)) return false;
      need(op, bytes);
    }
  }
  return true;
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
  for (; cursor < horizon_; cursor = {cursor.op + 1, 0, 0}) {
    const OpIndex op = index(cursor.op);
    if (future_.device(op) != Device::gpu) continue;
    const auto uses = view.schedule->uses(op);
    for (; cursor.use < uses.size(); ++cursor.use, cursor.chunk = 0) {
      const Use& use = uses[cursor.use];
      const TensorId tensor = view.memory_tensor(use.tensor);
      if (!use.read || tensor == none || view.dead(tensor) || needed_[use.tensor].gpu != cursor.op) continue;
      const ChunkId begin = view.memory.first_chunk(tensor);
      for (; cursor.chunk < view.memory.chunk_count(tensor); ++cursor.chunk) {
        if (!(cursor < horizon_)) return;
        const ChunkId chunk = begin + cursor.chunk;
        if (view.memory.copy(chunk, 0).state != CopyState::absent || source_of(chunk, view) != tier) continue;
        if (coming(chunk, 0) || (cpu_ != no_tier && coming(chunk, cpu_))) continue;
        if (underway >= window() || flights_.size() > most_flights) return;
        ask(Verb::fetch, chunk, tier, 0, view, actions);
        underway += view.memory.footprint(chunk, 0);
        got(op, view.memory.footprint(chunk, 0));
      }
    }
  }
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

std::uint64_t ForesightFlow::fingerprint() const {
  std::uint64_t hash = 0;
  const auto mix = [&hash](std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 32;
  };
  const auto mix_cursor = [&](const Cursor& cursor) {
    mix(cursor.op - std::min(cursor.op, gpu_));
    mix(cursor.use);
    mix(cursor.chunk);
  };
  mix_cursor(horizon_);
  for (const Cursor& cursor : fetched_) mix_cursor(cursor);
  for (const Store& store : stores_) mix_cursor(store.read);
  mix(needed_bytes_);
  mix(budget_left_);
  return hash;
}

}  // namespace tencache
