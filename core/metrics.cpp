#include "core/metrics.h"

namespace tencache {

Counters operator-(const Counters& end, const Counters& begin) {
  Counters d = end;
  d.time_ns -= begin.time_ns;
  d.compute_ns -= begin.compute_ns;
  d.gap_ns -= begin.gap_ns;
  d.cpu_compute_ns -= begin.cpu_compute_ns;
  d.cpu_wait_compute_ns -= begin.cpu_wait_compute_ns;
  for (std::size_t i = 0; i < phase_count; ++i) d.phase_ns[i] -= begin.phase_ns[i];
  for (std::size_t i = 0; i < stall_cause_count; ++i) d.stall_ns[i] -= begin.stall_ns[i];
  d.accesses -= begin.accesses;
  d.hits -= begin.hits;
  d.access_bytes -= begin.access_bytes;
  d.hit_bytes -= begin.hit_bytes;
  d.tensors -= begin.tensors;
  d.tensors_held -= begin.tensors_held;
  for (std::size_t i = 0; i < max_links; ++i) {
    d.link_bytes[i] -= begin.link_bytes[i];
    d.link_busy_ns[i] -= begin.link_busy_ns[i];
  }
  for (std::size_t i = 0; i < max_tiers; ++i) {
    d.occupancy_byte_ns[i] -= begin.occupancy_byte_ns[i];
    d.free_byte_ns[i] -= begin.free_byte_ns[i];
    d.scattered_byte_ns[i] -= begin.scattered_byte_ns[i];
    d.padding_byte_ns[i] -= begin.padding_byte_ns[i];
    d.placeless[i] -= begin.placeless[i];
  }
  d.completions -= begin.completions;
  d.refusals -= begin.refusals;
  d.fallback_evictions -= begin.fallback_evictions;
  d.evictions -= begin.evictions;
  return d;
}

}  // namespace tencache
