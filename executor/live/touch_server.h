// Serves code that reads and writes tensors' memory without an op: numpy's views, pickle, libraries of others. Its
// accesses fault where the memory is not there (fault_handler.h), and end here.
//
// An exposed tensor is one whose address such code may have. Its pages are protected against writes, so that a write
// that no op announces faults, and copies elsewhere become stale. Who may write it goes on unprotected: the calling
// thread's op, and threads that it is lent to (system calls do not survive a protection).
//
// An op that began while the program slept was announced to nobody, and may be in its middle when the program wakes.
// All tensors are exposed then, until the step is over.
//
// Threading, errors: as op_gate.h.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>

#include "core/thread_annotations.h"
#include "executor/live/engine_feed.h"
#include "executor/live/live_tasks.h"
#include "executor/live/op_gate.h"

namespace tencache {

class TouchServer {
 public:
  // All of them outlive this, and are used from the first call on. `on`: HostMachineOptions::raw_access; nothing is
  // exposed or touched without it.
  TouchServer(EngineFeed& feed, OpGate& gate, LiveTasks& tasks, bool on);
  TouchServer(const TouchServer&) = delete;
  TouchServer& operator=(const TouchServer&) = delete;

  // Brings the tensor in and holds it until the next call of anybody but this function (OpGate::hold). Throws Error if
  // the calling thread's op touches it without having said so.
  void touch(MutexLock& lock, TensorId tensor, bool written);
  // Its address gets known outside. Waits while others than the calling thread's op write it.
  void expose(MutexLock& lock, TensorId tensor);
  // The addresses of all tensors that are to come get known: `born`. False if it was so before.
  bool expose_all() { return !std::exchange(exposes_all_, true); }
  void born(MutexLock& lock, TensorId tensor) {
    if (exposes_all_) expose(lock, tensor);
  }
  // An op that was not announced may have its address, and write to it, until `forget_unannounced`.
  void expose_to_unannounced(TensorId tensor);
  void forget_unannounced();
  // An op or a task writes these.
  void open_for_writing(std::span<const Use> uses);
  // Until no task uses an exposed tensor: code that is no op sees what the tasks wrote.
  void await_tasks(MutexLock& lock);
  // The tensor is about to be destroyed.
  void forget(TensorId tensor) { exposed_.erase(tensor); }
  // Its address is known outside.
  bool exposed(TensorId tensor) const { return exposed_.contains(tensor); }
  // Nobody has its address any more.
  void conceal(TensorId tensor);
  std::uint64_t touches() const { return touches_; }
  std::uint64_t ever_exposed() const { return ever_exposed_; }

 private:
  void bring_in(MutexLock& lock, const Use& use);
  void protect(TensorId tensor);

  EngineFeed& feed_;
  OpGate& gate_;
  LiveTasks& tasks_;
  const bool on_;
  enum class To : std::uint8_t { program, unannounced };
  std::unordered_map<TensorId, To> exposed_;
  bool exposes_all_ = false;
  std::uint64_t touches_ = 0, ever_exposed_ = 0;
};

}  // namespace tencache
