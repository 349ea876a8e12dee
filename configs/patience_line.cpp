#include "configs/patience_line.h"

#include <chrono>
#include <utility>

namespace tencache {

PatienceLine::PatienceLine(std::string name) : name_(std::move(name)) {
  doing("");
  if (line_.is_seen()) watcher_ = std::thread([this] { watch(); });
}

PatienceLine::~PatienceLine() {
  if (!watcher_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    is_over_ = true;
  }
  ended_.notify_one();
  watcher_.join();
}

void PatienceLine::watch() {
  constexpr int first_s = 2;
  const auto begin = std::chrono::steady_clock::now();
  MutexLock lock(mutex_);
  for (int seconds = first_s; !is_over_; ++seconds) {
    while (!is_over_ && ended_.wait_until(lock, begin + std::chrono::seconds(seconds))) {
    }
    if (is_over_ || line_.is_covered()) continue;
    const std::string what = what_is_done();
    line_.show(name_ + (what.empty() ? "" : ": " + what) + ", " + std::to_string(seconds) + " s");
  }
}

}  // namespace tencache
