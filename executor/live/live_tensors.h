// The tensors of a live program's memory: which are alive, and how much room they take in the GPU tier. Their bytes and
// roles are the engine's (Residency). A spare one (spare_tensors.h) is alive to the engine alone. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "core/units.h"

namespace tencache {

class LiveTensors {
 public:
  void born(TensorId tensor, Bytes room) {
    if (tensor >= entries_.size()) entries_.resize(tensor + std::size_t{1});
    entries_[tensor] = {.room = room, .alive = true};
    ++count_;
    add(room);
  }
  void gone(TensorId tensor) {
    if (!entries_[tensor].spare) bytes_ -= entries_[tensor].room;
    forget(tensor);
  }
  // The program has let go of it, or has it again.
  void set_spare(TensorId tensor, bool spare) {
    entries_[tensor].spare = spare;
    if (spare) {
      bytes_ -= entries_[tensor].room;
    } else {
      add(entries_[tensor].room);
    }
  }
  // The engine stopped in the middle of something and is not told that it is gone.
  void forget(TensorId tensor) {
    entries_[tensor].alive = false;
    --count_;
  }
  std::size_t count() const { return count_; }  // that are alive
  bool alive(TensorId tensor) const { return tensor < entries_.size() && entries_[tensor].alive; }
  // When all of it is there.
  Bytes room(TensorId tensor) const { return entries_[tensor].room; }
  // It stays in the GPU tier from now on; false if it did before.
  bool keep(TensorId tensor) { return !std::exchange(entries_[tensor].stays, true); }
  bool stays(TensorId tensor) const { return entries_[tensor].stays; }
  // It no longer does; false if it did not.
  bool let_go(TensorId tensor) { return std::exchange(entries_[tensor].stays, false); }
  // Those that the program has.
  std::vector<TensorId> all() const {
    std::vector<TensorId> list;
    for (TensorId tensor = 0; tensor < entries_.size(); ++tensor) {
      if (entries_[tensor].alive && !entries_[tensor].spare) list.push_back(tensor);
    }
    return list;
  }

  // Room of all that the program has, and the most of it, ever and since the step began.
  Bytes bytes() const { return bytes_; }
  Bytes peak_bytes() const { return peak_bytes_; }
  Bytes step_peak_bytes() const { return step_peak_bytes_; }
  void step_begins() { step_peak_bytes_ = bytes_; }

 private:
  void add(Bytes room) {
    bytes_ += room;
    peak_bytes_ = std::max(peak_bytes_, bytes_);
    step_peak_bytes_ = std::max(step_peak_bytes_, bytes_);
  }

  struct Entry {
    Bytes room = 0;
    bool alive = false;
    bool stays = false;
    bool spare = false;
  };
  std::vector<Entry> entries_;  // by TensorId
  std::size_t count_ = 0;
  Bytes bytes_ = 0, peak_bytes_ = 0, step_peak_bytes_ = 0;
};

}  // namespace tencache
