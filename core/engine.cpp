// The program side of the engine: lanes, ops, events, iteration boundaries. Transfers are in engine_transfers.cpp.
#include "core/engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/engine_tags.h"
#include "core/error.h"

namespace tencache {
namespace {

constexpr std::int64_t no_need = std::numeric_limits<std::int64_t>::min() / 2;
constexpr int refusal_rounds = 2;  // a policy hears of refusals of what it asked for in answer to a refusal only so often

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
      governed_(policy.requirements().governed),
      staging_used_(spec.staging.count, false),
      live_(program == nullptr) {
  lanes_[0].tier = spec.tier_of(Device::gpu);
  lanes_[1].tier = spec.tier_of(Device::cpu);
  TENCACHE_CHECK(lanes_[0].tier == 0);
  for (TierId from = 0; from < spec.tiers.size(); ++from) {
    for (TierId to = 0; to < spec.tiers.size(); ++to) routes_[from][to] = find_route(from, to);
  }
  if (program_ != nullptr) load_program();
}

// ---- Owned program --------------------------------------------------------------------------------------------------

void Engine::load_program() {
  const Trace& trace = program_->trace;
  schedule_ = std::make_unique<Schedule>(trace);
  for (OpIndex i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    if (op.rank != 0) throw Error("op '" + trace.name(op) + "' belongs to rank " + std::to_string(op.rank) + "; one rank is simulated");
    const std::size_t lane = op.device == Device::gpu ? 0 : 1;
    if (lanes_[lane].tier == no_tier) {
      throw Error("op '" + trace.name(op) + "' runs on the CPU, but machine '" + spec_.name + "' has no tier of kind cpu");
    }
    lanes_[lane].ops.push_back(i);
  }
  if (lanes_[0].ops.empty()) throw Error("the trace has no op on the GPU");
  for (const Tensor& tensor : trace.tensors) memory_.add_tensor(tensor.bytes, tensor.role, tensor.persistent);
  const std::size_t tensors = trace.tensors.size();
  dead_.assign(tensors, 0);
  doomed_.assign(tensors, 0);
  born_.assign(tensors, 0);
  first_of_chunk_.assign(memory_.chunk_total(), none);
  uses_total_.resize(tensors);
  for (TensorId tensor = 0; tensor < tensors; ++tensor) {
    uses_total_[tensor] = static_cast<std::uint32_t>(schedule_->ops_of(tensor).size());
  }
  uses_left_ = uses_total_;
  compute_dependencies();
}

void Engine::place_initially(TensorId tensor) {
  const TierId wanted = layout_.initial[static_cast<std::size_t>(memory_.role(tensor))];
  const TierId first = layout_.unlimited_gpu ? TierId{0} : wanted != no_tier ? wanted : spec_.initial_tier;
  const ChunkId begin = memory_.first_chunk(tensor);
  for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(tensor); ++chunk) {
    TierId tier = first;
    while (tier < memory_.tier_count() && !take_copy(chunk, tier)) ++tier;
    if (tier == memory_.tier_count()) {
      throw OutOfMemory("out of memory before the first op: no tier has room for tensor '" +
                            program_->trace.name(program_->trace.tensors[tensor]) + "' (" +
                            format_bytes(memory_.bytes(tensor)) + "); persistent tensors start in tier '" +
                            spec_.tiers[first].name + "' and spill to slower ones",
                        "", memory_.bytes_of(chunk));
    }
    machine_.initialise(tensor, chunk, memory_.begin_of(chunk), memory_.bytes_of(chunk), {tier, memory_.copy(chunk, tier).offset});
    memory_.commit(chunk, tier);
  }
  born_[tensor] = 1;
}

// Which ops of the other lane must be done before an op may be issued: the latest that conflicts, looking back over the
// iteration's end, since the program is cyclic.
void Engine::compute_dependencies() {
  for (Lane& lane : lanes_) lane.needs.assign(lane.ops.size(), no_need);
  if (lanes_[1].ops.empty()) return;
  const std::size_t tensors = program_->trace.tensors.size();
  std::array<std::vector<std::int64_t>, lane_count> last_read, last_write;
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    last_read[lane].assign(tensors, no_need);
    last_write[lane].assign(tensors, no_need);
  }
  for (std::int64_t round = 0; round < 2; ++round) {
    std::array<std::size_t, lane_count> at{};
    for (OpIndex op = 0; op < program_->trace.ops.size(); ++op) {
      const std::size_t mine = program_->trace.ops[op].device == Device::gpu ? 0 : 1;
      const std::size_t other = 1 - mine;
      std::int64_t need = no_need;
      for (const Use& use : schedule_->uses(op)) {
        need = std::max(need, last_write[other][use.tensor]);
        if (use.write) need = std::max(need, last_read[other][use.tensor]);
      }
      const std::int64_t others = static_cast<std::int64_t>(lanes_[other].ops.size());
      if (round == 1 && need != no_need) lanes_[mine].needs[at[mine]] = need - others;
      const std::int64_t done_count = round * static_cast<std::int64_t>(lanes_[mine].ops.size()) + static_cast<std::int64_t>(at[mine]) + 1;
      for (const Use& use : schedule_->uses(op)) {
        (use.write ? last_write : last_read)[mine][use.tensor] = done_count;
        if (use.read) last_read[mine][use.tensor] = done_count;
      }
      ++at[mine];
    }
  }
}

