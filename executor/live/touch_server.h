// Serves code that reads and writes tensors' memory without an op: numpy's views, pickle, libraries of others. Its
// accesses fault where the memory is not there (fault_handler.h), and end here.
//
// An exposed tensor is one whose address such code may have. Its pages are protected against writes, so that a write
// that no op announces faults, and copies elsewhere become stale. Who may write it goes on unprotected: the calling
// thread's op, and threads that it is lent to (system calls do not survive a protection).
//
// An accelerator's accesses cannot be served. There an exposed tensor is brought in, and stays where it then is as long
// as it lives; copies elsewhere are stale.
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
#include "executor/live/live_tensors.h"
#include "executor/live/op_gate.h"

namespace tencache {

class TouchServer {
 public:
  // What becomes of exposed tensors. protects: with HostMachineOptions::raw_access; elsewhere nothing is touched.
  enum class Exposure : std::uint8_t { nothing, protects, pins };

  // All of them outlive this, and are used from the first call on.
  TouchServer(EngineFeed& feed, OpGate& gate, LiveTasks& tasks, const LiveTensors& tensors, Exposure exposure);
  TouchServer(const TouchServer&) = delete;
  TouchServer& operator=(const TouchServer&) = delete;

  // Brings the tensor in and holds it until the next call of anybody but this function (OpGate::hold). Throws Error if
  // the calling thread's op touches it without having said so.
  void touch(MutexLock& lock, TensorId tensor, bool written);
  // Its address gets known outside. Waits while others than the calling thread's op write it. Where that pins: throws
  // OutOfMemory, and Error inside an op of the calling thread if it is not in the GPU tier.
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
  void forget(TensorId tensor);
  // Its address is known outside.
  bool exposed(TensorId tensor) const { return exposed_.contains(tensor); }
  // And that is why it stays where it is: code that is no op may have kernels on an accelerator use it at any time.
  bool pinned(TensorId tensor) const { return !pinned_.empty() && pinned_.contains(tensor); }
  // Nobody has its address any more.
  void conceal(TensorId tensor);
  std::uint64_t touches() const { return touches_; }
  std::uint64_t ever_exposed() const { return ever_exposed_; }

 private:
  void bring_in(MutexLock& lock, const Use& use);
  void protect(TensorId tensor);
  void pin(MutexLock& lock, TensorId tensor);
  void await_use(const Use& use);

  EngineFeed& feed_;
  OpGate& gate_;
  LiveTasks& tasks_;
  const LiveTensors& tensors_;
  const Exposure exposure_;
  enum class To : std::uint8_t { program, unannounced };
  std::unordered_map<TensorId, To> exposed_;
  std::unordered_map<TensorId, bool> pinned_;  // whether as written
  bool exposes_all_ = false;
  std::uint64_t touches_ = 0, ever_exposed_ = 0;
};

}  // namespace tencache
