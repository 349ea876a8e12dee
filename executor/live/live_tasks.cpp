// Tasks of a live program: where the policy has them run, in which order, and waiting for them.
#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.h"
#include "executor/live/live_runtime_parts.h"
#include "traces/transform/lower.h"

namespace tencache {

// A live program can move what it hands over as tasks.
void LiveRuntime::plan_tasks() {
  Trace trace = follower_.recorded_trace();
  place_on_cpu(trace, policy_, spec_, [](const Op& op) { return op.placeable; });
  const std::vector<OpIndex> order = policy_order(trace, policy_, spec_);
  planned_.clear();
  for (std::size_t position = 0; position < order.size(); ++position) {
    const Op& op = trace.ops[order[position]];
    if (op.placeable || op.reorderable) {
      planned_.try_emplace({std::string(trace.name(op)), op.group}, Planned{op.device, position});
    }
  }
  follower_.arrange(trace.ops, order);
}

void LiveRuntime::put_in_order(std::vector<LiveTask>& tasks) const {
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

std::uint8_t LiveRuntime::lane_of(const LiveTask& task) const {
  Device device = task.device;
  const auto planned = planned_.find({task.name, task.group});
  if (task.placeable && planned != planned_.end()) {
    device = planned->second.device;
  } else if (task.placeable) {  // the policy judges it as it would judge an op of a trace
    Trace trace;
    std::vector<TensorId> reads, writes;
    for (const Use& use : task.uses) {
      const TensorId id = trace.add_tensor("", entries_[use.tensor].bytes, engine_->memory().role(use.tensor), true);
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
    device = devices.front();
  }
  if (device == Device::gpu) return 0;
  if (spec_.tier_of(Device::cpu) == no_tier) {
    throw Error("task '" + task.name + "' is to run on the CPU, but machine '" + spec_.name +
                "' has no tier of kind cpu");
  }
  return 1;
}

// To the engine and, for the machine's thread, to the bodies.
void LiveRuntime::give_task(std::shared_ptr<const LiveTask> task, std::uint8_t lane, Nanoseconds gap_ns) {
  const Nanoseconds at = machine_->now();
  StepFollower::OpInfo info;
  info.name = follower_.names().intern(task->name);
  info.device = task->device;
  info.group = task->group;
  info.placeable = task->placeable;
  info.reorderable = task->reorderable;
  StepFollower::Signal signal = StepFollower::Signal::nothing;
  const OpIndex op = follower_.begin_op(info, task->uses, gap_ns, signal);
  bodies_->push(lane, {task, follower_.recorded_op()});
  follower_.end_op(0);
  tell(signal, at);
  op_name_ = info.name;
  op_tensors_.clear();
  op_bytes_ = 0;
  if (lane == 0) {
    for (const Use& use : task->uses) add_to_op(use.tensor);
  } else {
    for (const Use& use : task->uses) {
      ++entries_[use.tensor].task_uses;
      if (use.write) ++entries_[use.tensor].task_writes;
    }
    cpu_tasks_.push_back(task);
  }
  tell_engine([&] { engine_->task(lane, op, 0, task->uses, task->duration_ns, at); });
}

// Those of the CPU's lane that are done, the first ones, are nobody's any more.
void LiveRuntime::settle_tasks() {
  while (cpu_tasks_.size() > engine_->tasks_left(1)) {
    for (const Use& use : cpu_tasks_.front()->uses) {
      --entries_[use.tensor].task_uses;
      if (use.write) --entries_[use.tensor].task_writes;
    }
    cpu_tasks_.pop_front();
  }
}

bool LiveRuntime::in_use_by_tasks(std::span<const Use> uses) const {
  return !cpu_tasks_.empty() && std::any_of(uses.begin(), uses.end(), [this](const Use& use) {
    const Entry& entry = entries_[use.tensor];
    return entry.task_writes > 0 || (use.write && entry.task_uses > 0);
  });
}

// If there is no room for a task, all that have not begun are given up.
void LiveRuntime::wait_for_tasks(Lock& lock, const std::function<bool()>& done) {
  try {
    wait_until(lock, done);
  } catch (const OutOfMemory& error) {
    const std::string waiting = bodies_->next(engine_->ready() ? 1 : 0);
    try {
      give_up(error, waiting);
    } catch (...) {
      changed_.wait(lock, [this] { return engine_->idle() || failure_ != nullptr; });
      settle_tasks();
      bodies_->clear();
      static_cast<void>(bodies_->take_durations());
      static_cast<void>(bodies_->take_failure());
      throw;
    }
  }
}

// The GPU's lane has nothing to do meanwhile.
void LiveRuntime::wait_for_cpu(Lock& lock, const std::function<bool()>& done) {
  if (!done()) {
    const Nanoseconds since_ns = machine_->now();
    wait_for_tasks(lock, done);
    engine_->waited_for_tasks(since_ns, machine_->now());
  }
  take_task_results();
}

void LiveRuntime::take_task_results() {
  for (const auto& [record, duration_ns] : bodies_->take_durations()) follower_.set_duration(record, duration_ns);
  if (const std::exception_ptr failure = bodies_->take_failure(); failure != nullptr) std::rethrow_exception(failure);
}

void LiveRuntime::run_tasks(std::vector<LiveTask> tasks) {
  Lock lock(mutex_);
  enter();
  take_op(lock);
  try {
    put_in_order(tasks);
    Nanoseconds gap_ns = machine_->now() - last_end_ns_;
    std::vector<std::uint8_t> lanes;  // of all before the first is given: it may throw
    for (const LiveTask& task : tasks) lanes.push_back(lane_of(task));
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      give_task(std::make_shared<const LiveTask>(std::move(tasks[i])), lanes[i], std::exchange(gap_ns, 0));
    }
    wait_for_tasks(lock, [this] { return engine_->tasks_left(0) == 0; });
    const bool blocking = blocking_step_ || follower_.recording() || !follower_.recorded();
    wait_for_cpu(lock, [this, blocking] { return !blocking || engine_->idle(); });
  } catch (...) {
    give_op();
    throw;
  }
  last_end_ns_ = machine_->now();
  give_op();
}

void LiveRuntime::finish_tasks() {
  Lock lock(mutex_);
  enter();
  take_op(lock);
  try {
    wait_for_cpu(lock, [this] { return engine_->idle(); });
  } catch (...) {
    give_op();
    throw;
  }
  give_op();
}

}  // namespace tencache