RunResult Engine::run(const RunLimits& limits) {
  TENCACHE_CHECK(program_ != nullptr && boundaries_.empty());
  limits_ = limits;
  std::string misfit, misfit_op;
  Bytes misfit_bytes = 0;
  try {
    for (TensorId tensor = 0; tensor < memory_.tensor_count(); ++tensor) {
      machine_.tensor_created(tensor, memory_.bytes(tensor));
      if (memory_.persistent(tensor)) place_initially(tensor);
    }
    advance_time(machine_.now());
    lanes_[0].idle_since_ns = lanes_[1].idle_since_ns = now_;
    boundaries_.push_back(counters_);
    emit({.kind = EventKind::profile_ready});
    emit({.kind = EventKind::iteration_begin});
    pump();
    Completion completion;
    while (!finished_) {
      if (machine_.wait(completion)) {
        handle(completion);
        continue;
      }
      const Lane& gpu = lanes_[0];
      const Lane& cpu = lanes_[1];
      if (gpu.active.empty() && cpu.active.empty() && gpu.done == limits_.max_iterations * gpu.ops.size() &&
          cpu.done == limits_.max_iterations * cpu.ops.size()) {
        cross_boundary();
        break;
      }
      if (!standstill()) throw_out_of_memory();
    }
  } catch (const OutOfMemory& error) {
    misfit = error.what();
    misfit_op = error.op();
    misfit_bytes = error.bytes_missing();
  }
  RunResult r = result();
  r.fits = misfit.empty();
  r.misfit = misfit;
  r.misfit_op = misfit_op;
  r.misfit_bytes = misfit_bytes;
  return r;
}

RunResult Engine::result() const {
  RunResult r;
  r.iterations = boundaries_.empty() ? 0 : boundaries_.size() - 1;
  r.simulated_events = counters_.completions;
  for (TierId tier = 0; tier < memory_.tier_count(); ++tier) r.peak_bytes[tier] = memory_.peak(tier);
  if (r.iterations == 0) return r;
  for (std::size_t i = 1; i < boundaries_.size(); ++i) {
    r.iteration_ns.push_back(boundaries_[i].time_ns - boundaries_[i - 1].time_ns);
  }
  r.first_iteration_ns = r.iteration_ns.front();
  r.steady = recurs_.has_value();
  const std::size_t begin = r.steady ? *recurs_ : boundaries_.size() / 2 - (r.iterations == 1 ? 1 : 0);
  r.window = boundaries_.back() - boundaries_[begin];
  r.period = boundaries_.size() - 1 - begin;
  return r;
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
  if (!lane.tasks.empty()) {  // tasks of a live program: in the order they were given, wherever they touch the same tensors
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
      account_gap(index, begin);
      account_stall(index, now_, StallCause::cpu_optimizer, task ? lane.tasks.front().op : lane.ops[lane.issued % lane.ops.size()]);
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
    machine_.execute({.lane = index, .op = none, .idle = true, .duration_ns = next.gap_before_ns, .uses = {}}, 0, make_tag(TagKind::gap, index));
    return false;
  }
  lane.gap_done = lane.boundary_crossed = false;
  ActiveOp& op = lane.active.emplace_back();
  op.op = lane.ops[at];
  op.iteration = lane.issued / lane.ops.size();
  op.uses = schedule_->uses(op.op);
  op.duration_ns = next.duration_ns;
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
  for (auto hold = holds.first; index == 0 && hold != holds.second; ++hold) op.holds.push_back(hold->second);
  if (index == 0) holds_.erase(holds.first, holds.second);
  for (const Use& use : op.uses) require(index, op, use);
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
    if (const TransferId coming = find_transfer(chunk, tier); coming != none) promote(coming);
    return;
  }
  const Bytes footprint = memory_.footprint(chunk, tier);
  op.room_needed += footprint;
  room_wanted_[tier] += footprint;
  // What UVM-like policies never free must be brought back even to be overwritten.
  const bool refetch = layout_.free_dead == FreeDead::never && born_[use.tensor] != 0;
  if (use.read || refetch) {
    Refusal refusal = Refusal::none;
    if (!request_fetch(chunk, tier, urgent, none, refusal)) op.stranded.push_back(chunk);
  } else {
    if (const TransferId coming = find_transfer(chunk, tier); coming != none) withdraw(coming);
    op.outputs.push_back(chunk);
  }
}

