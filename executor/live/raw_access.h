// What a live runtime knows of code that touches tensors' memory without an op. Guarded by the runtime's mutex.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/trace.h"

namespace tencache {

class RawAccess {
 public:
  // A tensor was brought in for such code, and pinned once.
  void touched(TensorId tensor) {
    touched_.push_back(tensor);
    any_exposed_ = true;
    ++count_;
  }
  // They are to be unpinned, once each time that they occur.
  std::vector<TensorId> take_touched() { return std::exchange(touched_, {}); }
  // It is about to be destroyed: how often it is to be unpinned.
  std::size_t forget(TensorId tensor) { return std::erase(touched_, tensor); }
  bool any_touched() const { return !touched_.empty(); }
  std::uint64_t count() const { return count_; }

  void exposed() { any_exposed_ = true; }
  bool any_exposed() const { return any_exposed_; }

 private:
  std::vector<TensorId> touched_;
  std::uint64_t count_ = 0;
  bool any_exposed_ = false;
};

}  // namespace tencache
