#include "core/engine/op_runner.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace tencache {
namespace {

using Because = PolicySession::Because;

Device device_of(std::uint8_t lane) { return lane == cpu_lane ? Device::cpu : Device::gpu; }

}  // namespace

OpRunner::OpRunner(EngineState& state, PolicySession& session, Mover& mover,
                   const std::array<bool, role_count>& governed)
    : state_(state), session_(session), mover_(mover), governed_(governed) {}

// ---- Issue ----------------------------------------------------------------------------------------------------------

void OpRunner::issue(std::uint8_t index) {
  OpLane& lane = state_.lanes[index];
  ActiveOp& op = lane.active.back();
  op.times.issued_ns = state_.moment.now;
  lane.waiting = true;
  __builtin_prefetch(state_.program->op(op.times.op));  // for the ledger: caches may have lost it since the last step
  if (index == 0) {
    if (const auto module = state_.program->module_of(op.times.op)) enter_module(*module);
    count_hits(op);
    if (state_.transfers.defers()) {
      for (const TransferId id : state_.transfers.release(op.times.op)) state_.transfers.enqueue(id, false);
    }
  }
  state_.lanes.take_holds(op.times.op, op.demand);
  {
    const Because because(session_, {.reason = Reason::demand, .op = op.times.op});
    for (const Use& use : op.uses) require(index, op, use);
  }
  if (op.external && state_.memory.movable(lane.tier)) {
    const Bytes unit = std::max(movable_unit, state_.spec.tiers[lane.tier].granularity);
    op.demand.births = state_.program->births(op.times.op, unit).value_or(largest_read(lane.tier, op));
  }
  op.times.late = op.demand.missing > 0 || !op.demand.holds.empty();
  session_.emit({.kind = EventKind::op_issued, .device = device_of(index), .op = op.times.op, .uses = op.uses});
  take_rooms(index, op);
  try_start(index, op);
}

void OpRunner::enter_module(NameId module) {
  OpLane& lane = state_.lanes[0];
  if (lane.module == module) return;
  if (lane.module != 0) {
    session_.emit({.kind = EventKind::module_end, .op = state_.moment.position, .module = lane.module});
  }
  lane.module = module;
  if (module != 0) session_.emit({.kind = EventKind::module_begin, .op = state_.moment.position, .module = module});
}

void OpRunner::allocate(TensorId tensor) {
  OpLane& lane = state_.lanes[0];
  TENCACHE_CHECK(lane.active.size() == 1 && lane.active.front().started && !lane.waiting);
  ActiveOp& op = lane.active.front();
  state_.ledger.compute(0, op.times, state_.moment.now);
  op.own_uses.push_back({tensor, false, true});
  op.uses = op.own_uses;
  op.times.issued_ns = state_.moment.now;
  op.times.lateness = {};
  op.times.moving_ns = 0;
  lane.waiting = true;
  require(0, op, op.own_uses.back());
  op.times.late = op.demand.missing > 0;
  take_rooms(0, op);
  try_start(0, op);
}

void OpRunner::require(std::uint8_t lane, ActiveOp& op, const Use& use) {
  if (use.write) state_.lives.dead[use.tensor] = 0;
  const TierId tier = state_.lanes[lane].tier;
  for (const ChunkId chunk : state_.memory.chunks_of(use.tensor)) {
    state_.memory.pin(chunk, tier);
    if (use.write) {
      mover_.stop_from(chunk, tier);
      state_.memory.add_writer(chunk, tier);
    }
    const Copy& copy = state_.memory.copy(chunk, tier);
    if (!copy.valid()) {
      require_missing(tier, op, use, chunk);
      continue;
    }
    if (copy.evicting) mover_.rescue(chunk, tier);
    if (state_.layout.use_touches) state_.memory.touch(chunk, tier);
    if (use.write && copy.readers > 0) {
      op.demand.write_waits.push_back(chunk);
      ++op.demand.missing;
    }
  }
}