// Gives the waiting op's outputs their room and asks again for what could not be fetched before.
void Engine::take_rooms(std::uint8_t index, ActiveOp& op) {
  const TierId tier = lanes_[index].tier;
  while (op.next_output < op.outputs.size()) {
    const ChunkId chunk = op.outputs[op.next_output];
    if (memory_.copy(chunk, tier).state != CopyState::absent) break;  // its former life is still being copied
    if (!take_copy(chunk, tier)) {
      make_room(tier, op.room_needed, false, none, urgent);
      if (!take_copy(chunk, tier)) break;
    }
    room_taken(index, op, chunk);
    memory_.commit(chunk, tier);
    decide(Decision::Kind::allocate, chunk, no_tier, tier);
    op.lateness = {.asked_ns = op.issued_ns, .room_ns = now_, .first_hop_ns = now_, .room = last_room_cause_[tier], .last = last_room_cause_[tier]};
    TENCACHE_CHECK(op.missing > 0);
    --op.missing;
    ++op.next_output;
  }
  for (std::size_t i = 0; i < op.stranded.size();) {
    Refusal refusal = Refusal::none;
    const ChunkId chunk = op.stranded[i];
    if (request_fetch(chunk, tier, urgent, none, refusal)) {
      op.stranded.erase(op.stranded.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  for (std::size_t i = 0; i < op.write_waits.size();) {
    const ChunkId chunk = op.write_waits[i];
    if (memory_.copy(chunk, tier).readers == 0) {
      op.write_waits.erase(op.write_waits.begin() + static_cast<std::ptrdiff_t>(i));
      op.lateness = {.asked_ns = op.issued_ns, .room_ns = op.issued_ns, .first_hop_ns = op.issued_ns, .last = StallCause::d2h};
      --op.missing;
    } else {
      ++i;
    }
  }
}

bool Engine::try_start(std::uint8_t index, ActiveOp& op) {
  Lane& lane = lanes_[index];
  if (op.missing > 0) return false;
  std::erase_if(op.holds, [&](TensorId tensor) { return memory_.resident(tensor, lane.tier); });
  if (!op.holds.empty()) return false;
  lane.waiting = false;
  op.ready_ns = now_;
  decide(Decision::Kind::start_op, none, no_tier, index);
  if (op.started) {  // an intercepted op that waited for an allocation goes on
    account_late(index, op, now_);
    return true;
  }
  op.started = true;
  emit({.kind = EventKind::op_ready, .device = index == 0 ? Device::gpu : Device::cpu, .op = op.op, .uses = op.uses});
  if (op.external) {
    account_late(index, op, now_);
  } else {
    machine_.execute({.lane = index, .op = op.op, .idle = false, .duration_ns = op.duration_ns, .uses = op.uses}, 0,
                     make_tag(TagKind::op, (op.tag << 8) | index));
  }
  return true;
}

void Engine::finish(std::uint8_t index, Nanoseconds start_ns, Nanoseconds end_ns) {
  Lane& lane = lanes_[index];
  ActiveOp& op = lane.active.front();
  TENCACHE_CHECK(op.started && op.missing == 0);
  if (!op.external) account_late(index, op, start_ns);
  account_compute(index, op, end_ns);
  for (const Use& use : op.uses) {
    if (use.tensor != none) finish_use(lane.tier, use);
  }
  emit({.kind = EventKind::op_done, .device = index == 0 ? Device::gpu : Device::cpu, .op = op.op, .uses = op.uses});
  if (!live_) {
    for (const Use& use : op.uses) {
      if (memory_.persistent(use.tensor) || --uses_left_[use.tensor] > 0) continue;
      uses_left_[use.tensor] = uses_total_[use.tensor];
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

// ---- Time and its attribution: every nanosecond of the GPU lane is compute, gap, or a stall with one cause. ----------

void Engine::advance_time(Nanoseconds now) {
  TENCACHE_CHECK(now >= now_);
  const uint128 passed = static_cast<uint128>(now - now_);
  for (TierId tier = 0; tier < memory_.tier_count(); ++tier) {
    counters_.occupancy_byte_ns[tier] += passed * memory_.used(tier);
  }
  now_ = now;
  counters_.time_ns = now;
  ++epoch_;
}

void Engine::account_gap(std::uint8_t index, Nanoseconds until) {
  Lane& lane = lanes_[index];
  if (until <= lane.idle_since_ns) return;
  if (index == 0) counters_.gap_ns += until - lane.idle_since_ns;
  if (index == 0) add_span({.start_ns = lane.idle_since_ns, .end_ns = until, .kind = SpanKind::gap, .lane = index, .iteration = iteration_, .op = position_});
  lane.idle_since_ns = until;
}

void Engine::account_stall(std::uint8_t index, Nanoseconds until, StallCause cause, OpIndex op) {
  Lane& lane = lanes_[index];
  if (until <= lane.idle_since_ns) return;
  if (index == 0) counters_.stall_ns[static_cast<std::size_t>(cause)] += until - lane.idle_since_ns;
  add_span({.start_ns = lane.idle_since_ns, .end_ns = until, .kind = SpanKind::stall, .cause = cause, .lane = index, .iteration = iteration_, .op = op});
  lane.idle_since_ns = until;
}

// From the end of the lane's last work to the start of this op: the gap until it was issued, then what it waited for.
void Engine::account_late(std::uint8_t index, const ActiveOp& op, Nanoseconds start_ns) {
  Lane& lane = lanes_[index];
  account_gap(index, std::min(op.issued_ns, start_ns));
  if (op.late) {
    const Lateness& late = op.lateness;
    const Nanoseconds ready = std::min(op.ready_ns, start_ns);
    account_stall(index, std::min(late.asked_ns, ready), late.before, op.op);
    account_stall(index, std::min(late.room_ns, ready), late.room, op.op);
    account_stall(index, std::min(late.first_hop_ns, ready), late.first_hop, op.op);
    account_stall(index, ready, late.last, op.op);
  }
  account_gap(index, start_ns);
  TENCACHE_CHECK(lane.idle_since_ns >= start_ns);
}

void Engine::account_compute(std::uint8_t index, const ActiveOp& op, Nanoseconds until) {
  Lane& lane = lanes_[index];
  const Nanoseconds passed = until - lane.idle_since_ns;
  TENCACHE_CHECK(passed >= 0);
  (index == 0 ? counters_.compute_ns : counters_.cpu_compute_ns) += passed;
  add_span({.start_ns = lane.idle_since_ns, .end_ns = until, .kind = SpanKind::op, .lane = index, .iteration = op.iteration, .op = op.op});
  lane.idle_since_ns = until;
}

void Engine::add_span(const Span& span) {
  if (options_.timeline != nullptr) options_.timeline->spans.push_back(span);
}

void Engine::cross_boundary() {
  if (lanes_[0].active.empty()) account_gap(0, now_);
  boundaries_.push_back(counters_);
  emit({.kind = EventKind::iteration_end});
  ++iteration_;
  if (options_.on_iteration) options_.on_iteration(iteration_);
  if (live_) return;
  if (limits_.until_steady) {
    const std::uint64_t hash = state_hash();
    for (std::size_t i = 0; i < hashes_.size(); ++i) {
      if (hashes_[i] == hash) recurs_ = i + 1;
    }
    hashes_.push_back(hash);
  }
  if (recurs_ || iteration_ == limits_.max_iterations) finished_ = true;
}

std::uint64_t Engine::state_hash() const {
  std::uint64_t hash = 1469598103934665603ull;
  const auto mix = [&hash](std::uint64_t value) {
    hash ^= value;
    hash *= 1099511628211ull;
    hash ^= hash >> 29;
  };
  for (TierId tier = 0; tier < memory_.tier_count(); ++tier) {
    for (ChunkId chunk = memory_.coldest(tier); chunk != none; chunk = memory_.warmer(chunk, tier)) {
      mix(chunk);
      mix(memory_.copy(chunk, tier).offset);
    }
    mix(none);
  }
  std::uint64_t under_way = 0;  // a sum: the transfers' places in the table mean nothing
  for (const Transfer& t : transfers_) {
    if (t.chunk == none) continue;
    const std::uint64_t kind = (std::uint64_t{t.from} << 24) | (std::uint64_t{t.to} << 16) | (std::uint64_t{t.hop} << 8) | (t.in_flight ? 1 : 0);
    const std::uint64_t progress = static_cast<std::uint64_t>(t.in_flight ? now_ - t.started_ns : 0);
    under_way += ((t.chunk * 0x9e3779b97f4a7c15ull) ^ kind) * 0xbf58476d1ce4e5b9ull + progress * 0x94d049bb133111ebull;
  }
  mix(under_way);
  for (const std::uint8_t dead : dead_) mix(dead);
  for (const Lane& lane : lanes_) {
    mix(lane.ops.empty() ? 0 : lane.issued - iteration_ * lane.ops.size());
    mix(lane.ops.empty() ? 0 : lane.done - iteration_ * lane.ops.size());
    mix(static_cast<std::uint64_t>(lane.active.empty() ? 0 : now_ - lane.active.front().ready_ns));
  }
  mix(policy_.fingerprint());
  return hash;
}

// ---- Intercepted program --------------------------------------------------------------------------------------------

TensorId Engine::create(Bytes bytes, Role role, bool persistent, Nanoseconds now) {
  advance_time(std::max(now, now_));
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
  log_input({.kind = Input::Kind::create, .now = now_, .completion = {}, .tensor = tensor, .bytes = bytes, .role = role, .persistent = persistent, .uses = {}, .profile = {}});
  machine_.tensor_created(tensor, bytes);
  emit({.kind = EventKind::tensor_created, .tensor = tensor});
  return tensor;
}

void Engine::destroy(TensorId tensor, Nanoseconds now) {
  advance_time(std::max(now, now_));
  log_input({.kind = Input::Kind::destroy, .now = now_, .completion = {}, .tensor = tensor, .uses = {}, .profile = {}});
  for (Lane& lane : lanes_) {
    for (ActiveOp& op : lane.active) {
      for (Use& use : op.own_uses) {
        if (use.tensor != tensor) continue;
        TENCACHE_CHECK(op.started);
        for (ChunkId chunk = memory_.first_chunk(tensor); chunk < memory_.first_chunk(tensor) + memory_.chunk_count(tensor); ++chunk) {
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
  advance_time(std::max(now, now_));
  log_input({.kind = Input::Kind::begin, .now = now_, .completion = {}, .op = op_index, .uses = {uses.begin(), uses.end()}, .profile = {}});
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
  advance_time(std::max(now, now_));
  log_input({.kind = Input::Kind::allocate, .now = now_, .completion = {}, .tensor = tensor, .uses = {}, .profile = {}});
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
  advance_time(std::max(now, now_));
  log_input({.kind = Input::Kind::end, .now = now_, .completion = {}, .uses = {}, .profile = {}});
  TENCACHE_CHECK(ready());
  finish(0, now_, now_);
  pump();
}

void Engine::task(std::uint8_t lane, OpIndex op, Tag tag, std::span<const Use> uses, Nanoseconds duration_ns, Nanoseconds now) {
  advance_time(std::max(now, now_));
  log_input({.kind = Input::Kind::task, .now = now_, .completion = {}, .lane = lane, .op = op, .duration_ns = duration_ns, .uses = {uses.begin(), uses.end()}, .profile = {}});
  TENCACHE_CHECK(lane < lane_count && lanes_[lane].tier != no_tier);
  lanes_[lane].tasks.push_back({op, tag, {uses.begin(), uses.end()}, duration_ns, ++task_sequence_});
  pump();
}

void Engine::module_begin(NameId module, Nanoseconds now) {
  advance_time(std::max(now, now_));
  log_input({.kind = Input::Kind::module_begin, .now = now_, .completion = {}, .module = module, .uses = {}, .profile = {}});
  emit({.kind = EventKind::module_begin, .op = position_, .module = module});
  pump();
}

void Engine::module_end(NameId module, Nanoseconds now) {
  advance_time(std::max(now, now_));
  log_input({.kind = Input::Kind::module_end, .now = now_, .completion = {}, .module = module, .uses = {}, .profile = {}});
  emit({.kind = EventKind::module_end, .op = position_, .module = module});
  pump();
}

void Engine::iteration_boundary(Nanoseconds now) {
  advance_time(std::max(now, now_));
  log_input({.kind = Input::Kind::boundary, .now = now_, .completion = {}, .uses = {}, .profile = {}});
  if (boundaries_.empty()) {  // what came before is preparation
    lanes_[0].idle_since_ns = now_;
    boundaries_.push_back(counters_);
  } else {
    cross_boundary();
  }
  emit({.kind = EventKind::iteration_begin});
  pump();
}

void Engine::set_profile(const Program& program, std::vector<TensorId> to_memory, std::vector<TensorId> to_program, Nanoseconds now) {
  advance_time(std::max(now, now_));
  if (options_.log != nullptr) {
    log_input({.kind = Input::Kind::profile, .now = now_, .completion = {}, .uses = {},
               .profile = std::make_shared<LoggedProfile>(LoggedProfile{program, to_memory, to_program})});
  }
  program_ = &program;
  schedule_ = std::make_unique<Schedule>(program.trace);
  to_memory_ = std::move(to_memory);
  to_program_ = std::move(to_program);
  to_program_.resize(std::max(to_program_.size(), memory_.tensor_count()), none);
  emit({.kind = EventKind::profile_ready});
  pump();
}

void Engine::set_program_tensor(TensorId memory_tensor, TensorId program_tensor) {
  log_input({.kind = Input::Kind::program_tensor, .now = now_, .completion = {}, .tensor = memory_tensor, .program_tensor = program_tensor, .uses = {}, .profile = {}});
  if (memory_tensor >= to_program_.size()) to_program_.resize(memory_tensor + std::size_t{1}, none);
  to_program_[memory_tensor] = program_tensor;
  if (program_tensor != none) to_memory_[program_tensor] = memory_tensor;
}

void Engine::schedule_deviated(Nanoseconds now) {
  advance_time(std::max(now, now_));
  log_input({.kind = Input::Kind::deviated, .now = now_, .completion = {}, .uses = {}, .profile = {}});
  position_ = none;
  emit({.kind = EventKind::schedule_deviated});
  pump();
}

// ---- Life and death -------------------------------------------------------------------------------------------------

// The tensor's value is needed no more: its copies go, and what still moves of it is useless.
void Engine::kill(TensorId tensor) {
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
  if (tensor < to_program_.size() && to_program_[tensor] != none) {
    if (to_memory_[to_program_[tensor]] == tensor) to_memory_[to_program_[tensor]] = none;
    to_program_[tensor] = none;
  }
  machine_.tensor_destroyed(tensor);
  memory_.remove_tensor(tensor);
}

// ---- Events and actions ---------------------------------------------------------------------------------------------

View Engine::view() const {
  View v{.machine = spec_, .memory = memory_};
  v.program = program_;
  v.schedule = schedule_.get();
  v.now = now_;
  v.iteration = iteration_;
  v.op = position_;
  if (live_ && program_ != nullptr) {
    v.to_memory = &to_memory_;
    v.to_program = &to_program_;
  }
  v.dead_flags = &dead_;
  v.link_load = {link_load_.data(), spec_.links.size()};
  return v;
}

// Events are told at once, in order; those that arise while one is being told come after it.
void Engine::emit(const Event& event) {
  events_.push_back({event, refusal_depth_});
  if (draining_) return;
  draining_ = true;
  while (!events_.empty()) {
    const PendingEvent next = events_.front();
    events_.pop_front();
    Actions actions;
    std::swap(actions.list(), applying_);
    actions.list().clear();
    policy_.on(next.event, view(), actions);
    refusal_depth_ = next.event.kind == EventKind::refused ? next.refusal_depth + 1 : 0;
    for (const Action& action : actions.list()) apply(action);
    refusal_depth_ = 0;
    std::swap(actions.list(), applying_);
  }
  draining_ = false;
}

void Engine::refuse(Refusal reason, const Action& action, ChunkId chunk) {
  ++counters_.refusals;
  decide(Decision::Kind::refuse, chunk, action.tier, action.destination);
  if (refusal_depth_ > refusal_rounds) return;
  emit({.kind = EventKind::refused, .refusal = reason, .from = action.tier, .to = action.destination, .op = position_, .tensor = action.tensor, .chunk = chunk});
}

void Engine::apply(const Action& action) {
  if (action.tensor >= memory_.tensor_count() || action.tier >= memory_.tier_count() || doomed_[action.tensor] != 0) {
    refuse(Refusal::stale, action, none);
    return;
  }
  if (action.verb == Verb::hold) {
    Lane& gpu = lanes_[0];
    if (gpu.waiting && gpu.active.back().op == action.op) {
      gpu.active.back().holds.push_back(action.tensor);
      gpu.active.back().late = true;
    } else {
      holds_.emplace(action.op, action.tensor);
    }
    return;
  }
  const ChunkId first = memory_.first_chunk(action.tensor);
  const std::uint32_t count = memory_.chunk_count(action.tensor);
  if (action.chunk != all_chunks && action.chunk >= count) {
    refuse(Refusal::stale, action, none);
    return;
  }
  const ChunkId begin = action.chunk == all_chunks ? first : first + action.chunk;
  const ChunkId end = action.chunk == all_chunks ? first + count : begin + 1;
  for (ChunkId chunk = begin; chunk < end; ++chunk) {
    const Refusal refusal = apply_to_chunk(action, chunk);
    if (refusal != Refusal::none) refuse(refusal, action, chunk);
  }
}

Refusal Engine::apply_to_chunk(const Action& action, ChunkId chunk) {
  Refusal refusal = Refusal::none;
  const Priority priority = action.urgent ? urgent : normal;
  switch (action.verb) {
    case Verb::fetch:
      request_fetch(chunk, action.tier, priority, action.not_before, refusal);
      break;
    case Verb::evict:
      evict(chunk, action.tier, action.destination, priority, refusal);
      break;
    case Verb::clean:
      request_out(chunk, action.tier, action.destination, Purpose::clean, action.urgent ? urgent : background, refusal);
      break;
    case Verb::drop:
      if (memory_.evictable(chunk, action.tier) && can_drop(chunk, action.tier)) {
        evict(chunk, action.tier, no_tier, priority, refusal);
      } else {
        refusal = Refusal::stale;
      }
      break;
    case Verb::cancel:
      if (const TransferId id = find_transfer(chunk, action.tier);
          id != none && !transfers_[id].in_flight && transfers_[id].hop == 0 && transfers_[id].purpose == Purpose::fetch && memory_.copy(chunk, action.tier).pins == 0) {
        decide(Decision::Kind::cancel, chunk, transfers_[id].from, action.tier);
        withdraw(id);
      } else {
        refusal = Refusal::stale;
      }
      break;
    case Verb::hold: break;
  }
  return refusal;
}

// ---- Inputs ---------------------------------------------------------------------------------------------------------

void Engine::handle(const Completion& completion) {
  advance_time(completion.end_ns);
  ++counters_.completions;
  if (options_.log != nullptr) log_input({.kind = Input::Kind::completion, .now = now_, .completion = completion, .uses = {}, .profile = {}});
  const std::uint64_t value = tag_value(completion.tag);
  switch (tag_kind(completion.tag)) {
    case TagKind::transfer:
      complete_transfer(static_cast<TransferId>(value), completion);
      break;
    case TagKind::op: {
      const std::uint8_t lane = static_cast<std::uint8_t>(value & 0xff);
      finish(lane, completion.start_ns, completion.end_ns);
      break;
    }
    case TagKind::gap: {
      Lane& lane = lanes_[value];
      lane.gap_pending = false;
      lane.gap_done = true;
      break;
    }
  }
  pump();
}

void Engine::pump() {
  bool progress = true;
  while (progress && !finished_) {
    progress = false;
    for (std::uint8_t lane = 0; lane < lane_count; ++lane) progress |= advance_lane(lane);
    for (LinkId link = 0; link < spec_.links.size(); ++link) {
      if (queues_[link].length > 0) progress |= start_transfers(link);
    }
  }
}

// Nothing is under way although the program is not over. Lifts what can be lifted; false if the op can never start.
bool Engine::standstill() {
  const auto moving = [this] {
    if (transfers_in_flight_ > 0 || lanes_[0].gap_pending || lanes_[1].gap_pending) return true;
    for (const Lane& lane : lanes_) {
      for (const ActiveOp& op : lane.active) {
        if (op.started) return true;
      }
    }
    return finished_;
  };
  ++epoch_;
  pump();
  if (moving()) return true;
  for (TransferId id = 0; id < transfers_.size(); ++id) {  // wanted, but left in its place in the queue
    const Transfer& t = transfers_[id];
    if (t.chunk == none || t.in_flight || t.priority == urgent || memory_.copy(t.chunk, t.to).pins == 0) continue;
    lift(id);
  }
  for (Lane& lane : lanes_) {
    if (lane.waiting) lane.active.back().holds.clear();
  }
  ++epoch_;
  pump();
  return moving();
}

void Engine::check_progress() {
  log_input({.kind = Input::Kind::check, .now = now_, .completion = {}, .uses = {}, .profile = {}});
  const auto waiting = [this] { return lanes_[0].waiting || lanes_[1].waiting; };
  if (waiting() && !standstill() && waiting()) throw_out_of_memory();
}

void Engine::throw_out_of_memory() {
  for (std::uint8_t index = 0; index < lane_count; ++index) {
    const Lane& lane = lanes_[index];
    if (!lane.waiting) continue;
    const ActiveOp& op = lane.active.back();
    const Tier& tier = spec_.tiers[lane.tier];
    Bytes needs = 0;
    for (const Use& use : op.uses) {
      if (use.tensor == none) continue;
      const ChunkId begin = memory_.first_chunk(use.tensor);
      for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(use.tensor); ++chunk) needs += memory_.footprint(chunk, lane.tier);
    }
    const Bytes free = memory_.free(lane.tier);
    const Bytes missing = op.room_needed > free ? op.room_needed - free : op.room_needed;
    const std::string name = op.op != none && program_ != nullptr ? program_->trace.name(program_->trace.ops[op.op]) : std::string("unscheduled op");
    std::string message = "out of memory: op '" + name + "'" + (op.op != none ? " (op " + std::to_string(op.op) + ")" : std::string()) + " needs " +
                          std::to_string(needs) + " bytes (" + format_bytes(needs) + ") in tier '" + tier.name + "' of " +
                          std::to_string(memory_.capacity(lane.tier)) + " bytes; " + std::to_string(missing) + " bytes are missing";
    if (needs <= memory_.capacity(lane.tier)) {
      message += " because nothing else can leave:";
      for (TierId other = 0; other < memory_.tier_count(); ++other) {
        message += " " + spec_.tiers[other].name + " " + format_bytes(memory_.used(other)) + " of " + format_bytes(memory_.capacity(other)) + " used" +
                   (other + 1u < memory_.tier_count() ? "," : "");
      }
    }
    throw OutOfMemory(message, name, missing);
  }
  TENCACHE_CHECK(!"the program stands still and no op waits");
}

void Engine::log_input(const Input& input) {
  if (options_.log != nullptr) options_.log->inputs.push_back(input);
}

void Engine::decide(Decision::Kind kind, ChunkId chunk, TierId from, TierId to) {
  if (from == 0 && (kind == Decision::Kind::evict || kind == Decision::Kind::drop)) ++counters_.evictions;
  if (options_.log != nullptr) options_.log->decisions.push_back({kind, from, to, chunk, position_, now_});
}

}  // namespace tencache
