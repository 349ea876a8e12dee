// Step 3 of foresight.cpp: how far ahead all that the GPU's ops need will have room.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "core/policy.h"
#include "policies/foresight/flights.h"
#include "policies/foresight/future.h"
#include "policies/foresight/places.h"
#include "policies/foresight/shelf.h"

namespace tencache {

// Where a tensor's present content is needed next: as Needs, but places.
struct NeededAt {
  OpPlace gpu = no_place, cpu = no_place, touch = no_place;
};

class Horizon {
 public:
  Horizon() = default;
  Horizon(const OpPlaces& places, const Future& future);

  // Up to here everything fits.
  const UseCursor& end() const { return end_; }
  // What is lacking there; 0: nothing up to a round ahead.
  std::int64_t held_up_by() const { return held_up_by_; }
  Bytes needed_bytes() const { return needed_bytes_; }  // that ops before it lack

  // The GPU was given the op and lacks so many bytes for it; it has them (false: it did from the first, and what it
  // makes is there, but in a live program); it has done it.
  void issued(OpIndex op, Bytes lacking, const OpPlaces& places, const Future& future, const View& view);
  bool ready(const OpPlaces& places, const Future& future);
  void done(OpIndex op, const OpPlaces& places, const Future& future);
  // The op before the horizon needs them and the GPU has no copy; they were asked for.
  void need(OpIndex op, Bytes bytes);
  void got(OpIndex op, Bytes bytes);
  // A chunk that the GPU needs at that place is not there: the horizon does not stand behind it.
  void absent(OpPlace place, OpIndex op, Bytes bytes);

  // Moves it as far as there is room. `needed` is by tensor of the program, `on_gpu` what may leave the GPU.
  void move(const std::vector<NeededAt>& needed, const Shelf& on_gpu, const Flights& flights, const OpPlaces& places,
            const Future& future, const View& view);

 private:
  std::int64_t excess(Bytes more, const Shelf& on_gpu, const Flights& flights, const OpPlaces& places,
                      const Future& future, const View& view) const;

  UseCursor end_;
  std::vector<Bytes> needed_at_;  // by op before it: what it lacks
  Bytes needed_bytes_ = 0;        // their sum
  std::int64_t held_up_by_ = 0;
  std::deque<std::pair<OpPlace, std::int64_t>> peaks_;  // of Future::alive between the GPU and the horizon, falling
  std::int64_t in_use_ = 0;                             // Future::alive of what the GPU's memory has in it by now
  bool makes_ = false;   // a live program's op will take room for what it makes, which the engine keeps for nobody
  Bytes waits_for_ = 0;  // room that the waiting op has to take still
};

// Takes the cursor through the chunks of the uses that are wanted, up to `end`; false where `visit` stops it.
template <typename Wanted, typename Visit>
bool walk(UseCursor& cursor, UseCursor end, const OpPlaces& places, const View& view, Wanted wanted, Visit visit) {
  for (; cursor < end; cursor = {cursor.op + 1, 0, 0}) {
    const auto uses = view.schedule->uses(places.index(cursor.op));
    for (; cursor.use < uses.size(); ++cursor.use, cursor.chunk = 0) {
      const TensorId tensor = view.memory_tensor(uses[cursor.use].tensor);
      if (tensor == none || !wanted(uses[cursor.use], tensor)) continue;
      for (; cursor.chunk < view.memory.chunk_count(tensor); ++cursor.chunk) {
        if (!(cursor < end) || !visit(view.memory.first_chunk(tensor) + cursor.chunk)) return false;
      }
    }
  }
  return true;
}

}  // namespace tencache
