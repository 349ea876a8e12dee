#include "core/engine/op_runner.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/engine/tags.h"

namespace tencache {
namespace {

using Because = PolicySession::Because;

Device device_of(std::uint8_t lane) { return lane == 0 ? Device::gpu : Device::cpu; }

}  // namespace

OpRunner::OpRunner(const Mover::Parts& parts, Mover& mover, const std::array<bool, role_count>& governed)
    : layout_(parts.layout),
      moment_(parts.moment),
      machine_(parts.machine),
      memory_(parts.memory),
      copies_(parts.copies),
      lives_(parts.lives),
      program_(parts.program),
      transfers_(parts.transfers),
      lanes_(parts.lanes),
      ledger_(parts.ledger),
      session_(parts.session),
      mover_(mover),
      governed_(governed) {}

// ---- Issue ----------------------------------------------------------------------------------------------------------

void OpRunner::issue(std::uint8_t index) {
  OpLane& lane = lanes_[index];
  ActiveOp& op = lane.active.back();
  op.times.issued_ns = moment_.now;
  lane.waiting = true;
  if (index == 0) {
    if (const auto module = program_.module_of(op.times.op)) enter_module(*module);
    count_hits(op);
    for (const TransferId id : transfers_.release(op.times.op)) transfers_.enqueue(id, false);
  }
  lanes_.take_holds(op.times.op, op.demand.holds);
  {
    const Because because(session_, {.reason = Reason::demand, .op = op.times.op});
    for (const Use& use : op.uses) require(index, op, use);
  }
  op.times.late = op.demand.missing > 0 || !op.demand.holds.empty();
  session_.emit({.kind = EventKind::op_issued, .device = device_of(index), .op = op.times.op, .uses = op.uses});
  take_rooms(index, op);
  try_start(index, op);
}

void OpRunner::enter_module(NameId module) {
  OpLane& lane = lanes_[0];
  if (lane.module == module) return;
  if (lane.module != 0) {
    session_.emit({.kind = EventKind::module_end, .op = moment_.position, .module = lane.module});
  }
  lane.module = module;
  if (module != 0) session_.emit({.kind = EventKind::module_begin, .op = moment_.position, .module = module});
}

void OpRunner::allocate(TensorId tensor) {
  OpLane& lane = lanes_[0];
  TENCACHE_CHECK(lane.active.size() == 1 && lane.active.front().started && !lane.waiting);
  ActiveOp& op = lane.active.front();
  ledger_.compute(0, op.times, moment_.now);
  op.own_uses.push_back({tensor, false, true});
  op.uses = op.own_uses;
  op.times.issued_ns = moment_.now;
  op.times.lateness = {};
  lane.waiting = true;
  require(0, op, op.own_uses.back());
  op.times.late = op.demand.missing > 0;
  take_rooms(0, op);
  try_start(0, op);
}

void OpRunner::require(std::uint8_t lane, ActiveOp& op, const Use& use) {
  if (use.write) lives_.dead[use.tensor] = 0;
  const TierId tier = lanes_[lane].tier;
  for (const ChunkId chunk : memory_.chunks_of(use.tensor)) require_chunk(tier, op, use, chunk);
}

void OpRunner::require_chunk(TierId tier, ActiveOp& op, const Use& use, ChunkId chunk) {
  memory_.pin(chunk, tier);
  if (use.write) {
    mover_.stop_from(chunk, tier);
    memory_.add_writer(chunk, tier);
  }
  OpDemand& demand = op.demand;
  const Copy& copy = memory_.copy(chunk, tier);
  if (copy.state == CopyState::valid) {
    if (copy.evicting) mover_.rescue(chunk, tier);
    if (layout_.use_touches) memory_.touch(chunk, tier);
    if (use.write && copy.readers > 0) {
      demand.write_waits.push_back(chunk);
      ++demand.missing;
    }
    return;
  }
  ++demand.missing;
  const TransferId coming = transfers_.find(chunk, tier);
  if (copy.state == CopyState::reserved) {  // on its way: its arrival counts
    if (coming != none) {
      overlap(op, coming);
      mover_.promote(coming);
    }
    return;
  }
  lanes_.want_room(tier, demand, memory_.footprint(chunk, tier));
  // What UVM-like policies never free must be brought back even to be overwritten.
  const bool refetch = layout_.free_dead == FreeDead::never && lives_.born[use.tensor] != 0;
  if (use.read || refetch) {
    Refusal refusal = Refusal::none;
    if (coming != none) overlap(op, coming);
    if (!mover_.fetch(chunk, tier, Priority::urgent, none, refusal)) demand.stranded.push_back(chunk);
  } else {
    if (coming != none) mover_.withdraw(coming);
    demand.outputs.push_back(chunk);
  }
}

// ---- Room and start -------------------------------------------------------------------------------------------------

bool OpRunner::go_on(std::uint8_t index) {
  ActiveOp& op = lanes_[index].active.back();
  take_rooms(index, op);
  return try_start(index, op);
}

// Gives the waiting op's outputs their room and asks again for what could not be fetched before.
void OpRunner::take_rooms(std::uint8_t index, ActiveOp& op) {
  OpDemand& demand = op.demand;
  const bool all_have_room = demand.next_output == demand.outputs.size();
  if (all_have_room && demand.stranded.empty() && demand.write_waits.empty()) return;
  const Because because(session_, {.reason = Reason::demand, .op = op.times.op});
  const TierId tier = lanes_[index].tier;
  take_outputs(tier, op);
  std::erase_if(demand.stranded, [&](ChunkId chunk) {
    Refusal refusal = Refusal::none;
    if (!mover_.fetch(chunk, tier, Priority::urgent, none, refusal)) return false;
    const TransferId coming = transfers_.find(chunk, tier);
    if (coming != none) transfers_[coming].lateness.before = demand.stranded_cause;
    return true;
  });
  std::erase_if(demand.write_waits, [&](ChunkId chunk) {
    if (memory_.copy(chunk, tier).readers > 0) return false;
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
    if (memory_.copy(chunk, tier).state != CopyState::absent) return;  // its former life is still being copied
    if (!copies_.take(chunk, tier)) {
      mover_.make_room(tier, demand.room_needed, false, none, chunk, Priority::urgent);
      if (!copies_.take(chunk, tier)) return;
    }
    lanes_.got_room(tier, demand, memory_.footprint(chunk, tier));
    memory_.commit(chunk, tier);
    if (op.external && !op.started) memory_.set_unwritten(chunk, tier, true);  // the op may yet be abandoned
    session_.decide(Decision::Kind::allocate, chunk, no_tier, tier);
    const StallCause cause = mover_.last_room_cause(tier);
    op.times.lateness = {.asked_ns = op.times.issued_ns,
                         .room_ns = moment_.now,
                         .first_hop_ns = moment_.now,
                         .room = cause,
                         .last = cause};
    TENCACHE_CHECK(demand.missing > 0);
    --demand.missing;
  }
}

bool OpRunner::try_start(std::uint8_t index, ActiveOp& op) {
  OpLane& lane = lanes_[index];
  OpDemand& demand = op.demand;
  if (demand.missing > demand.overlapped) return false;
  std::erase_if(demand.holds, [&](const Hold& hold) { return !mover_.on_its_way(hold.tensor, hold.tier); });
  if (!op.started && !demand.holds.empty() && !lanes_.out_of_patience(memory_.chunk_total())) return false;
  if (op.started && layout_.overlap_faults) return end_beside_arrivals(index, op);
  lane.waiting = demand.missing > 0;  // only overlapped arrivals: it runs, and takes them in as they come
  op.times.ready_ns = moment_.now;
  session_.decide(Decision::Kind::start_op, none, no_tier, index);
  if (op.started) {  // an intercepted op that waited for an allocation goes on
    ledger_.wait(index, op.times, moment_.now);
    return true;
  }
  op.started = true;
  lanes_.op_started();
  for (const ChunkId chunk : demand.outputs) memory_.set_unwritten(chunk, lane.tier, false);
  if (index == 1) ledger_.cpu_starts(op.times.op);
  session_.emit({.kind = EventKind::op_ready, .device = device_of(index), .op = op.times.op, .uses = op.uses});
  if (op.external) {
    ledger_.wait(index, op.times, moment_.now);
  } else {
    execute(index, op);
  }
  return true;
}

// `computed` asserts the same when the machine is done.
void OpRunner::execute(std::uint8_t index, const ActiveOp& op) {
  TENCACHE_CHECK(op.started && !op.external && op.computed_ns < 0);
  lanes_.op_given_to_machine();
  machine_.execute({.lane = index,
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
  Transfer& t = transfers_[coming];
  if (!layout_.overlap_faults || t.purpose != Purpose::fetch || t.overlapped) return;
  t.overlapped = true;
  ++op.demand.overlapped;
}

// The op runs, or has run, beside its arrivals. False while one is missing.
bool OpRunner::end_beside_arrivals(std::uint8_t index, ActiveOp& op) {
  if (op.demand.missing > 0) return false;
  lanes_[index].waiting = false;
  if (op.computed_ns >= 0) finish(index, op.times.ready_ns, op.computed_ns);
  return true;
}

// ---- Done -----------------------------------------------------------------------------------------------------------

void OpRunner::computed(std::uint8_t index, Nanoseconds start_ns, Nanoseconds end_ns) {
  TENCACHE_CHECK(!lanes_[index].active.empty());
  ActiveOp& op = lanes_[index].active.front();
  TENCACHE_CHECK(op.started && !op.external && op.computed_ns < 0);
  if (op.demand.missing == 0) {
    finish(index, start_ns, end_ns);
    return;
  }
  op.times.ready_ns = start_ns;
  op.computed_ns = end_ns;
}

void OpRunner::finish(std::uint8_t index, Nanoseconds start_ns, Nanoseconds end_ns) {
  OpLane& lane = lanes_[index];
  ActiveOp& op = lane.active.front();
  TENCACHE_CHECK(op.started && op.demand.missing == 0 && op.demand.room_needed == 0);
  if (!op.external) ledger_.wait(index, op.times, start_ns);
  ledger_.compute(index, op.times, end_ns);
  // Until the last overlapped arrival.
  if (op.computed_ns >= 0) ledger_.stall(index, moment_.now, op.times.lateness.last, op.times.op);
  {
    const Because because(session_, {.reason = Reason::overwritten, .op = op.times.op});
    for (const Use& use : op.uses) {
      if (use.tensor != none) finish_use(lane.tier, use);
    }
  }
  session_.emit({.kind = EventKind::op_done, .device = device_of(index), .op = op.times.op, .uses = op.uses});
  spent_.clear();
  program_.done(index, lane.tier, op.uses, memory_, spent_);
  for (const TensorId tensor : spent_) {
    if (layout_.free_dead == FreeDead::now) {
      mover_.kill(tensor);
    } else if (layout_.free_dead == FreeDead::when_victim) {
      lives_.dead[tensor] = 1;
    }
  }
  lane.active.pop_front();
}

void OpRunner::finish_use(TierId tier, const Use& use) {
  for (const ChunkId chunk : memory_.chunks_of(use.tensor)) {
    memory_.unpin(chunk, tier);
    if (!use.write) continue;
    memory_.remove_writer(chunk, tier);
    for (TierId other = 0; other < memory_.tier_count(); ++other) {
      if (other != tier) mover_.invalidate(chunk, other);
    }
  }
  if (use.write) lives_.born[use.tensor] = 1;
}

// ---- What live programs do to their ops -----------------------------------------------------------------------------

void OpRunner::release(TierId tier, const Use& use) {
  for (const ChunkId chunk : memory_.chunks_of(use.tensor)) {
    memory_.unpin(chunk, tier);
    if (use.write) memory_.remove_writer(chunk, tier);
  }
}

void OpRunner::forget(TensorId tensor) {
  for (OpLane& lane : lanes_) {
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
  OpLane& lane = lanes_[0];
  TENCACHE_CHECK(lane.active.size() == 1 && !lane.waiting);
  for (Use& use : lane.active.front().own_uses) {
    if (use.tensor != tensor || use.write) continue;
    use.write = true;
    for (const ChunkId chunk : memory_.chunks_of(tensor)) {
      mover_.stop_from(chunk, lane.tier);
      memory_.add_writer(chunk, lane.tier);
    }
  }
}

void OpRunner::abandon(std::uint8_t index) {
  OpLane& lane = lanes_[index];
  ActiveOp& op = lane.active.back();
  OpDemand& demand = op.demand;
  lanes_.got_room(lane.tier, demand, demand.room_needed);
  // A started op waits for its latest allocation only.
  const std::span<const Use> given_up =
      std::span<const Use>(op.own_uses).subspan(op.started ? op.own_uses.size() - 1 : 0);
  for (const Use& use : given_up) release(lane.tier, use);
  // Room that was given for content which is never written holds nothing.
  for (std::size_t i = 0; i < demand.next_output; ++i) {
    const TensorId tensor = memory_.tensor_of(demand.outputs[i]);
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
  op.times.ready_ns = moment_.now;
  ledger_.wait(index, op.times, moment_.now);
}

// ---- Hits -----------------------------------------------------------------------------------------------------------

void OpRunner::count_hits(const ActiveOp& op) {
  Counters& counters = ledger_.counters();
  for (const Use& use : op.uses) {
    if (!use.read || !governed_[static_cast<std::size_t>(memory_.role(use.tensor))]) continue;
    ++counters.accesses;
    counters.access_bytes += memory_.bytes(use.tensor);
    if (!memory_.resident(use.tensor, 0)) continue;
    ++counters.hits;
    counters.hit_bytes += memory_.bytes(use.tensor);
  }
}

void OpRunner::count_held() {
  const std::span<const TensorId> tensors = program_.read_on_gpu();
  ledger_.counters().tensors += tensors.size();
  ledger_.counters().tensors_held += static_cast<std::uint64_t>(std::ranges::count_if(
      tensors, [this](TensorId tensor) { return memory_.resident(tensor, 0) || mover_.on_its_way(tensor, 0); }));
}

}  // namespace tencache
