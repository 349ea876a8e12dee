// The clock of the real machine: steady nanoseconds, and waiting for a moment of it.
#pragma once

#include <algorithm>
#include <atomic>

#include "core/units.h"

namespace tencache {

// CLOCK_MONOTONIC, the same as std::chrono::steady_clock.
Nanoseconds clock_ns();
// Of wall time, for measuring: at least a nanosecond.
double seconds_of(const auto& work) {
  const Nanoseconds start_ns = clock_ns();
  work();
  return to_seconds(std::max<Nanoseconds>(clock_ns() - start_ns, 1));
}

// Returns at or just behind `moment_ns`; early, with false, soon after `*cancelled` turned true (nullptr: never).
// Sleeps, but for the last microseconds, which a sleep cannot hit. Call `sharpen_sleep` once on the thread before.
bool wait_until(Nanoseconds moment_ns, const std::atomic<bool>* cancelled = nullptr);

// Sleeps of this thread end on time instead of up to 50 us late (timer slack of 1 ns).
void sharpen_sleep();

}  // namespace tencache
