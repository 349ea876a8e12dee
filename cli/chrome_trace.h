// Timelines as Chrome trace JSON, for https://ui.perfetto.dev and chrome://tracing.
//
// Each run is a process; its threads are the op lanes, their stalls, and one a link. Occupancy of a tier is a counter.
// Metadata that viewers pass over (`tencache`, `tencache_changes`) says what the dashboard needs besides.
// A flow arrow leads from the end of a transfer to the first op that used what it brought.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/machine_spec.h"
#include "core/timeline.h"
#include "core/trace.h"

namespace tencache {

// One run; everything must outlive the call of write_chrome_trace.
struct TimelineProcess {
  std::string name;  // "predicted", "measured"
  const Timeline* timeline = nullptr;
  const MachineSpec* machine = nullptr;
  const Trace* trace = nullptr;  // of the lowered program: names of ops and tensors
};

// Times count from the first span of each process. Written atomically; throws Error.
void write_chrome_trace(const std::string& path, const std::vector<TimelineProcess>& processes);

}  // namespace tencache
