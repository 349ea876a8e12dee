// The running half of foresight, steps 3 to 7 of foresight.cpp:
//   1. Future: when each tensor's content is needed next, on which device; bytes that are born and die with each op.
//   2. Shelf: the chunks of a tier that may leave, by the op that needs them next and by what it costs to drop them.
//   3. ForesightFlow keeps both up to date with every event (foresight_state.cpp), and then decides what to fetch,
//      clean and drop (foresight_flow.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "core/policy.h"
#include "core/residency.h"
#include "core/schedule.h"
#include "core/trace.h"
#include "policies/planning.h"

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
  void add(const Entry& entry, std::int64_t sign);  // to the totals

  std::size_t op_count_ = 0;
  std::vector<Entry> entries_;
  std::array<std::vector<ChunkId>, kinds> heads_;
  std::array<std::set<std::uint32_t>, kinds> ops_;  // that have chunks
  std::array<Bytes, kinds> totals_{};
  CyclicSums clean_at_{{}};  // clean and spare bytes, by op
};

// The decisions that planning may move.
struct ForesightKnobs {
  std::uint64_t in_flight = 3;  // chunks asked for on a link at once
  double gpu_share = 0.95;      // of GPU memory that step 2 counts on
  bool follow = false;          // what step 2 keeps leaves after what it spills
};

// What step 2 goes by.
struct ForesightClock {
  // When each op begins, and at last the iteration's end: if the GPU never waits, or as a rehearsal found it.
  std::vector<Nanoseconds> times_ns;
  std::vector<double> weights;  // by op: how dear bytes are that it needs, 1 or more; empty: all the same
};
ForesightClock compute_clock(const Trace& trace);

class ForesightFlow {
 public:
  ForesightFlow(Bytes chunk_bytes, const ForesightKnobs& knobs, ForesightClock clock)
      : chunk_bytes_(chunk_bytes), knobs_(knobs), at_(std::move(clock)) {}

