// What a live program's ops have started on an accelerator and may not be over. Any thread may call.
#pragma once

#include <atomic>
#include <functional>
#include <utility>

namespace tencache {

class DeviceFence {
 public:
  // `wait`: waits for all that the program has started there, throws Error if the device failed. Empty: no accelerator.
  explicit DeviceFence(std::function<void()> wait) : wait_(std::move(wait)) {}

  // An op begins.
  void started() { busy_ = wait_ != nullptr; }
  // `await` was called since.
  void over() { busy_ = false; }
  // Waits for ops. An op in whose middle it is called goes on starting work.
  void await() const {
    if (busy_) wait_();
  }
  // Waits for code that is no op as well.
  void await_everything() const {
    if (wait_ != nullptr) wait_();
  }

 private:
  const std::function<void()> wait_;
  std::atomic<bool> busy_ = false;
};

}  // namespace tencache
