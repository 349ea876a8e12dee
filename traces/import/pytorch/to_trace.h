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

#include <string>
#include <vector>

#include "traces/import/pytorch/activity.h"
#include "traces/import/pytorch/calls.h"
#include "traces/import/pytorch/op_cost.h"
#include "traces/import/pytorch/roles.h"
#include "traces/import/pytorch/steps.h"

namespace tencache {

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
