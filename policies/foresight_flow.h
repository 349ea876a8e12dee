// The running half of foresight: what to fetch, clean and drop whenever something has happened (the numbered steps are
// those of foresight.cpp). foresight_flow.cpp has the GPU's memory, foresight_host.cpp the CPU's, foresight_start.cpp
// what comes before.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "core/policy.h"
#include "policies/foresight_future.h"

namespace tencache {

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

  // foresight_start.cpp.
  void find_tiers(const View& view);
  void make_plan(const View& view);
  Needed needed_at(TensorId tensor, OpIndex op, const View& view) const;

  // foresight_flow.cpp: what is known.
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

  // The horizon, fetching, cleaning, victims.
  std::int64_t excess(Place place, Bytes more, const View& view) const;
  void look_ahead(const View& view);
  bool admit(OpIndex op, const View& view);
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

  // foresight_host.cpp.
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
