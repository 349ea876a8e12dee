// Who calls the driver, and what that thread of the host knows to be over.
#pragma once

#include "core/units.h"
#include "tests/live/rules/vector_clock.h"

namespace tencache::rules {

class HostOrder {
 public:
  virtual ~HostOrder() = default;
  // Of the calling thread. The clock is its own: nobody else touches it during a call of the driver.
  virtual Line line() = 0;
  virtual VectorClock& clock() = 0;
  // Lines of streams are numbered with those of threads.
  virtual Line new_line() = 0;
  // A word of the calling thread's own: its current context.
  virtual void*& own() = 0;
  // The caller waits for the device, or is about to call: others may go on first.
  virtual void pass_turn() {}
  // With a clock (Turns of a HostTime): what it shows; the calling thread computes for so long, or sleeps, while others
  // go on; and what it computed since its call of the driver began is not the caller's.
  virtual Nanoseconds now() { return 0; }
  virtual void spend(Nanoseconds /*ns*/) {}
  virtual void returned() {}
  // Threads change only in pass_turn: the driver needs no lock, which would count as order between its callers.
  virtual bool one_at_a_time() const { return false; }
};

// Threads that run freely. What orders them (mutexes, conditions) is not seen here, so their calls count as one
// thread's, in the order in which they come: missing order between two threads of the host is not noticed, all else is.
class ObservedOrder final : public HostOrder {
 public:
  Line line() override { return 0; }
  VectorClock& clock() override { return clock_; }
  Line new_line() override { return ++lines_; }
  void*& own() override { return own_; }

 private:
  static inline thread_local void* own_ = nullptr;
  VectorClock clock_;
  Line lines_ = 0;
};

}  // namespace tencache::rules
