// Where an iteration's time goes under a policy, and the proof: what is said of a cause is set beside a simulation in
// which that cause is taken away.
//
// A run's time is compute + gaps + stalls, and each stall has a cause (docs/engine.md, "Stalls"): the resource that the
// waiting op's last missing byte waited for. That is where the GPU stood, not yet what would be gained: without one
// cause the next may bind. So for each cause with a stall the same trace is simulated again without it:
//
//   a link's       links of that cause move anything in no time (no latency, no shared resource)
//   one of memory  the GPU has room for everything twice over
//   others         as their rows in core/stall_cause.h say
//
// The policy plans anew for that machine. With t = compute + gaps + sum of stalls for both runs it follows, exactly:
//
//   attributed = confirmed (time that is gone) + still (stall of the cause that is left)
//                + moved (growth of the other stalls, and of compute and gaps; may be negative)
//
// Then the causes are taken away one after the other, always the one with the longest stall left (and, while stalls are
// left, links that nothing waits for itself): the steps add up to the time that all of them together cost, and what is
// left beyond compute and gaps is the remainder.
#pragma once

#include <array>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "core/timeline.h"
#include "studies/machine_parameter.h"
#include "studies/policy_run.h"

namespace tencache {

using StallSeconds = EnumMap<StallCause, double>;  // of an iteration
StallSeconds stalls_of(const RunResult& result);

inline constexpr double no_seconds = std::numeric_limits<double>::quiet_NaN();

// A run's time in its parts: of an iteration.
struct TimeParts {
  bool fits = false;
  std::optional<std::string> reason = {};  // why not
  double iteration_seconds = no_seconds;   // where it fits
  double compute_seconds = 0, gap_seconds = 0;
  StallSeconds stall_seconds = {};
  std::size_t rank = 0;  // whose parts these are: the slowest of the run

  double busy_seconds() const { return compute_seconds + gap_seconds; }
  double stalled_seconds() const { return sum_of(stall_seconds); }
};
TimeParts parts_of(const RunResult& result);

// attributed = confirmed + still + moved, where the run without the cause fits.
struct ExplainedCause {
  StallCause cause = StallCause::memory;
  double attributed_seconds = 0;
  std::string change;
  double confirmed_seconds = no_seconds, still_seconds = no_seconds, moved_seconds = no_seconds;
  TimeParts without;  // the run without the cause
};

struct ExplainedStep {
  StallCause cause = StallCause::memory;
  std::string change;
  double seconds = 0;  // by which the time falls; below 0: it grows
  double iteration_seconds = 0;
  TimeParts without;  // the run without this cause and those of the steps before
};

// The step after the last: without this cause too there is no such run, though stalls are left.
struct RefusedStep {
  StallCause cause = StallCause::memory;
  std::string change, reason;
};

// attributed = confirmed + remainder.
struct ExplainedSteps {
  std::vector<ExplainedStep> steps;
  double attributed_seconds = 0, confirmed_seconds = 0;
  double remainder_seconds = 0;  // of the last step's time, what is beyond the run's own compute and gaps
  std::optional<RefusedStep> refused;
};

// An op, a layer or a tensor with the stalls that are its share.
struct CostlyOp {
  OpIndex op = none;  // of the program
  std::string name, module, phase;
  double seconds = 0;
  StallSeconds stall_seconds = {};
};
struct CostlyLayer {
  std::string layer;  // "" : ops of no module
  double seconds = 0;
  StallSeconds stall_seconds = {};
};
// A stall of a link's cause belongs to the tensor whose transfer over such a link ended it: on its way in, or out to
// make room.
struct CostlyTensor {
  TensorId tensor = none;  // of the program
  std::string name, role;
  Bytes bytes = 0;
  double gained_without_seconds = no_seconds;  // where `without` is known and fits
  double seconds = 0;
  StallSeconds stall_seconds = {};
  // The run in which the tensor has a single byte, on every rank: of several tensors of its name, each rank's of the
  // same place among them. None: not asked for, or it is not in the trace itself.
  std::optional<TimeParts> without = {};
};

struct ExplainedChange {
  std::string change, kind, name;     // "nvme × 2", "machine", "nvme"; "policy g10", "policy", "g10"
  double value = no_seconds;          // of a parameter of the machine
  std::optional<ParameterUnit> unit;  // the same
  bool fits = false;
  double iteration_seconds = no_seconds, gained_seconds = no_seconds;
  TimeParts then;

  bool is_policy() const { return kind == "policy"; }
};

// A layer whose results are made again, in one micro-batch or more.
struct RecomputedLayer {
  std::string layer;
  double seconds = 0;  // compute and gaps of what runs again
  // The run in which the layer's results are kept in all micro-batches, others as chosen. None: not simulated.
  std::optional<TimeParts> kept = {};
  double gained_seconds = no_seconds;  // by making them again: that run's time beyond the run's
};

// The run in which all layers are at the level (as far as they offer it).
struct OtherRecomputation {
  RecomputeLevel level = RecomputeLevel::keep;
  TimeParts then;
  double gained_seconds = no_seconds;  // by the choice: `then` beyond the run
};

// What recomputation takes of the run, and what it gains: of each other run, the growth of stalls, less what its
// compute and gaps are shorter.
struct ExplainedRecomputation {
  double seconds = 0;                      // compute and gaps of what runs again
  std::vector<RecomputedLayer> layers;     // the longest first
  std::vector<OtherRecomputation> others;  // of a trace with choices: nothing and all, unless that is the choice
};

struct Explanation {
  Outcome outcome;  // of the run that is explained
  TimeParts run;
  std::vector<ExplainedCause> causes;  // with a stall, the longest first
  ExplainedSteps in_turn;
  std::vector<CostlyOp> ops;  // all with a stall, the longest first
  std::vector<CostlyLayer> layers;
  std::vector<CostlyTensor> tensors;
  double stalls_of_no_tensor_seconds = 0;  // that no transfer ended
  std::vector<ExplainedChange> changes;    // twice as much of each figure, then the other policies; the best first
  std::optional<ExplainedRecomputation> recomputation;  // where something is recomputed, or could be
  std::uint64_t simulations = 0;
};

struct ExplainRequest {
  const Trace* trace = nullptr;
  const MachineSpec* machine = nullptr;
  std::string policy;
  std::map<std::string, std::string> settings;
  RunLimits limits;
  std::vector<std::string> other_policies;
  std::size_t tensors_confirmed = 5;                                     // and recomputed layers
  std::function<void(std::size_t done, std::size_t expected)> progress;  // one call at a time
};

// On all cores; the result does not depend on how many there are. Of several ranks, the slowest. Throws Error
// for an unknown policy or option; where the run that is explained does not fit, or needs what the machine lacks, only
// `outcome` and `run` are set.
Explanation explain(const ExplainRequest& request);

// The machine and the trace without a cause (above), on every rank.
MachineSpec machine_without(const MachineSpec& machine, const Trace& trace, StallCause cause);
void remove_from_trace(Trace& trace, StallCause cause);

}  // namespace tencache
