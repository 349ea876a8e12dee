// The tensors of a live program's memory: which are alive, and how much room they take in the GPU tier. Their bytes and
// roles are the engine's (Residency). Not thread-safe.
#pragma once

#include <algorithm>
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
    bytes_ += room;
    peak_bytes_ = std::max(peak_bytes_, bytes_);
  }
  void gone(TensorId tensor) {
    entries_[tensor].alive = false;
    bytes_ -= entries_[tensor].room;
  }
  // The engine stopped in the middle of something and is not told that it is gone.
  void forget(TensorId tensor) { entries_[tensor].alive = false; }
  bool alive(TensorId tensor) const { return tensor < entries_.size() && entries_[tensor].alive; }
  // When all of it is there.
  Bytes room(TensorId tensor) const { return entries_[tensor].room; }
  // It stays in the GPU tier from now on; false if it did before.
  bool keep(TensorId tensor) { return !std::exchange(entries_[tensor].stays, true); }
  bool stays(TensorId tensor) const { return entries_[tensor].stays; }
  // Those that nobody has let go of.
  std::vector<TensorId> lost() const {
    std::vector<TensorId> list;
    for (TensorId tensor = 0; tensor < entries_.size(); ++tensor) {
      if (entries_[tensor].alive) list.push_back(tensor);
    }
    return list;
  }

  // Room of all that are alive, and the most of it.
  Bytes bytes() const { return bytes_; }
  Bytes peak_bytes() const { return peak_bytes_; }

 private:
  struct Entry {
    Bytes room = 0;
    bool alive = false;
    bool stays = false;
  };
  std::vector<Entry> entries_;  // by TensorId
  Bytes bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace tencache
