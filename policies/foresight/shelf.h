// The chunks of a tier that may leave, by the op that needs them next and by what it costs to drop them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/trace.h"
#include "core/units.h"
#include "policies/planning/cyclic_sums.h"
#include "policies/planning/index_set.h"

namespace tencache {

// The chunks of one tier that may leave, in a list for each op that needs them next, and for "no op".
class Shelf {
 public:
  enum Kind : std::uint8_t {
    spare,  // dropping it costs nothing, and it will have to leave
    clean,  // dropping it costs nothing
    alone,  // nor does this, but it will have to come all the way from storage
    dirty,  // it has to be copied to a lower tier first
    due,    // so it has, and it will have to leave
    owed,   // so it has, and the CPU waits for it: listed by the CPU's op
    kinds,
    off = kinds,  // not on the shelf
  };

  void reset(std::size_t op_count);
  std::uint32_t never() const { return static_cast<std::uint32_t>(op_count_); }
  void put(ChunkId chunk, Kind kind, std::uint32_t op, Bytes bytes);
  void take(ChunkId chunk) { put(chunk, off, 0, 0); }
  Kind kind(ChunkId chunk) const { return chunk < entries_.size() ? entries_[chunk].kind : off; }
  std::uint32_t op(ChunkId chunk) const { return entries_[chunk].op; }
  ChunkId first(Kind kind, std::uint32_t op) const { return heads_[kind][op]; }
  ChunkId next(ChunkId chunk) const { return entries_[chunk].next; }
  // The op needed farthest after `now`, going round, `never` first; the next nearer one than `op`. none: no more.
  std::uint32_t farthest(Kind kind, std::uint32_t now) const {
    if (counts_[kind] == 0) return none;  // asked for at every event, and mostly so
    return heads_[kind][op_count_] != none ? never() : nearer(kind, never(), now);
  }
  std::uint32_t nearer(Kind kind, std::uint32_t op, std::uint32_t now) const;
  std::uint32_t nearest(Kind kind, std::uint32_t now) const {  // after `now`; not `never`
    return counts_[kind] == 0 ? none : some_nearest(kind, now);
  }
  Bytes total(Kind kind) const { return totals_[kind]; }
  // Clean and spare bytes that no op in (now, op] needs; all of them if the two are the same op and it is the one a
  // round ahead.
  Bytes clean_beyond(std::uint32_t now, std::uint32_t op, bool whole_round) const;

 private:
  struct Entry {
    ChunkId previous = none, next = none;
    std::uint32_t op = 0;
    Bytes bytes = 0;
    Kind kind = off;
  };
  void add(const Entry& entry, std::int64_t sign);  // to the totals
  std::uint32_t some_nearest(Kind kind, std::uint32_t now) const;

  std::size_t op_count_ = 0;
  std::vector<Entry> entries_;
  std::array<std::vector<ChunkId>, kinds> heads_;
  std::array<IndexSet, kinds> ops_;            // that have chunks
  std::array<std::uint32_t, kinds> counts_{};  // of chunks
  std::array<Bytes, kinds> totals_{};
  CyclicSums clean_at_{{}};  // clean and spare bytes, by op
};

}  // namespace tencache
