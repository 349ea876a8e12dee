// The program side of the engine: lanes, ops, inputs. Beside it: engine_accounting.cpp (time), engine_events.cpp
// (policy), engine_live.cpp (intercepted programs), engine_program.cpp (owned programs, from start to result),
// engine_progress.cpp (completions, and what happens when none are left),
// engine_queues.cpp (what waits for its link), engine_room.cpp (room in the tiers), engine_transfers.cpp (copies).
#include "core/engine/engine.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/engine/engine_tags.h"
#include "core/error.h"

namespace tencache {
namespace {

Layout checked_layout(const MachineSpec& spec, Policy& policy, const Program* program) {
  Layout layout = policy.layout(spec, program);
  if (layout.allocators.empty()) layout.allocators.resize(spec.tiers.size());
  if (layout.allocators.size() != spec.tiers.size()) {
    throw Error("the policy lays out " + std::to_string(layout.allocators.size()) + " tiers, machine '" + spec.name +
                "' has " + std::to_string(spec.tiers.size()));
  }
  return layout;
}

bool conflict(std::span<const Use> a, std::span<const Use> b) {
  for (const Use& x : a) {
    for (const Use& y : b) {
      if (x.tensor == y.tensor && (x.write || y.write)) return true;
    }
  }
  return false;
}

}  // namespace

Engine::Engine(const MachineSpec& spec, Machine& machine, Policy& policy, const Program* program, EngineOptions options)
    : spec_(spec),
      machine_(machine),
      policy_(policy),
      program_(program),
      options_(std::move(options)),
      layout_(checked_layout(spec, policy, program)),
      memory_(spec, layout_.allocators, layout_.chunk_bytes, layout_.unlimited_gpu),
      staging_used_(spec.staging.count, false),
      live_(program == nullptr),
      governed_(policy.requirements().governed) {
  lanes_[0].tier = spec.tier_of(Device::gpu);
  lanes_[1].tier = spec.tier_of(Device::cpu);
  TENCACHE_CHECK(lanes_[0].tier == 0);
  if (layout_.overlap_faults && (live_ || !machine.pretends() || spec.issue_ahead != 1)) {
    throw Error("machine '" + spec.name +
                "': overlap_faults lets an op run before its data is there, which only a simulation that issues one op "
                "at a time can do; leave the option off");
  }
  for (TierId from = 0; from < spec.tiers.size(); ++from) {
    for (TierId to = 0; to < spec.tiers.size(); ++to) routes_[from][to] = find_route(from, to);
  }
  for (LinkId link = 0; link < spec.links.size(); ++link) {
    const Link& l = spec.links[link];
    if (l.queue_depth <= spec.copies_in_flight) continue;
    const uint128 flows = static_cast<uint128>(l.bandwidth) * static_cast<uint128>(l.latency_ns);
    queues_[link].per_latency = static_cast<Bytes>((flows + second_ns - 1) / static_cast<uint128>(second_ns));
  }
  if (program_ != nullptr) load_program();
}

// ---- Lanes ----------------------------------------------------------------------------------------------------------

bool Engine::advance_lane(std::uint8_t index) {
  Lane& lane = lanes_[index];
  bool progress = false;
  if (lane.waiting) {
    ActiveOp& op = lane.active.back();
    take_rooms(index, op);
    if (!try_start(index, op)) return false;
    progress = true;
  }
  while (!finished_ && !lane.waiting && lane.active.size() < spec_.issue_ahead && issue_next(index)) progress = true;
  return progress;
}

bool Engine::dependencies_met(const Lane& lane, std::uint8_t index) const {
  const Lane& other = lanes_[1 - index];
  if (!lane.tasks
           .empty()) {  // tasks of a live program: in the order they were given, wherever they touch the same tensors
    const Task& task = lane.tasks.front();
    for (const ActiveOp& op : other.active) {
      if (conflict(task.uses, op.uses)) return false;
    }
    for (const Task& earlier : other.tasks) {
      if (earlier.sequence < task.sequence && conflict(task.uses, earlier.uses)) return false;
    }
    return true;
  }
  const std::size_t count = lane.ops.size();
  const std::int64_t need = lane.needs[lane.issued % count];
  if (need == no_need) return true;
  const std::int64_t iteration = static_cast<std::int64_t>(lane.issued / count);
  return static_cast<std::int64_t>(other.done) >= iteration * static_cast<std::int64_t>(other.ops.size()) + need;
}

// Issues the lane's next op if there is one that may be. An op goes through: dependencies, boundary, gap, issue.
bool Engine::issue_next(std::uint8_t index) {
  Lane& lane = lanes_[index];
  const bool task = !lane.tasks.empty();
  if (!task && (lane.ops.empty() || lane.issued == limits_.max_iterations * lane.ops.size())) return false;
  if (lane.gap_pending) return false;
  if (!dependencies_met(lane, index)) {
    if (lane.blocked_since_ns < 0) lane.blocked_since_ns = now_;
    return false;
  }
  if (lane.blocked_since_ns >= 0) {
    if (index == 0 && lane.active.empty() && now_ > lane.idle_since_ns) {
      const Nanoseconds begin = std::max(lane.blocked_since_ns, lane.idle_since_ns);
      account_gap(index, begin, none, true);
      account_stall(index, now_, StallCause::cpu_optimizer,
                    task ? lane.tasks.front().op : lane.ops[lane.issued % lane.ops.size()]);
    }
    lane.blocked_since_ns = -1;
  }
  if (task) {
    Task next = std::move(lane.tasks.front());
    lane.tasks.pop_front();
    ActiveOp& op = lane.active.emplace_back();
    op.op = next.op;
    op.tag = next.tag;
    op.own_uses = std::move(next.uses);
    op.uses = op.own_uses;
    op.duration_ns = next.duration_ns;
    op.iteration = iteration_;
    issue(index, op);
    return true;
  }
  const std::size_t at = lane.issued % lane.ops.size();
  const Op& next = program_->trace.ops[lane.ops[at]];
  if (index == 0 && at == 0 && lane.issued > 0 && !lane.gap_done && !lane.boundary_crossed) {
    lane.boundary_crossed = true;
    cross_boundary();
    if (finished_) return false;
    emit({.kind = EventKind::iteration_begin});
  }
  if (next.gap_before_ns > 0 && !lane.gap_done) {  // host time: what the lane would wait for anyway runs meanwhile
    lane.gap_pending = true;
    ++commands_;
    machine_.execute({.lane = index, .op = none, .idle = true, .duration_ns = next.gap_before_ns, .uses = {}},
                     make_tag(TagKind::gap, index));
    return false;
  }
  lane.gap_done = lane.boundary_crossed = false;
  ActiveOp& op = lane.active.emplace_back();
  op.op = lane.ops[at];
  op.iteration = lane.issued / lane.ops.size();
  op.uses = schedule_->uses(op.op);
  op.duration_ns = next.duration_ns;
  op.meets = next.rendezvous != 0;
  ++lane.issued;
  issue(index, op);
  return true;
}

void Engine::issue(std::uint8_t index, ActiveOp& op) {
  Lane& lane = lanes_[index];
  op.issued_ns = now_;
  lane.waiting = true;
  if (index == 0) {
    position_ = op.op;
    if (!live_) enter_module(program_->trace.ops[op.op].module);
    count_hits(op);
    release_deferred(op.op);
  }
  const auto holds = holds_.equal_range(op.op);
  for (auto hold = holds.first; hold != holds.second; ++hold) op.holds.push_back(hold->second);
  holds_.erase(holds.first, holds.second);
  {
    const Because because(*this, {.reason = Reason::demand, .op = op.op});
    for (const Use& use : op.uses) require(index, op, use);
  }
  op.late = op.missing > 0 || !op.holds.empty();
  emit({.kind = EventKind::op_issued, .device = index == 0 ? Device::gpu : Device::cpu, .op = op.op, .uses = op.uses});
  take_rooms(index, op);
  try_start(index, op);
}

void Engine::enter_module(NameId module) {
  Lane& lane = lanes_[0];
  if (lane.module == module) return;
  if (lane.module != 0) emit({.kind = EventKind::module_end, .op = position_, .module = lane.module});
  lane.module = module;
  if (module != 0) emit({.kind = EventKind::module_begin, .op = position_, .module = module});
}

void Engine::require(std::uint8_t index, ActiveOp& op, const Use& use) {
  if (use.write) dead_[use.tensor] = 0;
  const ChunkId begin = memory_.first_chunk(use.tensor);
  const ChunkId end = begin + memory_.chunk_count(use.tensor);
  for (ChunkId chunk = begin; chunk < end; ++chunk) require_chunk(index, op, use, chunk);
}

void Engine::require_chunk(std::uint8_t index, ActiveOp& op, const Use& use, ChunkId chunk) {
  const TierId tier = lanes_[index].tier;
  memory_.pin(chunk, tier);
  if (use.write) {
    stop_transfers_from(chunk, tier);
    memory_.add_writer(chunk, tier);
  }
  const Copy& copy = memory_.copy(chunk, tier);
  if (copy.state == CopyState::valid) {
    if (copy.evicting) rescue(chunk, tier);
    if (layout_.use_touches) memory_.touch(chunk, tier);
    if (use.write && copy.readers > 0) {
      op.write_waits.push_back(chunk);
      ++op.missing;
    }
    return;
  }
  ++op.missing;
  if (copy.state == CopyState::reserved) {  // on its way: its arrival counts
    if (const TransferId coming = find_transfer(chunk, tier); coming != none) {
      overlap(op, coming);
      promote(coming);
    }
    return;
  }
  const Bytes footprint = memory_.footprint(chunk, tier);
  op.room_needed += footprint;
  room_wanted_[tier] += footprint;
  // What UVM-like policies never free must be brought back even to be overwritten.
  const bool refetch = layout_.free_dead == FreeDead::never && born_[use.tensor] != 0;
  if (use.read || refetch) {
    Refusal refusal = Refusal::none;
    if (const TransferId coming = find_transfer(chunk, tier); coming != none) overlap(op, coming);
    if (!request_fetch(chunk, tier, urgent, none, refusal)) op.stranded.push_back(chunk);
  } else {
    if (const TransferId coming = find_transfer(chunk, tier); coming != none) withdraw(coming);
    op.outputs.push_back(chunk);
  }
}

// Gives the waiting op's outputs their room and asks again for what could not be fetched before.
void Engine::take_rooms(std::uint8_t index, ActiveOp& op) {
  const Because because(*this, {.reason = Reason::demand, .op = op.op});
  const TierId tier = lanes_[index].tier;
  while (op.next_output < op.outputs.size()) {
    const ChunkId chunk = op.outputs[op.next_output];
    if (memory_.copy(chunk, tier).state != CopyState::absent) break;  // its former life is still being copied
    if (!take_copy(chunk, tier)) {
      make_room(tier, op.room_needed, false, none, chunk, urgent);
      if (!take_copy(chunk, tier)) break;
    }
    room_taken(index, op, chunk);
    memory_.commit(chunk, tier);
    if (op.external && !op.started) memory_.set_unwritten(chunk, tier, true);  // the op may yet be abandoned
    decide(Decision::Kind::allocate, chunk, no_tier, tier);
    op.lateness = {.asked_ns = op.issued_ns,
                   .room_ns = now_,
                   .first_hop_ns = now_,
                   .room = last_room_cause_[tier],
                   .last = last_room_cause_[tier]};
    TENCACHE_CHECK(op.missing > 0);
    --op.missing;
    ++op.next_output;
  }
  for (std::size_t i = 0; i < op.stranded.size();) {
    Refusal refusal = Refusal::none;
    const ChunkId chunk = op.stranded[i];
    if (request_fetch(chunk, tier, urgent, none, refusal)) {
      if (const TransferId coming = find_transfer(chunk, tier); coming != none)
        transfers_[coming].lateness.before = op.stranded_cause;
      op.stranded.erase(op.stranded.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  for (std::size_t i = 0; i < op.write_waits.size();) {
    const ChunkId chunk = op.write_waits[i];
    if (memory_.copy(chunk, tier).readers == 0) {
      op.write_waits.erase(op.write_waits.begin() + static_cast<std::ptrdiff_t>(i));
      op.lateness = {
          .asked_ns = op.issued_ns, .room_ns = op.issued_ns, .first_hop_ns = op.issued_ns, .last = StallCause::d2h};
      --op.missing;
    } else {
      ++i;
    }
  }
}

bool Engine::try_start(std::uint8_t index, ActiveOp& op) {
  Lane& lane = lanes_[index];
  if (op.missing > op.overlapped) return false;
  std::erase_if(op.holds, [&](const Hold& hold) { return !on_its_way(hold.tensor, hold.tier); });
  if (!op.started && !op.holds.empty() && !out_of_patience()) return false;
  if (op.started && layout_.overlap_faults) return end_beside_arrivals(index, op);
  lane.waiting = op.missing > 0;  // only overlapped arrivals: it runs, and takes them in as they come
  op.ready_ns = now_;
  decide(Decision::Kind::start_op, none, no_tier, index);
  if (op.started) {  // an intercepted op that waited for an allocation goes on
    account_late(index, op, now_);
    return true;
  }
  op.started = true;
  copies_waited_ = 0;
  for (const ChunkId chunk : op.outputs) memory_.set_unwritten(chunk, lane.tier, false);
  if (index == 1 && updates_begun_ns_ < 0 && op.op != none && program_ != nullptr &&
      program_->trace.ops[op.op].phase == Phase::optimizer) {
    updates_begun_ns_ = now_;
  }
  emit({.kind = EventKind::op_ready, .device = index == 0 ? Device::gpu : Device::cpu, .op = op.op, .uses = op.uses});
  if (op.external) {
    account_late(index, op, now_);
  } else {
    const Op* known = live_ ? nullptr : &program_->trace.ops[op.op];
    ++commands_;
    machine_.execute({.lane = index,
                      .op = op.op,
                      .idle = false,
                      .duration_ns = op.duration_ns,
                      .bytes = known == nullptr ? 0 : known->bytes,
                      .rendezvous = known == nullptr ? NameId{0} : known->rendezvous,
                      .uses = op.uses},
                     make_tag(TagKind::op, (op.tag << 8) | index));
  }
  return true;
}

// Layout::overlap_faults: a prefetch that is on its way when the op is issued arrives beside the op's compute.
void Engine::overlap(ActiveOp& op, TransferId coming) {
  Transfer& t = transfers_[coming];
  if (!layout_.overlap_faults || t.purpose != Purpose::fetch || t.overlapped) return;
  t.overlapped = true;
  ++op.overlapped;
}

void Engine::computed(std::uint8_t index, Nanoseconds start_ns, Nanoseconds end_ns) {
  ActiveOp& op = lanes_[index].active.front();
  if (op.missing == 0) {
    finish(index, start_ns, end_ns);
    return;
  }
  op.ready_ns = start_ns;
  op.computed_ns = end_ns;
}

// The op runs, or has run, beside its arrivals. False while one is missing.
bool Engine::end_beside_arrivals(std::uint8_t index, ActiveOp& op) {
  if (op.missing > 0) return false;
  lanes_[index].waiting = false;
  if (op.computed_ns >= 0) finish(index, op.ready_ns, op.computed_ns);
  return true;
}

// Whether a missing chunk of the tensor is queued or in flight. A hold stands only while it is, so that no policy holds
// an op for ever.
bool Engine::on_its_way(TensorId tensor, TierId tier) const {
  const ChunkId begin = memory_.first_chunk(tensor);
  for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(tensor); ++chunk) {
    const TransferId id = find_transfer(chunk, tier);
    if (id != none && (transfers_[id].queued || transfers_[id].in_flight)) return true;
  }
  return false;
}

void Engine::finish(std::uint8_t index, Nanoseconds start_ns, Nanoseconds end_ns) {
  Lane& lane = lanes_[index];
  ActiveOp& op = lane.active.front();
  TENCACHE_CHECK(op.started && op.missing == 0);
  if (!op.external) account_late(index, op, start_ns);
  account_compute(index, op, end_ns);
  if (op.computed_ns >= 0) account_stall(index, now_, op.lateness.last, op.op);  // until the last overlapped arrival
  {
    const Because because(*this, {.reason = Reason::overwritten, .op = op.op});
    for (const Use& use : op.uses) {
      if (use.tensor != none) finish_use(lane.tier, use);
    }
  }
  emit({.kind = EventKind::op_done, .device = index == 0 ? Device::gpu : Device::cpu, .op = op.op, .uses = op.uses});
  if (!live_) {
    for (const Use& use : op.uses) {
      if (memory_.persistent(use.tensor) || --uses_left_[use.tensor] > 0) continue;
      uses_left_[use.tensor] = uses_total_[use.tensor];
      // An op issued ahead gives it a new life already.
      if (memory_.copy(memory_.first_chunk(use.tensor), lane.tier).pins > 0) continue;
      if (layout_.free_dead == FreeDead::now) {
        kill(use.tensor);
      } else if (layout_.free_dead == FreeDead::when_victim) {
        dead_[use.tensor] = 1;
      }
    }
  }
  lane.active.pop_front();
  ++lane.done;
}

void Engine::finish_use(TierId tier, const Use& use) {
  const ChunkId begin = memory_.first_chunk(use.tensor);
  const ChunkId end = begin + memory_.chunk_count(use.tensor);
  for (ChunkId chunk = begin; chunk < end; ++chunk) {
    memory_.unpin(chunk, tier);
    if (!use.write) continue;
    memory_.remove_writer(chunk, tier);
    for (TierId other = 0; other < memory_.tier_count(); ++other) {
      if (other != tier) invalidate(chunk, other);
    }
  }
  if (use.write) born_[use.tensor] = 1;
}

void Engine::count_hits(const ActiveOp& op) {
  for (const Use& use : op.uses) {
    if (!use.read || !governed_[static_cast<std::size_t>(memory_.role(use.tensor))]) continue;
    ++counters_.accesses;
    counters_.access_bytes += memory_.bytes(use.tensor);
    if (!memory_.resident(use.tensor, 0)) continue;
    ++counters_.hits;
    counters_.hit_bytes += memory_.bytes(use.tensor);
  }
}

// What the GPU holds when an iteration begins: the hit rate of systems that count tensors rather than accesses.
void Engine::count_held() {
  counters_.tensors += read_on_gpu_.size();
  for (const TensorId tensor : read_on_gpu_) {
    if (memory_.resident(tensor, 0) || on_its_way(tensor, 0)) ++counters_.tensors_held;
  }
}

// ---- Life and death -------------------------------------------------------------------------------------------------

// The tensor's value is needed no more: its copies go, and what still moves of it is useless.
void Engine::kill(TensorId tensor) {
  const Because because(*this, {.reason = Reason::dead});
  const ChunkId begin = memory_.first_chunk(tensor);
  const ChunkId end = begin + memory_.chunk_count(tensor);
  dead_[tensor] = 1;
  for (ChunkId chunk = begin; chunk < end; ++chunk) {
    for (TierId tier = 0; tier < memory_.tier_count(); ++tier) invalidate(chunk, tier);
  }
  born_[tensor] = 0;
}

void Engine::remove_if_gone(TensorId tensor) {
  if (doomed_[tensor] == 0) return;
  const ChunkId begin = memory_.first_chunk(tensor);
  for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(tensor); ++chunk) {
    if (first_of_chunk_[chunk] != none) return;
    for (TierId tier = 0; tier < memory_.tier_count(); ++tier) {
      if (memory_.copy(chunk, tier).state != CopyState::absent) return;
    }
  }
  doomed_[tensor] = 0;
  for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(tensor); ++chunk) failures_.erase(chunk);
  if (tensor < to_program_.size() && to_program_[tensor] != none) {
    if (to_memory_[to_program_[tensor]] == tensor) to_memory_[to_program_[tensor]] = none;
    to_program_[tensor] = none;
  }
  machine_.tensor_destroyed(tensor);
  memory_.remove_tensor(tensor);
}

void Engine::decide(Decision::Kind kind, ChunkId chunk, TierId from, TierId to, Refusal refusal) {
  if (from == 0 && (kind == Decision::Kind::evict || kind == Decision::Kind::drop)) ++counters_.evictions;
  if (options_.log == nullptr && !options_.on_decision) return;
  const Decision decision{kind, from, to, chunk, position_, now_, refusal, why_};
  if (options_.log != nullptr) options_.log->decisions.push_back(decision);
  if (options_.on_decision) options_.on_decision(decision, view());
}

}  // namespace tencache
