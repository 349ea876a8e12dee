// An op's life: issued (what it uses is pinned, what is missing is asked for), given room for its outputs, started when
// nothing is missing, and done (its writes make other copies stale, and values of no more use die).
//
// The order of the rules: docs/engine.md, "An op's life". Which op comes next is the engine's affair.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "core/engine/engine_state.h"
#include "core/engine/mover.h"
#include "core/engine/policy_session.h"

namespace tencache {

class OpRunner {
 public:
  // `governed`: by role, the tensors whose accesses are counted. All else must outlive this object.
  OpRunner(EngineState& state, PolicySession& session, Mover& mover, const std::array<bool, role_count>& governed);

  // The lane's last op, just added, is the waiting one.
  void issue(std::uint8_t lane);
  // Room for a tensor created inside the running op of a live program.
  void allocate(TensorId tensor);
  // Takes what room there is for the waiting op and starts it if nothing is missing then. False if it still waits.
  bool go_on(std::uint8_t lane);
  // The machine has run the lane's first op.
  void computed(std::uint8_t lane, const Completion& completion);
  // `fence`: of an op that the machine has run.
  void finish(std::uint8_t lane, Nanoseconds start_ns, Nanoseconds end_ns, Fence fence = 0);
  // The waiting op is as if never announced; a running one as if it had not asked for its latest allocation.
  void abandon(std::uint8_t lane);
  // The running op of the live program writes the tensor, which it was said to read only.
  void late_write(TensorId tensor);
  // The program destroys the tensor, which ops that run may use.
  void forget(TensorId tensor);
  // What the GPU holds as an iteration begins: the hit rate of systems that count tensors rather than accesses.
  void count_held();

 private:
  void enter_module(NameId module);
  void require(std::uint8_t lane, ActiveOp& op, const Use& use);
  void require_missing(TierId tier, ActiveOp& op, const Use& use, ChunkId chunk);
  void take_rooms(std::uint8_t lane, ActiveOp& op);
  void take_outputs(TierId tier, ActiveOp& op);
  bool leaves_span_for(TierId tier, const ActiveOp& op, Bytes bytes) const;
  bool clear_births(TierId tier, ActiveOp& op);
  Bytes largest_read(TierId tier, const ActiveOp& op) const;
  bool try_start(std::uint8_t lane, ActiveOp& op);
  void execute(std::uint8_t lane, const ActiveOp& op);
  void go_on_beside(ActiveOp& op);
  void overlap(ActiveOp& op, TransferId coming);
  bool end_beside_arrivals(std::uint8_t lane, ActiveOp& op);
  void finish_write(TierId tier, TensorId tensor);
  void release(TierId tier, const Use& use);
  void count_hits(const ActiveOp& op);

  EngineState& state_;
  PolicySession& session_;
  Mover& mover_;
  std::array<bool, role_count> governed_;
  std::vector<TensorId> spent_;  // memory for `finish`
};

}  // namespace tencache
