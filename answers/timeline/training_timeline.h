// The timeline of a training run, in the names of the recorded step: what the engine says of the memory, from the first
// step whose ops the schedule names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "answers/timeline/chrome_trace.h"

namespace tencache {

// Steps before it are of a program whose ops the schedule does not name yet.
inline constexpr std::uint64_t first_named_step = 2;

// The file grows step by step (GrowingTimeline). Ops and tensors that are not in the recorded step (the program left
// it, or ended before it was known) say so.
class TrainingTimeline {
 public:
  // The machine outlives this. Throws Error, as all others, where the file cannot be written.
  TrainingTimeline(const std::string& file, std::string name, const MachineSpec& machine);
  TrainingTimeline(const TrainingTimeline&) = delete;
  TrainingTimeline& operator=(const TrainingTimeline&) = delete;

  // A finished run that stands above, such as the prediction; first.
  void put(const TimelineProcess& finished) { file_.put(finished); }
  // What came since the last call. `program`: the recorded step, once, as soon as it is known; else empty.
  void add(Timeline part, Trace program);
  // The run is over. If it ended before the first named step, all its steps are written, in the names of `program`.
  void end(const Trace& program);

 private:
  // The recorded step with an op and a tensor for what is not in it.
  struct NamedStep {
    explicit NamedStep(Trace recorded);
    void name(Timeline& timeline) const;

    Trace trace;
    OpIndex unrecorded_op = none;
    TensorId unrecorded_tensor = none;
  };
  void begin(Timeline part);
  void write(Timeline part);

  GrowingTimeline file_;
  std::string name_;
  const MachineSpec& machine_;
  Trace program_;     // from when it is known to the first named step
  Timeline pending_;  // up to there
  std::optional<NamedStep> step_;
  Timeline written_;
};

}  // namespace tencache
