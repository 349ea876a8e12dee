// Threads that run work in order, and the completions of that work: the links and op lanes of a HostMachine.
//
// Each lane is a thread. Work on a lane runs in order of submission; completions of all lanes come in order of their
// times. An op waits until copies that were cancelled before it have stopped reading: it may write what they read.
//
// Threading: `enqueue` and `cancel` from one thread at a time, everything else from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/fault_plan.h"
#include "core/machine.h"
#include "core/thread_annotations.h"
#include "executor/copy_lane.h"
#include "executor/device_order.h"

namespace tencache {

struct LaneWork {
  Tag tag = 0;
  Fence fence = 0;  // set by WorkLanes
  CopyFault fault;
  std::string injected_failure;  // of the fault, in words
  CopyWork copy;                 // of lanes that copy
  OpCommand op;                  // of op lanes; its uses are in `uses`
  std::vector<Use> uses;
  std::vector<SharedMark> after = {};  // of an accelerator's streams
};

struct LaneOutcome {
  CompletionStatus status = CompletionStatus::done;
  std::string message;  // of a failure
  Nanoseconds start_ns = 0;
};

// What a lane does with its work, on the lane's thread. An exception fails the work.
class LaneRunner {
 public:
  virtual ~LaneRunner() = default;
  // `ready_ns`: when the work was submitted and all that it waits for was over.
  virtual LaneOutcome run(const LaneWork& work, Nanoseconds ready_ns, const std::atomic<bool>& cancelled) = 0;
};

class WorkLanes {
 public:
  // Lanes that copy come first, then op lanes, in the order of their runners. Times count from `origin_ns` of clock_ns.
  WorkLanes(Nanoseconds origin_ns, std::vector<std::unique_ptr<LaneRunner>> copies,
            std::vector<std::unique_ptr<LaneRunner>> ops);
  // Cancels what is under way and waits for what runs.
  ~WorkLanes();
  WorkLanes(const WorkLanes&) = delete;
  WorkLanes& operator=(const WorkLanes&) = delete;

  // `may_wait`: its thread is not woken for it if the lane is idle, until `start`; `run_one` may run it before.
  Fence enqueue(std::size_t lane, LaneWork work, bool may_wait = false);
  void start();
  // Runs one that waits so, on the calling thread; false if there is none. Its completion is there then.
  bool run_one();
  // Of a copy; one that is over, or an op, goes on.
  void cancel(Fence fence);
  // The next completion. False if nothing is under way, and after `stop`.
  bool wait(Completion& completion);
  // Waits until there is one, even while nothing is under way. False at the time limit, and after `stop`.
  bool await(std::chrono::nanoseconds limit);
  // False if there is none, and after `stop`.
  bool take(Completion& completion);
  void stop();
  bool stopped() const;
  // Cancels what is under way and waits for what runs; nothing is enqueued any more.
  void close();
  // A thread of a lane has work.
  bool busy() const;

  // ---- For who completes work without a lane.
  // A fence, whose work counts as under way for `wait` until it completes.
  Fence expect();
  // It completes, at this moment, or is observed: behind its completion if that is yet to come. Wakes nobody.
  // `message`: of a failure.
  void post(Completion completion, std::string message = {});
  // Ends an `await`.
  void nudge();

  // So far; each has a completion in the end, whatever becomes of it.
  std::uint64_t submitted() const;
  Nanoseconds now() const;
  // Of the last work that failed; empty if none did.
  std::string last_error() const;

 private:
  struct Queued {
    LaneWork work;
    Fence fence = 0;
    bool may_wait = false;
    std::uint32_t blockers = 0;  // of an op: cancelled copies that it waits for
    Nanoseconds ready_ns = 0;
    std::atomic<bool> cancelled = false;
  };
  // Its runner is its thread's alone, all else is guarded by the mutex.
  struct Lane {
    std::unique_ptr<LaneRunner> runner;
    bool copies = false;
    std::deque<Queued> queue;
    bool running = false;  // the front one
    bool waits = false;    // its thread was not woken for the front one
    Nanoseconds last_end_ns = 0;
    Condition wake;

    // Whether the front one may run.
    bool ready() const { return !running && !queue.empty() && queue.front().blockers == 0; }
    // Whether a cancelled copy still reads; it has not noticed yet.
    bool reads_for_nothing() const { return copies && running && queue.front().cancelled; }
    // Takes the front one off: its completion, from a moment after the one ahead was over. Spans do not overlap.
    Completion finish(const LaneOutcome& outcome, Nanoseconds now);
  };
  // Work that is not over.
  struct Pending {
    Lane* lane = nullptr;
    Queued* queued = nullptr;
    std::vector<Fence> dependants;  // ops that wait for it
    std::optional<Completion> observed = {};
  };

  void serve(Lane& lane);
  void wake(Lane& lane) TENCACHE_REQUIRES(mutex_);
  Lane* waiting() TENCACHE_REQUIRES(mutex_);
  const Queued& begin(Lane& lane) TENCACHE_REQUIRES(mutex_);
  LaneOutcome run(Lane& lane, const Queued& queued) const;
  void complete(Lane& lane, LaneOutcome outcome) TENCACHE_REQUIRES(mutex_);
  bool take_completion(Completion& completion) TENCACHE_REQUIRES(mutex_);

  const Nanoseconds origin_ns_;
  mutable Mutex mutex_;
  Condition arrived_;
  std::vector<std::unique_ptr<Lane>> lanes_ TENCACHE_GUARDED_BY(mutex_);
  std::deque<Completion> completions_ TENCACHE_GUARDED_BY(mutex_);
  std::unordered_map<Fence, Pending> pending_ TENCACHE_GUARDED_BY(mutex_);
  Fence last_fence_ TENCACHE_GUARDED_BY(mutex_) = 0;
  std::string last_error_ TENCACHE_GUARDED_BY(mutex_);
  std::size_t expected_ TENCACHE_GUARDED_BY(mutex_) = 0;  // without a lane
  bool nudged_ TENCACHE_GUARDED_BY(mutex_) = false;
  bool stopped_ TENCACHE_GUARDED_BY(mutex_) = false;  // `wait` returns false
  bool closing_ TENCACHE_GUARDED_BY(mutex_) = false;  // the lanes end
  std::vector<std::thread> threads_;
};

}  // namespace tencache
