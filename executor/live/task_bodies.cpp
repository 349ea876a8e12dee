#include "executor/live/task_bodies.h"

#include "core/check.h"

namespace tencache {

void TaskBodies::push(std::uint8_t lane, Body body) {
  const MutexLock lock(mutex_);
  queues_[lane].push_back(std::move(body));
}

std::string TaskBodies::next(std::uint8_t lane) {
  const MutexLock lock(mutex_);
  return queues_[lane].empty() ? std::string("task") : queues_[lane].front().task->name;
}

void TaskBodies::clear() {
  const MutexLock lock(mutex_);
  for (auto& queue : queues_) queue.clear();
  results_ = {};
  any_results_ = false;
}

TaskBodies::Results TaskBodies::take_results() {
  const MutexLock lock(mutex_);
  any_results_ = false;
  return std::exchange(results_, {});
}

void TaskBodies::run(std::uint8_t lane, OpIndex /*op*/, std::span<const Use> /*uses*/, HostMachine& machine) {
  Body body;
  {
    const MutexLock lock(mutex_);
    TENCACHE_CHECK(!queues_[lane].empty());
    body = std::move(queues_[lane].front());
    queues_[lane].pop_front();
  }
  std::vector<std::byte*> addresses;
  for (const Use& use : body.task->uses) addresses.push_back(machine.address(use.tensor, machine.tier_of_lane(lane)));
  const Nanoseconds start_ns = machine.now();
  std::exception_ptr failure;
  try {
    body.task->body(addresses);
  } catch (...) {
    failure = std::current_exception();
  }
  const MutexLock lock(mutex_);
  results_.durations.emplace_back(body.record, machine.now() - start_ns);
  if (results_.failure == nullptr) results_.failure = failure;
  any_results_ = true;
}

}  // namespace tencache
