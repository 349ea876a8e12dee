// The tool's own run time, for progress and for `timing` in results: nothing simulated depends on it.
#pragma once

#include <chrono>
#include <cstdint>

namespace tencache {

inline std::int64_t tool_clock_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

inline double seconds_since(std::int64_t start_ns) { return static_cast<double>(tool_clock_ns() - start_ns) * 1e-9; }

}  // namespace tencache
