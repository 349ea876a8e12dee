// What a live runtime knows of code that touches tensors' memory without an op. Guarded by the runtime's mutex.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
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

  // Threads of others read and write the tensors for a while, beside ops. `comes_back`: that ends whatever the program
  // does.
  struct Lent {
    TensorId tensor = none;
    bool written = false, comes_back = false;
    bool operator==(const Lent&) const = default;
  };
  void lent(std::span<const Use> uses, bool comes_back) {
    for (const Use& use : uses) lent_.push_back({use.tensor, use.write, comes_back});
  }
  void taken_back(std::span<const Use> uses, bool comes_back) {
    for (const Use& use : uses) lent_.erase(std::ranges::find(lent_, Lent{use.tensor, use.write, comes_back}));
  }
  const std::vector<Lent>& lent() const { return lent_; }
  bool any_comes_back() const { return std::ranges::any_of(lent_, &Lent::comes_back); }
  bool is_written_by_others(TensorId tensor) const {
    return std::ranges::any_of(lent_, [tensor](const Lent& one) { return one.tensor == tensor && one.written; });
  }

  // Its address is known outside.
  void exposed(TensorId tensor) { exposed_.insert(tensor); }
  bool is_exposed(TensorId tensor) const { return exposed_.contains(tensor); }
  bool any_exposed() const { return !exposed_.empty(); }

 private:
  std::vector<TensorId> touched_;
  std::vector<Lent> lent_;
  std::uint64_t count_ = 0;
  std::unordered_set<TensorId> exposed_;
};

}  // namespace tencache
