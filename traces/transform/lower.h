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
//  - optimizer ops that the policy places on the other device move there, with the duration that the machine's CPU
//    needs (parameters / cpu_adam_parameters_per_second), and with the bytes that they touch;
//  - reorderable sub-groups are put into the policy's order;
//  - where the policy works through module hooks, GPU ops that enter another module get the host time of the hooks.
// Throws Error when the policy needs a figure that the machine does not state.
Program lower(Trace trace, const Policy& policy, const MachineSpec& machine);

// Lets the policy plan ahead (Policy::prepare), before the trace is lowered for it. The trace is one rank's.
void prepare(const Trace& trace, Policy& policy, const MachineSpec& machine, const Rehearse& rehearse);

// Ops that the policy places on the CPU, of those on the GPU that may move. They get the bytes that they touch and, if
// the machine states a rate, the duration that its CPU needs. Both lowering and live programs place ops by this.
struct PlacedOps {
  std::size_t count = 0;
  Nanoseconds before_ns = 0, after_ns = 0;  // their durations, added up
};
PlacedOps place_on_cpu(Trace& trace, const Policy& policy, const MachineSpec& machine,
                       const std::function<bool(const Op&)>& movable);

// Each run of reorderable ops put into the policy's order of sub-groups, within a group as recorded: the ops' indices
// in the order in which they are to run. Throws Error when the policy's answer is not a permutation.
std::vector<OpIndex> policy_order(const Trace& trace, const Policy& policy, const MachineSpec& machine);

}  // namespace tencache