void OpRunner::require_missing(TierId tier, ActiveOp& op, const Use& use, ChunkId chunk) {
  OpDemand& demand = op.demand;
  const Copy& copy = state_.memory.copy(chunk, tier);
  ++demand.missing;
  const TransferId coming = state_.transfers.find(chunk, tier);
  if (copy.state == CopyState::reserved) {  // on its way: its arrival counts
    if (coming != none) {
      overlap(op, coming);
      mover_.promote(coming);
    }
    return;
  }
  state_.lanes.want_room(tier, demand, state_.memory.footprint(chunk, tier));
  // What UVM-like policies never free must be brought back even to be overwritten.
  const bool refetch = state_.layout.free_dead == FreeDead::never && state_.lives.born[use.tensor] != 0;
  if (use.read || refetch) {
    if (coming != none) overlap(op, coming);
    if (mover_.fetch(chunk, tier, Priority::urgent, none) != Refusal::none) demand.stranded.push_back(chunk);
  } else {
    if (coming != none) mover_.withdraw(coming);
    demand.outputs.push_back(chunk);
  }
}

// ---- Room and start -------------------------------------------------------------------------------------------------

bool OpRunner::go_on(std::uint8_t index) {
  ActiveOp& op = state_.lanes[index].active.back();
  take_rooms(index, op);
  return try_start(index, op);
}

// Gives the waiting op's outputs their room and asks again for what could not be fetched before.
void OpRunner::take_rooms(std::uint8_t index, ActiveOp& op) {
  OpDemand& demand = op.demand;
  if (!demand.seeks()) return;
  const Because because(session_, {.reason = Reason::demand, .op = op.times.op});
  const TierId tier = state_.lanes[index].tier;
  take_outputs(tier, op);
  std::erase_if(demand.stranded, [&](ChunkId chunk) {
    if (mover_.fetch(chunk, tier, Priority::urgent, none) != Refusal::none) return false;
    const TransferId coming = state_.transfers.find(chunk, tier);
    if (coming != none) state_.transfers[coming].lateness.before = demand.stranded_cause;
    return true;
  });
  std::erase_if(demand.write_waits, [&](ChunkId chunk) {
    if (state_.memory.copy(chunk, tier).readers > 0) return false;
    const Nanoseconds issued = op.times.issued_ns;
    op.times.lateness = {.asked_ns = issued, .room_ns = issued, .first_hop_ns = issued, .last = StallCause::d2h};
    --demand.missing;
    return true;
  });
}

void OpRunner::take_outputs(TierId tier, ActiveOp& op) {
  OpDemand& demand = op.demand;
  for (; demand.next_output < demand.outputs.size(); ++demand.next_output) {
    const ChunkId chunk = demand.outputs[demand.next_output];
    if (state_.memory.copy(chunk, tier).state != CopyState::absent) return;  // its former life is still being copied
    if (!mover_.rooms().take(chunk, tier, no_link)) {
      if (!mover_.rooms().make_room(tier, demand.room_needed, false, none, chunk, Priority::urgent)) return;
      if (!mover_.rooms().take(chunk, tier, no_link)) return;
    }
    state_.lanes.got_room(tier, demand, state_.memory.footprint(chunk, tier));
    state_.memory.commit(chunk, tier);
    if (op.external && !op.started) state_.memory.set_unwritten(chunk, tier, true);  // the op may yet be abandoned
    session_.decide(Decision::Kind::allocate, chunk, no_tier, tier);
    const StallCause cause = mover_.rooms().last_cause(tier);
    op.times.lateness = {.asked_ns = op.times.issued_ns,
                         .room_ns = state_.moment.now,
                         .first_hop_ns = state_.moment.now,
                         .room = cause,
                         .last = cause};
    TENCACHE_CHECK(demand.missing > 0);
    --demand.missing;
  }
}

// What an op makes is mostly no larger.
Bytes OpRunner::largest_read(TierId tier, const ActiveOp& op) const {
  Bytes largest = 0;
  for (const Use& use : op.uses) {
    if (use.tensor == none || !use.read) continue;
    for (const ChunkId chunk : state_.memory.chunks_of(use.tensor)) {
      largest = std::max(largest, state_.memory.footprint(chunk, tier));
    }
  }
  return largest;
}

