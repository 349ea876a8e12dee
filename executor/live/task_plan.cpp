#include "executor/live/task_plan.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "traces/transform/lower.h"

namespace tencache {

// A live program can move what it hands over as tasks.
void TaskPlan::learn(StepFollower& follower) {
  Trace trace = follower.recorded_trace();
  place_on_cpu(trace, policy_, spec_, [](const Op& op) { return op.placeable; });
  const std::vector<OpIndex> order = policy_order(trace, policy_, spec_);
  planned_.clear();
  for (std::size_t position = 0; position < order.size(); ++position) {
    const Op& op = trace.ops[order[position]];
    if (op.placeable || op.reorderable) {
      planned_.try_emplace({std::string(trace.name(op)), op.group}, Planned{op.device, position});
    }
  }
  follower.arrange(trace.ops, order);
}

void TaskPlan::put_in_order(std::vector<LiveTask>& tasks) const {
  const auto position = [this](const LiveTask& task) {
    const auto found = planned_.find({task.name, task.group});
    return found == planned_.end() ? std::numeric_limits<std::size_t>::max() : found->second.position;
  };
  for (auto begin = tasks.begin(); begin != tasks.end();) {
    const auto end = std::find_if(begin, tasks.end(), [](const LiveTask& task) { return !task.reorderable; });
    std::ranges::stable_sort(begin, end, {}, position);
    begin = end == tasks.end() ? end : end + 1;
  }
}

// Before there is a recording the policy judges a task as it would judge an op of a trace.
Device TaskPlan::device_of(const LiveTask& task, const Residency& memory) const {
  if (!task.placeable) return task.device;
  if (const auto planned = planned_.find({task.name, task.group}); planned != planned_.end()) {
    return planned->second.device;
  }
  Trace trace;
  std::vector<TensorId> reads, writes;
  for (const Use& use : task.uses) {
    const TensorId id = trace.add_tensor("", memory.bytes(use.tensor), memory.role(use.tensor), true);
    if (use.read) reads.push_back(id);
    if (use.write) writes.push_back(id);
  }
  Op op;
  op.name = trace.names.intern(task.name);
  op.phase = Phase::optimizer;
  op.device = task.device;
  op.group = task.group;
  op.placeable = true;
  op.reorderable = task.reorderable;
  op.duration_ns = task.duration_ns;
  trace.add_op(op, reads, writes);
  std::vector<Device> devices = {task.device};
  policy_.place(trace, spec_, devices);
  return devices.front();
}

std::uint8_t TaskPlan::lane_of(const LiveTask& task, const Residency& memory) const {
  if (device_of(task, memory) == Device::gpu) return 0;
  if (spec_.tier_of(Device::cpu) == no_tier) {
    throw Error("task '" + task.name + "' is to run on the CPU, but machine '" + spec_.name +
                "' has no tier of kind cpu");
  }
  return 1;
}

}  // namespace tencache
