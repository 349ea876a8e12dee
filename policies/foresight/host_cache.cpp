#include "policies/foresight/host_cache.h"

#include <algorithm>

namespace tencache {
namespace {

// What is needed up to there stays: it was read ahead, or the GPU has nothing to copy down that is needed earlier.
OpPlace floor_of(const Foreknowledge& known) {
  OpPlace floor = known.places.gpu() + known.places.op_count();
  for (const Store& store : known.ways.stores) floor = std::min(floor, store.read.op);
  const std::uint32_t due = known.shelves[0].farthest(Shelf::due, known.places.index(known.places.gpu()));
  if (due != none && due != known.shelves[0].never()) floor = std::min(floor, known.places.after_gpu(due));
  return floor;
}

}  // namespace

void HostCache::tend(Foreknowledge& known, const View& view, Actions& actions) {
  known.places.find_slower();  // needs are counted from there
  dropped_ = 0;
  for (Store& store : known.ways.stores) {
    if (store.by_cpu) read_ahead(store, known, view, actions);
  }
  make_room(0, floor_of(known), known, view, actions);
  for (const Store& store : known.ways.stores) {
    if (store.by_cpu) sink(store, known, view, actions);
  }
}

// For what comes from the GPU: at least for the chunk that is next, which may be a large tensor.
Bytes HostCache::reserve(const Foreknowledge& known, const View& view) const {
  constexpr Bytes most_share = 8, windows = 8;
  const Shelf& gpu = known.shelves[0];
  std::uint32_t op = gpu.nearest(Shelf::owed, known.places.index(known.places.cpu()));
  const Shelf::Kind kind = op != none ? Shelf::owed : Shelf::due;
  if (op == none) op = gpu.farthest(Shelf::due, known.places.index(known.places.gpu()));
  const Bytes next = op == none ? 0 : view.memory.footprint(gpu.first(kind, op), known.ways.cpu);
  return std::min(view.memory.capacity(known.ways.cpu) / most_share, std::max(windows * window_, next));
}

// Until there are so many bytes and the reserve. What is dropped is needed after `floor`.
bool HostCache::make_room(Bytes bytes, OpPlace floor, Foreknowledge& known, const View& view, Actions& actions) {
  while (view.memory.free(known.ways.cpu) + dropped_ < bytes + reserve(known, view)) {
    if (drop(Shelf::spare, known.places.slower(), known, view, actions)) continue;
    if (known.ways.stores.empty() || !drop(Shelf::clean, floor, known, view, actions)) return false;
  }
  return true;
}

bool HostCache::drop(Shelf::Kind kind, OpPlace floor, Foreknowledge& known, const View& view, Actions& actions) {
  const TierId cpu = known.ways.cpu;
  Shelf& shelf = known.shelves[cpu];
  const std::uint32_t op = shelf.farthest(kind, known.places.index(known.places.slower()));
  if (op == none || (op != shelf.never() && known.places.after_slower(op) <= floor)) return false;
  const ChunkId chunk = shelf.first(kind, op);
  const bool stored = known.ways.store_of(chunk, view.memory) != no_tier;
  const bool on_gpu = view.memory.valid(chunk, 0) && !view.memory.copy(chunk, 0).evicting;
  if (!view.memory.evictable(chunk, cpu) || !(kind == Shelf::spare ? on_gpu : stored)) {
    known.refresh(chunk, cpu, view);
    return shelf.kind(chunk) != kind;
  }
  const TensorId tensor = view.memory.tensor_of(chunk);
  actions.push({.verb = Verb::drop, .tier = cpu, .tensor = tensor, .chunk = chunk - view.memory.first_chunk(tensor)});
  dropped_ += view.memory.footprint(chunk, cpu);
  shelf.take(chunk);
  Shelf& gpu = known.shelves[0];
  if (gpu.kind(chunk) != Shelf::off) {  // the GPU's is now the only copy, or the only one in memory
    const Shelf::Kind kind = !stored ? Shelf::dirty : known.exclusive() ? Shelf::alone : gpu.kind(chunk);
    gpu.put(chunk, kind, gpu.op(chunk), view.memory.footprint(chunk, 0));
  }
  return true;
}

void HostCache::read_ahead(Store& store, Foreknowledge& known, const View& view, Actions& actions) {
  const OpPlaces& places = known.places;
  const Flights& flights = known.flights;
  const TierId cpu = known.ways.cpu;
  const LinkId link = known.ways.link(store.tier, cpu);
  UseCursor& cursor = store.read;
  if (cursor.op <= places.slower()) cursor = {places.slower() + 1, 0, 0};
  // What the GPU drops sends the cursor back: not to go all the way again.
  if (view.memory.used(store.tier) == 0) return;
  const auto wanted = [&](const Use& use, TensorId tensor) {
    const NeededAt& needed = known.needed[use.tensor];
    const bool gpu = known.future.device(places.index(cursor.op)) == Device::gpu;
    return use.read && !view.dead(tensor) && (gpu ? needed.gpu : needed.cpu) == cursor.op;
  };
  const UseCursor end{std::max(cursor.op, places.slower() + places.op_count()), 0, 0};
  walk(cursor, end, places, view, wanted, [&](ChunkId chunk) {
    if (view.memory.copy(chunk, cpu).state != CopyState::absent) return true;
    if (known.ways.store_of(chunk, view.memory) != store.tier) return true;
    if (view.memory.copy(chunk, 0).state != CopyState::absent) return true;
    if (flights.coming(chunk, 0) || flights.coming(chunk, cpu)) return true;
    const Bytes flying = flights.between(store.tier, cpu);
    if (view.transfers_on(link) > 1 || flying >= window_) return false;
    const Bytes bytes = view.memory.footprint(chunk, cpu) + flying;
    if (!make_room(bytes + known.shelves[0].total(Shelf::due), cursor.op, known, view, actions)) return false;
    known.ask(Verb::fetch, chunk, store.tier, cpu, view, actions);
    return true;
  });
}

// Copies down what will have to leave CPU memory, or, if it is short, whatever is needed last.
void HostCache::sink(const Store& store, Foreknowledge& known, const View& view, Actions& actions) const {
  const TierId cpu = known.ways.cpu;
  known.forget_lost(cpu, store.tier, view);
  const LinkId link = known.ways.link(cpu, store.tier);
  Shelf& shelf = known.shelves[cpu];
  const OpIndex now = known.places.index(known.places.slower());
  // Where both memories hold everything, it is copies of what the GPU has that fill this one: they go by themselves.
  const bool is_short = !known.plan.keeps_all() && view.memory.free(cpu) < reserve(known, view);
  for (Bytes underway = known.flights.between(cpu, store.tier); underway < window_ && view.transfers_on(link) < 2;) {
    Shelf::Kind kind = Shelf::due;
    std::uint32_t op = shelf.farthest(kind, now);
    if (op == none && is_short) {
      kind = Shelf::dirty;
      op = shelf.farthest(kind, now);
      if (op != none && op != shelf.never() && known.places.after_slower(op) <= store.read.op) return;
    }
    if (op == none) return;
    const ChunkId chunk = shelf.first(kind, op);
    bool stored = false;
    for (const Store& other : known.ways.stores) {
      stored |= view.memory.copy(chunk, other.tier).state != CopyState::absent;
    }
    if (!view.memory.evictable(chunk, cpu) || stored) {
      known.refresh(chunk, cpu, view);
      if (shelf.kind(chunk) == kind) return;
      continue;
    }
    const Bytes bytes = view.memory.footprint(chunk, store.tier);
    if (view.memory.free(store.tier) < bytes + known.flights.between(cpu, store.tier)) return;
    known.ask(Verb::clean, chunk, cpu, store.tier, view, actions);
    underway += bytes;
  }
}

}  // namespace tencache
