// Tasks of a live program (live_task.h): the policy places and orders them, the engine moves what they use, the
// machine's lanes run them. Those on the CPU's lane go on beside the program.
//
// Threading: as op_gate.h. Functions that take a lock are called inside a turn, not from an op's body. Errors: as
// op_gate.h; if there is no memory for a task, all that have not begun are given up.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/thread_annotations.h"
#include "executor/live/cpu_tasks.h"
#include "executor/live/engine_feed.h"
#include "executor/live/live_task.h"
#include "executor/live/op_gate.h"
#include "executor/live/step_follower.h"
#include "executor/live/task_bodies.h"
#include "executor/live/task_plan.h"

namespace tencache {

class LiveTasks {
 public:
  // All of them outlive this; feed and gate are used from the first call on.
  LiveTasks(const MachineSpec& spec, Policy& policy, EngineFeed& feed, OpGate& gate, StepFollower& follower);
  LiveTasks(const LiveTasks&) = delete;
  LiveTasks& operator=(const LiveTasks&) = delete;

  // What the machine's lanes call; as long as this lives, unless it is leaked.
  OpBodies& bodies() { return *bodies_; }
  void leak_bodies() { static_cast<void>(bodies_.release()); }

  // A step was recorded: asks the policy, and arranges the step that is followed accordingly.
  void learn() { plan_.learn(follower_); }
  // The step blocks the program (Layout::blocking_step).
  bool blocking_step() const { return plan_.blocking_step(); }

  // In the policy's order where they are reorderable. Those on the GPU's lane are done on return.
  void run(MutexLock& lock, std::vector<LiveTask> tasks);
  // Waits until `done`, which tasks on the CPU's lane bring about: a stall of the GPU's lane.
  void wait_beside(MutexLock& lock, const std::function<bool()>& done);
  // The same; then takes what the tasks took and threw.
  void wait_for(MutexLock& lock, const std::function<bool()>& done);
  // For those whose uses conflict with these.
  void wait_for(MutexLock& lock, std::span<const Use> uses);
  void finish(MutexLock& lock);
  // Durations go into the recording. Rethrows what the first body threw.
  void take_results();

  // ---- Those on the CPU's lane that are not done.
  bool conflict(std::span<const Use> uses) const { return beside_.conflict(uses); }
  bool use(TensorId tensor) const { return beside_.use(tensor); }
  template <typename Is>
  bool use_any(const Is& is) const {
    return beside_.use_any(is);
  }
  // A completion came in.
  void settle();
  // A tensor that they use was freed: it is kept until they are done.
  void keep(TensorId tensor) { beside_.keep(tensor); }
  bool any_to_free() const { return beside_.any_to_free(); }
  std::vector<TensorId> take_kept() { return beside_.take_kept(); }

 private:
  void give(std::shared_ptr<const LiveTask> task, std::uint8_t lane, Nanoseconds gap_ns);
  void wait(MutexLock& lock, const std::function<bool()>& done);

  EngineFeed& feed_;
  OpGate& gate_;
  StepFollower& follower_;
  TaskPlan plan_;
  CpuTasks beside_;
  std::unique_ptr<TaskBodies> bodies_ = std::make_unique<TaskBodies>();
};

}  // namespace tencache
