// A lane or a link of the simulated machine: serves the first of its jobs, and what of it flows. The rules stand in
// sim/sim_world.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/machine.h"
#include "core/metrics.h"

namespace tencache {

// The data of a job, and the burst credit of the link that it flows over. Amounts are bytes x 1e9: a rate times
// nanoseconds.
class DataFlow {
 public:
  static uint128 amount(Bytes bytes) { return static_cast<uint128>(bytes) * static_cast<uint128>(second_ns); }
  static uint128 amount(BytesPerSecond rate, Nanoseconds time_ns) {
    return static_cast<uint128>(rate) * static_cast<uint128>(time_ns);
  }

  // The time that the amount takes at the rate, rounded up. Dividing numbers of 64 bits is ten times as fast.
  static uint128 time_of(uint128 amount, BytesPerSecond rate) {
    const uint128 most = amount + rate - 1;
    if (most >> 64 == 0) return static_cast<std::uint64_t>(most) / rate;
    return most / rate;
  }

  // `sustained` 0: no burst.
  void set_burst(BytesPerSecond sustained, Bytes bytes) {
    sustained_ = sustained;
    credit_ = most_credit_ = amount(bytes);
  }
  // From `now` on, without a rate yet. While nothing flowed the credit grew.
  void begin(uint128 amount, Nanoseconds now) {
    if (sustained_ > 0) credit_ = credit(now, false);
    left_ = amount;
    rate_ = 0;
    updated_ns_ = now;
  }
  // What the credit leaves of a rate. The rate is unknown until it is set again.
  BytesPerSecond cap(BytesPerSecond wanted) {
    bursting_ = sustained_ > 0 && credit_ > 0;
    rate_ = 0;
    return sustained_ > 0 && !bursting_ ? std::min(wanted, sustained_) : wanted;
  }
  BytesPerSecond rate() const { return rate_; }
  void set_rate(BytesPerSecond rate, Nanoseconds now) {
    settle(now);
    rate_ = rate;
    exhausts_ = bursting_ && credit_ < left_;
  }
  // From when the rate was set.
  uint128 ns_to_end() const { return time_of(left_, rate_); }
  uint128 ns_to_exhaustion() const { return time_of(credit_, rate_); }
  bool exhausts() const { return exhausts_; }  // the credit ends before the data
  void exhaust(Nanoseconds now) {
    settle(now);
    credit_ = 0;
  }
  void settle(Nanoseconds now) {
    const uint128 flowed = amount(rate_, now - updated_ns_);
    left_ -= std::min(left_, flowed);
    credit_ -= std::min(credit_, flowed);
    updated_ns_ = now;
  }

  bool has_burst() const { return sustained_ > 0; }
  uint128 left(Nanoseconds now) const { return left_ - std::min(left_, amount(rate_, now - updated_ns_)); }
  uint128 credit(Nanoseconds now, bool flowing) const {
    if (flowing) return credit_ - std::min(credit_, amount(rate_, now - updated_ns_));
    return std::min(most_credit_, credit_ + amount(sustained_, now - updated_ns_));
  }

 private:
  uint128 left_ = 0, credit_ = 0, most_credit_ = 0;
  BytesPerSecond rate_ = 0, sustained_ = 0;
  Nanoseconds updated_ns_ = 0;                // when `left_` and `credit_` were true
  bool bursting_ = false, exhausts_ = false;  // bursting: runs on its credit
};

struct SimServer {
  static constexpr Nanoseconds never = std::numeric_limits<Nanoseconds>::max();

  struct Job {
    Fence fence = 0;
    Tag tag = 0;
    Nanoseconds fixed_ns = 0;      // lanes: the op's duration; links: before the data
    Nanoseconds ready_ns = never;  // links: when the latency is over; never: it has not begun
    Bytes bytes = 0;
    BytesPerSecond cap = 0;
    OpIndex op = none;
    NameId rendezvous = 0;
    bool cancelled = false;
    bool fails = false;
    bool move = false;    // within tier 0's memory: `fixed_ns` long, as an op
    bool untold = false;  // its end is nobody's business
  };
  // stopped: cancelled before it began; latency: of a copy, before its data; fixed: its end is known.
  enum class State : std::uint8_t { idle, stopped, meeting, latency, fixed, flowing };

  std::vector<Job> jobs;  // few: the engine holds back what need not be handed over
  State state = State::idle;
  bool lane = false, flows = false;  // flows: the traffic of an op, of a move, occupies resources
  bool undisturbed = false;          // links: nothing changes the rate of a copy while its data flows
  std::uint32_t rank = 0;
  std::uint32_t queue_depth = 1;
  Nanoseconds start_ns = 0;
  DataFlow flow, moving;  // moving: of a link's moves, which have nothing to do with its credit

  Job& first() { return jobs.front(); }
  const Job& first() const { return jobs.front(); }
  // The job that comes near enough to the front of a link's queue for its latency to begin; or null.
  Job* due(std::size_t position) {
    if (lane || position >= std::min<std::size_t>(queue_depth, jobs.size())) return nullptr;
    return jobs[position].move || jobs[position].ready_ns != never ? nullptr : &jobs[position];
  }
  // It takes its time as an op does, not as data of a link.
  bool first_is_fixed() const { return lane || first().move; }
  DataFlow& first_flow() { return !lane && first().move ? moving : flow; }
  const DataFlow& first_flow() const { return !lane && first().move ? moving : flow; }
  void start_flowing(Nanoseconds now) {
    state = State::flowing;
    // Of an op: just what flows at its rate in its duration.
    first_flow().begin(
        first_is_fixed() ? DataFlow::amount(first().cap, first().fixed_ns) : DataFlow::amount(first().bytes), now);
  }
  Completion finish(CompletionStatus status, Nanoseconds now) {
    const Completion over{first().fence, first().tag, status, state == State::stopped ? now : start_ns, now};
    jobs.erase(jobs.begin());
    state = State::idle;
    return over;
  }
};

}  // namespace tencache
