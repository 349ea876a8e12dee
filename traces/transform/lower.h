// Turns a recorded trace into the program that both machines run, as a policy requires it.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "core/machine_spec.h"
#include "core/policy.h"
#include "core/trace.h"

namespace tencache {

// What is done, each listed in Program::changes:
//  - what the policy recomputes of the trace's choices runs again before the backward pass (core/recompute.h);
//  - ops that the policy places on the CPU move there, with the duration that it needs (core/cpu_op.h), those of the
//    optimizer with the bytes that they touch;
//  - ops that the trace has on the CPU without a duration get theirs in the same way;
//  - ops of the GPU that read tensors in place in CPU memory (Policy::read_in_place) take as long as the link needs for
//    them, if that is longer, and use these tensors no more;
//  - reorderable sub-groups are put into the policy's order;
//  - where the policy works through module hooks, GPU ops that enter another module get the host time of the hooks.
// `levels`, if given: becomes what the policy chose, by choice of the trace.
// Throws Error when the policy needs a figure that the machine does not state.
Program lower(Trace trace, const Policy& policy, const MachineSpec& machine,
              std::vector<RecomputeLevel>* levels = nullptr);

// Lets the policy plan ahead (Policy::prepare), before the trace is lowered for it. The trace is one rank's.
void prepare(const Trace& trace, Policy& policy, const MachineSpec& machine, const Rehearse& rehearse);

// Ops that the policy places on the CPU, of those that may move there and are `movable`. They get the duration that the
// machine's CPU needs if it states the rates. Both lowering and live programs place ops by this.
struct PlacedOps {
  struct Moved {
    std::size_t count = 0;
    Nanoseconds before_ns = 0, after_ns = 0;  // their durations, added up
  };
  Moved updates, others;      // of the optimizer, and not
  bool without_rate = false;  // the machine does not say what some of them take
};
PlacedOps place_on_cpu(Trace& trace, const Policy& policy, const MachineSpec& machine,
                       const std::function<bool(const Op&)>& movable);

// Ops that a generated trace has on the CPU come without a duration, because it depends on the machine.
bool lacks_cpu_time(const Op& op);
// Gives it to them (core/cpu_op.h). Throws Error when the machine does not state its CPU's rates.
struct CpuOps {
  std::size_t count = 0;
  Nanoseconds duration_ns = 0;  // in sum
};
CpuOps time_cpu_ops(Trace& trace, const MachineSpec& machine);

// Each run of reorderable ops put into the policy's order of sub-groups, within a group as recorded: the ops' indices
// in the order in which they are to run. Throws Error when the policy's answer is not a permutation.
std::vector<OpIndex> policy_order(const Trace& trace, const Policy& policy, const MachineSpec& machine);

}  // namespace tencache
