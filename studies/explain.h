// Where an iteration's time goes under a policy, and the proof: what is said of a cause is set beside a simulation in
// which that cause is taken away.
//
// A run's time is compute + gaps + stalls, and each stall has a cause (docs/engine.md, "Stalls"): the resource that the
// waiting op's last missing byte waited for. That is where the GPU stood, not yet what would be gained: without one
// cause the next may bind. So for each cause with a stall the same trace is simulated again without it:
//
//   h2d, d2h, nvme_read, nvme_write  links of that cause move anything in no time (no latency, no shared resource)
//   cpu_optimizer                    the CPU's ops and updates take no time
//   memory                           the GPU has room for everything twice over
//   collective                       ranks do not wait for each other
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
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "core/timeline.h"
#include "studies/policy_run.h"

namespace tencache {

// Seconds of an iteration, by StallCause.
using StallSeconds = std::array<double, stall_cause_count>;
double sum_of(const StallSeconds& stalls);

// A run's time in its parts: of an iteration, in seconds.
struct TimeParts {
  bool fits = false;
  std::string reason;  // why not
  double seconds = 0;
  double compute = 0, gaps = 0;
  StallSeconds stalls{};
  std::size_t rank = 0;  // whose parts these are: the slowest of the run
};

struct ExplainedCause {
  StallCause cause = StallCause::memory;
  double attributed = 0;
  TimeParts without;  // the run without the cause
  // Of `without`, where it fits; their sum is `attributed`.
  double confirmed = 0, still = 0, moved = 0;
};

struct ExplainedStep {
  StallCause cause = StallCause::memory;
  double seconds = 0;  // by which the time falls; below 0: it grows
  TimeParts without;   // the run without this cause and those of the steps before
};

// The step after the last: without this cause too there is no such run.
struct RefusedStep {
  StallCause cause = StallCause::memory;
  std::string reason;
};

// An op, a layer or a tensor with the stalls that are its share.
struct CostlyOp {
  OpIndex op = none;  // of the program
  StallSeconds stalls{};
};
struct CostlyLayer {
  std::string layer;  // "" : ops of no module
  StallSeconds stalls{};
};
// A stall of a link's cause belongs to the tensor whose transfer over such a link ended it: on its way in, or out to
// make room.
struct CostlyTensor {
  TensorId tensor = none;  // of the program
  StallSeconds stalls{};
  // The run in which the tensor has a single byte, on every rank: of several tensors of its name, each rank's of the
  // same place among them. None: not asked for, or it is not in the trace itself.
  std::optional<TimeParts> without = {};
};

struct ExplainedChange {
  std::string what;       // "nvme × 2", "policy g10"
  std::string parameter;  // or policy
  bool policy = false;
  double value = 0;  // of a parameter
  TimeParts then;
};

struct Explanation {
  Outcome outcome;  // of the run that is explained
  TimeParts parts;
  std::vector<ExplainedCause> causes;  // with a stall, the longest first
  std::vector<ExplainedStep> steps;
  std::optional<RefusedStep> refused_step = {};  // why there are no more steps, though stalls are left
  double remainder = 0;       // of the last step's time, what is beyond the run's own compute and gaps
  std::vector<CostlyOp> ops;  // all with a stall, the longest first
  std::vector<CostlyLayer> layers;
  std::vector<CostlyTensor> tensors;
  double without_tensor = 0;             // stalls that no transfer ended
  std::vector<ExplainedChange> changes;  // twice as much of each figure, then the other policies; the best first
  std::uint64_t simulations = 0;
};

struct ExplainRequest {
  const Trace* trace = nullptr;
  const MachineSpec* machine = nullptr;
  std::string policy;
  std::map<std::string, std::string> settings;
  RunLimits limits;
  std::vector<std::string> other_policies;
  std::size_t tensors_confirmed = 5;
  std::function<void(std::size_t done, std::size_t expected)> progress;  // one call at a time
};

// On all cores; the result does not depend on how many there are. Of several ranks, the slowest. Throws Error
// for an unknown policy or option; where the run that is explained does not fit, or needs what the machine lacks, only
// `outcome` and `parts` are set.
Explanation explain(const ExplainRequest& request);

// The machine and the trace without a cause (above), on every rank.
MachineSpec machine_without(const MachineSpec& machine, const Trace& trace, StallCause cause);
void remove_from_trace(Trace& trace, StallCause cause);

}  // namespace tencache
