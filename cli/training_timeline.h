// The timeline of a training run, in the names of the recorded step: what the engine says of the memory, from the first
// step whose ops the schedule names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/machine_spec.h"
#include "core/timeline.h"
#include "core/trace.h"

namespace tencache {

// Steps before it are of a program whose ops the schedule does not name yet.
inline constexpr std::uint64_t first_named_step = 2;

// The file grows step by step (GrowingTimeline). Ops and tensors that are not in the recorded step (the program left
// it, or ended before it was known) say so.
class TrainingTimeline {
 public:
  // `predicted_file`: a timeline of one run (write_chrome_trace) to be shown above; empty: none. The machine outlives
  // this.
  TrainingTimeline(const std::string& file, std::string name, const MachineSpec& machine,
                   const std::string& predicted_file);
  ~TrainingTimeline();
  TrainingTimeline(const TrainingTimeline&) = delete;
  TrainingTimeline& operator=(const TrainingTimeline&) = delete;

  // Takes all that is in the timeline, and empties it; from any thread, while nothing is added to it.
  void collect(Timeline& growing);
  // Between two steps, with the recorded step: writes what was collected, from the first named step on.
  void write(const Trace& program);
  // The run is over, and all was collected. If it ended before the first named step, all its steps are written.
  void end(const Trace& program);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tencache
