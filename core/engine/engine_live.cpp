// The engine as a live program drives it: its ops are announced one at a time, and every call is an input to the log.
#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/engine/engine.h"

namespace tencache {

// ---- Intercepted program --------------------------------------------------------------------------------------------

TensorId Engine::create(Bytes bytes, Role role, bool persistent, Nanoseconds now) {
  const TensorId tensor = memory_.next_tensor(bytes);
  handle({now, input::Create{tensor, bytes, role, persistent}});
  return tensor;
}

void Engine::take(input::Create& create) {
  const TensorId tensor = memory_.add_tensor(create.bytes, create.role, create.persistent);
  TENCACHE_CHECK(tensor == create.tensor);
  if (tensor >= dead_.size()) {
    const std::size_t count = tensor + std::size_t{1};
    dead_.resize(count, 0);
    doomed_.resize(count, 0);
    born_.resize(count, 0);
    first_of_chunk_.resize(memory_.chunk_total(), none);
  }
  dead_[tensor] = doomed_[tensor] = born_[tensor] = 0;
  if (tensor < to_program_.size()) to_program_[tensor] = none;
  machine_.tensor_created(tensor, create.bytes);
  emit({.kind = EventKind::tensor_created, .tensor = tensor});
}

void Engine::take(input::Destroy& destroy) {
  const TensorId tensor = destroy.tensor;
  for (Lane& lane : lanes_) {
    for (ActiveOp& op : lane.active) {
      for (Use& use : op.own_uses) {
        if (use.tensor != tensor) continue;
        TENCACHE_CHECK(op.started);
        for (ChunkId chunk = memory_.first_chunk(tensor);
             chunk < memory_.first_chunk(tensor) + memory_.chunk_count(tensor); ++chunk) {
          memory_.unpin(chunk, lane.tier);
          if (use.write) memory_.remove_writer(chunk, lane.tier);
        }
        use.tensor = none;
      }
    }
  }
  emit({.kind = EventKind::tensor_freed, .tensor = tensor});
  kill(tensor);
  doomed_[tensor] = 1;
  remove_if_gone(tensor);
}

void Engine::take(input::Begin& begin) {
  TENCACHE_CHECK(lanes_[0].active.empty());
  ActiveOp& op = lanes_[0].active.emplace_back();
  op.op = begin.op;
  op.external = true;
  op.iteration = iteration_;
  op.own_uses = std::move(begin.uses);
  op.uses = op.own_uses;
  issue(0, op);
}

void Engine::take(input::Allocate& allocate) {
  Lane& lane = lanes_[0];
  TENCACHE_CHECK(lane.active.size() == 1 && lane.active.front().started && !lane.waiting);
  ActiveOp& op = lane.active.front();
  account_compute(0, op, now_);
  op.own_uses.push_back({allocate.tensor, false, true});
  op.uses = op.own_uses;
  op.issued_ns = now_;
  op.lateness = {};
  lane.waiting = true;
  require(0, op, op.own_uses.back());
  op.late = op.missing > 0;
  take_rooms(0, op);
  try_start(0, op);
}

void Engine::take(input::End&) {
  TENCACHE_CHECK(ready());
  finish(0, now_, now_);
}

void Engine::take(input::Task& task) {
  TENCACHE_CHECK(task.lane < lane_count && lanes_[task.lane].tier != no_tier);
  lanes_[task.lane].tasks.push_back({task.op, task.tag, std::move(task.uses), task.duration_ns, ++task_sequence_});
}

void Engine::take(input::WaitedForTasks& waited) {
  TENCACHE_CHECK(lanes_[0].active.empty());
  account_gap(0, std::min(now_ - waited.duration_ns, now_), none, true);
  account_stall(0, now_, StallCause::cpu_optimizer, position_);
}

void Engine::take(input::ModuleBegin& begin) {
  emit({.kind = EventKind::module_begin, .op = position_, .module = begin.module});
}

void Engine::take(input::ModuleEnd& end) {
  emit({.kind = EventKind::module_end, .op = position_, .module = end.module});
}

void Engine::take(input::Boundary&) {
  if (boundaries_.empty()) {  // what came before is preparation
    lanes_[0].idle_since_ns = now_;
    note_boundary();
  } else {
    cross_boundary();
  }
  if (deviated_ && program_ != nullptr) {  // the program is expected to follow the recording again
    deviated_ = false;
    emit({.kind = EventKind::profile_ready});
  }
  emit({.kind = EventKind::iteration_begin});
}

void Engine::set_profile(const Program& program, std::vector<TensorId> to_memory, std::vector<TensorId> to_program,
                         Nanoseconds now) {
  // A log outlives the caller's program.
  auto kept = options_.log != nullptr ? std::make_shared<const Program>(program)
                                      : std::shared_ptr<const Program>(std::shared_ptr<void>(), &program);
  handle({now, input::Profile{std::move(kept), std::move(to_memory), std::move(to_program)}});
}

void Engine::take(input::Profile& profile) {
  profile_ = std::move(profile.program);
  program_ = profile_.get();
  schedule_ = std::make_unique<Schedule>(program_->trace);
  to_memory_ = std::move(profile.to_memory);
  to_program_ = std::move(profile.to_program);
  to_program_.resize(std::max(to_program_.size(), memory_.tensor_count()), none);
  deviated_ = false;
  emit({.kind = EventKind::profile_ready});
}

void Engine::take(input::Match& match) {
  if (match.memory_tensor >= to_program_.size()) to_program_.resize(match.memory_tensor + std::size_t{1}, none);
  to_program_[match.memory_tensor] = match.program_tensor;
  if (match.program_tensor != none) to_memory_[match.program_tensor] = match.memory_tensor;
}

void Engine::take(input::Deviated&) {
  position_ = none;
  deviated_ = true;
  emit({.kind = EventKind::schedule_deviated});
}

void Engine::take(input::SetRole& set) { memory_.set_role(set.tensor, set.role); }

void Engine::take(input::Pin& pin) {
  TENCACHE_CHECK(memory_.resident(pin.tensor, 0));
  const ChunkId begin = memory_.first_chunk(pin.tensor);
  for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(pin.tensor); ++chunk) {
    if (memory_.copy(chunk, 0).evicting) rescue(chunk, 0);
    memory_.pin(chunk, 0);
  }
}

