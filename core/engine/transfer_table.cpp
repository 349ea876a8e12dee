#include "core/engine/transfer_table.h"

#include <algorithm>

#include "core/check.h"
#include "core/error.h"
#include "core/metrics.h"

namespace tencache {

TransferTable::TransferTable(const MachineSpec& spec) : spec_(spec), staging_used_(spec.staging.count, false) {
  for (LinkId link = 0; link < spec.links.size(); ++link) {
    const Link& l = spec.links[link];
    if (l.queue_depth <= spec.copies_in_flight) continue;
    const uint128 flows = static_cast<uint128>(l.bandwidth) * static_cast<uint128>(l.latency_ns);
    links_[link].per_latency = static_cast<Bytes>((flows + second_ns - 1) / static_cast<uint128>(second_ns));
  }
}

TransferId TransferTable::add(ChunkId chunk) {
  TransferId id;
  if (free_.empty()) {
    id = static_cast<TransferId>(entries_.size());
    entries_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Entry& entry = entries_[id];
  entry = Entry{};
  entry.transfer.chunk = chunk;
  entry.next_of_chunk = first_of_chunk_[chunk];
  first_of_chunk_[chunk] = id;
  return id;
}

void TransferTable::remove(TransferId id) {
  Transfer& t = entries_[id].transfer;
  TENCACHE_CHECK(!t.queued && !t.in_flight && t.staging.count == 0);
  TransferId* at = &first_of_chunk_[t.chunk];
  while (*at != id) at = &entries_[*at].next_of_chunk;
  *at = entries_[id].next_of_chunk;
  t.chunk = none;
  free_.push_back(id);
}

void TransferTable::defer(TransferId id, OpIndex not_before) {
  entries_[id].transfer.not_before = not_before;
  deferred_.emplace(not_before, id);
}

void TransferTable::take_out(TransferId id) {
  if (entries_[id].transfer.queued) {
    dequeue(id);
    return;
  }
  const auto [begin, end] = deferred_.equal_range(entries_[id].transfer.not_before);
  const auto found = std::find_if(begin, end, [id](const auto& entry) { return entry.second == id; });
  TENCACHE_CHECK(found != end);
  deferred_.erase(found);
}

std::vector<TransferId> TransferTable::release(OpIndex op) {
  std::vector<TransferId> due;
  const auto [begin, end] = deferred_.equal_range(op);
  for (auto it = begin; it != end; ++it) due.push_back(it->second);
  deferred_.erase(begin, end);
  return due;
}

void TransferTable::enqueue(TransferId id, bool at_front) {
  Entry& entry = entries_[id];
  Transfer& t = entry.transfer;
  LinkState& link = links_[t.link()];
  TENCACHE_CHECK(!t.queued && !t.in_flight);
  t.queued = true;
  entry.previous = entry.next = none;
  TransferId& first = link.first[index(t.priority)];
  TransferId& last = link.last[index(t.priority)];
  if (first == none) {
    first = last = id;
  } else if (at_front) {
    entry.next = first;
    entries_[first].previous = id;
    first = id;
  } else {
    entry.previous = last;
    entries_[last].next = id;
    last = id;
  }
  ++link.length;
  ++queued_;
  ++link_load_[t.link()];
  ++enqueued_;
}

void TransferTable::dequeue(TransferId id) {
  const Entry& entry = entries_[id];
  Transfer& t = entries_[id].transfer;
  LinkState& link = links_[t.link()];
  TENCACHE_CHECK(t.queued);
  (entry.previous == none ? link.first[index(t.priority)] : entries_[entry.previous].next) = entry.next;
  (entry.next == none ? link.last[index(t.priority)] : entries_[entry.next].previous) = entry.previous;
  t.queued = false;
  --link.length;
  --queued_;
  --link_load_[t.link()];
}

bool TransferTable::has_latency_to_hide(LinkId id) const {
  const LinkState& link = links_[id];
  if (link.in_flight >= spec_.links[id].queue_depth) return false;
  Bytes behind_first = 0;
  for (std::size_t i = 1; i < link.bytes_in_flight.size(); ++i) behind_first += link.bytes_in_flight[i];
  return behind_first < link.per_latency;
}

void TransferTable::begin(TransferId id, Bytes bytes, Nanoseconds now) {
  dequeue(id);
  Transfer& t = entries_[id].transfer;
  t.in_flight = true;
  t.started_ns = now;
  LinkState& link = links_[t.link()];
  ++link.in_flight;
  if (link.per_latency > 0) link.bytes_in_flight.push_back(bytes);
  ++link_load_[t.link()];
  ++in_flight_;
}

void TransferTable::end(TransferId id) {
  Transfer& t = entries_[id].transfer;
  LinkState& link = links_[t.link()];
  TENCACHE_CHECK(t.in_flight && link.in_flight > 0);
  t.in_flight = false;
  --link.in_flight;
  if (link.per_latency > 0) link.bytes_in_flight.erase(link.bytes_in_flight.begin());
  --link_load_[t.link()];
  --in_flight_;
}

bool TransferTable::take_staging(TransferId id, Bytes bytes) {
  const std::uint32_t count = static_cast<std::uint32_t>(spec_.staging.buffers_for(bytes));
  if (count > staging_used_.size()) {
    throw Error("machine '" + spec_.name + "': a chunk of " + format_bytes(bytes) + " needs " + std::to_string(count) +
                " staging buffers of " + format_bytes(spec_.staging.bytes) + ", there are " +
                std::to_string(staging_used_.size()) + "; raise staging.count or staging.bytes, or use smaller chunks");
  }
  std::uint32_t run = 0;
  for (std::uint32_t i = 0; i < staging_used_.size(); ++i) {
    run = staging_used_[i] ? 0 : run + 1;
    if (run < count) continue;
    StagingRun& staging = entries_[id].transfer.staging;
    TENCACHE_CHECK(staging.count == 0);
    staging = {i + 1 - count, count};
    std::fill_n(staging_used_.begin() + staging.first, count, true);
    return true;
  }
  return false;
}

std::uint64_t TransferTable::hash(Nanoseconds now) const {
  std::uint64_t sum = 0;  // the places in the table mean nothing
  for (const Entry& entry : entries_) {
    const Transfer& t = entry.transfer;
    if (t.chunk == none) continue;
    const std::uint64_t kind = (std::uint64_t{t.from} << 24) | (std::uint64_t{t.to} << 16) |
                               (std::uint64_t{t.hop} << 8) | (t.in_flight ? 1 : 0);
    const std::uint64_t progress = static_cast<std::uint64_t>(t.in_flight ? now - t.started_ns : 0) + t.moved;
    sum += ((t.chunk * 0x9e3779b97f4a7c15ull) ^ kind) * 0xbf58476d1ce4e5b9ull + progress * 0x94d049bb133111ebull;
  }
  return sum;
}

}  // namespace tencache
