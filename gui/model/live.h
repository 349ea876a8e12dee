// A run that is going on, watched through the socket that `tencache run replay --live` listens at.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gui/model/run.h"

namespace tencache::gui {

class LiveRun {
 public:
  // Throws Error where nobody listens. What comes is read and indexed on a thread of its own.
  explicit LiveRun(const std::string& socket);
  ~LiveRun();
  LiveRun(const LiveRun&) = delete;
  LiveRun& operator=(const LiveRun&) = delete;

  // The runs as they are now, predicted before measured; empty if nothing came since the last call. Of a long run the
  // last iterations.
  std::vector<RunPointer> take();
  bool over() const;  // the run ended, or what it sent cannot be read
  std::string error() const;
  // Until something is there to take, or the run is over: for tests.
  void wait() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Whether the path names a socket rather than a file.
bool is_socket(const std::string& path);

}  // namespace tencache::gui
