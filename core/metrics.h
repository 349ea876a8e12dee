// The figures of a run. Counters only grow; a figure is the difference between two iteration boundaries, so that the
// first iteration and the steady state are never mixed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/allocator.h"
#include "core/machine_spec.h"
#include "core/timeline.h"
#include "core/trace.h"
#include "core/units.h"

namespace tencache {

__extension__ using uint128 = unsigned __int128;

struct LinkCounters {
  Bytes bytes = 0;
  Nanoseconds busy_ns = 0;
};
LinkCounters operator-(const LinkCounters& end, const LinkCounters& begin);

struct TierCounters {
  uint128 occupancy_byte_ns = 0;  // integral of its use over time
  // With addresses, integrals over time: free bytes, those of them outside the largest hole (or beyond the largest free
  // buffer), and what buffers hold beyond what was asked for.
  uint128 free_byte_ns = 0, scattered_byte_ns = 0, padding_byte_ns = 0;
  std::uint64_t placeless = 0;  // times that enough was free in sum, but in no one place
  // In a movable tier: holes that were made, what was moved for them, and how long that took.
  std::uint64_t holes = 0;
  Bytes moved_bytes = 0;
  Nanoseconds moving_ns = 0;
};
TierCounters operator-(const TierCounters& end, const TierCounters& begin);

// Of GPU ops to content of governed tensors, and those that found it in GPU memory.
struct AccessCounters {
  std::uint64_t accesses = 0, hits = 0;
  Bytes access_bytes = 0, hit_bytes = 0;
};
AccessCounters operator+(const AccessCounters& a, const AccessCounters& b);
AccessCounters operator-(const AccessCounters& end, const AccessCounters& begin);

struct Counters {
  Nanoseconds time_ns = 0;                    // of the boundary
  Nanoseconds compute_ns = 0, gap_ns = 0;     // of the GPU lane
  EnumMap<StallCause, Nanoseconds> stall_ns;  // of the GPU lane; compute + gaps + stalls = time, exactly
  Nanoseconds cpu_compute_ns = 0;             // of the CPU lane
  Nanoseconds communication_ns = 0;           // of the communication lane
  Nanoseconds cpu_wait_compute_ns = 0;        // of stalls for cpu_optimizer: while the CPU lane computes
  // By Phase, of the GPU lane: the sum is the time, exactly. docs/results.md, "Phases".
  std::array<Nanoseconds, phase_count> phase_ns{};
  std::array<AccessCounters, role_count> accesses_by_role{};
  // Of the governed tensors that GPU ops read: those that were on the GPU, or on their way there, as an iteration
  // began.
  std::uint64_t tensors = 0, tensors_held = 0;
  std::array<LinkCounters, max_links> links{};
  std::array<TierCounters, max_tiers> tiers{};
  std::uint64_t completions = 0;
  std::uint64_t refusals = 0, fallback_evictions = 0;
  std::uint64_t evictions = 0;  // chunks sent away or dropped from the GPU tier

  const AccessCounters& accesses_of(Role role) const { return accesses_by_role[static_cast<std::size_t>(role)]; }
  AccessCounters all_accesses() const;
};

Counters operator-(const Counters& end, const Counters& begin);

struct RunResult {
  bool fits = true;
  std::string misfit;  // why not: the op and the bytes missing
  std::string misfit_op;
  Bytes misfit_bytes = 0;

  std::uint64_t iterations = 0;  // run in all
  bool steady = false;           // the state at an iteration's end recurred
  std::uint64_t period = 1;      // iterations in `window`
  Counters window;               // the steady period (without one the second half of the run, of a live program all)
  Nanoseconds first_iteration_ns = 0;
  std::vector<Nanoseconds> iteration_ns;  // each one
  std::array<Bytes, max_tiers> peak_bytes{};
  std::array<AllocatorKind, max_tiers> allocators{};
  std::uint64_t simulated_events = 0;
  std::vector<std::string> policy_notes;  // Policy::notes, at the end

  double iteration_seconds() const { return static_cast<double>(window.time_ns) * 1e-9 / static_cast<double>(period); }
};

// The mean of the window, per iteration.
double per_iteration_seconds(const RunResult& result, Nanoseconds window_ns);

// What the GPU waited for longest, such as "h2d 61 %" of the iteration; empty without stalls.
std::string main_stall(const RunResult& result);

}  // namespace tencache
