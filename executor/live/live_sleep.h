// Sleep: while all that a live program has fits into the GPU tier there is nothing to decide, so its ops are not
// announced. Only its allocations and frees reach the runtime, which keeps the budget.
//
// To the engine a sleep is one op that goes on (OpGate::fall_asleep): it uses and writes every tensor, so all of them
// stay in the GPU tier, and copies elsewhere are stale. What is allocated becomes the op's. What is freed is kept as a
// spare tensor and handed out again without asking the engine; the oldest spare ones go where an allocation of another
// size needs their room.
//
// It begins with a step, once the schedule is known, after a whole step that was seen, whose tensors fitted and are all
// in the GPU tier, with nothing under way. It ends with the first call that needs the engine: an allocation beyond the
// budget, an op that is announced all the same, a pin, tasks, a step to be recorded, the end of the run. Twice as many
// steps have to be seen before the next one if it was no longer than it was waited for.
//
// An op may be in its middle when an allocation ends the sleep; nobody knows what it uses. So until the step is over
// all tensors count as exposed (touch_server.h): what the op touches is brought back, and what it writes is noticed.
// The step has left the schedule, which is no deviation of the program.
//
// Not with an accelerator. An op that is missed there touches memory that was unmapped, which ends the program: nothing
// brings it back. And backward passes run on another thread than what is between them; whoever wakes the program would
// have to know that neither is launching.
//
// Threading, errors: as op_gate.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "core/thread_annotations.h"
#include "executor/live/engine_feed.h"
#include "executor/live/live_tensors.h"
#include "executor/live/op_gate.h"
#include "executor/live/spare_tensors.h"
#include "executor/live/step_follower.h"
#include "executor/live/touch_server.h"

namespace tencache {

class LiveSleep {
 public:
  // Called when the program falls asleep, and when it wakes, before anything moves: ops are announced from then on.
  using Listener = std::function<void(bool asleep)>;

  // All of them outlive this, and are used from the first call on. `possible`: there may be sleep.
  LiveSleep(EngineFeed& feed, OpGate& gate, StepFollower& follower, LiveTensors& tensors, TouchServer& touch,
            bool possible);
  LiveSleep(const LiveSleep&) = delete;
  LiveSleep& operator=(const LiveSleep&) = delete;

  // Nobody sleeps without one.
  void set_listener(Listener listener) { listener_ = std::move(listener); }
  // From now on, for good. A sleep that has begun goes on.
  void stay_awake() { possible_ = false; }
  // Most of what it allocates is of sizes that were not there before, and the engine's op grows with it: wake up.
  bool restless() const;
  // Of follower and engine, which have heard of it. May fall asleep.
  void step_begins(MutexLock& lock);
  // The first half of waking up, on the way to OpGate::end_sleep. Returns the spare tensors, which are to be freed.
  std::vector<TensorId> wake();
  // The program woke in this step: ops that were not announced may still run.
  bool woke() const { return woke_; }
  // Steps that began asleep.
  std::uint64_t steps() const { return steps_; }

  // ---- While asleep.
  // The program has let go of it.
  void keep(TensorId tensor);
  std::optional<SpareTensors::Spare> take(Bytes bytes);
  // A new tensor, for which there may be room once all spare ones are gone: `drop(tensor)` frees one. False: there is
  // none.
  bool allocate(TensorId tensor, const std::function<void(TensorId)>& drop);

 private:
  bool may_begin() const;
  std::vector<Use> everything() const;

  EngineFeed& feed_;
  OpGate& gate_;
  StepFollower& follower_;
  LiveTensors& tensors_;
  TouchServer& touch_;
  bool possible_;
  Listener listener_;
  SpareTensors spares_;
  std::uint64_t steps_ = 0;
  std::uint64_t slept_ = 0, seen_ = 0, wanted_ = 1;  // whole steps in a row: asleep, awake, and awake before the next
  std::uint64_t allocated_ = 0;                      // by the engine, in this sleep
  bool woke_ = false;
};

}  // namespace tencache