// Once the op runs its tensors, which are all there, stay where they are: whether they leave so many bytes between
// them.
bool OpRunner::leaves_span_for(TierId tier, const ActiveOp& op, Bytes bytes) const {
  std::vector<std::pair<std::uint64_t, Bytes>> fixed = {{state_.memory.capacity(tier), 0}};
  for (const Use& use : op.uses) {
    for (const ChunkId chunk : state_.memory.chunks_of(use.tensor)) {
      fixed.emplace_back(state_.memory.offset(chunk, tier), state_.memory.footprint(chunk, tier));
    }
  }
  std::ranges::sort(fixed);
  std::uint64_t end = 0;
  for (const auto& [offset, size] : fixed) {
    if (offset >= end + bytes) return true;
    end = std::max(end, offset + size);
  }
  return false;
}

bool OpRunner::clear_births(TierId tier, ActiveOp& op) {
  OpDemand& demand = op.demand;
  if (demand.births == 0) return true;
  if (demand.room_needed == 0) {
    if (leaves_span_for(tier, op, demand.births)) {
      demand.births = 0;
      return true;
    }
    state_.lanes.want_room(tier, demand, demand.births);
  }
  if (!mover_.rooms().clear(tier, demand.births)) {
    op.times.late = true;
    return false;
  }
  if (op.times.late && op.times.lateness.room_ns == 0) op.times.lateness.last = mover_.rooms().last_cause(tier);
  state_.lanes.got_room(tier, demand, std::exchange(demand.births, 0));
  return true;
}

bool OpRunner::try_start(std::uint8_t index, ActiveOp& op) {
  OpLane& lane = state_.lanes[index];
  OpDemand& demand = op.demand;
  if (demand.missing > demand.overlapped) return false;
  if (op.beside && &op != &lane.active.front()) return false;  // those before it may write what it reads
  if (!op.started && !clear_births(lane.tier, op)) return false;
  for (const Hold& hold : demand.doubtful) {
    if (!mover_.on_its_way(hold.tensor, hold.tier)) demand.holds.erase(hold);
  }
  demand.doubtful.clear();
  if (!op.started && !demand.holds.empty() && !state_.lanes.out_of_patience(state_.memory.chunk_total())) return false;
  if (op.started && state_.layout.overlap_faults) return end_beside_arrivals(index, op);
  lane.waiting = demand.missing > 0;  // only overlapped arrivals: it runs, and takes them in as they come
  op.times.ready_ns = state_.moment.now;
  session_.decide(Decision::Kind::start_op, none, no_tier, index);
  if (op.started) {  // an intercepted op that waited for an allocation goes on
    state_.ledger.wait(index, op.times, state_.moment.now);
    return true;
  }
  op.started = true;
  state_.lanes.op_started();
  for (const ChunkId chunk : demand.outputs) state_.memory.set_unwritten(chunk, lane.tier, false);
  if (index == 1) state_.ledger.cpu_starts(op.times.op);
  session_.emit({.kind = EventKind::op_ready, .device = device_of(index), .op = op.times.op, .uses = op.uses});
  if (op.external) {
    state_.ledger.wait(index, op.times, state_.moment.now);
  } else if (op.beside && demand.missing == 0) {
    go_on_beside(op);
  } else {
    execute(index, op);
  }
  return true;
}

// The GPU lane's last op, which has started, leaves it; the next may be issued.
void OpRunner::go_on_beside(ActiveOp& op) {
  state_.ledger.wait(gpu_lane, op.times, state_.moment.now);
  state_.lanes[gpu_lane].active.hand_last_to(state_.lanes[communication_lane].active);
  state_.program->passed(gpu_lane);
  execute(communication_lane, op);
}

