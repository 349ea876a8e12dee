// A line on stderr for who waits.
#pragma once

#include <string>
#include <thread>

#include "core/remark.h"
#include "core/thread_annotations.h"

namespace tencache {

// While it lives, what takes more than two seconds shows its name, what it does (doing()) and the seconds, where
// nothing else shows more.
class PatienceLine {
 public:
  explicit PatienceLine(std::string name);
  ~PatienceLine();
  PatienceLine(const PatienceLine&) = delete;
  PatienceLine& operator=(const PatienceLine&) = delete;

 private:
  void watch();

  std::string name_;
  ProgressLine line_;
  Mutex mutex_;
  Condition ended_;
  bool is_over_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::thread watcher_;  // none where nobody would see it
};

}  // namespace tencache
