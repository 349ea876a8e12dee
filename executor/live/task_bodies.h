// Runs the bodies of a live program's tasks on the machine's lanes. Any thread may call.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/engine.h"
#include "core/thread_annotations.h"
#include "executor/host_machine.h"
#include "executor/live/live_task.h"

namespace tencache {

class TaskBodies final : public OpBodies {
 public:
  struct Body {
    std::shared_ptr<const LiveTask> task;
    std::uint32_t record = none;  // in the step that is recorded
  };

  // Tasks of a lane run in the order in which they were given to the engine.
  void push(std::uint8_t lane, Body body);
  // The name of the lane's first task that has not begun.
  std::string next(std::uint8_t lane);
  // Forgets tasks that have not begun, and results.
  void clear();
  // Of the bodies that ran since the last call.
  struct Results {
    std::vector<std::pair<std::uint32_t, Nanoseconds>> durations;  // by record
    std::exception_ptr failure;  // what the first of them threw; the tasks behind it ran all the same
  };
  bool any_results() const { return any_results_; }
  Results take_results();

  void run(std::uint8_t lane, OpIndex, std::span<const Use>, HostMachine& machine) override;

 private:
  Mutex mutex_;
  std::array<std::deque<Body>, lane_count> queues_ TENCACHE_GUARDED_BY(mutex_);
  Results results_ TENCACHE_GUARDED_BY(mutex_);
  std::atomic<bool> any_results_ = false;  // each op asks
};

}  // namespace tencache
