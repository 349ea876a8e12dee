#include "core/metrics.h"

#include <algorithm>
#include <cstdio>

namespace tencache {

LinkCounters operator-(const LinkCounters& end, const LinkCounters& begin) {
  return {end.bytes - begin.bytes, end.busy_ns - begin.busy_ns};
}

AccessCounters operator+(const AccessCounters& a, const AccessCounters& b) {
  return {a.accesses + b.accesses, a.hits + b.hits, a.access_bytes + b.access_bytes, a.hit_bytes + b.hit_bytes};
}

AccessCounters operator-(const AccessCounters& end, const AccessCounters& begin) {
  return {end.accesses - begin.accesses, end.hits - begin.hits, end.access_bytes - begin.access_bytes,
          end.hit_bytes - begin.hit_bytes};
}

AccessCounters Counters::all_accesses() const {
  AccessCounters all;
  for (const AccessCounters& of_role : accesses_by_role) all = all + of_role;
  return all;
}

TierCounters operator-(const TierCounters& end, const TierCounters& begin) {
  return {end.occupancy_byte_ns - begin.occupancy_byte_ns,
          end.free_byte_ns - begin.free_byte_ns,
          end.scattered_byte_ns - begin.scattered_byte_ns,
          end.padding_byte_ns - begin.padding_byte_ns,
          end.placeless - begin.placeless,
          end.holes - begin.holes,
          end.moved_bytes - begin.moved_bytes,
          end.moving_ns - begin.moving_ns};
}

Counters operator-(const Counters& end, const Counters& begin) {
  Counters d = end;
  d.time_ns -= begin.time_ns;
  d.compute_ns -= begin.compute_ns;
  d.gap_ns -= begin.gap_ns;
  d.cpu_compute_ns -= begin.cpu_compute_ns;
  d.communication_ns -= begin.communication_ns;
  d.cpu_wait_compute_ns -= begin.cpu_wait_compute_ns;
  for (std::size_t i = 0; i < phase_count; ++i) d.phase_ns[i] -= begin.phase_ns[i];
  for (const StallCause cause : all_causes) d.stall_ns[cause] -= begin.stall_ns[cause];
  for (int i = 0; i < role_count; ++i) d.accesses_by_role[i] = end.accesses_by_role[i] - begin.accesses_by_role[i];
  d.tensors -= begin.tensors;
  d.tensors_held -= begin.tensors_held;
  for (std::size_t i = 0; i < max_links; ++i) d.links[i] = end.links[i] - begin.links[i];
  for (std::size_t i = 0; i < max_tiers; ++i) d.tiers[i] = end.tiers[i] - begin.tiers[i];
  d.completions -= begin.completions;
  d.refusals -= begin.refusals;
  d.fallback_evictions -= begin.fallback_evictions;
  d.evictions -= begin.evictions;
  return d;
}

double per_iteration_seconds(const RunResult& result, Nanoseconds window_ns) {
  return to_seconds(window_ns) / static_cast<double>(result.period);
}

std::string main_stall(const RunResult& result) {
  const StallCause cause = largest_of(result.window.stall_ns);
  const Nanoseconds worst = result.window.stall_ns[cause];
  if (worst == 0 || result.window.time_ns == 0) return "";
  char percent[16];
  std::snprintf(percent, sizeof percent, " %.0f %%",
                100.0 * static_cast<double>(worst) / static_cast<double>(result.window.time_ns));
  return std::string(to_string(cause)) + percent;
}

}  // namespace tencache
