// The figures of a run: every nanosecond of the GPU lane is compute, a gap, or a stall with one cause. Counters only
// grow; each iteration boundary keeps a copy of them.
//
// Lanes are those of core/timeline.h. A lane's time is attributed from its beginning on without holes: each call takes
// the time from where the last one of the lane ended up to `until`, and nothing if that is past already. Only the GPU's
// time is counted by cause and phase; of the CPU lane and the communication lane it is how long ops ran.
//
// Where completions promise order (Completes, core/machine.h), when an op or a copy was over is observed later. Until
// then what was told of its lane after it waits in a queue, boundaries of iterations behind the GPU lane's ops: they
// are counted in the order in which they were told. An iteration ends when it has for the engine, or with its last op
// on the GPU lane, whichever is later. Ops of a live program have the times of its calls.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
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

// What an op waited for last on the device: until when, and the cause that this is.
struct DeviceWait {
  Nanoseconds until_ns = 0;
  StallCause cause = StallCause::memory;
};

class Ledger {
 public:
  // `moment` must outlive this object, and `timeline` too, unless it is null. A program that goes on for days keeps
  // `first_and_last` only of its boundaries.
  Ledger(const Moment& moment, Timeline* timeline, bool first_and_last, Completes completes);

  // Ops are of this program from now on; null: of none. It must outlive this object or the next call.
  void follow(const Program* program) { program_ = program; }
  void start() { idle_since_ns_.fill(moment_.now); }
  // Time passes to moment.now while the memory stays as it is.
  void advance(Nanoseconds passed, const Residency& memory);

  // ---- The lanes' time.
  // The time counts for the phase of `op` (`none`: for that of the time before), unless the GPU lane waited for the CPU
  // lane: until that begins its first update, it waits itself for what the phase before has still to bring.
  void gap(std::uint8_t lane, Nanoseconds until, OpIndex op, bool waits_for_cpu = false) {
    if (!later_[lane].empty()) {
      tell_later(lane, {.kind = Later::Kind::gap, .until = until, .waits_for_cpu = waits_for_cpu, .times = {.op = op}});
    } else {
      count_gap(lane, until, op, waits_for_cpu, moment_);
    }
  }
  void stall(std::uint8_t lane, Nanoseconds until, StallCause cause, OpIndex op) {
    if (!later_[lane].empty()) {
      tell_later(lane, {.kind = Later::Kind::stall, .until = until, .cause = cause, .times = {.op = op}});
    } else {
      count_stall(lane, until, cause, op, moment_);
    }
  }
  // From the end of the lane's last work to the start of this op: the gap until it was issued, then what it waited for.
  void wait(std::uint8_t lane, const OpTiming& op, Nanoseconds start_ns);
  void compute(std::uint8_t lane, const OpTiming& op, Nanoseconds until);
  // The CPU starts an op: perhaps its iteration's first update.
  void cpu_starts(OpIndex op);
  // The GPU lane's time so far is preparation and belongs to nobody.
  void forget_gpu_time() { idle_since_ns_[0] = moment_.now; }

  // ---- What is observed later, each once. A done op or copy is expected, then observed; its lane's ops in order.
  bool observes() const { return completes_ == Completes::ordered; }
  void expect_op(std::uint8_t lane, Fence fence, const OpTiming& op);
  // The copy's span but for its times.
  void expect_copy(Fence fence, const Span& span) { copies_[fence] = span; }
  // What nobody expects is ignored.
  void observe_op(std::uint8_t lane, const Completion& observed, const DeviceWait& waited);
  void observe_copy(const Completion& observed);
  // Nothing that the boundaries so far count is still to be observed.
  bool settled() const { return later_[0].empty() && later_[1].empty() && later_[2].empty(); }
  // Nothing will be observed any more.
  void settle();

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
  // `last`: of the run, which ends with the communication lane's ops, too.
  void boundary(bool last = false);
  void next_iteration() { updates_begun_ns_ = -1; }
  bool begun() const { return !boundaries_.empty(); }
  std::uint64_t iterations() const { return boundary_ns_.empty() ? 0 : boundary_ns_.size() - 1; }
  // The state at this boundary has that hash. True if it recurred: the period is known.
  bool recurs(std::uint64_t state);
  void set_period(std::size_t first_boundary) { recurs_ = first_boundary; }
  // Iterations, their times and the window.
  void report(RunResult& result) const;

 private:
  // What was told of a lane while the end of one of its ops was not observed yet.
  struct Later {
    enum class Kind : std::uint8_t { gap, stall, wait, op, boundary };
    Kind kind = Kind::gap;
    Nanoseconds until = 0;  // wait: the op's start; boundary: its time for the engine
    StallCause cause = StallCause::memory;
    bool waits_for_cpu = false;
    bool last = false;  // boundary
    Fence fence = 0;    // of the op
    OpTiming times = {};
    Moment moment = {};
  };
  void tell_later(std::uint8_t lane, Later later) {
    later.moment = moment_;
    later_[lane].push_back(later);
  }
  // What does not wait for the end of an op any more.
  void catch_up(std::uint8_t lane);
  void count(std::uint8_t lane, const Later& later);

  void count_gap(std::uint8_t lane, Nanoseconds until, OpIndex op, bool waits_for_cpu, const Moment& at) {
    if (until > idle_since_ns_[lane]) add_gap(lane, until, op, waits_for_cpu, at);
  }
  void count_stall(std::uint8_t lane, Nanoseconds until, StallCause cause, OpIndex op, const Moment& at) {
    if (until > idle_since_ns_[lane]) add_stall(lane, until, cause, op, at);
  }
  void count_wait(std::uint8_t lane, const OpTiming& op, Nanoseconds start_ns, const DeviceWait& waited,
                  const Moment& at);
  void count_boundary(Nanoseconds told_ns);
  // `until` is later than the lane's time.
  void add_gap(std::uint8_t lane, Nanoseconds until, OpIndex op, bool waits_for_cpu, const Moment& at);
  void add_stall(std::uint8_t lane, Nanoseconds until, StallCause cause, OpIndex op, const Moment& at);
  void phase(Nanoseconds from, Nanoseconds until, OpIndex op, bool waits_for_cpu);
  void cpu_computed(Nanoseconds begin, Nanoseconds end);
  Nanoseconds cpu_computing(Nanoseconds from, Nanoseconds until) const;

  const Moment& moment_;
  Timeline* timeline_;
  bool first_and_last_;
  Completes completes_;
  const Program* program_ = nullptr;
  std::array<std::deque<Later>, lane_count> later_;  // the first of each is an op, or the last boundary
  std::unordered_map<Fence, Span> copies_;           // that will be observed; looked up only
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