// `computed` asserts the same when the machine is done.
void OpRunner::execute(std::uint8_t index, const ActiveOp& op) {
  TENCACHE_CHECK(op.started && !op.external && op.computed_ns < 0);
  state_.lanes.op_given_to_machine();
  state_.machine.execute({.lane = index,
                          .op = op.times.op,
                          .idle = false,
                          .duration_ns = op.duration_ns,
                          .bytes = op.bytes,
                          .rendezvous = op.rendezvous,
                          .uses = op.uses},
                         make_tag(TagKind::op, (op.tag << 8) | index));
}

// Layout::overlap_faults: a prefetch that is on its way when the op is issued arrives beside the op's compute.
void OpRunner::overlap(ActiveOp& op, TransferId coming) {
  Transfer& t = state_.transfers[coming];
  if (!state_.layout.overlap_faults || t.purpose != Purpose::fetch || t.overlapped) return;
  t.overlapped = true;
  ++op.demand.overlapped;
}

// The op runs, or has run, beside its arrivals. False while one is missing.
bool OpRunner::end_beside_arrivals(std::uint8_t index, ActiveOp& op) {
  if (op.demand.missing > 0) return false;
  state_.lanes[index].waiting = false;
  if (op.computed_ns >= 0) finish(index, op.times.ready_ns, op.computed_ns);
  return true;
}

// ---- Done -----------------------------------------------------------------------------------------------------------

void OpRunner::computed(std::uint8_t index, const Completion& completion) {
  TENCACHE_CHECK(!state_.lanes[index].active.empty());
  ActiveOp& op = state_.lanes[index].active.front();
  TENCACHE_CHECK(op.started && !op.external && op.computed_ns < 0);
  if (op.demand.missing == 0) {
    finish(index, completion.start_ns, completion.end_ns, completion.fence);
    return;
  }
  op.times.ready_ns = completion.start_ns;
  op.computed_ns = completion.end_ns;
}

void OpRunner::finish(std::uint8_t index, Nanoseconds start_ns, Nanoseconds end_ns, Fence fence) {
  OpLane& lane = state_.lanes[index];
  ActiveOp& op = lane.active.front();
  TENCACHE_CHECK(op.started && op.demand.missing == 0 && op.demand.room_needed == 0);
  if (state_.ledger.observes() && !op.external) {
    state_.ledger.expect_op(index, fence, op.times);
  } else {
    if (index == communication_lane) {  // what it waited for counted as the GPU lane's
      state_.ledger.gap(index, start_ns, op.times.op);
    } else if (!op.external) {
      state_.ledger.wait(index, op.times, start_ns);
    }
    state_.ledger.compute(index, op.times, end_ns);
  }
  // Until the last overlapped arrival.
  if (op.computed_ns >= 0) state_.ledger.stall(index, state_.moment.now, op.times.lateness.last, op.times.op);
  {
    const Because because(session_, {.reason = Reason::overwritten, .op = op.times.op});
    for (const Use& use : op.uses) {
      if (use.tensor == none) continue;
      if (use.write) {
        finish_write(lane.tier, use.tensor);
      } else {
        for (const ChunkId chunk : state_.memory.chunks_of(use.tensor)) state_.memory.unpin(chunk, lane.tier);
      }
    }
  }
  session_.emit({.kind = EventKind::op_done, .device = device_of(index), .op = op.times.op, .uses = op.uses});
  spent_.clear();
  if (index != communication_lane) state_.program->passed(index);
  state_.program->done(lane.tier, op.times.op, op.uses, state_.memory, spent_);
  for (const TensorId tensor : spent_) {
    if (state_.layout.free_dead == FreeDead::now) {
      mover_.kill(tensor);
    } else if (state_.layout.free_dead == FreeDead::when_victim) {
      state_.lives.dead[tensor] = 1;
    }
  }
  if (const std::span<const Use> decided = state_.program->reveal(op.times.op); !decided.empty()) {
    session_.emit({.kind = EventKind::revealed, .device = device_of(index), .op = op.times.op, .uses = decided});
  }
  lane.active.pop_front();
}

