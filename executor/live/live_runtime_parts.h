// The inner classes of LiveRuntime, for its own files: live_runtime.cpp (from beginning to end, what the program
// announces, tensors, figures), live_ops.cpp and live_tasks.cpp.
#pragma once

#include <array>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "executor/live/live_runtime.h"

namespace tencache {

// Calls the engine. What that throws leaves it in the middle of something: it is told no more.
template <typename Call>
void LiveRuntime::tell_engine(const Call& call) {
  try {
    call();
  } catch (...) {
    if (failure_ == nullptr) failure_ = std::current_exception();
    throw;
  }
}

class LiveRuntime::Tap final : public Machine {
 public:
  explicit Tap(HostMachine& machine) : machine_(machine) {}

  bool idle() const { return under_way_ == 0; }
  void completed() { --under_way_; }

  Fence submit(const CopyCommand& copy, Tag tag) override {
    ++under_way_;
    return machine_.submit(copy, tag);
  }
  Fence execute(const OpCommand& op, Tag tag) override {
    ++under_way_;
    return machine_.execute(op, tag);
  }
  void cancel(Fence fence) override { machine_.cancel(fence); }
  bool wait(Completion& completion) override { return machine_.wait(completion); }
  Nanoseconds now() const override { return machine_.now(); }
  std::string last_error() const override { return machine_.last_error(); }
  void map(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place) override {
    machine_.map(tensor, chunk, begin, bytes, place);
  }
  void unmap(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place) override {
    machine_.unmap(tensor, chunk, begin, bytes, place);
  }
  void tensor_created(TensorId tensor, Bytes bytes) override { machine_.tensor_created(tensor, bytes); }
  void tensor_destroyed(TensorId tensor) override { machine_.tensor_destroyed(tensor); }
  void initialise(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place) override {
    machine_.initialise(tensor, chunk, begin, bytes, place);
  }

 private:
  HostMachine& machine_;
  std::uint64_t under_way_ = 0;
};

class LiveRuntime::Bodies final : public OpBodies {
 public:
  struct Body {
    std::shared_ptr<const LiveTask> task;
    std::uint32_t record = none;  // in the step that is recorded
  };

  // Tasks of a lane run in the order in which they were given to the engine.
  void push(std::uint8_t lane, Body body) {
    const std::lock_guard lock(mutex_);
    queues_[lane].push_back(std::move(body));
  }
  // The name of the lane's first task that has not begun.
  std::string next(std::uint8_t lane) {
    const std::lock_guard lock(mutex_);
    return queues_[lane].empty() ? std::string("task") : queues_[lane].front().task->name;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    for (auto& queue : queues_) queue.clear();
  }
  // What the bodies that ran since the last call took, and what the first of them threw.
  std::vector<std::pair<std::uint32_t, Nanoseconds>> take_durations() {
    const std::lock_guard lock(mutex_);
    return std::exchange(durations_, {});
  }
  std::exception_ptr take_failure() {
    const std::lock_guard lock(mutex_);
    return std::exchange(failure_, nullptr);
  }

  void run(std::uint8_t lane, OpIndex, std::span<const Use>, HostMachine& machine) override {
    Body body;
    {
      const std::lock_guard lock(mutex_);
      TENCACHE_CHECK(!queues_[lane].empty());
      body = std::move(queues_[lane].front());
      queues_[lane].pop_front();
    }
    std::vector<std::byte*> addresses;
    for (const Use& use : body.task->uses) addresses.push_back(machine.address(use.tensor, machine.tier_of_lane(lane)));
    const Nanoseconds start_ns = machine.now();
    const bool on_device = lane == 0 && machine.accelerator() != nullptr;
    std::exception_ptr failure;
    try {
      TENCACHE_CHECK(!on_device || body.task->device_body != nullptr);
      on_device ? body.task->device_body(addresses) : body.task->body(addresses);
    } catch (...) {  // the tasks behind it still run; run_tasks throws it on
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    durations_.emplace_back(body.record, machine.now() - start_ns);
    if (failure_ == nullptr) failure_ = failure;
  }

 private:
  std::mutex mutex_;
  std::array<std::deque<Body>, lane_count> queues_;
  std::vector<std::pair<std::uint32_t, Nanoseconds>> durations_;
  std::exception_ptr failure_;
};

}  // namespace tencache
