#include "policies/foresight/flow.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace tencache {

void ForesightFlow::start(const View& view) {
  started_ = true;
  known_.start(view, chunk_bytes_, forgets_, knobs_);
}

void ForesightFlow::on(const Event& event, const View& view, Actions& actions) {
  const bool settled = std::exchange(settled_ns_, -1) == view.now;
  if (!hear(event, view, settled)) return;
  known_.horizon.move(known_.needed, known_.shelves[0], known_.flights, known_.places, known_.future, view);
  const Ways& ways = known_.ways;
  known_.find_lacking(view);
  for (const TierId tier : ways.sources) fetch_from(tier, view, actions);
  if (ways.cpu != no_tier) clean_to(ways.cpu, view, actions);
  for (const Store& store : ways.stores) {
    if (store.by_gpu) clean_to(store.tier, view, actions);
  }
  if (ways.cpu != no_tier) host_.tend(known_, view, actions);
  const bool issued = event.kind == EventKind::op_issued && event.device == Device::gpu;
  if (issued && actions.list().empty()) settled_ns_ = view.now;
}

// What `hear` knows.
bool ForesightFlow::hears(EventKind kind) {
  switch (kind) {
    case EventKind::schedule_deviated:
    case EventKind::tensor_freed:
    case EventKind::op_issued:
    case EventKind::op_ready:
    case EventKind::op_done:
    case EventKind::revealed:
    case EventKind::transfer_done:
    case EventKind::refused:
      return true;
    default:
      return false;
  }
}

// Whether there is something to decide about.
bool ForesightFlow::hear(const Event& event, const View& view, bool settled) {
  const bool gpu = event.device == Device::gpu;
  switch (event.kind) {
    case EventKind::schedule_deviated:
      started_ = false;
      return false;
    case EventKind::tensor_freed:
      known_.forget(event.tensor, view);
      return false;
    case EventKind::op_issued:
      if (view.schedule == nullptr || event.op == none) return false;
      if (!started_) start(view);  // the schedule is found again
      known_.issued(event, view);
      return true;
    case EventKind::op_ready:
      if (!started_ || event.op == none || !gpu) return false;
      return known_.horizon.ready(known_.places, known_.future) || !settled;
    case EventKind::op_done:
      if (!started_ || event.op == none) return false;
      known_.done(event, view);
      return !gpu;  // the GPU's next one is issued at once
    case EventKind::revealed:
      if (!started_) return false;
      known_.revealed(event, view);
      return true;
    case EventKind::transfer_done:
      if (!started_) return false;
      known_.arrived(event, view);
      return true;
    case EventKind::refused:
      if (started_ && event.chunk != none) known_.refused(event.chunk, view);
      return false;  // not at once again
    default:
      return false;
  }
}

// ---- Step 4: fetching -----------------------------------------------------------------------------------------------

void ForesightFlow::fetch_from(TierId tier, const View& view, Actions& actions) {
  const OpPlaces& places = known_.places;
  const TierId cpu = known_.ways.cpu;
  UseCursor& cursor = known_.fetched[tier];
  if (cursor.op <= places.gpu()) cursor = {places.gpu() + 1, 0, 0};
  Bytes underway = known_.flights.between(tier, 0);
  bool lacks = false;
  const auto wanted = [&](const Use& use, TensorId tensor) {
    const bool needed = known_.future.device(places.index(cursor.op)) == Device::gpu && use.read &&
                        known_.needed[use.tensor].gpu == cursor.op;
    lacks |= needed && view.dead(tensor);
    return needed && !view.dead(tensor);
  };
  const auto fetch = [&](ChunkId chunk, OpIndex needed_by) {
    if (view.memory.copy(chunk, 0).state != CopyState::absent) return true;
    lacks = true;
    if (known_.ways.source_of(chunk, view.memory) != tier) return true;
    if (known_.flights.coming(chunk, 0) || (cpu != no_tier && known_.flights.coming(chunk, cpu))) return true;
    constexpr std::size_t most_flights = 256;
    if (underway >= window_ || known_.flights.count() > most_flights) return false;
    known_.ask(Verb::fetch, chunk, tier, 0, view, actions);
    underway += view.memory.footprint(chunk, 0);
    known_.horizon.got(needed_by, view.memory.footprint(chunk, 0));
    return true;
  };
  for (const auto& [op, tensor] : known_.revealed()) {
    for (const ChunkId chunk : view.memory.chunks_of(tensor)) {
      if (!fetch(chunk, op)) return;
    }
  }
  const auto fetch_at_cursor = [&](ChunkId chunk) { return fetch(chunk, places.index(cursor.op)); };
  for (const UseCursor end = known_.horizon.end(); cursor < end;) {
    const bool whole = cursor.use == 0 && cursor.chunk == 0;
    if (whole) cursor.op = known_.next_lacking(cursor.op, end.op, view);
    if (!(cursor < end)) return;
    const UseCursor next{cursor.op + 1, 0, 0};
    lacks = false;
    if (!walk(cursor, std::min(end, next), places, view, wanted, fetch_at_cursor)) return;
    if (whole && !lacks) known_.lacks_nothing(next.op - 1);
  }
}

// ---- Step 5: cleaning -----------------------------------------------------------------------------------------------

