// The figures of a run: every nanosecond of the GPU lane is compute, a gap, or a stall with one cause. Counters only
// grow; each iteration boundary keeps a copy of them.
//
// Lanes are those of core/timeline.h. A lane's time is attributed from its beginning on without holes: each call takes
// the time from where the last one of the lane ended up to `until`, and nothing if that is past already. Only the GPU's
// time is counted by cause and phase; of the CPU lane and the communication lane it is how long ops ran.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "core/engine/moment.h"
#include "core/machine_spec.h"
#include "core/metrics.h"
#include "core/residency.h"
#include "core/timeline.h"
#include "core/trace.h"

namespace tencache {

// What an op's time is attributed by. issued_ns <= ready_ns once it is ready.
struct OpTiming {
  OpIndex op = none;
  std::uint64_t iteration = 0;
  bool late = false;   // something was missing when it was issued
  bool meets = false;  // it starts together with ops of other ranks
  Nanoseconds issued_ns = 0, ready_ns = 0;
  Nanoseconds moving_ns = 0;  // that moving others for its outputs takes: the machine may have to do it yet
  Lateness lateness = {};     // of the last missing byte
};

class Ledger {
 public:
  // `moment` must outlive this object, and `timeline` too, unless it is null. A program that goes on for days keeps
  // `first_and_last` only of its boundaries.
  Ledger(const Moment& moment, Timeline* timeline, bool first_and_last);

  // Ops are of this program from now on; null: of none. It must outlive this object or the next call.
  void follow(const Program* program) { program_ = program; }
  void start() { idle_since_ns_.fill(moment_.now); }
  // Time passes to moment.now while the memory stays as it is.
  void advance(Nanoseconds passed, const Residency& memory);

  // ---- The lanes' time.
  Nanoseconds idle_since(std::size_t lane) const { return idle_since_ns_[lane]; }
  // The time counts for the phase of `op` (`none`: for that of the time before), unless the GPU lane waited for the CPU
  // lane: until that begins its first update, it waits itself for what the phase before has still to bring.
  void gap(std::uint8_t lane, Nanoseconds until, OpIndex op, bool waits_for_cpu = false) {
    if (until > idle_since_ns_[lane]) add_gap(lane, until, op, waits_for_cpu);
  }
  void stall(std::uint8_t lane, Nanoseconds until, StallCause cause, OpIndex op) {
    if (until > idle_since_ns_[lane]) add_stall(lane, until, cause, op);
  }
  // From the end of the lane's last work to the start of this op: the gap until it was issued, then what it waited for.
  void wait(std::uint8_t lane, const OpTiming& op, Nanoseconds start_ns);
  void compute(std::uint8_t lane, const OpTiming& op, Nanoseconds until);
  // The CPU starts an op: perhaps its iteration's first update.
  void cpu_starts(OpIndex op);
  // The GPU lane's time so far is preparation and belongs to nobody.
  void forget_gpu_time() { idle_since_ns_[0] = moment_.now; }

  // ---- Copies, and everything else that is counted. A span is worth making only if there is a timeline.
  void copied(LinkId link, Bytes bytes, Nanoseconds busy_ns) {
    counters_.links[link].bytes += bytes;
    counters_.links[link].busy_ns += busy_ns;
  }
  // A chunk within its tier; over the link comes what the room is for (no_link: it is for an op).
  void moved(const Relocation& move, TensorId tensor, TierId tier, LinkId link, Nanoseconds takes_ns);
  bool has_timeline() const { return timeline_ != nullptr; }
  void add(const Span& span) {
    if (timeline_ != nullptr) timeline_->spans.push_back(span);
  }
  Counters& counters() { return counters_; }
  const Counters& counters() const { return counters_; }

  // ---- Iterations.
  void boundary();
  void next_iteration() { updates_begun_ns_ = -1; }
  bool begun() const { return !boundaries_.empty(); }
  // The state at this boundary has that hash. True if it recurred: the period is known.
  bool recurs(std::uint64_t state);
  void set_period(std::size_t first_boundary) { recurs_ = first_boundary; }
  // Iterations, their times and the window.
  void report(RunResult& result) const;

 private:
  // `until` is later than the lane's time.
  void add_gap(std::uint8_t lane, Nanoseconds until, OpIndex op, bool waits_for_cpu);
  void add_stall(std::uint8_t lane, Nanoseconds until, StallCause cause, OpIndex op);
  void phase(Nanoseconds from, Nanoseconds until, OpIndex op, bool waits_for_cpu);
  void cpu_computed(Nanoseconds begin, Nanoseconds end);
  Nanoseconds cpu_computing(Nanoseconds from, Nanoseconds until) const;

  const Moment& moment_;
  Timeline* timeline_;
  bool first_and_last_;
  const Program* program_ = nullptr;
  // Its sum over causes, with compute_ns and gap_ns, is idle_since_ns_[0] less where the GPU's time began; so is
  // that of phase_ns. Nothing in it decreases.
  Counters counters_;
  std::array<Nanoseconds, lane_count> idle_since_ns_{};  // attributed up to there; never decreases
  Phase phase_ = Phase::forward;                         // that the GPU lane's time counts for
  Phase cpu_phase_ = Phase::forward;                     // of the op that the CPU lane was done with last
  Nanoseconds updates_begun_ns_ = -1;                    // the CPU's first of this iteration; -1: none begun yet
  // Begins and ends, ascending and disjoint; each ends after idle_since_ns_[0] as the last was added: no stall reaches
  // further back.
  std::deque<std::pair<Nanoseconds, Nanoseconds>> cpu_computing_;
  std::vector<Nanoseconds> boundary_ns_;  // of each, ascending
  std::vector<Counters> boundaries_;      // of each, or of the first and the last
  std::vector<std::uint64_t> hashes_;     // of each but the first
  std::optional<std::size_t> recurs_;     // the earlier boundary with the same state
};

}  // namespace tencache
