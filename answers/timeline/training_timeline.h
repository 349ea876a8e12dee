// Timelines of training runs, for files and for who watches: what the engine says of the memory, in the names of the
// recorded step.
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

// Ops and tensors that are not in the recorded step (the program left it, or ended before it was known) say so.
void write_measured_timeline(const std::string& file, const std::string& name, Timeline timeline,
                             const MachineSpec& machine, Trace trace);

// A run that `tencache gui SOCKET` watches, step by step. Everything given outlives it. What was sent is forgotten.
class WatchedTraining {
 public:
  // `predicted_file`: a timeline of one run (write_chrome_trace) to be shown above; empty: none. Throws Error if nobody
  // can listen at the socket, or if this build has no executor.
  WatchedTraining(const std::string& socket, std::string name, const MachineSpec& machine,
                  const std::string& predicted_file);
  ~WatchedTraining();
  WatchedTraining(const WatchedTraining&) = delete;
  WatchedTraining& operator=(const WatchedTraining&) = delete;

  // Takes what was added to the timeline since the last call; while nothing is added, from any thread. `forget`: the
  // timeline is emptied, as nobody else wants it.
  void collect(Timeline& growing, bool forget);
  // Between two steps, with the recorded step: sends what was collected, from the first named step on.
  void publish(const Trace& program);
  // The run is over, as it was meant to.
  void end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tencache
