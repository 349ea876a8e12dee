// Tensors that the program let go of and the engine has not heard of. Any thread may call; none waits for long.
#pragma once

#include <atomic>
#include <vector>

#include "core/thread_annotations.h"
#include "core/trace.h"

namespace tencache {

class ReleasedTensors {
 public:
  void add(TensorId tensor) {
    const MutexLock lock(mutex_);
    tensors_.push_back(tensor);
    any_ = true;
  }
  bool any() const { return any_; }
  // All of them, in place of what is in `into`, whose memory is used again.
  void take(std::vector<TensorId>& into) {
    into.clear();
    const MutexLock lock(mutex_);
    any_ = false;
    tensors_.swap(into);
  }

 private:
  Mutex mutex_;
  std::vector<TensorId> tensors_ TENCACHE_GUARDED_BY(mutex_);
  std::atomic<bool> any_ = false;
};

}  // namespace tencache
