// Of whom the room is that a live program's tensors take, in a timeline that the engine writes.
//
// The engine says the memory's tensors, whose ids are used again; readers know those of the recording. A tensor's room
// is given back as what it was taken for: where more becomes known of a tensor that holds room (its role, or its place
// in the recording once there is one), its room changes hands in two samples of that moment. So what is held of each
// tensor of the recording, and of each role beside it, adds up. Not thread-safe.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "core/timeline.h"

namespace tencache {

class OccupancyLabels {
 public:
  // The timeline outlives this; null: nothing is written.
  explicit OccupancyLabels(Timeline* timeline) : timeline_(timeline) {}

  // Labels what the engine has written since the last call. Before any of the next, and before somebody reads.
  void label();
  // Somebody has read the timeline, and may have emptied it.
  void was_read();
  // An id of the memory is a new tensor's; all before it was labelled.
  void created(TensorId tensor);
  // What it is. Samples of later moments say it by themselves; room that it holds already changes hands now.
  void marked(TensorId tensor, Role role, Nanoseconds now_ns);
  // The tensor of the recording that it is; `none`: not known.
  void named(TensorId tensor, TensorId program, Nanoseconds now_ns);
  // There is a recording: by the memory's ids.
  void named(std::span<const TensorId> programs, Nanoseconds now_ns);

 private:
  struct Label {
    TensorId program = none;
    Role role = Role::activation;
    std::array<std::int64_t, max_tiers> held{};
  };
  Label& of(TensorId tensor);
  void relabel(TensorId tensor, TensorId program, Role role, Nanoseconds now_ns);
  void change(Label& label, TensorId program, Role role, Nanoseconds now_ns);

  Timeline* timeline_;
  std::size_t labelled_ = 0;  // samples
  std::vector<OccupancySample> fresh_;
  std::vector<Label> labels_;  // by the memory's id
  std::array<Bytes, max_tiers> used_{};
};

}  // namespace tencache
