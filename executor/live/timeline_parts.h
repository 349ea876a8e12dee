// A live run's timeline on its way out, in parts. The engine writes its timeline while the program runs on other threads.
#pragma once

#include <utility>

#include "core/engine/engine.h"
#include "core/thread_annotations.h"
#include "core/timeline.h"

namespace tencache {

class TimelineParts {
 public:
  // Of the engine that gets these options; it ends before this does.
  void attach(EngineOptions& options) {
    options.timeline = &growing_;
    options.on_iteration = [this](std::uint64_t) { collect(); };  // the engine rests, on whichever thread
  }
  // What has come since the last call. From any thread.
  Timeline take() {
    const MutexLock lock(mutex_);
    return std::exchange(pending_, {});
  }
  // After the run: what is left.
  Timeline rest() {
    collect();
    return take();
  }

 private:
  void collect() {
    const MutexLock lock(mutex_);
    const auto move = [](auto& from, auto& to) {
      to.insert(to.end(), from.begin(), from.end());
      from.clear();
    };
    move(growing_.spans, pending_.spans);
    move(growing_.occupancy, pending_.occupancy);
  }

  Timeline growing_;  // the engine's
  Mutex mutex_;
  Timeline pending_ TENCACHE_GUARDED_BY(mutex_);  // collected, not yet taken
};

}  // namespace tencache
