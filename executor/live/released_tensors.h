// Tensors that the program let go of and the engine has not heard of. Any thread may call, but `take`: one at a time.
// None waits for long.
#pragma once

#include <atomic>
#include <vector>

#include "core/thread_annotations.h"
#include "core/trace.h"

namespace tencache {

class ReleasedTensors {
 public:
  void add(TensorId tensor) {
    TensorId nobody = none;
    if (!any_more_ && first_.compare_exchange_strong(nobody, tensor)) return;
    const MutexLock lock(mutex_);
    tensors_.push_back(tensor);
    any_more_ = true;
  }
  bool any() const { return first_ != none || any_more_; }
  // All of them, in the order in which they came (but for those that come meanwhile), in place of what is in `into`.
  void take(std::vector<TensorId>& into) {
    into.clear();
    const bool more = any_more_;
    if (const TensorId first = first_.exchange(none); first != none) into.push_back(first);
    if (!more) return;
    const MutexLock lock(mutex_);
    any_more_ = false;
    into.insert(into.end(), tensors_.begin(), tensors_.end());
    tensors_.clear();
  }

 private:
  // Mostly one comes before somebody asks: no mutex for it.
  std::atomic<TensorId> first_ = none;
  Mutex mutex_;
  std::vector<TensorId> tensors_ TENCACHE_GUARDED_BY(mutex_);
  std::atomic<bool> any_more_ = false;
};

}  // namespace tencache
