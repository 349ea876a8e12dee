// What a live program asks of the engine besides its ops: giving up, roles, pins. The rest is in engine.cpp.
#include <algorithm>

#include "core/check.h"
#include "core/engine.h"

namespace tencache {

void Engine::set_role(TensorId tensor, Role role) {
  log_input({.kind = Input::Kind::role, .now = now_, .completion = {}, .tensor = tensor, .role = role, .uses = {}, .profile = {}});
  memory_.set_role(tensor, role);
}

void Engine::pin(TensorId tensor) {
  log_input({.kind = Input::Kind::pin, .now = now_, .completion = {}, .tensor = tensor, .uses = {}, .profile = {}});
  TENCACHE_CHECK(memory_.resident(tensor, 0));
  const ChunkId begin = memory_.first_chunk(tensor);
  for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(tensor); ++chunk) {
    if (memory_.copy(chunk, 0).evicting) rescue(chunk, 0);
    memory_.pin(chunk, 0);
  }
}

void Engine::unpin(TensorId tensor) {
  log_input({.kind = Input::Kind::unpin, .now = now_, .completion = {}, .tensor = tensor, .uses = {}, .profile = {}});
  const ChunkId begin = memory_.first_chunk(tensor);
  for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(tensor); ++chunk) memory_.unpin(chunk, 0);
}

void Engine::abandon(Nanoseconds now) {
  advance_time(std::max(now, now_));
  log_input({.kind = Input::Kind::abandon, .now = now_, .completion = {}, .uses = {}, .profile = {}});
  for (std::uint8_t index = 0; index < lane_count; ++index) {
    Lane& lane = lanes_[index];
    lane.tasks.clear();
    lane.blocked_since_ns = -1;
    if (lane.waiting) abandon_waiting(index);
  }
  pump();
}

void Engine::abandon_waiting(std::uint8_t index) {
  Lane& lane = lanes_[index];
  ActiveOp& op = lane.active.back();
  room_wanted_[lane.tier] -= op.room_needed;
  op.room_needed = 0;
  const std::size_t first = op.started ? op.own_uses.size() - 1 : 0;  // a started op waits for its latest allocation only
  for (std::size_t i = first; i < op.own_uses.size(); ++i) {
    const Use use = op.own_uses[i];
    const ChunkId begin = memory_.first_chunk(use.tensor);
    for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(use.tensor); ++chunk) {
      memory_.unpin(chunk, lane.tier);
      if (use.write) memory_.remove_writer(chunk, lane.tier);
    }
  }
  // Room that was given for content which is never written holds nothing.
  for (std::size_t i = 0; i < op.next_output; ++i) {
    const ChunkId chunk = op.outputs[i];
    const TensorId tensor = memory_.tensor_of(chunk);
    const bool waiting = std::any_of(op.own_uses.begin() + static_cast<std::ptrdiff_t>(first), op.own_uses.end(),
                                     [tensor](const Use& use) { return use.tensor == tensor; });
    if (waiting) invalidate(chunk, lane.tier);
  }
  lane.waiting = false;
  if (!op.started) {
    lane.active.pop_back();
    return;
  }
  op.own_uses.pop_back();
  op.uses = op.own_uses;
  op.outputs.clear();
  op.next_output = 0;
  op.stranded.clear();
  op.write_waits.clear();
  op.missing = 0;
  op.ready_ns = now_;
  account_late(index, op, now_);
}

}  // namespace tencache
