// Moves chunks between tiers by the engine's rules: what may be fetched, evicted, cleaned and dropped, over which
// route, when a copy starts, and what becomes of it when it arrives, fails or is of no use any more. It serves the ops
// that wait (op_lanes.h) and carries out what the policy wants; the machine does the copying.
//
// The order of the rules and their tie-breaks: docs/engine.md. Throws Error when copies of one chunk keep failing, when
// the machine refuses memory, and when a chunk is larger than all staging buffers.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "core/engine/ledger.h"
#include "core/engine/mapped_copies.h"
#include "core/engine/op_lanes.h"
#include "core/engine/policy_session.h"
#include "core/engine/tensor_lives.h"
#include "core/engine/transfer_table.h"

namespace tencache {

class Mover final : public ActionTaker {
 public:
  // What it works on. All must outlive it.
  struct Parts {
    const MachineSpec& spec;
    const Layout& layout;
    const Moment& moment;
    Machine& machine;
    Residency& memory;
    MappedCopies& copies;
    TensorLives& lives;
    ProgramSource& program;
    TransferTable& transfers;
    OpLanes& lanes;
    Ledger& ledger;
    PolicySession& session;
  };
  explicit Mover(const Parts& parts);

  // ---- For ops. `refusal` is set where the answer is false.
  bool fetch(ChunkId chunk, TierId to, Priority priority, OpIndex not_before, Refusal& refusal);
  void promote(TransferId id);              // demand wants it: lifted, if the layout says so
  void withdraw(TransferId id);             // of one that is not in flight
  void rescue(ChunkId chunk, TierId tier);  // needed again although chosen as a victim
  // The copy is about to be written: what is being read would be torn.
  void stop_from(ChunkId chunk, TierId tier) {
    if (parts_.transfers.first_of(chunk) != none) stop_transfers_from(chunk, tier);
  }
  // The copy there is useless.
  void invalidate(ChunkId chunk, TierId tier) {
    if (parts_.transfers.first_of(chunk) != none) discard_transfers_of(chunk, tier);
    const CopyState state = parts_.memory.copy(chunk, tier).state;
    if (state == CopyState::valid || state == CopyState::reserved) discard_copy(chunk, tier);
  }
  // Starts enough evictions that `bytes` will be free: asks the policy, then, for an op, takes the coldest. `first` is
  // the chunk that found no room. At most once an input, a tier and a purpose. False if nothing has changed.
  bool make_room(TierId tier, Bytes bytes, bool prefetch, ChunkId incoming, ChunkId first, Priority priority);
  // The link over which the last room that became free in the tier was left.
  StallCause last_room_cause(TierId tier) const { return last_room_cause_[tier]; }
  // Whether a missing chunk of the tensor is queued or in flight. A hold stands only while it is, so no policy can hold
  // an op for ever.
  bool on_its_way(TensorId tensor, TierId tier) const;

  // ---- For the policy.
  void take(const Action& action) override;

  // ---- Life and death. The tensor's value is needed no more: its copies go, and what still moves of it is useless.
  void kill(TensorId tensor);
  void remove_if_gone(TensorId tensor);  // a doomed tensor of which nothing is left

  // ---- Progress.
  bool start_from(LinkId link);  // what its queues let start now; false if nothing did
  void start_behind_blocked();
  void complete(TransferId id, const Completion& completion);
  // Of the lane's waiting op and of what is to leave its tier.
  void lift_what_it_waits_for(const OpLane& lane);

 private:
  Route find_route(TierId from, TierId to) const;
  TierId source_for(ChunkId chunk, TierId to) const;
  bool arrives_on_the_way(ChunkId chunk, TierId from, TierId to) const;
  bool send_out(ChunkId chunk, TierId from, TierId destination, Purpose purpose, Priority priority, Refusal& refusal);
  bool evict(ChunkId chunk, TierId from, TierId destination, Priority priority, Refusal& refusal);
  bool can_drop(ChunkId chunk, TierId tier) const;
  Refusal take(const Action& action, ChunkId chunk);
  void hold(const Action& action);
  bool reserve_destination(ChunkId chunk, TierId tier);
  bool reclaimable(ChunkId chunk, TierId tier) const;
  void reclaim(TierId tier, Bytes bytes);
  bool reclaims(TierId tier) const;  // at least one copy
  bool could_go_anywhere(ChunkId chunk, TierId tier) const;
  Bytes most_below(TierId tier) const;

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
  Nanoseconds setup_of(const Transfer& t) const;
  Nanoseconds expansion_of(const Transfer& t) const;
  void release_source(const Transfer& t);  // of an eviction, unless somebody needs it again
  void arrive(TransferId id);
  void tell_waiting_ops(const Transfer& arrived);
  void fail(TransferId id, bool cancelled);

  const Parts parts_;
  bool stores_as_is_ = true;  // no tensor has another format in the tiers below the GPU's
  std::array<std::array<Route, max_tiers>, max_tiers> routes_{};
  std::array<StallCause, max_links> causes_{};                   // by link: cause_of
  std::map<ChunkId, int> failures_;                              // of copies, in a row; < failures_tolerated
  std::array<std::array<std::uint64_t, 2>, max_tiers> asked_{};  // the input (Moment) in which room was last asked for
  std::array<StallCause, max_tiers> last_room_cause_{};
  std::vector<ChunkId> victims_;  // memory for make_room, which an action may lead to again
};

}  // namespace tencache
