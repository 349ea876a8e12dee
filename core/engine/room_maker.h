// Makes room in a tier by the engine's rules: which copies are given up for one that arrives, which are sent away.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/engine/engine_state.h"
#include "core/engine/policy_session.h"

namespace tencache {

class RoomMaker {
 public:
  // Drops the copy, or sends it to a tier below; none: so it is.
  using Evict = std::function<Refusal(ChunkId chunk, TierId from, Priority priority)>;
  // State and session must outlive this object.
  RoomMaker(EngineState& state, PolicySession& session, Evict evict);

  // Takes the chunk's room. Where there is enough, but in no one place, others move; never an eviction's. `link`: over
  // which the chunk comes; no_link: it is an output of the op that waits.
  bool take(ChunkId chunk, TierId tier, LinkId link);
  // Of a tier whose chunks move: whether there is a hole of so many bytes, which the op that waits is going to take bit
  // by bit once it runs. If there is none, makes one or asks for room.
  bool clear(TierId tier, Bytes bytes);
  // Takes the chunk's room in a slower tier, if it has to from copies that the GPU holds too.
  bool reserve(ChunkId chunk, TierId tier);
  // Starts enough evictions that `bytes` will be free: asks the policy, then, for an op, takes the coldest. `first` is
  // the chunk that found no room; none: `bytes` in one piece did. Once an input, a tier and a purpose; else false:
  // nothing has changed.
  bool make_room(TierId tier, Bytes bytes, bool prefetch, ChunkId incoming, ChunkId first, Priority priority);

  // Gives up copies of a tier of which less is left than is used, those first that the policy names.
  void shrink(TierId tier);

  // The link over which the last room that became free in the tier was left.
  StallCause last_cause(TierId tier) const { return last_cause_[tier]; }
  void left(TierId tier, StallCause cause) { last_cause_[tier] = cause; }

 private:
  // For the chunk; if it is none, of so many bytes.
  bool has_hole(ChunkId chunk, Bytes bytes, TierId tier) const;
  std::vector<Relocation> find_hole(ChunkId chunk, Bytes bytes, TierId tier) const;
  bool make_hole(ChunkId chunk, Bytes bytes, TierId tier, LinkId link);
  bool reclaimable(ChunkId chunk, TierId tier) const;
  void reclaim(TierId tier, Bytes bytes);
  bool reclaims(TierId tier) const;  // at least one copy
  bool could_go_anywhere(ChunkId chunk, TierId tier) const;
  Bytes most_below(TierId tier) const;

  EngineState& state_;
  PolicySession& session_;
  Evict evict_;
  bool stores_as_is_ = true;  // no tensor has another format in the tiers below the GPU's
  std::array<std::array<std::uint64_t, 2>, max_tiers> asked_{};  // the input (Moment) in which room was last asked for
  std::array<StallCause, max_tiers> last_cause_{};
  std::vector<ChunkId> victims_;  // memory for make_room, which an action may lead to again
};

}  // namespace tencache
