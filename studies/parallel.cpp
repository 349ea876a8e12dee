#include "studies/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "sim/interruption.h"

namespace tencache {

void on_all_cores(std::size_t count, const std::function<void(std::size_t)>& body, std::size_t threads) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::size_t first_failed = count;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        interruption_point();
        body(i);
      } catch (...) {
        next = count;
        const std::lock_guard lock(mutex);
        if (i < first_failed) {
          first_failed = i;
          failure = std::current_exception();
        }
      }
    }
  };
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < std::min(threads, count); ++i) others.emplace_back(work);
  work();
  others.clear();  // joins
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tencache
