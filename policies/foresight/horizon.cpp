#include "policies/foresight/horizon.h"

#include <algorithm>
#include <utility>

namespace tencache {
namespace {

// Of what the GPU's op makes: what is not there yet.
Bytes unborn(const OpPlaces& places, const Future& future, const View& view) {
  const OpIndex op = places.index(places.gpu());
  Bytes bytes = future.born(op);
  for (const Use& use : view.schedule->uses(op)) {
    const TensorId tensor = view.memory_tensor(use.tensor);
    if (tensor == none || view.schedule->ops_of(use.tensor).front() != op) continue;
    if (view.program->trace.tensors[use.tensor].persistent) continue;
    for (const ChunkId chunk : view.memory.chunks_of(tensor)) {
      if (view.memory.copy(chunk, 0).state == CopyState::absent) continue;
      bytes -= std::min(bytes, view.memory.footprint(chunk, 0));
    }
  }
  return bytes;
}

}  // namespace

Horizon::Horizon(const OpPlaces& places, const Future& future)
    : end_{places.gpu() + 1, 0, 0},
      needed_at_(places.op_count(), 0),
      in_use_(future.alive(places.gpu()) - static_cast<std::int64_t>(future.died(places.index(places.gpu())))) {}

void Horizon::issued(OpIndex op, Bytes lacking, const OpPlaces& places, const Future& future, const View& view) {
  while (!peaks_.empty() && peaks_.front().first <= places.gpu()) peaks_.pop_front();
  got(op, needed_at_[op]);
  in_use_ = future.alive(places.gpu()) - static_cast<std::int64_t>(future.born(op));
  makes_ = view.to_memory != nullptr;
  waits_for_ = lacking;
}

bool Horizon::ready(const OpPlaces& places, const Future& future) {
  in_use_ = future.alive(places.gpu());
  return std::exchange(waits_for_, 0) != 0;
}

void Horizon::done(OpIndex op, const OpPlaces& places, const Future& future) {
  in_use_ = future.alive(places.gpu()) - static_cast<std::int64_t>(future.died(op));
  makes_ = false;
}

void Horizon::need(OpIndex op, Bytes bytes) {
  needed_at_[op] += bytes;
  needed_bytes_ += bytes;
}

void Horizon::got(OpIndex op, Bytes bytes) {
  const Bytes taken = std::min(bytes, needed_at_[op]);
  needed_at_[op] -= taken;
  needed_bytes_ -= taken;
}

void Horizon::absent(OpPlace place, OpIndex op, Bytes bytes) {
  if (place < end_.op) need(op, bytes);
  if (place == end_.op) end_ = std::min(end_, UseCursor{place, 0, 0});
}

// Room that would be lacking if everything up to the horizon, and `more`, were there by then.
std::int64_t Horizon::excess(Bytes more, const Shelf& on_gpu, const Flights& flights, const OpPlaces& places,
                             const Future& future, const View& view) const {
  const OpPlace place = end_.op;
  std::int64_t peak = future.alive(place);
  if (!peaks_.empty()) peak = std::max(peak, peaks_.front().second);
  if (makes_) peak = std::max(peak, future.alive(places.gpu()));
  const Residency& memory = view.memory;
  const Bytes unreserved =
      flights.bytes_to(0, [&](ChunkId chunk) { return memory.copy(chunk, 0).state == CopyState::absent; });
  const Bytes lasting =
      on_gpu.clean_beyond(places.index(places.gpu()), places.index(place), place == places.gpu() + places.op_count());
  const auto n = [](Bytes bytes) { return static_cast<std::int64_t>(bytes); };
  return n(memory.used(0)) - n(memory.leaving(0)) + n(unreserved + waits_for_ + needed_bytes_ + more) +
         (peak - in_use_) - n(lasting) - n(memory.capacity(0));
}

void Horizon::move(const std::vector<NeededAt>& needed, const Shelf& on_gpu, const Flights& flights,
                   const OpPlaces& places, const Future& future, const View& view) {
  if (end_.op <= places.gpu()) {
    end_ = {places.gpu() + 1, 0, 0};
    peaks_.clear();
    std::fill(needed_at_.begin(), needed_at_.end(), 0);
    needed_bytes_ = 0;
  }
  if (makes_) {
    const Bytes lacking = unborn(places, future, view);
    in_use_ = future.alive(places.gpu()) - static_cast<std::int64_t>(lacking);
    makes_ = lacking > 0;
  }
  const auto fits = [&](Bytes more) {
    held_up_by_ = std::max<std::int64_t>(0, excess(more, on_gpu, flights, places, future, view));
    return held_up_by_ == 0;
  };
  const auto wanted = [&](const Use& use, TensorId) {
    // The memory says it of no tensor of a live program.
    return use.read ? needed[use.tensor].gpu == end_.op : view.program->trace.tensors[use.tensor].persistent;
  };
  const auto admit = [&](ChunkId chunk) {
    if (view.memory.copy(chunk, 0).state != CopyState::absent) return true;
    if (!fits(view.memory.footprint(chunk, 0))) return false;
    need(places.index(end_.op), view.memory.footprint(chunk, 0));
    return true;
  };
  held_up_by_ = 0;
  while (end_.op < places.gpu() + places.op_count()) {
    const UseCursor next{end_.op + 1, 0, 0};
    const bool on_gpu_lane = future.device(places.index(end_.op)) == Device::gpu;
    if (on_gpu_lane && !fits(0)) return;
    const std::int64_t alive = future.alive(end_.op);
    if (on_gpu_lane && !walk(end_, next, places, view, wanted, admit)) return;
    end_ = next;
    while (!peaks_.empty() && peaks_.back().second <= alive) peaks_.pop_back();
    peaks_.emplace_back(next.op - 1, alive);
  }
}

}  // namespace tencache
