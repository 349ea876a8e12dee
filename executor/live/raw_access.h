// What a live runtime knows of code that touches tensors' memory without an op. Guarded by the runtime's mutex.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/trace.h"

namespace tencache {

class RawAccess {
 public:
  // A tensor was brought in for such code, and pinned once.
  void touched(TensorId tensor) {
    touched_.push_back(tensor);
    exposed(tensor);
    ++count_;
  }
  // They are to be unpinned, once each time that they occur.
  std::vector<TensorId> take_touched() { return std::exchange(touched_, {}); }
  // It is about to be destroyed: how often it is to be unpinned.
  std::size_t forget(TensorId tensor) {
    exposed_.erase(tensor);
    return std::erase(touched_, tensor);
  }
  bool any_touched() const { return !touched_.empty(); }
  std::uint64_t count() const { return count_; }

  // Its address is known outside.
  void exposed(TensorId tensor) { exposed_.insert(tensor); }
  bool is_exposed(TensorId tensor) const { return exposed_.contains(tensor); }
  bool any_exposed() const { return !exposed_.empty(); }

 private:
  std::vector<TensorId> touched_;
  std::uint64_t count_ = 0;
  std::unordered_set<TensorId> exposed_;
};

}  // namespace tencache
