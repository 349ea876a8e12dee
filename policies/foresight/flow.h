// The running half of foresight, steps 3 to 7 of foresight.cpp: what it does whenever something has happened. First
// what it knows is brought up to date (Foreknowledge), then the horizon moves (Horizon), then it fetches and cleans for
// the GPU, and at last for CPU memory (HostCache).
#pragma once

#include <cstdint>
#include <vector>

#include "core/policy.h"
#include "policies/foresight/foreknowledge.h"
#include "policies/foresight/host_cache.h"
#include "policies/foresight/spill_plan.h"

namespace tencache {

class ForesightFlow {
 public:
  // `window`: bytes asked for on a link at once. `whole`: tensors move whole.
  ForesightFlow(Bytes chunk_bytes, Bytes window, bool whole, bool forgets, const ForesightKnobs& knobs)
      : chunk_bytes_(chunk_bytes), whole_(whole), forgets_(forgets), knobs_(knobs), window_(window), host_(window) {}

  // From here on the schedule is known. O(accesses × log ops).
  void start(const View& view);
  static bool hears(EventKind kind);
  void on(const Event& event, const View& view, Actions& actions);
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims);
  std::uint64_t fingerprint() const;

 private:
  bool hear(const Event& event, const View& view, bool settled);
  void fetch_from(TierId tier, const View& view, Actions& actions);
  void clean_to(TierId to, const View& view, Actions& actions);
  ChunkId to_clean(TierId to, Bytes underway, const View& view) const;
  void choose(const RoomRequest& request, Shelf::Kind kind, OpPlace floor, const View& view,
              std::vector<ChunkId>& victims, Bytes& found);

  Bytes chunk_bytes_;
  bool whole_;
  bool forgets_;
  ForesightKnobs knobs_;
  Bytes window_;
  bool started_ = false;
  Nanoseconds settled_ns_ = -1;  // the GPU got an op then, there was nothing to ask for, nothing has happened since
  Foreknowledge known_;
  HostCache host_;
};

}  // namespace tencache
