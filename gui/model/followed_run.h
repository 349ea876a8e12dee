// A run that is going on, followed through the timeline file that it writes (GrowingTimeline).
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/thread_annotations.h"
#include "executor/file_descriptor.h"
#include "gui/model/run.h"
#include "gui/model/timeline_file.h"

namespace tencache::gui {

class FollowedRun {
 public:
  // Null if nobody is writing the file. What is in it, and what is added, is read and indexed on a thread of its own.
  static std::unique_ptr<FollowedRun> follow(const std::string& file);
  FollowedRun(const std::string& path, FileDescriptor descriptor);
  ~FollowedRun();
  FollowedRun(const FollowedRun&) = delete;
  FollowedRun& operator=(const FollowedRun&) = delete;

  // The runs as they are now, predicted before measured; empty if nothing came since the last call. Of a long run the
  // last iterations.
  std::vector<RunPointer> take();
  bool over() const;         // the file is whole, its writer is gone, or it cannot be read
  std::string note() const;  // if the run ended in the middle
  std::string error() const;
  // Until something is there to take, or the run is over: for tests.
  void wait() const;

 private:
  void read_to_end();
  void show_what_came();
  void read_until_over();
  void work();

  std::string name_;
  FileDescriptor file_;
  TimelineParser parser_;  // the thread's own
  mutable Mutex mutex_;
  mutable Condition changed_;
  std::vector<RunPointer> runs_ TENCACHE_GUARDED_BY(mutex_);
  std::string note_ TENCACHE_GUARDED_BY(mutex_), error_ TENCACHE_GUARDED_BY(mutex_);
  bool over_ TENCACHE_GUARDED_BY(mutex_) = false, stopped_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tencache::gui
