#include "tests/live/rules/turns.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "core/check.h"

namespace tencache::rules {
namespace {

constexpr std::size_t stack_bytes = 512 * 1024;
constexpr Nanoseconds forever = -1;
constexpr Nanoseconds per_look_ns = 50;  // at the clock: loops that poll it end
constexpr Nanoseconds per_timed_look_ns = 1;

Nanoseconds processor_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<Nanoseconds>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

Turns* the_active = nullptr;

// Stacks are kept for the next thread.
std::vector<void*>& spare_stacks() {
  static std::vector<void*> stacks;
  return stacks;
}

void* take_stack() {
  if (!spare_stacks().empty()) {
    void* stack = spare_stacks().back();
    spare_stacks().pop_back();
    return stack;
  }
  void* stack =
      ::mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TENCACHE_CHECK(stack != MAP_FAILED && ::mprotect(stack, 4096, PROT_NONE) == 0);
  return stack;
}

// Exceptions under way are a thread's own: what __cxa_get_globals points to (Itanium C++ ABI, 2.2.2).
struct Exceptions {
  void* caught = nullptr;
  unsigned uncaught = 0;
};
Exceptions& exceptions_here() { return *reinterpret_cast<Exceptions*>(__cxxabiv1::__cxa_get_globals()); }

}  // namespace

struct Turns::Thread {
  ucontext_t context{};
  void* stack = nullptr;
  void* (*body)(void*) = nullptr;
  void* argument = nullptr;
  bool done = false;
  std::uint64_t priority = 0;
  Line line = 0;
  VectorClock clock;
  void* own = nullptr;
  Exceptions exceptions;
  // What it waits for: at most one of a thread, a mutex, a condition; with a time limit or without.
  const Thread* joins = nullptr;
  pthread_mutex_t* locks = nullptr;
  pthread_cond_t* waits = nullptr;
  bool sleeps = false;
  Nanoseconds until_ns = forever;
};

Turns::Turns(std::uint64_t seed) : random_(seed ^ 0x7475726e73) {
  TENCACHE_CHECK(the_active == nullptr);
  constexpr std::uint64_t choices[] = {1, 4, 32};
  steadiness_ = choices[random_.below(3)];
  threads_.push_back(std::make_unique<Thread>());
  current_ = threads_.front().get();
  current_->line = new_line();
  the_active = this;
}

Turns::Turns(const HostTime& time) : Turns(std::uint64_t{0}) {
  time_ = time;
  look_ns_ = processor_ns();
  constexpr int looks = 1000;
  for (int i = 0; i < looks; ++i) counted_ns_ = processor_ns();
  look_ns_ = (counted_ns_ - look_ns_) / looks;
  returned();
}

Turns::~Turns() {
  the_active = nullptr;
  for (std::size_t i = 1; i < threads_.size(); ++i) {
    TENCACHE_CHECK(threads_[i]->done || left_);
    if (threads_[i]->done) spare_stacks().push_back(threads_[i]->stack);
  }
}

Turns* Turns::active() { return the_active; }
Line Turns::line() { return current_->line; }
VectorClock& Turns::clock() { return current_->clock; }
void*& Turns::own() { return current_->own; }

bool Turns::runnable(const Thread& thread) const {
  if (thread.done) return false;
  if (thread.joins != nullptr) return thread.joins->done;
  if (thread.locks != nullptr) {
    const auto found = mutexes_.find(thread.locks);
    return found == mutexes_.end() || found->second.owner == nullptr;
  }
  if (thread.waits != nullptr || thread.sleeps) return thread.until_ns != forever && thread.until_ns <= now_ns_;
  return true;
}

// The runnable thread of the highest priority; its priority is drawn anew now and then (with `steadiness_` 1 always),
// so that some seeds interleave finely and others let one thread run far ahead.
// In time, the one that could go on first.
void Turns::give_turn() {
  if (one_in(steadiness_)) current_->priority = random_.below(1 << 16);
  while (true) {
    Thread* next = nullptr;
    Nanoseconds earliest_ns = forever;
    for (const std::unique_ptr<Thread>& thread : threads_) {
      if (runnable(*thread)) {
        if (next == nullptr || (time_ ? thread->until_ns < next->until_ns : thread->priority > next->priority)) {
          next = thread.get();
        }
      } else if (!thread->done && thread->until_ns != forever &&
                 (earliest_ns == forever || thread->until_ns < earliest_ns)) {
        earliest_ns = thread->until_ns;
      }
    }
    if (next != nullptr) return switch_to(*next);
    if (earliest_ns == forever) deadlock();
    now_ns_ = std::max(now_ns_, earliest_ns);
  }
}

void Turns::switch_to(Thread& next) {
  if (&next == current_) return;
  Thread& last = *std::exchange(current_, &next);
  switches_++;
  last.exceptions = std::exchange(exceptions_here(), next.exceptions);
  ::swapcontext(&last.context, &next.context);
}

void Turns::deadlock() const {
  std::fprintf(stderr, "deadlock: each of %zu threads waits\n", threads_.size());
  for (const std::unique_ptr<Thread>& thread : threads_) {
    std::fprintf(stderr, "  line %u: %s\n", thread->line,
                 thread->done               ? "ended"
                 : thread->joins != nullptr ? "joins another"
                 : thread->locks != nullptr ? "locks a mutex"
                                            : "waits for a condition");
  }
  std::abort();
}

void Turns::pass_turn() { time_ ? charge() : give_turn(); }

// Up to `returned`, which whatever goes back to the code under test calls, nothing counts.
void Turns::charge() {
  if (!std::exchange(counts_, false)) return;
  const Nanoseconds used_ns = processor_ns() - counted_ns_ - look_ns_;
  if (used_ns <= 0) return;
  charged_ns_ += used_ns;
  sleep_until(now_ns_ + used_ns);
}

void Turns::returned() {
  if (!time_ || !time_->measured) return;
  counted_ns_ = processor_ns();
  counts_ = true;
}

Nanoseconds Turns::now() { return now_ns_; }
void Turns::spend(Nanoseconds ns) {
  if (ns > 0) sleep_until(now_ns_ + ns);
}

void Turns::enter() {
  Thread& self = *the_active->current_;
  the_active->returned();
  self.body(self.argument);
  self.done = true;
  the_active->give_turn();  // never comes back
  TENCACHE_CHECK(false);
}

pthread_t Turns::start(void* (*body)(void*), void* argument) {
  Thread& made = *threads_.emplace_back(std::make_unique<Thread>());
  made.body = body;
  made.argument = argument;
  made.line = new_line();
  made.clock = current_->clock;
  made.priority = random_.below(1 << 16);
  made.stack = take_stack();
  ::getcontext(&made.context);
  made.context.uc_stack.ss_sp = static_cast<std::byte*>(made.stack) + 4096;
  made.context.uc_stack.ss_size = stack_bytes - 4096;
  made.context.uc_link = nullptr;
  ::makecontext(&made.context, &Turns::enter, 0);
  return static_cast<pthread_t>(threads_.size());
}

void Turns::join(pthread_t thread) {
  const Thread& other = *threads_.at(static_cast<std::size_t>(thread) - 1);
  charge();
  current_->joins = &other;
  if (!other.done) give_turn();
  current_->joins = nullptr;
  current_->clock.learn(other.clock);
  returned();
}

void Turns::lock(pthread_mutex_t* mutex) {
  if (one_in(4)) give_turn();
  Owned& owned = mutexes_[mutex];
  const bool waits = owned.owner != nullptr;
  while (owned.owner != nullptr) {
    TENCACHE_CHECK(owned.owner != current_);
    charge();
    if (owned.owner == nullptr) break;
    current_->locks = mutex;
    give_turn();
    current_->locks = nullptr;
  }
  owned.owner = current_;
  current_->clock.learn(owned.clock);
  if (waits) returned();
}

bool Turns::try_lock(pthread_mutex_t* mutex) {
  if (mutexes_[mutex].owner != nullptr) return false;
  lock(mutex);
  return true;
}

void Turns::unlock(pthread_mutex_t* mutex) {
  const auto found = mutexes_.find(mutex);
  if (found == mutexes_.end()) return;  // locked before the turns began
  TENCACHE_CHECK(found->second.owner == current_);
  found->second.owner = nullptr;
  found->second.clock = current_->clock;
}

bool Turns::wait(pthread_cond_t* condition, pthread_mutex_t* mutex, Nanoseconds until_ns) {
  charge();
  unlock(mutex);
  current_->waits = condition;
  current_->until_ns = until_ns;
  give_turn();
  const bool notified = current_->waits == nullptr;
  current_->waits = nullptr;
  current_->sleeps = false;
  current_->until_ns = forever;
  lock(mutex);
  returned();
  return notified;
}

void Turns::notify(pthread_cond_t* condition, bool all) {
  for (const std::unique_ptr<Thread>& thread : threads_) {
    if (thread->waits != condition) continue;
    thread->waits = nullptr;
    thread->until_ns = forever;
    if (time_) {
      thread->sleeps = true;
      thread->until_ns = now_ns_ + time_->wake_ns;
    }
    if (!all) return;
  }
}

Nanoseconds Turns::look() { return now_ns_ += time_ ? per_timed_look_ns : per_look_ns; }

void Turns::sleep(Nanoseconds until_ns) {
  charge();
  sleep_until(until_ns);
  returned();
}

void Turns::sleep_until(Nanoseconds moment_ns) {
  current_->sleeps = true;
  current_->until_ns = moment_ns;
  give_turn();
  current_->sleeps = false;
  current_->until_ns = forever;
}

}  // namespace tencache::rules

