// What a policy did in a steady iteration, to be done again on another machine without planning: a policy that takes
// long to plan shows its old plan there at once, until the new one is ready.
#pragma once

#include <memory>
#include <vector>

#include "core/policy.h"

namespace tencache::gui {

class RecordedPlan {
 public:
  // The policy itself, its actions written down as it goes.
  explicit RecordedPlan(std::unique_ptr<Policy> planner);
  ~RecordedPlan();
  Policy& recorder();
  // A policy that places ops as they were placed, and does, as the GPU comes to each op, what was done in the last
  // whole iteration while it was there. It refers to this plan. Victims beyond the plan are the coldest.
  std::unique_ptr<Policy> replay() const;

 private:
  class Recorder;
  class Replay;
  std::unique_ptr<Recorder> recorder_;
};

}  // namespace tencache::gui
