// Timelines as Chrome trace JSON, for https://ui.perfetto.dev and chrome://tracing.
//
// Each run is a process; its threads are the op lanes, their stalls, and one a link. Occupancy of a tier is a counter.
// Metadata that viewers pass over (`tencache`, `tencache_changes`, `tencache_piece`, `tencache_held`) says what the
// dashboard needs besides. A flow arrow leads from the end of a transfer to the first op that used what it brought.
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

// The same file a piece at a time, while the timeline grows: who joins the pieces and `end` has a file that was never
// written. Flow arrows and counters, which need the whole, are left out.
class TimelineStream {
 public:
  // `before`: a finished run that comes first, such as the prediction; may be null. Everything outlives the stream.
  TimelineStream(const TimelineProcess& process, const TimelineProcess* before);
  // `before`: what write_chrome_trace wrote for one finished run; may be empty.
  TimelineStream(const TimelineProcess& process, const std::string& before);
  ~TimelineStream();
  TimelineStream(const TimelineStream&) = delete;
  TimelineStream& operator=(const TimelineStream&) = delete;

  // What came since the call before, numbered if there is anything, with what the tiers held before it; the first
  // begins the file.
  std::string next();
  // The owner of the timeline has emptied it, after `next`: what comes is added to what was written.
  void emptied();
  static constexpr const char* end = "\n]}\n";

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tencache
