// What the policies that leave the optimizer to the CPU have in common.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "core/policy.h"

namespace tencache {

// What leaves the GPU with the optimizer: gradients, optimizer states and master parameters.
bool goes_with_optimizer(Role role);

// The model's states: these and the parameters.
bool is_model_state(Role role);

// Governs the model's states.
Requirements govern_model_states(bool module_hooks);

// Parameters live on the GPU, states that go with the optimizer in `home`, and the step blocks the program until it is
// done, as DeepSpeed's does. With `evict`, what does not fit leaves the GPU instead of ending the run.
Layout states_with_optimizer(TierId home, Bytes chunk_bytes, bool evict);

// make_room of the GPU's memory for a policy that lets little leave: the coldest chunks that may. Once a request, and
// without going through what was seen to stay: a program may have a hundred thousand chunks that never leave, and they
// are the coldest. Which tensors may leave must stay as it is.
class ColdestVictims {
 public:
  using MayLeave = std::function<bool(const View& view, TensorId tensor)>;
  // Hears of op_issued and transfer_done.
  void on(const Event& event, const View& view);
  void find(const MayLeave& may_leave, const RoomRequest& request, const View& view, std::vector<ChunkId>& victims);
  void find(bool (*may_leave)(Role), const RoomRequest& request, const View& view, std::vector<ChunkId>& victims);
  // For `states_with_optimizer`: of the GPU only what goes with the optimizer, but with `evict` the coldest of all.
  void find_with_optimizer(bool evict, const RoomRequest& request, const View& view, std::vector<ChunkId>& victims);

 private:
  ChunkId first_to_look_at(const View& view);

  // The coldest chunks in their order: none may leave. Chunks that were used or came back since are warmer now; they
  // have no place here.
  std::vector<ChunkId> staying_;
  std::vector<std::size_t> places_;  // by chunk, counted from 1; 0: none
};

// Whether the op is an update that the CPU can take: one that the trace says may be placed or, recorded on the GPU, one
// that writes a persistent tensor other than an input.
bool is_update(const Trace& trace, const Op& op);

// Policy::place: all of these on the CPU.
void place_updates_on_cpu(const Trace& trace, std::vector<Device>& devices);

// Policy::order: by the op that completes what the group reads; of equal ones as they were. So in the order of the
// backward pass, and as recorded where a barrier, such as clipping by the global norm, comes before them all.
void order_as_ready(const Trace& trace, std::vector<std::int32_t>& groups);

// Ops that update the parameters of one sub-group, one after the other, with what the optimizer keeps for them.
struct SubGroup {
  std::int64_t number = 0;  // as recorded; where the trace has no sub-groups each update is one, counted from 0
  Device device = Device::gpu;
  OpIndex first_op = none, last_op = none;
  std::vector<TensorId> states;  // optimizer states and master parameters
  Bytes bytes = 0;               // of the states
};

// In the order of the ops. Updates that keep no states are in none.
std::vector<SubGroup> sub_groups_of(const Trace& trace);

// The first op of the optimizer's step; `none`: there is no step.
OpIndex first_of_step(const Trace& trace);

// Of a GPU op that used the gradient: the next one that does runs on the CPU. So it is complete, and its norm, if that
// is taken early, too. False where the schedule is not known.
bool next_used_by_cpu(TensorId gradient, OpIndex op, const View& view);

}  // namespace tencache
