// The engine as a live program drives it: its ops are announced one at a time, and every call is an input to the log.
#include <algorithm>

#include "core/check.h"
#include "core/engine.h"

namespace tencache {

// ---- Intercepted program --------------------------------------------------------------------------------------------

TensorId Engine::create(Bytes bytes, Role role, bool persistent, Nanoseconds now) {
  advance_time(now);
  const TensorId tensor = memory_.add_tensor(bytes, role, persistent);
  if (tensor >= dead_.size()) {
    const std::size_t count = tensor + std::size_t{1};
    dead_.resize(count, 0);
    doomed_.resize(count, 0);
    born_.resize(count, 0);
    first_of_chunk_.resize(memory_.chunk_total(), none);
  }
  dead_[tensor] = doomed_[tensor] = born_[tensor] = 0;
  if (tensor < to_program_.size()) to_program_[tensor] = none;
  log_input(Input::Kind::create, [&](Input& input) {
    input.tensor = tensor;
    input.bytes = bytes;
    input.role = role;
    input.persistent = persistent;
  });
  machine_.tensor_created(tensor, bytes);
  emit({.kind = EventKind::tensor_created, .tensor = tensor});
  return tensor;
}

void Engine::destroy(TensorId tensor, Nanoseconds now) {
  advance_time(now);
  log_input(Input::Kind::destroy, [&](Input& input) { input.tensor = tensor; });
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
  pump();
}

void Engine::begin(OpIndex op_index, std::span<const Use> uses, Nanoseconds now) {
  advance_time(now);
  log_input(Input::Kind::begin, [&](Input& input) {
    input.op = op_index;
    input.uses.assign(uses.begin(), uses.end());
  });
  TENCACHE_CHECK(lanes_[0].active.empty());
  ActiveOp& op = lanes_[0].active.emplace_back();
  op.op = op_index;
  op.external = true;
  op.iteration = iteration_;
  op.own_uses.assign(uses.begin(), uses.end());
  op.uses = op.own_uses;
  issue(0, op);
  pump();
}

void Engine::allocate(TensorId tensor, Nanoseconds now) {
  advance_time(now);
  log_input(Input::Kind::allocate, [&](Input& input) { input.tensor = tensor; });
  Lane& lane = lanes_[0];
  TENCACHE_CHECK(lane.active.size() == 1 && lane.active.front().started && !lane.waiting);
  ActiveOp& op = lane.active.front();
  account_compute(0, op, now_);
  op.own_uses.push_back({tensor, false, true});
  op.uses = op.own_uses;
  op.issued_ns = now_;
  op.lateness = {};
  lane.waiting = true;
  require(0, op, op.own_uses.back());
  op.late = op.missing > 0;
  take_rooms(0, op);
  try_start(0, op);
  pump();
}

void Engine::end(Nanoseconds now) {
  advance_time(now);
  log_input(Input::Kind::end);
  TENCACHE_CHECK(ready());
  finish(0, now_, now_);
  pump();
}

void Engine::task(std::uint8_t lane, OpIndex op, Tag tag, std::span<const Use> uses, Nanoseconds duration_ns,
                  Nanoseconds now) {
  advance_time(now);
  log_input(Input::Kind::task, [&](Input& input) {
    input.lane = lane;
    input.op = op;
    input.duration_ns = duration_ns;
    input.uses.assign(uses.begin(), uses.end());
  });
  TENCACHE_CHECK(lane < lane_count && lanes_[lane].tier != no_tier);
  lanes_[lane].tasks.push_back({op, tag, {uses.begin(), uses.end()}, duration_ns, ++task_sequence_});
  pump();
}

void Engine::waited_for_tasks(Nanoseconds since, Nanoseconds now) {
  advance_time(now);
  log_input(Input::Kind::waited, [&](Input& input) { input.duration_ns = now_ - since; });
  TENCACHE_CHECK(lanes_[0].active.empty());
  account_gap(0, std::min(since, now_), none, true);
  account_stall(0, now_, StallCause::cpu_optimizer, position_);
}

void Engine::module_begin(NameId module, Nanoseconds now) {
  advance_time(now);
  log_input(Input::Kind::module_begin, [&](Input& input) { input.module = module; });
  emit({.kind = EventKind::module_begin, .op = position_, .module = module});
  pump();
}

void Engine::module_end(NameId module, Nanoseconds now) {
  advance_time(now);
  log_input(Input::Kind::module_end, [&](Input& input) { input.module = module; });
  emit({.kind = EventKind::module_end, .op = position_, .module = module});
  pump();
}

void Engine::iteration_boundary(Nanoseconds now) {
  advance_time(now);
  log_input(Input::Kind::boundary);
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
  pump();
}

void Engine::set_profile(const Program& program, std::vector<TensorId> to_memory, std::vector<TensorId> to_program,
                         Nanoseconds now) {
  advance_time(now);
  log_input(Input::Kind::profile, [&](Input& input) {
    input.profile = std::make_shared<LoggedProfile>(LoggedProfile{program, to_memory, to_program});
  });
  program_ = &program;
  schedule_ = std::make_unique<Schedule>(program.trace);
  to_memory_ = std::move(to_memory);
  to_program_ = std::move(to_program);
  to_program_.resize(std::max(to_program_.size(), memory_.tensor_count()), none);
  deviated_ = false;
  emit({.kind = EventKind::profile_ready});
  pump();
}

void Engine::set_program_tensor(TensorId memory_tensor, TensorId program_tensor) {
  log_input(Input::Kind::program_tensor, [&](Input& input) {
    input.tensor = memory_tensor;
    input.program_tensor = program_tensor;
  });
  if (memory_tensor >= to_program_.size()) to_program_.resize(memory_tensor + std::size_t{1}, none);
  to_program_[memory_tensor] = program_tensor;
  if (program_tensor != none) to_memory_[program_tensor] = memory_tensor;
}

void Engine::schedule_deviated(Nanoseconds now) {
  advance_time(now);
  log_input(Input::Kind::deviated);
  position_ = none;
  deviated_ = true;
  emit({.kind = EventKind::schedule_deviated});
  pump();
}

void Engine::set_role(TensorId tensor, Role role) {
  log_input(Input::Kind::role, [&](Input& input) {
    input.tensor = tensor;
    input.role = role;
  });
  memory_.set_role(tensor, role);
}

void Engine::pin(TensorId tensor) {
  log_input(Input::Kind::pin, [&](Input& input) { input.tensor = tensor; });
  TENCACHE_CHECK(memory_.resident(tensor, 0));
  const ChunkId begin = memory_.first_chunk(tensor);
  for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(tensor); ++chunk) {
    if (memory_.copy(chunk, 0).evicting) rescue(chunk, 0);
    memory_.pin(chunk, 0);
  }
}

void Engine::unpin(TensorId tensor) {
  log_input(Input::Kind::unpin, [&](Input& input) { input.tensor = tensor; });
  const ChunkId begin = memory_.first_chunk(tensor);
  for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(tensor); ++chunk) memory_.unpin(chunk, 0);
}

void Engine::late_write(TensorId tensor) {
  log_input(Input::Kind::late_write, [&](Input& input) { input.tensor = tensor; });
  Lane& lane = lanes_[0];
  TENCACHE_CHECK(lane.active.size() == 1 && !lane.waiting);
  for (Use& use : lane.active.front().own_uses) {
    if (use.tensor != tensor || use.write) continue;
    use.write = true;
    const ChunkId begin = memory_.first_chunk(tensor);
    for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(tensor); ++chunk) {
      stop_transfers_from(chunk, lane.tier);
      memory_.add_writer(chunk, lane.tier);
    }
  }
}

void Engine::abandon(Nanoseconds now) {
  advance_time(now);
  log_input(Input::Kind::abandon);
  const bool op_alone = lanes_[0].waiting && lanes_[0].active.back().external;
  for (std::uint8_t index = 0; index < (op_alone ? 1 : lane_count); ++index) {
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
