// Timelines as Chrome trace JSON, for https://ui.perfetto.dev and chrome://tracing.
//
// Each run is a process; its threads are the op lanes, their stalls, and one a link. Occupancy of a tier is a counter.
// Metadata that viewers pass over (`tencache`, `tencache_changes`) says what the dashboard needs besides. A flow arrow
// leads from the end of a transfer to the first op that used what it brought.
#pragma once

#include <cstdint>
#include <memory>
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

// A timeline file that grows while its run goes on: `tencache gui F` follows it (AtomicFile::show). It appears with its
// first content, so a run that never starts leaves an older file alone. A killed run leaves an array of events without
// its end, which viewers accept; therefore the events are the whole document here, not an object's `traceEvents`.
// Throws Error where the file cannot be written.
class GrowingTimeline {
 public:
  explicit GrowingTimeline(const std::string& path);
  ~GrowingTimeline();
  GrowingTimeline(const GrowingTimeline&) = delete;
  GrowingTimeline& operator=(const GrowingTimeline&) = delete;

  // A finished run, such as the prediction; before `follow`.
  void put(const TimelineProcess& finished);
  // The run that goes on. Everything it points to outlives this; its timeline only grows.
  void follow(const TimelineProcess& process);
  // Writes what was added to the timeline since the last call.
  void append();
  // The run is over: the rest, and flow arrows, which need the whole.
  void end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tencache
