// Step 7 of foresight.cpp: CPU memory as a cache of what lies in storage.
#include <algorithm>

#include "policies/foresight_flow.h"

namespace tencache {

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
  for (; cursor.op < host_now_ + op_count_; cursor = {cursor.op + 1, 0, 0}) {
    const OpIndex op = index(cursor.op);
    const bool gpu = future_.device(op) == Device::gpu;
    const auto uses = view.schedule->uses(op);
    for (; cursor.use < uses.size(); ++cursor.use, cursor.chunk = 0) {
      const Use& use = uses[cursor.use];
      const TensorId tensor = view.memory_tensor(use.tensor);
      if (!use.read || tensor == none || view.dead(tensor)) continue;
      if ((gpu ? needed_[use.tensor].gpu : needed_[use.tensor].cpu) != cursor.op) continue;
      const ChunkId begin = view.memory.first_chunk(tensor);
      for (; cursor.chunk < view.memory.chunk_count(tensor); ++cursor.chunk) {
        const ChunkId chunk = begin + cursor.chunk;
        if (view.memory.copy(chunk, cpu_).state != CopyState::absent || store_of(chunk, view) != store.tier) continue;
        if (view.memory.copy(chunk, 0).state != CopyState::absent || coming(chunk, 0) || coming(chunk, cpu_)) continue;
        if (view.transfers_on(link) > 1 || flying(store.tier, cpu_) >= window()) return;
        const Bytes bytes = view.memory.footprint(chunk, cpu_) + flying(store.tier, cpu_);
        if (!make_host_room(bytes + shelves_[0].total(Shelf::due), cursor.op, view, actions)) return;
        ask(Verb::fetch, chunk, store.tier, cpu_, view, actions);
      }
    }
  }
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
