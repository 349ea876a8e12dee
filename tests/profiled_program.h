// A recorded iteration as a planner is given it, for tests and benchmarks that want the plan alone: nothing is where it
// could leave or be fetched from, and nothing runs.
#pragma once

#include <cstdint>
#include <vector>

#include "core/policy.h"

namespace tencache {

struct ProfiledProgram {
  // The machine outlives it.
  ProfiledProgram(const Trace& trace, const MachineSpec& machine)
      : program{trace, {}},
        schedule(program.trace),
        memory(machine, std::vector<AllocatorSpec>(machine.tiers.size()), 0, false),
        dead(trace.tensors.size(), 0),
        view{.machine = machine, .memory = memory, .program = &program, .schedule = &schedule, .dead_flags = &dead} {
    for (const Tensor& tensor : trace.tensors) memory.add_tensor(tensor.bytes, tensor.role, tensor.persistent);
  }
  ProfiledProgram(const ProfiledProgram&) = delete;
  ProfiledProgram& operator=(const ProfiledProgram&) = delete;

  const Program program;
  const Schedule schedule;
  Residency memory;
  const std::vector<std::uint8_t> dead;
  const View view;
};

}  // namespace tencache
