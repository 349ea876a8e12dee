// The engine of a live program and its machine, under one mutex: a thread feeds completions to the engine as they come.
//
// If the engine throws in the middle of something, it is inconsistent and receives no further calls; what it threw is
// kept (`failure`).
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <thread>

#include "core/engine/engine.h"
#include "core/thread_annotations.h"
#include "executor/host_machine.h"

namespace tencache {

class EngineFeed {
 public:
  // Called holding the mutex, after the engine took a completion: with the spans that it added to its timeline.
  using Handled = std::function<void(std::span<Span> added)>;

  // Spec, policy, bodies and timeline outlive this.
  EngineFeed(const MachineSpec& spec, Policy& policy, HostMachineOptions machine, EngineOptions engine,
             OpBodies& bodies, Handled handled);
  ~EngineFeed();
  EngineFeed(const EngineFeed&) = delete;
  EngineFeed& operator=(const EngineFeed&) = delete;

  mutable Mutex mutex;
  // For types that keep a reference to a feed, and whose owner guards them with its mutex: Clang sees the owner's part.
  void assert_held() const TENCACHE_ASSERTS(mutex) {}

  // Its own functions say which of them any thread may call.
  HostMachine& machine() const { return *machine_; }
  Nanoseconds now() const { return machine_->now(); }
  // The time of a call: one look at the clock for all that it tells the engine. Another one after it has waited.
  Nanoseconds moment() TENCACHE_REQUIRES(mutex) {
    if (moment_ns_ < 0) moment_ns_ = now();
    return moment_ns_;
  }
  void new_moment() TENCACHE_REQUIRES(mutex) { moment_ns_ = -1; }
  Engine& engine() TENCACHE_REQUIRES(mutex) { return *engine_; }
  const Engine& engine() const TENCACHE_REQUIRES(mutex) { return *engine_; }
  // Calls the engine, which may throw anything: then nobody calls it any more.
  template <typename Call>
  void tell(const Call& call) TENCACHE_REQUIRES(mutex) {
    try {
      call(*engine_);
      follow_share();
    } catch (...) {
      fail(std::current_exception());
      throw;
    }
    if (ordered_) take_completions();  // what was handed over is complete: nobody has to wake up for it
  }
  // Who waits for what it tells the engine: while it lives, small copies are left for `help`, which makes one on this
  // thread and tells the engine. False if there is none; all others are made by threads of the machine.
  class Helper {
   public:
    explicit Helper(EngineFeed& feed) : machine_(feed.machine()) { machine_.hold(); }
    ~Helper() { machine_.start(); }
    Helper(const Helper&) = delete;
    Helper& operator=(const Helper&) = delete;

   private:
    HostMachine& machine_;
  };
  bool help() TENCACHE_REQUIRES(mutex) {
    if (!machine_->run_one()) return false;
    take_completions();
    return true;
  }
  // Between two steps: CPU memory that the last one did not use, if other ranks have too little.
  void give_back_memory() TENCACHE_REQUIRES(mutex);
  // Nothing is under way on the machine.
  bool idle() const TENCACHE_REQUIRES(mutex);
  // Throws OutOfMemory if waiting is hopeless, after which the engine can go on.
  void check_progress() TENCACHE_REQUIRES(mutex);

  // The first one counts.
  void fail(std::exception_ptr failure) TENCACHE_REQUIRES(mutex) {
    if (failure_ == nullptr) failure_ = std::move(failure);
  }
  const std::exception_ptr& failure() const TENCACHE_REQUIRES(mutex) { return failure_; }

  // A completion was handled, or the owner called `wake`.
  void wait(MutexLock& lock) TENCACHE_REQUIRES(mutex) {
    machine_->start();
    ++waiting_;
    changed_.wait(lock);
    --waiting_;
    new_moment();
  }
  void wake() TENCACHE_REQUIRES(mutex) {
    if (waiting_ > 0) changed_.notify_all();
  }

  // Ends the thread, and the waiting of the machine. Not holding the mutex.
  void stop();
  // After `stop`: the addresses of tensors that others still know must not become somebody else's memory.
  void leak_memory();

 private:
  void feed();
  void take_completions() TENCACHE_REQUIRES(mutex);
  bool take(Completion& completion) TENCACHE_REQUIRES(mutex);
  void follow_share() TENCACHE_REQUIRES(mutex) {
    if (machine_->shared_tier() != no_tier) keep_memory_ahead();
  }
  void keep_memory_ahead() TENCACHE_REQUIRES(mutex);
  void set_shared_memory(Bytes capacity) TENCACHE_REQUIRES(mutex);

  std::unique_ptr<HostMachine> machine_;
  std::unique_ptr<Engine> engine_;  // called holding the mutex only
  Timeline* timeline_;
  Handled handled_;
  bool ordered_ = false;                                      // the machine's completions promise order
  Bytes most_shared_ TENCACHE_GUARDED_BY(mutex) = 0;          // used of the tier that ranks share, in this step
  std::uint64_t completions_ TENCACHE_GUARDED_BY(mutex) = 0;  // taken so far
  std::exception_ptr failure_ TENCACHE_GUARDED_BY(mutex);
  Nanoseconds moment_ns_ TENCACHE_GUARDED_BY(mutex) = -1;  // -1: not looked at yet
  int waiting_ TENCACHE_GUARDED_BY(mutex) = 0;             // threads that wait for `changed_`
  Condition changed_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace tencache
