#include "core/engine/ledger.h"

#include <algorithm>

#include "core/check.h"

namespace tencache {

Ledger::Ledger(const Moment& moment, Timeline* timeline, bool first_and_last, Completes completes)
    : moment_(moment),
      timeline_(timeline != nullptr && timeline->keeps_spans ? timeline : nullptr),
      first_and_last_(first_and_last),
      completes_(completes) {}

void Ledger::advance(Nanoseconds passed_ns, const Residency& memory) {
  counters_.time_ns = moment_.now;
  if (passed_ns == 0) return;
  const uint128 passed = static_cast<uint128>(passed_ns);
  for (TierId tier = 0; tier < memory.tier_count(); ++tier) {
    counters_.tiers[tier].occupancy_byte_ns += passed * memory.used(tier);
    if (!memory.addressed(tier)) continue;
    const Allocator& allocator = memory.allocator(tier);
    counters_.tiers[tier].free_byte_ns += passed * allocator.free();
    counters_.tiers[tier].scattered_byte_ns += passed * (allocator.free() - allocator.largest_free());
    counters_.tiers[tier].padding_byte_ns += passed * allocator.padding();
  }
}

void Ledger::phase(Nanoseconds from, Nanoseconds until, OpIndex op, bool waits_for_cpu) {
  if (!waits_for_cpu && op != none && program_ != nullptr) phase_ = program_->trace.ops[op].phase;
  const Nanoseconds updates = waits_for_cpu ? std::clamp(updates_begun_ns_, from, until) : until;
  counters_.phase_ns[static_cast<std::size_t>(phase_)] += updates - from;
  counters_.phase_ns[static_cast<std::size_t>(Phase::optimizer)] += until - updates;
}

void Ledger::add_gap(std::uint8_t lane, Nanoseconds until, OpIndex op, bool waits_for_cpu, const Moment& at) {
  Nanoseconds& since = idle_since_ns_[lane];
  if (lane == 0) {
    phase(since, until, op, waits_for_cpu);
    counters_.gap_ns += until - since;
    add({.start_ns = since,
         .end_ns = until,
         .kind = SpanKind::gap,
         .lane = lane,
         .iteration = at.iteration,
         .op = at.position});
  }
  since = until;
}

void Ledger::add_stall(std::uint8_t lane, Nanoseconds until, StallCause cause, OpIndex op, const Moment& at) {
  Nanoseconds& since = idle_since_ns_[lane];
  if (lane == 0) {
    // What the GPU has waited for is what the CPU did last.
    const bool for_cpu = cause == StallCause::cpu_compute;
    if (for_cpu) phase_ = cpu_phase_;
    phase(since, until, for_cpu ? none : op, cause == StallCause::cpu_optimizer);
    counters_.stall_ns[cause] += until - since;
    if (cause == StallCause::cpu_optimizer) counters_.cpu_wait_compute_ns += cpu_computing(since, until);
  }
  add({.start_ns = since,
       .end_ns = until,
       .kind = SpanKind::stall,
       .cause = cause,
       .lane = lane,
       .iteration = at.iteration,
       .op = op});
  since = until;
}

void Ledger::wait(std::uint8_t lane, const OpTiming& op, Nanoseconds start_ns) {
  if (!later_[lane].empty()) {
    tell_later(lane, {.kind = Later::Kind::wait, .until = start_ns, .times = op});
  } else {
    count_wait(lane, op, start_ns, {}, moment_);
  }
}

void Ledger::count_wait(std::uint8_t lane, const OpTiming& op, Nanoseconds start_ns, const DeviceWait& waited,
                        const Moment& at) {
  count_gap(lane, std::min(op.issued_ns, start_ns), op.op, false, at);
  if (op.late) {
    const Lateness& late = op.lateness;
    const Nanoseconds ready = std::min(op.ready_ns, start_ns);
    count_stall(lane, std::min(late.asked_ns, ready), late.before, op.op, at);
    count_stall(lane, std::min(late.room_ns, ready), late.room, op.op, at);
    count_stall(lane, std::min(late.first_hop_ns, ready), late.first_hop, op.op, at);
    count_stall(lane, ready, late.last, op.op, at);
  }
  count_stall(lane, std::min(waited.until_ns, start_ns), waited.cause, op.op, at);
  if (op.meets) {
    count_gap(lane, std::min(op.ready_ns, start_ns), op.op, false, at);
    count_stall(lane, start_ns, StallCause::collective, op.op, at);
  }
  if (op.moving_ns > 0) {
    count_gap(lane, std::min(op.ready_ns, start_ns), op.op, false, at);
    count_stall(lane, std::min(op.ready_ns + op.moving_ns, start_ns), StallCause::memory, op.op, at);
  }
  count_gap(lane, start_ns, op.op, false, at);
  TENCACHE_CHECK(idle_since_ns_[lane] >= start_ns);
}

void Ledger::moved(const Relocation& move, TensorId tensor, TierId tier, LinkId link, Nanoseconds takes_ns) {
  counters_.tiers[tier].moved_bytes += move.bytes;
  counters_.tiers[tier].moving_ns += takes_ns;
  add({.start_ns = moment_.now,
       .end_ns = moment_.now + takes_ns,
       .kind = SpanKind::move,
       .lane = link == no_link ? gpu_lane : static_cast<std::uint8_t>(first_link_lane + link),
       .iteration = moment_.iteration,
       .op = moment_.position,
       .tensor = tensor,
       .chunk = move.chunk,
       .bytes = move.bytes,
       .from = tier,
       .to = tier});
}

void Ledger::compute(std::uint8_t lane, const OpTiming& op, Nanoseconds until) {
  Nanoseconds& since = idle_since_ns_[lane];
  const Nanoseconds passed = until - since;
  TENCACHE_CHECK(passed >= 0);
  if (lane == 0) phase(since, until, op.op, false);
  (lane == gpu_lane   ? counters_.compute_ns
   : lane == cpu_lane ? counters_.cpu_compute_ns
                      : counters_.communication_ns) += passed;
  if (lane == cpu_lane && program_ != nullptr && op.op != none) cpu_phase_ = program_->trace.ops[op.op].phase;
  if (lane == cpu_lane && passed > 0) cpu_computed(since, until);
  add({.start_ns = since, .end_ns = until, .kind = SpanKind::op, .lane = lane, .iteration = op.iteration, .op = op.op});
  since = until;
}

void Ledger::cpu_starts(OpIndex op) {
  if (updates_begun_ns_ >= 0 || op == none || program_ == nullptr) return;
  if (program_->trace.ops[op].phase == Phase::optimizer) updates_begun_ns_ = moment_.now;
}

void Ledger::cpu_computed(Nanoseconds begin, Nanoseconds end) {
  while (!cpu_computing_.empty() && cpu_computing_.front().second <= idle_since_ns_[0]) cpu_computing_.pop_front();
  if (!cpu_computing_.empty() && cpu_computing_.back().second == begin) {
    cpu_computing_.back().second = end;
  } else {
    cpu_computing_.emplace_back(begin, end);
  }
}

Nanoseconds Ledger::cpu_computing(Nanoseconds from, Nanoseconds until) const {
  Nanoseconds sum = 0;
  for (const auto& [begin, end] : cpu_computing_) {
    sum += std::max<Nanoseconds>(0, std::min(end, until) - std::max(begin, from));
  }
  return sum;
}

// ---- What is observed later -----------------------------------------------------------------------------------------

void Ledger::expect_op(std::uint8_t lane, Fence fence, const OpTiming& op) {
  tell_later(lane, {.kind = Later::Kind::op, .fence = fence, .times = op});
}

void Ledger::observe_op(std::uint8_t lane, const Completion& observed, const DeviceWait& waited) {
  if (later_[lane].empty() || later_[lane].front().fence != observed.fence) return;
  const Later op = later_[lane].front();
  later_[lane].pop_front();
  if (lane == communication_lane) {  // what it waited for before it was launched counted as the GPU lane's
    count_gap(lane, observed.start_ns, op.times.op, false, op.moment);
  } else {
    count_wait(lane, op.times, observed.start_ns, waited, op.moment);
  }
  compute(lane, op.times, observed.end_ns);
  catch_up(lane);
  if (lane == communication_lane) catch_up(gpu_lane);
}

void Ledger::observe_copy(const Completion& observed) {
  const auto expected = copies_.find(observed.fence);
  if (expected == copies_.end()) return;
  Span span = expected->second;
  copies_.erase(expected);
  span.start_ns = observed.start_ns;
  span.end_ns = observed.end_ns;
  copied(static_cast<LinkId>(span.lane - first_link_lane), span.bytes, span.end_ns - span.start_ns);
  add(span);
}

void Ledger::catch_up(std::uint8_t lane) {
  std::deque<Later>& later = later_[lane];
  while (!later.empty() && later.front().kind != Later::Kind::op) {
    if (later.front().last && !later_[communication_lane].empty()) return;
    count(lane, later.front());
    later.pop_front();
  }
}

void Ledger::count(std::uint8_t lane, const Later& later) {
  const OpIndex op = later.times.op;
  switch (later.kind) {
    case Later::Kind::gap:
      return count_gap(lane, later.until, op, later.waits_for_cpu, later.moment);
    case Later::Kind::stall:
      return count_stall(lane, later.until, later.cause, op, later.moment);
    case Later::Kind::wait:
      return count_wait(lane, later.times, later.until, {}, later.moment);
    case Later::Kind::boundary:
      if (later.last) count_gap(lane, idle_since_ns_[communication_lane], none, true, later.moment);
      return count_boundary(later.until);
    case Later::Kind::op:
      break;
  }
  TENCACHE_CHECK(false);  // it is observed
}

void Ledger::settle() {
  for (auto& later : later_) std::erase_if(later, [](const Later& told) { return told.kind == Later::Kind::op; });
  for (std::uint8_t lane = 0; lane < lane_count; ++lane) catch_up(lane);
}

// ---- Iterations -----------------------------------------------------------------------------------------------------

void Ledger::boundary(bool last) {
  if (!later_[gpu_lane].empty() || (last && !later_[communication_lane].empty())) {
    tell_later(gpu_lane, {.kind = Later::Kind::boundary, .until = counters_.time_ns, .last = last});
  } else {
    count_boundary(counters_.time_ns);
  }
}

void Ledger::count_boundary(Nanoseconds told_ns) {
  boundary_ns_.push_back(std::max(told_ns, idle_since_ns_[gpu_lane]));
  if (first_and_last_ && boundaries_.size() == 2) boundaries_.pop_back();
  boundaries_.push_back(counters_);
  boundaries_.back().time_ns = boundary_ns_.back();
}

bool Ledger::recurs(std::uint64_t state) {
  for (std::size_t i = 0; i < hashes_.size(); ++i) {
    if (hashes_[i] == state) recurs_ = i + 1;
  }
  hashes_.push_back(state);
  return recurs_.has_value();
}

void Ledger::report(RunResult& result) const {
  result.iterations = iterations();
  result.simulated_events = counters_.completions;
  if (result.iterations == 0) return;
  for (std::size_t i = 1; i < boundary_ns_.size(); ++i) {
    result.iteration_ns.push_back(boundary_ns_[i] - boundary_ns_[i - 1]);
  }
  result.first_iteration_ns = result.iteration_ns.front();
  result.steady = recurs_.has_value() && settled();  // else the last boundary of the period is not counted yet
  const std::size_t second_half = boundaries_.size() / 2 - (result.iterations == 1 ? 1 : 0);
  const std::size_t begin = first_and_last_ ? 0 : result.steady ? *recurs_ : second_half;
  result.window = boundaries_.back() - boundaries_[begin];
  result.period = result.iterations - begin;
}

}  // namespace tencache
