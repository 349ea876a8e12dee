#include "studies/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "core/thread_annotations.h"
#include "sim/interruption.h"

namespace tencache {
namespace {

// What the first of several bodies threw.
class FirstFailure {
 public:
  void failed(std::size_t index) {
    const MutexLock lock(mutex_);
    if (failure_ != nullptr && index >= index_) return;
    index_ = index;
    failure_ = std::current_exception();
  }
  void rethrow() {
    const MutexLock lock(mutex_);
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 private:
  Mutex mutex_;
  std::size_t index_ TENCACHE_GUARDED_BY(mutex_) = 0;
  std::exception_ptr failure_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace

void on_all_cores(std::size_t count, const std::function<void(std::size_t)>& body, std::size_t threads) {
  std::atomic<std::size_t> next = 0;
  FirstFailure failure;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        interruption_point();
        body(i);
      } catch (...) {
        next = count;
        failure.failed(i);
      }
    }
  };
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < std::min(threads, count); ++i) others.emplace_back(work);
  work();
  others.clear();  // joins
  failure.rethrow();
}

}  // namespace tencache
