// Where a live program's tasks run, and in which order, as the policy says. Not thread-safe.
//
// Once a step is recorded the policy has been asked with the whole step, as a prediction asks it; until then it is
// asked about each task alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/machine_spec.h"
#include "core/policy.h"
#include "core/residency.h"
#include "executor/live/live_task.h"
#include "executor/live/step_follower.h"

namespace tencache {

class TaskPlan {
 public:
  // Both outlive the plan.
  TaskPlan(const MachineSpec& spec, Policy& policy)
      : spec_(spec), policy_(policy), blocking_step_(policy.layout(spec, nullptr).blocking_step) {}

  // The program goes on when all tasks of its step are done (Layout::blocking_step).
  bool blocking_step() const { return blocking_step_; }

  // A step was recorded: asks the policy, and arranges the step that is followed accordingly.
  void learn(StepFollower& follower);
  // Reorderable tasks that follow each other, in the policy's order.
  void put_in_order(std::vector<LiveTask>& tasks) const;
  // 0: the GPU's lane, 1: the CPU's. Throws Error if the machine has no CPU memory for it.
  std::uint8_t lane_of(const LiveTask& task, const Residency& memory) const;

 private:
  struct Planned {
    Device device = Device::gpu;
    std::size_t position = 0;  // in the step
  };
  Device device_of(const LiveTask& task, const Residency& memory) const;

  const MachineSpec& spec_;
  Policy& policy_;
  const bool blocking_step_;
  std::map<std::pair<std::string, std::int32_t>, Planned> planned_;  // by name and sub-group
};

}  // namespace tencache
