// Who uses the memory of a live program right now: the op that runs, threads that its tensors are lent to, and code
// outside ops that has touched some. All others wait here, for their turn or for memory, and are woken here.
//
// Ops run one at a time. A thread takes the turn, begins the op, does the work and ends the op:
//
//   gate.enter();
//   OpGate::Turn turn(gate, lock);      // waits; given back at the end of the scope, whatever happens
//   gate.begin(lock, name, uses, 0);    // waits until all that it uses is there
//   gate.start();
//   ...
//   gate.end();
//
// A turn may outlive its scope: while the op's own code runs (`run_body`), or until the next call of anybody
// (`linger`).
//
// While the program sleeps (live_sleep.h) one op goes on to the engine, with everything that there is, and nobody has
// the turn. The next `enter` ends it.
//
// Threading: all functions need the feed's mutex, which the owner of the gate guards it with. Those that take a lock
// release it while they wait. Errors: OutOfMemory if nothing under way can help, with the op and what it needs; the
// engine can go on then. After anything else that the engine or a copy threw, every call throws that.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/thread_annotations.h"
#include "executor/live/device_fence.h"
#include "executor/live/engine_feed.h"
#include "executor/live/live_tensors.h"
#include "executor/live/program_streams.h"
#include "executor/live/step_follower.h"
#include "executor/live/working_set.h"

namespace tencache {

class OpGate {
 public:
  // All of them outlive the gate, and are used from the first call on. `hear`: hears of freed tensors, throws the
  // feed's failure; called at the beginning of every call and again by those who wait. `wake`: calls `end_sleep`.
  OpGate(EngineFeed& feed, StepFollower& follower, const LiveTensors& tensors, DeviceFence& device,
         ProgramStreams& streams, std::function<void()> hear, std::function<void()> wake);
  OpGate(const OpGate&) = delete;
  OpGate& operator=(const OpGate&) = delete;

  class Turn {
   public:
    // Waits until no other thread has it.
    Turn(OpGate& gate, MutexLock& lock) : gate_(&gate) { gate.take(lock); }
    // The one that was kept for the calling thread's op.
    explicit Turn(OpGate& gate) : gate_(&gate) {}
    ~Turn() {
      if (gate_ != nullptr) gate_->give();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    // Keeps it for the op, whose own code runs from here on, on this thread.
    void run_body();
    // Keeps it until the next call of anybody: to the engine the op goes on.
    void linger();

   private:
    OpGate* gate_;  // nullptr: kept
  };

  // First thing of every call: wakes who sleeps, lets go of what was touched, ends the op that lingers, hears of frees.
  // Not `anew`: the call's time is that of the op that runs, for which nobody looks at the clock.
  void enter(bool anew = true);
  // `uses`: all that there is, in the GPU tier. False where nothing can be done for those that it waits for.
  bool fall_asleep(MutexLock& lock, std::span<const Use> uses);
  bool asleep() const { return asleep_; }
  void end_sleep();
  void end_lingering();

  // ---- The op that has the turn.
  // Returns the op's place in the recording, or `none`; the engine hears if the program leaves the schedule here.
  // `part_bytes`: as LiveRuntime::begin_op.
  OpIndex announce(const Op& op, std::span<const Use> uses, Nanoseconds now, Bytes part_bytes = 0);
  // It needs these at once, too.
  void need(std::span<const Use> uses);
  void need(TensorId tensor, bool written) { working_set_.add(tensor, tensors_.room(tensor), written); }
  void begin(MutexLock& lock, NameId name, std::span<const Use> uses, Bytes part_bytes);
  // Its tensors are there: its time begins.
  void start();
  void end();
  // Room for a tensor that it makes, from `now` on; does not count as its time.
  void allocate(MutexLock& lock, TensorId tensor, Nanoseconds now);
  // Whether the calling thread runs its body.
  bool inside_body() const { return body_ == std::this_thread::get_id(); }
  std::string op_name() const { return std::string(follower_.names()[working_set_.op()]); }
  // The device's times of ops that were recorded, where nobody waits for it after each: they are asked for now.
  void take_times();
  // Gaps between ops are counted from `now` on.
  void pause(Nanoseconds now) {
    last_end_ns_ = now;
    waits_ns_ = 0;
  }
  // The program's thread has waited since, which is not its own time.
  void has_waited(Nanoseconds ns) { waits_ns_ += ns; }
  Nanoseconds gap(Nanoseconds now) const { return now - last_end_ns_; }

  // ---- Waiting.
  // Until `done`, while completions and frees come in.
  void wait_until(MutexLock& lock, const std::function<bool()>& done);
  void await_memory(MutexLock& lock);
  // What the engine waited for is abandoned. Throws `error` with the op's name, and with what it needs.
  [[noreturn]] void give_up(const OutOfMemory& error, const std::string& op);
  // For the accelerator; its failure is the feed's. Before anything else happens to memory that ops may touch: where
  // the machine's completions promise order, nobody has to.
  void await_device();

  // ---- Who else uses memory.
  // Threads of others read and write the tensors until `take_back`, beside ops. `comes_back`: that is called whatever
  // the program does, so calls that lack memory wait for it.
  void lend(std::span<const Use> uses, bool comes_back);
  void take_back(std::span<const Use> uses, bool comes_back) noexcept;
  // Code outside ops touched the tensor, which stays until the next `enter`.
  void hold(TensorId tensor);
  bool holds_any() const { return !held_.empty(); }
  void let_go();
  // Somebody may write it now: the calling thread's op, a thread that it is lent to, or a program that sleeps.
  bool may_be_written(TensorId tensor) const;
  // The tensor is about to be destroyed.
  void forget(TensorId tensor);

  const WorkingSet& working_set() const { return working_set_; }

 private:
  struct Lent {
    TensorId tensor = none;
    bool written = false, comes_back = false;
    bool operator==(const Lent&) const = default;
  };

  void take(MutexLock& lock);
  void give();
  void check_progress();
  bool any_comes_back() const;
  void unpin(std::span<const Use> uses);
  // What came back while ops are not waited for: threads may have started work with it on streams of their own.
  void accept_returned();

  EngineFeed& feed_;
  StepFollower& follower_;
  const LiveTensors& tensors_;
  DeviceFence& device_;
  ProgramStreams& streams_;
  const std::function<void()> hear_, wake_;

  bool taken_ = false;    // by an op or by tasks
  bool lingers_ = false;  // and its op goes on to the engine alone
  bool asleep_ = false;   // not taken, and an op goes on to the engine
  std::thread::id body_;  // the thread that runs the op's own code
  WorkingSet working_set_;
  Nanoseconds begin_ns_ = 0, waited_ns_ = 0, last_end_ns_ = 0;  // of the op; the end is of the last one
  Nanoseconds waits_ns_ = 0;                                    // of the program's thread since the last op's end
  Nanoseconds known_ns_ = 0;  // the op's duration, where it is on the schedule; else 0
  std::vector<Lent> lent_;
  std::vector<Use> returned_;   // taken back, and still pinned
  std::vector<TensorId> held_;  // pinned once each time that it occurs
};

}  // namespace tencache
