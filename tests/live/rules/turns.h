// Threads that take turns: while a Turns exists, threads that are started run as coroutines on the thread that made it,
// one at a time, and a seed decides who goes on wherever one locks, waits, sleeps or calls the driver. Time is virtual.
// So a seed repeats exactly, a deadlock is seen at once, and the code under test is the product's, unchanged: turns.cpp
// stands in for the C library's threads, mutexes, conditions and clocks in the programs that link it.
//
// As HostOrder it knows what orders threads: starting and joining, and each mutex from who unlocks it to who locks it
// next. The latter is more than the code promises (two threads that only happen to use one mutex in turn count as
// ordered in that run), and seeds draw other turns.
//
// Or time decides: threads run side by side, as on a host with a core for each. Whoever runs goes on until it waits or
// computes (spend); who is woken goes on a while later. A run repeats exactly, unless what threads compute is measured.
//
// Not for code that keeps state in thread_local variables across waits, and not under sanitizers, which stand in for
// the same functions.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/units.h"
#include "tests/live/rules/host_order.h"
#include "tests/property/random_case.h"

namespace tencache::rules {

struct HostTime {
  Nanoseconds wake_ns = 0;  // from a notification to the next instruction of who waited for it
  // What threads compute between the driver's calls takes the processor time that it takes here; else none.
  bool measured = false;
};

class Turns final : public HostOrder {
 public:
  explicit Turns(std::uint64_t seed);
  explicit Turns(const HostTime& time);
  // All threads that it started are over, or left.
  ~Turns() override;
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;
  static Turns* active();

  Line line() override;
  VectorClock& clock() override;
  Line new_line() override { return lines_++; }
  void*& own() override;
  void pass_turn() override;
  bool one_at_a_time() const override { return true; }
  Nanoseconds now() override;
  void spend(Nanoseconds ns) override;
  // The calling thread's processor time from here on counts.
  void returned() override;

  // What the C library's functions do here.
  pthread_t start(void* (*body)(void*), void* argument);
  void join(pthread_t thread);
  void lock(pthread_mutex_t* mutex);
  bool try_lock(pthread_mutex_t* mutex);
  void unlock(pthread_mutex_t* mutex);
  // False at the time limit, of the virtual clock.
  bool wait(pthread_cond_t* condition, pthread_mutex_t* mutex, Nanoseconds until_ns);
  void notify(pthread_cond_t* condition, bool all);
  Nanoseconds look();  // at the clock
  void sleep(Nanoseconds until_ns);

  // Those that are not over never go on: what they belong to was leaked.
  void leave_threads() { left_ = true; }

  std::uint64_t switches() const { return switches_; }
  // Processor time of all threads that counted as time, where it does.
  Nanoseconds charged_ns() const { return charged_ns_; }

 private:
  struct Thread;
  struct Owned {
    Thread* owner = nullptr;
    VectorClock clock;  // of who unlocked it last
  };

  static void enter();
  bool runnable(const Thread& thread) const;
  // Goes on with whoever's turn it is, which may be the caller.
  void give_turn();
  void switch_to(Thread& next);
  [[noreturn]] void deadlock() const;
  void charge();
  void sleep_until(Nanoseconds moment_ns);
  bool one_in(std::uint64_t choices) { return !time_ && random_.one_in(choices); }

  std::optional<HostTime> time_;  // nothing: a seed decides
  // Of processor time: whether it counts now, since when, and what looking at it takes.
  bool counts_ = false;
  Nanoseconds counted_ns_ = 0, look_ns_ = 0;
  Nanoseconds charged_ns_ = 0;
  Random random_;
  std::uint64_t steadiness_;
  std::vector<std::unique_ptr<Thread>> threads_;  // the first is who made this
  Thread* current_ = nullptr;
  std::map<pthread_mutex_t*, Owned> mutexes_;
  Line lines_ = 0;
  Nanoseconds now_ns_ = 1'000'000'000;
  std::uint64_t switches_ = 0;
  bool left_ = false;
};

}  // namespace tencache::rules
