// Tasks that go on beside the program, on the CPU's lane: which tensors they use, and which of these the program has
// freed meanwhile. Not thread-safe.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "executor/live/live_task.h"

namespace tencache {

class CpuTasks {
 public:
  // It was given to the lane, behind those before.
  void add(std::shared_ptr<const LiveTask> task) {
    count(*task, 1);
    tasks_.push_back(std::move(task));
  }
  // The lane has so many left: the first ones are done.
  void settle(std::size_t left) {
    for (; tasks_.size() > left; tasks_.pop_front()) count(*tasks_.front(), -1);
  }
  bool use(TensorId tensor) const { return tensor < users_.size() && users_[tensor].uses > 0; }
  // Whether an op with these uses has to wait: both may read.
  bool conflict(std::span<const Use> uses) const {
    return !tasks_.empty() && std::ranges::any_of(uses, [this](const Use& other) {
      return use(other.tensor) && (other.write || users_[other.tensor].writes > 0);
    });
  }

  // Whether one of them uses a tensor of which that is so.
  template <typename Is>
  bool use_any(const Is& is) const {
    return std::ranges::any_of(tasks_, [&is](const std::shared_ptr<const LiveTask>& task) {
      return std::ranges::any_of(task->uses, [&is](const Use& use) { return is(use.tensor); });
    });
  }

  // A tensor that a task uses was freed: it is kept until no task does.
  void keep(TensorId tensor) { kept_.push_back(tensor); }
  bool any_to_free() const {
    return std::ranges::any_of(kept_, [this](TensorId tensor) { return !use(tensor); });
  }
  std::vector<TensorId> take_kept() { return std::exchange(kept_, {}); }

 private:
  struct Users {
    int uses = 0, writes = 0;
  };
  void count(const LiveTask& task, int by) {
    for (const Use& use : task.uses) {
      if (use.tensor >= users_.size()) users_.resize(use.tensor + std::size_t{1});
      users_[use.tensor].uses += by;
      if (use.write) users_[use.tensor].writes += by;
    }
  }

  std::deque<std::shared_ptr<const LiveTask>> tasks_;  // given and not done, in order
  std::vector<Users> users_;                           // by tensor
  std::vector<TensorId> kept_;
};

}  // namespace tencache