void OpRunner::finish_write(TierId tier, TensorId tensor) {
  for (const ChunkId chunk : state_.memory.chunks_of(tensor)) {
    state_.memory.unpin(chunk, tier);
    state_.memory.remove_writer(chunk, tier);
    for (TierId other = 0; other < state_.memory.tier_count(); ++other) {
      if (other != tier) mover_.invalidate(chunk, other);
    }
  }
  state_.lives.born[tensor] = 1;
}

// ---- What live programs do to their ops -----------------------------------------------------------------------------

void OpRunner::release(TierId tier, const Use& use) {
  for (const ChunkId chunk : state_.memory.chunks_of(use.tensor)) {
    state_.memory.unpin(chunk, tier);
    if (use.write) state_.memory.remove_writer(chunk, tier);
  }
}

void OpRunner::forget(TensorId tensor) {
  for (OpLane& lane : state_.lanes) {
    for (ActiveOp& op : lane.active) {
      for (Use& use : op.own_uses) {
        if (use.tensor != tensor) continue;
        TENCACHE_CHECK(op.started);
        release(lane.tier, use);
        use.tensor = none;
      }
    }
  }
}

void OpRunner::late_write(TensorId tensor) {
  OpLane& lane = state_.lanes[0];
  TENCACHE_CHECK(lane.active.size() == 1 && !lane.waiting);
  for (Use& use : lane.active.front().own_uses) {
    if (use.tensor != tensor || use.write) continue;
    use.write = true;
    for (const ChunkId chunk : state_.memory.chunks_of(tensor)) {
      mover_.stop_from(chunk, lane.tier);
      state_.memory.add_writer(chunk, lane.tier);
    }
  }
}

void OpRunner::abandon(std::uint8_t index) {
  OpLane& lane = state_.lanes[index];
  ActiveOp& op = lane.active.back();
  OpDemand& demand = op.demand;
  state_.lanes.got_room(lane.tier, demand, demand.room_needed);
  // A started op waits for its latest allocation only.
  const std::span<const Use> given_up =
      std::span<const Use>(op.own_uses).subspan(op.started ? op.own_uses.size() - 1 : 0);
  for (const Use& use : given_up) release(lane.tier, use);
  // Room that was given for content which is never written holds nothing.
  for (std::size_t i = 0; i < demand.next_output; ++i) {
    const TensorId tensor = state_.memory.tensor_of(demand.outputs[i]);
    if (std::ranges::any_of(given_up, [tensor](const Use& use) { return use.tensor == tensor; })) {
      mover_.invalidate(demand.outputs[i], lane.tier);
    }
  }
  lane.waiting = false;
  if (!op.started) {
    lane.active.pop_back();
    return;
  }
  op.own_uses.pop_back();
  op.uses = op.own_uses;
  TENCACHE_CHECK(demand.stranded.empty());  // an allocation has nothing to fetch
  demand = {};
  op.times.ready_ns = state_.moment.now;
  state_.ledger.wait(index, op.times, state_.moment.now);
}

// ---- Hits -----------------------------------------------------------------------------------------------------------

void OpRunner::count_hits(const ActiveOp& op) {
  for (const Use& use : op.uses) {
    const auto role = static_cast<std::size_t>(state_.memory.role(use.tensor));
    if (!use.read || !governed_[role]) continue;
    AccessCounters& counters = state_.ledger.counters().accesses_by_role[role];
    ++counters.accesses;
    counters.access_bytes += state_.memory.bytes(use.tensor);
    if (!state_.memory.resident(use.tensor, 0)) continue;
    ++counters.hits;
    counters.hit_bytes += state_.memory.bytes(use.tensor);
  }
}

void OpRunner::count_held() {
  const std::span<const TensorId> tensors = state_.program->read_on_gpu();
  state_.ledger.counters().tensors += tensors.size();
  state_.ledger.counters().tensors_held += static_cast<std::uint64_t>(std::ranges::count_if(
      tensors, [this](TensorId tensor) { return state_.memory.resident(tensor, 0) || mover_.on_its_way(tensor, 0); }));
}

}  // namespace tencache