// ---- In place of the C library's ------------------------------------------------------------------------------------

namespace {

using tencache::Nanoseconds;
using tencache::rules::Turns;

// Conditions have an older version, which a plain look-up may find.
template <typename Function>
Function next(const char* name, const char* version = nullptr) {
  void* found = version == nullptr ? dlsym(RTLD_NEXT, name) : dlvsym(RTLD_NEXT, name, version);
  if (found == nullptr) std::abort();
  return reinterpret_cast<Function>(found);
}

Nanoseconds ns_of(const timespec& time) { return static_cast<Nanoseconds>(time.tv_sec) * 1'000'000'000 + time.tv_nsec; }

#define NEXT(function) static const auto original = next<decltype(&function)>(#function)
#define NEXT_CONDITION(function) static const auto original = next<decltype(&function)>(#function, "GLIBC_2.3.2")

}  // namespace

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) noexcept {
  if (Turns* turns = Turns::active()) return *thread = turns->start(body, argument), 0;
  NEXT(pthread_create);
  return original(thread, attributes, body, argument);
}

int pthread_join(pthread_t thread, void** result) {
  if (Turns* turns = Turns::active()) return turns->join(thread), 0;
  NEXT(pthread_join);
  return original(thread, result);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (Turns* turns = Turns::active()) return turns->lock(mutex), 0;
  NEXT(pthread_mutex_lock);
  return original(mutex);
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  if (Turns* turns = Turns::active()) return turns->try_lock(mutex) ? 0 : EBUSY;
  NEXT(pthread_mutex_trylock);
  return original(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  if (Turns* turns = Turns::active()) return turns->unlock(mutex), 0;
  NEXT(pthread_mutex_unlock);
  return original(mutex);
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  if (Turns* turns = Turns::active()) return turns->wait(condition, mutex, -1), 0;
  NEXT_CONDITION(pthread_cond_wait);
  return original(condition, mutex);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  if (Turns* turns = Turns::active()) return turns->wait(condition, mutex, ns_of(*until)) ? 0 : ETIMEDOUT;
  NEXT_CONDITION(pthread_cond_timedwait);
  return original(condition, mutex, until);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  if (Turns* turns = Turns::active()) return turns->wait(condition, mutex, ns_of(*until)) ? 0 : ETIMEDOUT;
  NEXT(pthread_cond_clockwait);
  return original(condition, mutex, clock, until);
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  if (Turns* turns = Turns::active()) return turns->notify(condition, false), 0;
  NEXT_CONDITION(pthread_cond_signal);
  return original(condition);
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  if (Turns* turns = Turns::active()) return turns->notify(condition, true), 0;
  NEXT_CONDITION(pthread_cond_broadcast);
  return original(condition);
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (Turns* turns = Turns::active(); turns != nullptr && (clock == CLOCK_MONOTONIC || clock == CLOCK_REALTIME)) {
    const Nanoseconds now_ns = turns->look();
    *time = {static_cast<time_t>(now_ns / 1'000'000'000), static_cast<long>(now_ns % 1'000'000'000)};
    return 0;
  }
  NEXT(clock_gettime);
  return original(clock, time);
}

int clock_nanosleep(clockid_t clock, int flags, const timespec* until, timespec* rest) {
  if (Turns* turns = Turns::active()) {
    turns->sleep(ns_of(*until) + ((flags & TIMER_ABSTIME) != 0 ? 0 : turns->look()));
    return 0;
  }
  NEXT(clock_nanosleep);
  return original(clock, flags, until, rest);
}

}  // extern "C"