void ForesightFlow::clean_to(TierId to, const View& view, Actions& actions) {
  known_.forget_lost(0, to, view);
  Shelf& shelf = known_.shelves[0];
  for (Bytes underway = known_.flights.between(0, to); underway < window_;) {
    const ChunkId chunk = to_clean(to, underway, view);
    if (chunk == none) return;
    const Shelf::Kind kind = shelf.kind(chunk);
    if (!view.memory.evictable(chunk, 0) || view.memory.valid_elsewhere(chunk, 0)) {
      known_.refresh(chunk, 0, view);
      if (shelf.kind(chunk) == kind) return;
      continue;
    }
    const Bytes bytes = view.memory.footprint(chunk, to);
    if (view.memory.free(to) < bytes + known_.flights.between(0, to)) return;
    const TensorId id = view.program_tensor(view.memory.tensor_of(chunk));
    if (id != none) known_.plan.clean_all_the_same(id);
    if (to != known_.ways.cpu) known_.plan.spend(bytes);
    known_.ask(Verb::clean, chunk, 0, to, view, actions);
    underway += bytes;
  }
}

ChunkId ForesightFlow::to_clean(TierId to, Bytes underway, const View& view) const {
  const Shelf& shelf = known_.shelves[0];
  const OpPlaces& places = known_.places;
  const std::uint32_t due = shelf.farthest(Shelf::due, places.index(places.gpu()));
  if (to != known_.ways.cpu) return due == none || known_.plan.budget() == 0 ? none : shelf.first(Shelf::due, due);
  if (const std::uint32_t op = shelf.nearest(Shelf::owed, places.index(places.cpu())); op != none) {
    return shelf.first(Shelf::owed, op);
  }
  if (due != none) return shelf.first(Shelf::due, due);
  // Whole tensors leave CPU memory in lumps. What finds room between them, against the plan, goes on to storage, where
  // its writes delay the reads that the GPU waits for, and so the ops that would make something due.
  const auto in_use = [&view](const Store& store) { return view.memory.used(store.tier) > 0; };
  if (whole_ && !known_.plan.keeps_all() && std::ranges::any_of(known_.ways.stores, in_use)) return none;
  if (known_.horizon.held_up_by() <= static_cast<std::int64_t>(underway)) return none;
  const std::uint32_t op = shelf.farthest(Shelf::dirty, places.index(places.gpu()));
  if (op == none || (op != shelf.never() && places.after_gpu(op) <= known_.horizon.end().op)) return none;
  return shelf.first(Shelf::dirty, op);
}

// ---- Steps 4 and 6: who leaves --------------------------------------------------------------------------------------

void ForesightFlow::make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) {
  settled_ns_ = -1;
  if (!started_ || request.tier >= known_.shelves.size()) {
    coldest_victims(request, view, victims);
    return;
  }
  Bytes found = 0;
  const auto add = [&](std::initializer_list<Shelf::Kind> list, OpPlace floor) {
    for (const Shelf::Kind kind : list) choose(request, kind, floor, view, victims, found);
  };
  const OpPlace now = known_.places.gpu();
  if (request.prefetch) {
    const TensorId id = view.program_tensor(view.memory.tensor_of(request.incoming));
    const OpPlace needed = id == none || request.tier != 0 ? no_place : known_.needed[id].gpu;
    add({Shelf::spare, Shelf::clean}, needed == no_place ? now : needed);
    return;
  }
  add({Shelf::spare, Shelf::clean, Shelf::alone, Shelf::due, Shelf::dirty, Shelf::owed}, now);
  if (found < request.bytes && !known_.ways.leave(request.tier, view)) coldest_victims(request, view, victims);
}

// Those needed after `floor`, the farthest first.
void ForesightFlow::choose(const RoomRequest& request, Shelf::Kind kind, OpPlace floor, const View& view,
                           std::vector<ChunkId>& victims, Bytes& found) {
  Shelf& shelf = known_.shelves[request.tier];
  const OpIndex now = known_.places.index(known_.places.gpu());
  const bool free = kind == Shelf::clean || kind == Shelf::spare || kind == Shelf::alone;
  for (std::uint32_t op = shelf.farthest(kind, now); op != none && found < request.bytes;
       op = shelf.nearer(kind, op, now)) {
    if (op != shelf.never() && known_.places.after_gpu(op) <= floor) return;
    for (ChunkId chunk = shelf.first(kind, op); chunk != none && found < request.bytes;) {
      const ChunkId next = shelf.next(chunk);
      if (!view.memory.evictable(chunk, request.tier) || (free && !view.memory.valid_elsewhere(chunk, request.tier))) {
        known_.refresh(chunk, request.tier, view);
      } else {
        victims.push_back(chunk);
        found += view.memory.footprint(chunk, request.tier);
        shelf.take(chunk);
        if (free && request.tier == 0 && op != shelf.never()) known_.dropped(chunk, op, view);
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
  const OpPlace now = known_.places.gpu();
  const auto mix_cursor = [&](const UseCursor& cursor) {
    mix(cursor.op - std::min(cursor.op, now));
    mix(cursor.use);
    mix(cursor.chunk);
  };
  mix_cursor(known_.horizon.end());
  for (const UseCursor& cursor : known_.fetched) mix_cursor(cursor);
  for (const Store& store : known_.ways.stores) mix_cursor(store.read);
  mix(known_.horizon.needed_bytes());
  mix(known_.plan.budget());
  return hash;
}

}  // namespace tencache
