// A trace from the ops of one iteration of a recording: what is left when storages, ops, iterations and roles are known
// (traces/import/pytorch/storages.h, calls.h, steps.h, roles.h).
//
//   - An op on lists of tensors (_foreach_…, _fused_…) becomes one op a list position: they are independent, and no
//     smaller GPU could run them at once. Time is divided by memory traffic.
//     The optimizer's step stays what it was otherwise: traces/transform/fold_updates.h makes updates of it.
//   - Tensors of at most 8 bytes are numbers, and none of the trace's unless they are parameters or their gradients.
//   - Where the recording is of a GPU, tensors in the host's memory are none of the trace's. An op on them alone is the
//     host's bookkeeping where it touches less than a mebibyte, and left out; otherwise it is an op of the CPU. Where
//     the whole recording is of a CPU, that is the device.
//   - The ops with which a first step creates the optimizer's states are left out, and the states are there before, so
//     that the trace is that of a steady iteration; `as_recorded` keeps them, and the states are not there before.
//   - Modules are inferred: one begins where the forward pass reads a parameter for the first time; a backward op is of
//     the module whose autograd sequence number it has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/trace.h"
#include "traces/import/pytorch/calls.h"
#include "traces/import/pytorch/op_cost.h"
#include "traces/import/pytorch/roles.h"
#include "traces/import/pytorch/steps.h"

namespace tencache {

// A stretch of recorded work of an iteration.
struct Activity {
  Nanoseconds begin_ns = 0, end_ns = 0;
  std::uint32_t node = none;  // whose; none: of nobody that is known
};

struct OpTimes {
  std::vector<Nanoseconds> duration_ns, gap_before_ns;  // by op
  Nanoseconds foreign_ns = 0;                           // work of no op, within the gaps
  Nanoseconds overrun_ns = 0;                           // by which the work ends after the iteration's period
};

// Time runs from the beginning of the first activity; where several run at once, the one that began first has it. Idle
// time, and the work of no op, goes to the gap of the op that ends it, what is left of `iteration_ns` to that of op 0:
// durations and gaps add up to the iteration, or to the activities where those take longer. `op_of` gives an activity's
// op by its node; none: of no op. `activities` are sorted by their beginning.
inline OpTimes times_of_ops(const std::vector<Activity>& activities, Nanoseconds iteration_ns, std::size_t op_count,
                            const std::function<std::uint32_t(std::uint32_t)>& op_of) {
  OpTimes times;
  times.duration_ns.assign(op_count, 0);
  times.gap_before_ns.assign(op_count, 0);
  if (activities.empty() || op_count == 0) return times;
  const Nanoseconds start = activities.front().begin_ns;
  Nanoseconds covered = start, pending = 0;
  for (const Activity& activity : activities) {
    const Nanoseconds idle = std::max<Nanoseconds>(0, activity.begin_ns - covered);
    const Nanoseconds busy = std::max<Nanoseconds>(0, activity.end_ns - std::max(activity.begin_ns, covered));
    covered = std::max(covered, activity.end_ns);
    const std::uint32_t op = activity.node == none ? none : op_of(activity.node);
    if (op == none) {
      pending += idle + busy;
      times.foreign_ns += busy;
      continue;
    }
    times.gap_before_ns[op] += pending + idle;
    times.duration_ns[op] += busy;
    pending = 0;
  }
  const Nanoseconds left = iteration_ns - (covered - start);
  times.gap_before_ns.front() += pending + std::max<Nanoseconds>(0, left);
  times.overrun_ns = std::max<Nanoseconds>(0, -left);
  return times;
}

// The measured times of the iteration, from a Kineto trace.
struct MeasuredIteration {
  std::vector<Activity> activities;
  std::vector<bool> matched;    // by node of the execution trace: its times are known
  Nanoseconds duration_ns = 0;  // of the iteration
  std::string hardware;
};

struct TraceParts {
  const ExecutionTrace& recording;
  const Storages& storages;
  const std::vector<CallOp>& ops;  // of the whole recording
  const std::vector<Part>& parts;
  const Roles& roles;
  Iteration iteration;
  const GpuSpec* gpu = nullptr;  // models durations where there are no times
  const MeasuredIteration* measured = nullptr;
  bool as_recorded = false;

  const Storage& storage(const StorageUse& use) const { return storages.storages[use.storage]; }
  const StorageRole& role(const StorageUse& use) const { return roles.of_storage[use.storage]; }
};

struct ImportedTrace {
  Trace trace;
  std::vector<std::string> notes;  // what was inferred, and what is not known: a sentence each
};

// Ops, tensors and what is known of them. The header is the caller's, but for `hardware` and `precision`.
ImportedTrace make_trace(const TraceParts& parts);

}  // namespace tencache
