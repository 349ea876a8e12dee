#include "executor/clock.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

namespace tencache {
namespace {

constexpr Nanoseconds spin_ns = 30'000;    // what waking up may take
constexpr Nanoseconds slice_ns = 250'000;  // how late a cancellation may be noticed

}  // namespace

Nanoseconds clock_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<Nanoseconds>(time.tv_sec) * second_ns + time.tv_nsec;
}

bool wait_until(Nanoseconds moment_ns, const std::atomic<bool>* cancelled) {
  const auto stop = [&] { return cancelled != nullptr && cancelled->load(std::memory_order_relaxed); };
  for (Nanoseconds now = clock_ns(); now < moment_ns - spin_ns; now = clock_ns()) {
    if (stop()) return false;
    const Nanoseconds until = std::min(moment_ns - spin_ns, now + slice_ns);
    const timespec time{static_cast<time_t>(until / second_ns), static_cast<long>(until % second_ns)};
    ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr);
  }
  while (clock_ns() < moment_ns) {
    if (stop()) return false;
  }
  return true;
}

void sharpen_sleep() { ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); }

}  // namespace tencache
