// Where the time goes: attribution, iteration boundaries and the recognition of the steady state.
#include <algorithm>

#include "core/check.h"
#include "core/engine/engine.h"

namespace tencache {

// ---- Time and its attribution: every nanosecond of the GPU lane is compute, gap, or a stall with one cause.
// ----------

void Engine::advance_time(Nanoseconds now) {
  // A live program reads the clock before it is its turn, and may have called before a completion was looked at: what
  // is older than the engine's time happens now.
  now = std::max(now, now_);
  const uint128 passed = static_cast<uint128>(now - now_);
  for (TierId tier = 0; tier < memory_.tier_count(); ++tier) {
    counters_.occupancy_byte_ns[tier] += passed * memory_.used(tier);
    const Allocator& allocator = memory_.allocator(tier);
    if (!allocator.addressed()) continue;
    counters_.free_byte_ns[tier] += passed * allocator.free();
    counters_.scattered_byte_ns[tier] += passed * (allocator.free() - allocator.largest_free());
    counters_.padding_byte_ns[tier] += passed * allocator.padding();
  }
  now_ = now;
  counters_.time_ns = now;
  ++epoch_;
}

// The time counts for the op's phase (`none`: for that of the time before), unless the GPU lane waited for the CPU
// lane. Until that begins its first update it is waiting itself for what the phase before has still to bring, gradients
// as a rule.
void Engine::account_phase(Nanoseconds from, Nanoseconds until, OpIndex op, bool waits_for_cpu) {
  if (!waits_for_cpu && op != none && program_ != nullptr) phase_ = program_->trace.ops[op].phase;
  const Nanoseconds updates = waits_for_cpu ? std::clamp(updates_begun_ns_, from, until) : until;
  counters_.phase_ns[static_cast<std::size_t>(phase_)] += updates - from;
  counters_.phase_ns[static_cast<std::size_t>(Phase::optimizer)] += until - updates;
}

void Engine::account_gap(std::uint8_t index, Nanoseconds until, OpIndex op, bool waits_for_cpu) {
  Lane& lane = lanes_[index];
  if (until <= lane.idle_since_ns) return;
  if (index == 0) account_phase(lane.idle_since_ns, until, op, waits_for_cpu);
  if (index == 0) counters_.gap_ns += until - lane.idle_since_ns;
  if (index == 0)
    add_span({.start_ns = lane.idle_since_ns,
              .end_ns = until,
              .kind = SpanKind::gap,
              .lane = index,
              .iteration = iteration_,
              .op = position_});
  lane.idle_since_ns = until;
}

void Engine::account_stall(std::uint8_t index, Nanoseconds until, StallCause cause, OpIndex op) {
  Lane& lane = lanes_[index];
  if (until <= lane.idle_since_ns) return;
  if (index == 0) account_phase(lane.idle_since_ns, until, op, cause == StallCause::cpu_optimizer);
  if (index == 0) counters_.stall_ns[static_cast<std::size_t>(cause)] += until - lane.idle_since_ns;
  if (index == 0 && cause == StallCause::cpu_optimizer) {
    counters_.cpu_wait_compute_ns += cpu_computed(lane.idle_since_ns, until);
  }
  add_span({.start_ns = lane.idle_since_ns,
            .end_ns = until,
            .kind = SpanKind::stall,
            .cause = cause,
            .lane = index,
            .iteration = iteration_,
            .op = op});
  lane.idle_since_ns = until;
}

void Engine::note_cpu_computing(Nanoseconds begin, Nanoseconds end) {
  // Stalls begin where the GPU lane's last work ends, or later.
  while (!cpu_computing_.empty() && cpu_computing_.front().second <= lanes_[0].idle_since_ns) {
    cpu_computing_.pop_front();
  }
  if (!cpu_computing_.empty() && cpu_computing_.back().second == begin) {
    cpu_computing_.back().second = end;
  } else {
    cpu_computing_.emplace_back(begin, end);
  }
}

// Of a time that begins with the GPU lane's last work: what of it the CPU lane computes.
Nanoseconds Engine::cpu_computed(Nanoseconds from, Nanoseconds until) const {
  Nanoseconds sum = 0;
  for (const auto& [begin, end] : cpu_computing_) {
    sum += std::max<Nanoseconds>(0, std::min(end, until) - std::max(begin, from));
  }
  return sum;
}

// From the end of the lane's last work to the start of this op: the gap until it was issued, then what it waited for.
void Engine::account_late(std::uint8_t index, const ActiveOp& op, Nanoseconds start_ns) {
  Lane& lane = lanes_[index];
  account_gap(index, std::min(op.issued_ns, start_ns), op.op);
  if (op.late) {
    const Lateness& late = op.lateness;
    const Nanoseconds ready = std::min(op.ready_ns, start_ns);
    account_stall(index, std::min(late.asked_ns, ready), late.before, op.op);
    account_stall(index, std::min(late.room_ns, ready), late.room, op.op);
    account_stall(index, std::min(late.first_hop_ns, ready), late.first_hop, op.op);
    account_stall(index, ready, late.last, op.op);
  }
  if (op.meets) {
    account_gap(index, std::min(op.ready_ns, start_ns), op.op);
    account_stall(index, start_ns, StallCause::collective, op.op);
  }
  account_gap(index, start_ns, op.op);
  TENCACHE_CHECK(lane.idle_since_ns >= start_ns);
}

void Engine::account_compute(std::uint8_t index, const ActiveOp& op, Nanoseconds until) {
  Lane& lane = lanes_[index];
  const Nanoseconds passed = until - lane.idle_since_ns;
  TENCACHE_CHECK(passed >= 0);
  if (index == 0) account_phase(lane.idle_since_ns, until, op.op, false);
  (index == 0 ? counters_.compute_ns : counters_.cpu_compute_ns) += passed;
  if (index == 1 && passed > 0) note_cpu_computing(lane.idle_since_ns, until);
  add_span({.start_ns = lane.idle_since_ns,
            .end_ns = until,
            .kind = SpanKind::op,
            .lane = index,
            .iteration = op.iteration,
            .op = op.op});
  lane.idle_since_ns = until;
}

void Engine::add_span(const Span& span) {
  if (options_.timeline != nullptr) options_.timeline->spans.push_back(span);
}

// A live program goes on for days, and counters are large.
void Engine::note_boundary() {
  boundary_ns_.push_back(counters_.time_ns);
  if (live_ && boundaries_.size() == 2) boundaries_.pop_back();
  boundaries_.push_back(counters_);
}

void Engine::cross_boundary() {
  if (lanes_[0].active.empty()) account_gap(0, now_, none, true);
  count_held();
  note_boundary();
  emit({.kind = EventKind::iteration_end});
  ++iteration_;
  updates_begun_ns_ = -1;
  if (options_.on_iteration) options_.on_iteration(iteration_);
  if (live_) return;
  if (limits_.until_steady) {
    std::uint64_t hash = state_hash(now_);
    hash = (hash ^ machine_.state()) * 1099511628211ull;
    for (std::size_t i = 0; i < hashes_.size(); ++i) {
      if (hashes_[i] == hash) recurs_ = i + 1;
    }
    hashes_.push_back(hash);
  }
  if (recurs_ || iteration_ == limits_.max_iterations) finished_ = true;
}

std::uint64_t Engine::state_hash(Nanoseconds now) const {
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
    const std::uint64_t kind = (std::uint64_t{t.from} << 24) | (std::uint64_t{t.to} << 16) |
                               (std::uint64_t{t.hop} << 8) | (t.in_flight ? 1 : 0);
    const std::uint64_t progress = static_cast<std::uint64_t>(t.in_flight ? now - t.started_ns : 0);
    under_way += ((t.chunk * 0x9e3779b97f4a7c15ull) ^ kind) * 0xbf58476d1ce4e5b9ull + progress * 0x94d049bb133111ebull;
  }
  mix(under_way);
  for (const std::uint8_t dead : dead_) mix(dead);
  for (const Lane& lane : lanes_) {
    mix(lane.ops.empty() ? 0 : lane.issued - iteration_ * lane.ops.size());
    mix(lane.ops.empty() ? 0 : lane.done - iteration_ * lane.ops.size());
    const ActiveOp* front = lane.active.empty() ? nullptr : &lane.active.front();
    mix(static_cast<std::uint64_t>(front == nullptr ? 0 : now - (front->started ? front->ready_ns : front->issued_ns)));
  }
  mix(policy_.fingerprint());
  return hash;
}

}  // namespace tencache
