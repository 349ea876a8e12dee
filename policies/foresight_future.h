// What foresight knows of a program: when each tensor's content is needed next, on which device, and how many bytes are
// born and die with each op. And the shelf on which it keeps the chunks of a tier, by the op that needs them next.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/residency.h"
#include "core/schedule.h"
#include "core/trace.h"

namespace tencache {

// Ops until the tensor's present content is needed, from a certain op on; `none`: never, since the tensor dies, is
// overwritten first, or is used by no op of that device.
struct Needs {
  std::uint32_t gpu = none;    // by an op of the GPU that reads it
  std::uint32_t cpu = none;    // by an op of the CPU that reads it
  std::uint32_t touch = none;  // by an op of the GPU that uses the tensor at all
};

class Future {
 public:
  Future() = default;
  // `footprint(tensor)`: what the tensor takes on the GPU. Linear in the program's accesses.
  Future(const Trace& trace, const Schedule& schedule, const std::vector<Bytes>& footprints);

  std::size_t op_count() const { return devices_.size(); }
  Device device(OpIndex op) const { return devices_[op]; }
  // After the op; `use` is the index in Schedule::uses(op).
  const Needs& after(OpIndex op, std::size_t use) const { return after_[first_use_[op] + use]; }
  // From before the first op: distances count from the op before it. Only persistent tensors have content there.
  const Needs& at_start(TensorId tensor) const { return at_start_[tensor]; }
  // Whether the tensor dies with the op's use.
  bool dies(OpIndex op, std::size_t use) const { return dies_[first_use_[op] + use] != 0; }
  std::size_t use_index(OpIndex op, std::size_t use) const { return first_use_[op] + use; }
  Bytes born(OpIndex op) const { return born_[op]; }  // on the GPU, of tensors that are not persistent
  Bytes died(OpIndex op) const { return died_[op]; }
  // Bytes alive while the op of that place runs, but for persistent tensors, against those at place 0. Places go on
  // from iteration to iteration.
  std::int64_t alive(std::uint64_t place) const {
    return alive_[place % devices_.size()] + static_cast<std::int64_t>(place / devices_.size()) * alive_each_;
  }

 private:
  std::vector<Device> devices_;
  std::vector<std::uint64_t> first_use_;
  std::vector<Needs> after_, at_start_;
  std::vector<std::uint8_t> dies_;
  std::vector<Bytes> born_, died_;
  std::vector<std::int64_t> alive_;
  std::int64_t alive_each_ = 0;  // left over by an iteration
};

// Numbers below a limit; the greatest up to one, and the least from one on, in constant time (two words up).
class OpSet {
 public:
  void resize(std::size_t limit);
  void insert(std::uint32_t op);
  void erase(std::uint32_t op);
  std::uint32_t last_to(std::uint32_t op) const;     // the greatest of at most `op`; none
  std::uint32_t first_from(std::uint32_t op) const;  // the least of at least `op`; none

 private:
  std::vector<std::uint64_t> words_, groups_;  // a group has a bit a word
};

// The chunks of one tier that may leave, in a list for each op that needs them next, and for "no op".
class Shelf {
 public:
  enum Kind : std::uint8_t {
    spare,  // dropping it costs nothing, and it will have to leave
    clean,  // dropping it costs nothing
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
  std::uint32_t farthest(Kind kind, std::uint32_t now) const;
  std::uint32_t nearer(Kind kind, std::uint32_t op, std::uint32_t now) const;
  std::uint32_t nearest(Kind kind, std::uint32_t now) const;  // after `now`; not `never`
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
  static bool free_to_drop(Kind kind) { return kind == clean || kind == spare; }
  void add_clean(std::uint32_t op, std::int64_t bytes);
  std::int64_t clean_to(std::uint32_t op) const;  // of ops 0 … op

  std::size_t op_count_ = 0;
  std::vector<Entry> entries_;
  std::array<std::vector<ChunkId>, kinds> heads_;
  std::array<OpSet, kinds> ops_;
  std::array<Bytes, kinds> totals_{};
  std::vector<std::int64_t> sums_;  // of clean bytes by op: a Fenwick tree
};

}  // namespace tencache
