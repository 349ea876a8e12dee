#include "executor/live/live_tasks.h"

#include <cstddef>
#include <exception>
#include <string>
#include <utility>

#include "core/error.h"

namespace tencache {

LiveTasks::LiveTasks(const MachineSpec& spec, Policy& policy, EngineFeed& feed, OpGate& gate, StepFollower& follower)
    : feed_(feed), gate_(gate), follower_(follower), plan_(spec, policy) {}

void LiveTasks::run(MutexLock& lock, std::vector<LiveTask> tasks) {
  feed_.assert_held();
  plan_.put_in_order(tasks);
  Nanoseconds gap_ns = gate_.gap(feed_.now());
  std::vector<std::uint8_t> lanes;  // of all before the first is given: it may throw
  for (const LiveTask& task : tasks) lanes.push_back(plan_.lane_of(task, feed_.engine().memory()));
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    give(std::make_shared<const LiveTask>(std::move(tasks[i])), lanes[i], std::exchange(gap_ns, 0));
  }
  wait(lock, [this] {
    feed_.assert_held();
    return feed_.engine().tasks_left(0) == 0;
  });
}

// To the engine and, for the machine's thread, to the bodies.
void LiveTasks::give(std::shared_ptr<const LiveTask> task, std::uint8_t lane, Nanoseconds gap_ns) {
  feed_.assert_held();
  const Nanoseconds at = feed_.now();
  Op announced;
  announced.name = follower_.names().intern(task->name);
  announced.device = task->device;
  announced.group = task->group;
  announced.placeable = task->placeable;
  announced.reorderable = task->reorderable;
  announced.gap_before_ns = gap_ns;
  const OpIndex op = gate_.announce(announced, task->uses, at);
  bodies_->push(lane, {task, follower_.recorded_op()});
  follower_.end_op(0);
  if (lane == 0) {
    gate_.need(task->uses);
  } else {
    beside_.add(task);
  }
  feed_.tell([&](Engine& engine) { engine.task(lane, op, 0, task->uses, task->duration_ns, at); });
}

void LiveTasks::wait(MutexLock& lock, const std::function<bool()>& done) {
  feed_.assert_held();
  try {
    gate_.wait_until(lock, done);
  } catch (const OutOfMemory& error) {
    const std::string waiting = bodies_->next(feed_.engine().ready() ? 1 : 0);
    try {
      gate_.give_up(error, waiting);
    } catch (...) {
      while (!feed_.engine().idle() && feed_.failure() == nullptr) feed_.wait(lock);
      settle();
      bodies_->clear();
      throw;
    }
  }
}

void LiveTasks::wait_beside(MutexLock& lock, const std::function<bool()>& done) {
  feed_.assert_held();
  if (done()) return;
  const Nanoseconds since_ns = feed_.now();
  wait(lock, done);
  feed_.engine().waited_for_tasks(since_ns, feed_.now());
}

void LiveTasks::wait_for(MutexLock& lock, const std::function<bool()>& done) {
  wait_beside(lock, done);
  take_results();
}

void LiveTasks::wait_for(MutexLock& lock, std::span<const Use> uses) {
  if (conflict(uses)) wait_beside(lock, [this, &uses] { return !conflict(uses); });
  take_results();
}

void LiveTasks::finish(MutexLock& lock) {
  wait_for(lock, [this] {
    feed_.assert_held();
    return feed_.engine().idle();
  });
}

void LiveTasks::take_results() {
  if (!bodies_->any_results()) return;
  const TaskBodies::Results results = bodies_->take_results();
  for (const auto& [record, duration_ns] : results.durations) follower_.set_duration(record, duration_ns);
  if (results.failure != nullptr) std::rethrow_exception(results.failure);
}

void LiveTasks::settle() {
  feed_.assert_held();
  beside_.settle(feed_.engine().tasks_left(1));
}

}  // namespace tencache