void Engine::take(input::Unpin& unpin) {
  const ChunkId begin = memory_.first_chunk(unpin.tensor);
  for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(unpin.tensor); ++chunk) memory_.unpin(chunk, 0);
}

void Engine::take(input::LateWrite& late_write) {
  Lane& lane = lanes_[0];
  TENCACHE_CHECK(lane.active.size() == 1 && !lane.waiting);
  for (Use& use : lane.active.front().own_uses) {
    if (use.tensor != late_write.tensor || use.write) continue;
    use.write = true;
    const ChunkId begin = memory_.first_chunk(use.tensor);
    for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(use.tensor); ++chunk) {
      stop_transfers_from(chunk, lane.tier);
      memory_.add_writer(chunk, lane.tier);
    }
  }
}

void Engine::take(input::Abandon&) {
  const bool op_alone = lanes_[0].waiting && lanes_[0].active.back().external;
  for (std::uint8_t index = 0; index < (op_alone ? 1 : lane_count); ++index) {
    Lane& lane = lanes_[index];
    lane.tasks.clear();
    lane.blocked_since_ns = -1;
    if (lane.waiting) abandon_waiting(index);
  }
}

void Engine::abandon_waiting(std::uint8_t index) {
  Lane& lane = lanes_[index];
  ActiveOp& op = lane.active.back();
  room_wanted_[lane.tier] -= op.room_needed;
  op.room_needed = 0;
  const std::size_t first =
      op.started ? op.own_uses.size() - 1 : 0;  // a started op waits for its latest allocation only
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
  TENCACHE_CHECK(op.stranded.empty());  // an allocation has nothing to fetch
  op.write_waits.clear();
  op.missing = 0;
  op.ready_ns = now_;
  account_late(index, op, now_);
}

}  // namespace tencache
