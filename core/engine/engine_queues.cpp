// Transfers that wait: for their op, for their link's turn.
#include <algorithm>

#include "core/check.h"
#include "core/engine/engine.h"

namespace tencache {
namespace {

void erase_entry(auto& deferred, OpIndex op, auto id) {
  const auto [begin, end] = deferred.equal_range(op);
  deferred.erase(std::find_if(begin, end, [id](const auto& entry) { return entry.second == id; }));
}

}  // namespace

Engine::TransferId Engine::new_transfer(ChunkId chunk, TierId from, TierId to, Purpose purpose, Priority priority) {
  TransferId id;
  if (free_transfers_.empty()) {
    id = static_cast<TransferId>(transfers_.size());
    transfers_.emplace_back();
  } else {
    id = free_transfers_.back();
    free_transfers_.pop_back();
  }
  Transfer& t = transfers_[id];
  t = Transfer{};
  t.chunk = chunk;
  t.from = from;
  t.to = to;
  t.purpose = purpose;
  t.priority = priority;
  t.route = routes_[from][to];
  t.requested_at = position_;
  t.lateness.asked_ns = t.lateness.room_ns = t.lateness.first_hop_ns = now_;
  t.next_of_chunk = first_of_chunk_[chunk];
  first_of_chunk_[chunk] = id;
  return id;
}

void Engine::free_transfer(TransferId id) {
  Transfer& t = transfers_[id];
  if (t.overlapped) --lanes_[t.to == lanes_[0].tier ? 0 : 1].active.back().overlapped;
  TransferId* at = &first_of_chunk_[t.chunk];
  while (*at != id) at = &transfers_[*at].next_of_chunk;
  *at = t.next_of_chunk;
  const TensorId tensor = memory_.tensor_of(t.chunk);
  t.chunk = none;
  free_transfers_.push_back(id);
  remove_if_gone(tensor);
}

Engine::TransferId Engine::find_transfer(ChunkId chunk, TierId to) const {
  for (TransferId id = first_of_chunk_[chunk]; id != none; id = transfers_[id].next_of_chunk) {
    if (transfers_[id].to == to && !transfers_[id].discard) return id;
  }
  return none;
}

void Engine::enqueue(TransferId id, bool at_front) {
  Transfer& t = transfers_[id];
  Queue& queue = queues_[t.link()];
  t.queued = true;
  t.previous = t.next = none;
  TransferId& first = queue.first[t.priority];
  TransferId& last = queue.last[t.priority];
  if (first == none) {
    first = last = id;
  } else if (at_front) {
    t.next = first;
    transfers_[first].previous = id;
    first = id;
  } else {
    t.previous = last;
    transfers_[last].next = id;
    last = id;
  }
  ++queue.length;
  ++link_load_[t.link()];
  ++enqueued_;
}

void Engine::dequeue(TransferId id) {
  Transfer& t = transfers_[id];
  Queue& queue = queues_[t.link()];
  TENCACHE_CHECK(t.queued);
  (t.previous == none ? queue.first[t.priority] : transfers_[t.previous].next) = t.next;
  (t.next == none ? queue.last[t.priority] : transfers_[t.next].previous) = t.previous;
  t.queued = false;
  --queue.length;
  --link_load_[t.link()];
}

void Engine::withdraw(TransferId id) {
  Transfer& t = transfers_[id];
  TENCACHE_CHECK(!t.in_flight);
  if (t.queued) {
    dequeue(id);
  } else {
    erase_entry(deferred_, t.not_before, id);
  }
  if (t.hop > 0) free_staging(t);
  const bool destination_taken = t.purpose != Purpose::fetch || t.hop > 0;
  if (destination_taken) free_copy(t.chunk, t.to);
  if (t.purpose == Purpose::evict && memory_.valid(t.chunk, t.from) && memory_.copy(t.chunk, t.from).evicting) {
    memory_.set_evicting(t.chunk, t.from, false);
  }
  free_transfer(id);
}

void Engine::promote(TransferId id) {
  Transfer& t = transfers_[id];
  if (layout_.promote) {
    lift(id);
  } else if (!t.queued && !t.in_flight) {  // deferred: it takes its place in the queue, but waits no longer for its op
    erase_entry(deferred_, t.not_before, id);
    enqueue(id, false);
  }
}

void Engine::lift(TransferId id) {
  Transfer& t = transfers_[id];
  if (t.in_flight || t.priority == urgent) {
    t.priority = urgent;  // a second hop is queued as urgent
    return;
  }
  decide(Decision::Kind::promote, t.chunk, t.from, t.to);
  if (t.queued) {
    dequeue(id);
  } else {
    erase_entry(deferred_, t.not_before, id);
  }
  t.priority = urgent;
  enqueue(id, false);
}

void Engine::release_deferred(OpIndex op) {
  const auto [begin, end] = deferred_.equal_range(op);
  std::vector<TransferId> due;
  for (auto it = begin; it != end; ++it) due.push_back(it->second);
  deferred_.erase(begin, end);
  for (const TransferId id : due) enqueue(id, false);
}

}  // namespace tencache
