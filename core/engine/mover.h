// Moves chunks between tiers by the engine's rules: what may be fetched, evicted, cleaned and dropped, over which
// route, when a copy starts, and what becomes of it when it arrives, fails or is of no use any more. It serves the ops
// that wait (op_lanes.h) and carries out what the policy wants; the machine does the copying.
//
// The order of the rules and their tie-breaks: docs/engine.md. Throws Error when copies of one chunk keep failing, when
// the machine refuses memory, and, where it moves real bytes, when a chunk is larger than all staging buffers.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "core/engine/engine_state.h"
#include "core/engine/policy_session.h"
#include "core/engine/room_maker.h"

namespace tencache {

class Mover final : public ActionTaker {
 public:
  // State and session must outlive this object.
  Mover(EngineState& state, PolicySession& session);

  // ---- For ops.
  // Refusal::none: asked for, or there.
  Refusal fetch(ChunkId chunk, TierId to, Priority priority, OpIndex not_before);
  void promote(TransferId id);              // demand wants it: lifted, if the layout says so
  void withdraw(TransferId id);             // of one that is not in flight
  void rescue(ChunkId chunk, TierId tier);  // needed again although chosen as a victim
  // The copy is about to be written: what is being read would be torn.
  void stop_from(ChunkId chunk, TierId tier) {
    if (state_.transfers.first_of(chunk) != none) stop_transfers_from(chunk, tier);
  }
  // The copy there is useless.
  void invalidate(ChunkId chunk, TierId tier) {
    if (state_.transfers.first_of(chunk) != none) discard_transfers_of(chunk, tier);
    const CopyState state = state_.memory.copy(chunk, tier).state;
    if (state == CopyState::valid || state == CopyState::reserved) discard_copy(chunk, tier);
  }
  RoomMaker& rooms() { return rooms_; }
  // Whether a missing chunk of the tensor is queued or in flight. A hold stands only while it is, so no policy can hold
  // an op for ever.
  bool on_its_way(TensorId tensor, TierId tier) const;

  // ---- For the policy.
  void take(const Action& action) override;

  // ---- Life and death. The tensor's value is needed no more: its copies go, and what still moves of it is useless.
  void kill(TensorId tensor);
  void remove_if_gone(TensorId tensor);  // a doomed tensor of which nothing is left

  // What waits to be copied into the tier is not copied.
  void give_up_fetches(TierId tier);

  // ---- Progress.
  bool start_from(LinkId link);  // what its queues let start now; false if nothing did
  void start_behind_blocked();
  void complete(TransferId id, const Completion& completion);
  // Of the lane's waiting op and of what is to leave its tier.
  void lift_what_it_waits_for(const OpLane& lane);

 private:
  TierId source_for(ChunkId chunk, TierId to) const;
  bool arrives_on_the_way(ChunkId chunk, TierId from, TierId to) const;
  Refusal send_out(ChunkId chunk, TierId from, TierId destination, Purpose purpose, Priority priority);
  Refusal evict(ChunkId chunk, TierId from, TierId destination, Priority priority);
  Refusal take(const Action& action, ChunkId chunk);
  void hold(const Action& action);
  void discard(Transfer& t);  // one that is in flight
  void stop_transfers_from(ChunkId chunk, TierId tier);
  void discard_transfers_of(ChunkId chunk, TierId tier);
  void discard_copy(ChunkId chunk, TierId tier);
  TransferId add(ChunkId chunk, TierId from, TierId to, Purpose purpose, Priority priority);
  void remove(TransferId id);
  void lift(TransferId id);
  bool start_behind_blocked(LinkId link);
  bool source_stands(TransferId id) const;
  void find_new_source(TransferId id);
  bool try_start(TransferId id);
  bool room_for_fetch(TransferId id);
  void submit(TransferId id);
  void next_piece(TransferId id);
  Nanoseconds setup_of(const Transfer& t) const;
  Nanoseconds expansion_of(const Transfer& t) const;
  void release_source(const Transfer& t);  // of an eviction, unless somebody needs it again
  void arrive(TransferId id);
  void tell_waiting_ops(const Transfer& arrived);
  void fail(TransferId id, bool cancelled);

  EngineState& state_;
  PolicySession& session_;
  RoomMaker rooms_;
  std::array<StallCause, max_links> causes_{};  // by link: cause_of
  std::map<ChunkId, int> failures_;             // of copies, in a row; < failures_tolerated
};

}  // namespace tencache