  // From here on the schedule is known. O(accesses × log ops).
  void start(const View& view);
  // Whether there was something to decide about.
  void on(const Event& event, const View& view, Actions& actions);
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims);
  std::uint64_t fingerprint() const;
  Bytes stored() const { return stored_; }  // bytes that have reached a storage tier

 private:
  // Ops are numbered on from iteration to iteration: op i of the second is op_count + i.
  using Place = std::uint64_t;
  static constexpr Place never = ~Place{0};
  struct Cursor {
    Place op = 0;
    std::size_t use = 0;
    std::uint32_t chunk = 0;
    bool operator<(const Cursor& other) const {
      return op != other.op ? op < other.op : use != other.use ? use < other.use : chunk < other.chunk;
    }
  };
  struct Needed {  // as Needs, but places
    Place gpu = never, cpu = never, touch = never;
  };
  struct Flight {
    ChunkId chunk = none;
    TierId from = no_tier, to = no_tier;
    Bytes bytes = 0;
  };
  struct Store {
    TierId tier = no_tier;
    bool by_gpu = false, by_cpu = false;  // whether it has links both ways to that tier
    Cursor read;                          // up to here it has nothing that is in neither memory
  };

  OpIndex index(Place place) const { return static_cast<OpIndex>(place % op_count_); }
  Place following(Place place, OpIndex op) const {
    const OpIndex last = index(place);
    return place + (op > last ? op - last : op + op_count_ - last);
  }
  Place place_of(std::uint32_t op) const { return following(gpu_, op); }         // after the GPU's position
  Place host_place(std::uint32_t op) const { return following(host_now_, op); }  // after that of the slower device
  std::uint32_t shelf_op(Place place) const {
    return place == never ? static_cast<std::uint32_t>(op_count_) : index(place);
  }
  Bytes window() const { return knobs_.in_flight * (chunk_bytes_ == 0 ? 64 * MiB : chunk_bytes_); }

  // foresight_state.cpp: what is known.
  void find_tiers(const View& view);
  void make_plan(const View& view);
  Needed needed_at(TensorId tensor, OpIndex op, const View& view) const;
  void issued(const Event& event, const View& view);
  void done(const Event& event, const View& view);
  void arrived(const Event& event, const View& view);
  void forget(TensorId tensor, const View& view);
  void refresh(ChunkId chunk, TierId tier, const View& view);
  void refresh_all(TensorId tensor, const View& view);
  Shelf::Kind kind_on_gpu(ChunkId chunk, TensorId id, const View& view) const;
  void absent(ChunkId chunk, Place place, const View& view);
  void need(OpIndex op, Bytes bytes);
  void got(OpIndex op, Bytes bytes);

  // foresight_flow.cpp: the horizon, fetching, cleaning, victims.
  std::int64_t excess(Place place, Bytes more, const View& view) const;
  void look_ahead(const View& view);
  template <typename Wanted, typename Visit>
  bool walk(Cursor& cursor, Cursor end, const View& view, Wanted wanted, Visit visit);
  TierId source_of(ChunkId chunk, const View& view) const;
  void fetch_from(TierId tier, const View& view, Actions& actions);
  void clean_to(TierId to, const View& view, Actions& actions);
  ChunkId to_clean(TierId to, Bytes underway) const;
  void choose(const RoomRequest& request, Shelf::Kind kind, Place floor, const View& view,
              std::vector<ChunkId>& victims, Bytes& found);

  // Transfers asked for.
  bool coming(ChunkId chunk, TierId to) const;
  Bytes flying(TierId from, TierId to) const;
  void land_lost(TierId from, TierId to, const View& view);
  void ask(Verb verb, ChunkId chunk, TierId from, TierId to, const View& view, Actions& actions);

  // Step 7.
  void tend_host(const View& view, Actions& actions);
  Place host_base() const;
  Place host_floor() const;
  Bytes reserve(const View& view) const;
  bool drop_from_host(Shelf::Kind kind, Place floor, const View& view, Actions& actions);
  bool make_host_room(Bytes bytes, Place floor, const View& view, Actions& actions);
  TierId store_of(ChunkId chunk, const View& view) const;  // the first store that has it
  void read_ahead(Store& store, const View& view, Actions& actions);
  void sink(Store& store, const View& view, Actions& actions);
  void gone_from_memory(ChunkId chunk, const View& view);

  Bytes chunk_bytes_;
  ForesightKnobs knobs_;
  ForesightClock at_;
  bool known_ = false;
  std::size_t op_count_ = 1;
  Future future_;
  TierId cpu_ = no_tier;
  std::vector<Store> stores_;
  std::vector<TierId> sources_;  // tiers that the GPU fetches from, the fastest first
  std::vector<OpIndex> cpu_ops_;
  // Step 2, by use as in Future; and by tensor, what its last use says.
  std::vector<std::uint8_t> away_, due_, sink_;
  std::vector<std::uint8_t> away_now_, due_now_, sink_now_;
  Bytes budget_ = 0, budget_left_ = 0;  // that the GPU may clean to storage in an iteration

  std::vector<Needed> needed_;          // by tensor of the program
  std::vector<Shelf> shelves_;          // of the GPU, and of tiers up to CPU memory
  std::vector<std::uint8_t> outgoing_;  // by chunk: a bit for each tier from which it is being cleaned
  std::vector<Flight> flights_;         // asked for and not arrived
  Place gpu_ = 0, cpu_done_ = 0;        // the ops that were issued to the GPU, done by the CPU, last
  Place host_now_ = 0;
  std::int64_t in_use_ = 0;                           // Future::alive of what the GPU's memory has in it by now
  Bytes waits_for_ = 0;                               // room that the waiting op has to take still
  Cursor horizon_;                                    // up to here everything fits
  std::vector<Cursor> fetched_;                       // by tier: up to here it has nothing that the GPU lacks
  std::vector<Bytes> needed_at_;                      // by op before the horizon: what it lacks
  Bytes needed_bytes_ = 0;                            // their sum
  std::int64_t held_up_by_ = 0;                       // what is lacking at the horizon; 0: nothing up to a round ahead
  std::deque<std::pair<Place, std::int64_t>> peaks_;  // of Future::alive between the GPU and the horizon, falling
  Bytes dropped_ = 0;                                 // from CPU memory, by actions that are yet to be taken
  Bytes stored_ = 0;
};

}  // namespace tencache
