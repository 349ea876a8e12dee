// The transfers that were asked for and are not over: each waits for its op (deferred), waits in the queue of its
// link, or is in flight. The table keeps lists and counts; it knows no rule and no policy, and calls nobody.
//
// Lists are intrusive and ids are used again, so that every change takes constant time. References to a transfer stand
// until the next `add`.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "core/engine/moment.h"
#include "core/machine.h"
#include "core/machine_spec.h"

namespace tencache {

using TransferId = std::uint32_t;
enum class Purpose : std::uint8_t { fetch, evict, clean };
enum class Priority : std::uint8_t { urgent, normal, background };
inline constexpr std::array every_priority{Priority::urgent, Priority::normal, Priority::background};

// One link, or two with pinned buffers between them.
struct Route {
  std::array<LinkId, 2> links{no_link, no_link};
  std::uint8_t hops = 0;         // 0: there is none
  BytesPerSecond bandwidth = 0;  // of the slowest
};

// A run of staging buffers.
struct StagingRun {
  std::uint32_t first = 0, count = 0;
};

struct Transfer {
  ChunkId chunk = none;  // none: the entry is free
  TierId from = no_tier, to = no_tier;
  Purpose purpose = Purpose::fetch;
  Priority priority = Priority::normal;
  Route route = {};
  Bytes bytes = 0;  // in all
  // What each of its copies moves. By way of staging buffers it goes in pieces of what these hold, one after the other:
  // `moved` of it has gone the whole way.
  Bytes piece = 0, moved = 0;
  OpIndex requested_at = none;
  OpIndex not_before = none;  // the op whose issue ends its deferral

  std::uint8_t hop = 0;                    // < route.hops, of the piece
  bool queued = false, in_flight = false;  // never both; neither: deferred, or about to be removed
  bool discard = false;                    // its content became useless under way; then it is in flight
  bool overlapped = false;                 // a waiting op counts it among its overlapped arrivals
  StagingRun staging = {};
  Nanoseconds started_ns = 0;
  Fence fence = 0;
  Lateness lateness = {};

  LinkId link() const { return route.links[hop]; }
  // Its destination has room, and it has its buffers.
  bool begun() const { return hop > 0 || moved > 0; }
  // Not all that it copies has left the source.
  bool reads_source() const { return hop == 0 || moved + piece < bytes; }
};

class TransferTable {
 public:
  // The spec must outlive this object.
  explicit TransferTable(const MachineSpec& spec);

  // ---- The transfers of a chunk, the youngest first.
  void follow(std::size_t chunks) { first_of_chunk_.resize(chunks, none); }  // ids below that may come
  TransferId add(ChunkId chunk);                                             // all else is the caller's to fill in
  void remove(TransferId id);                                                // neither queued, deferred nor in flight
  Transfer& operator[](TransferId id) { return entries_[id].transfer; }
  const Transfer& operator[](TransferId id) const { return entries_[id].transfer; }
  TransferId first_of(ChunkId chunk) const { return first_of_chunk_[chunk]; }
  TransferId next_of_chunk(TransferId id) const { return entries_[id].next_of_chunk; }
  // The one that will fill the chunk's copy there.
  TransferId find(ChunkId chunk, TierId to) const {
    for (TransferId id = first_of_chunk_[chunk]; id != none; id = entries_[id].next_of_chunk) {
      if (entries_[id].transfer.to == to && !entries_[id].transfer.discard) return id;
    }
    return none;
  }

  // ---- Waiting for an op, then for the link of its present hop. A link has a queue for each priority.
  void defer(TransferId id, OpIndex not_before);
  bool defers() const { return !deferred_.empty(); }
  std::vector<TransferId> release(OpIndex op);  // those deferred until that op, in order of request; not queued yet
  void enqueue(TransferId id, bool at_front);
  void take_out(TransferId id);  // of its queue, or of those deferred
  TransferId first_in_queue(LinkId link, Priority priority) const { return links_[link].first[index(priority)]; }
  TransferId next_in_queue(TransferId id) const { return entries_[id].next; }
  bool empty(LinkId link) const { return links_[link].length == 0; }
  bool any_queued() const { return queued_ > 0; }

  // ---- In flight. A link takes `copies_in_flight`, and more, up to its queue depth, while the data behind the first
  // is less than what flows during one latency.
  bool takes_another(LinkId link) const {
    return links_[link].in_flight < spec_.copies_in_flight || hides_latency(link);
  }
  void begin(TransferId id, Bytes bytes, Nanoseconds now);  // dequeues it
  void end(TransferId id);                                  // copies of a link end in order
  std::uint32_t in_flight() const { return in_flight_; }

  // ---- Staging buffers: the first run of free ones that is long enough. False if there is none. Throws Error if there
  // can be none.
  bool take_staging(TransferId id, Bytes bytes);
  void free_staging(TransferId id) {
    StagingRun& staging = entries_[id].transfer.staging;
    std::fill_n(staging_used_.begin() + staging.first, staging.count, false);
    staging.count = 0;
  }

  // ---- Counts.
  std::uint64_t enqueued() const { return enqueued_; }  // ever
  std::span<const std::uint32_t> link_load() const { return {link_load_.data(), spec_.links.size()}; }
  // Of all transfers, whatever their ids; times relative to `now`.
  std::uint64_t hash(Nanoseconds now) const;

 private:
  struct Entry {
    Transfer transfer;
    TransferId previous = none, next = none;  // in its queue
    TransferId next_of_chunk = none;
  };
  struct LinkState {
    std::array<TransferId, every_priority.size()> first{none, none, none}, last{none, none, none};
    std::uint32_t length = 0;            // of the three queues together
    std::uint32_t in_flight = 0;         // <= max(copies_in_flight, queue depth)
    Bytes per_latency = 0;               // what flows during one; 0: copies_in_flight is the limit
    std::vector<Bytes> bytes_in_flight;  // in order of submission; empty with per_latency 0
  };

  static std::size_t index(Priority priority) { return static_cast<std::size_t>(priority); }
  bool hides_latency(LinkId link) const { return links_[link].per_latency > 0 && has_latency_to_hide(link); }
  bool has_latency_to_hide(LinkId link) const;
  void dequeue(TransferId id);

  const MachineSpec& spec_;
  std::vector<Entry> entries_;
  std::vector<TransferId> free_;
  std::vector<TransferId> first_of_chunk_;
  std::array<LinkState, max_links> links_;
  std::multimap<OpIndex, TransferId> deferred_;
  std::vector<bool> staging_used_;                    // by buffer; used by one transfer each
  std::array<std::uint32_t, max_links> link_load_{};  // queued and in flight on each link
  std::uint32_t queued_ = 0, in_flight_ = 0;          // the sums over the links
  std::uint64_t enqueued_ = 0;
};

}  // namespace tencache
