// A run that is going on, followed through the timeline file that it writes (GrowingTimeline).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gui/model/run.h"

namespace tencache::gui {

class FollowedRun {
 public:
  // Null if nobody is writing the file. What is in it, and what is added, is read and indexed on a thread of its own.
  static std::unique_ptr<FollowedRun> follow(const std::string& file);
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
  struct State;
  explicit FollowedRun(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tencache::gui
