// The step that was recorded, and where in it a live program is that runs another one. Not thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/trace.h"
#include "executor/live/step_draft.h"

namespace tencache {

class FollowedStep {
 public:
  void set(RecordedStep step);
  bool known() const { return !program_.trace.ops.empty(); }
  const Trace& recorded() const { return recorded_; }
  // The recording, or how it is to be run from now on, as `arrange` says: `ops` of the recording, each as it is to run,
  // in the order of `order` (indices of `ops`).
  const Program& program() const { return program_; }
  void arrange(const std::vector<Op>& ops, const std::vector<OpIndex>& order);

  // ---- Where the program is.
  void begin_step();
  bool on_schedule() const { return next_ != none; }
  OpIndex next() const { return next_; }  // op; `none` off the schedule
  void leave() { next_ = none; }
  // Whether the next op is this one, by its name and what it uses; else why not. `is`: whether a tensor is the recorded
  // one, or may stand for it.
  bool matches(std::string_view name, const Op& op, std::span<const Use> uses,
               const std::function<bool(TensorId, TensorId recorded)>& is, std::string& why) const;
  OpIndex begin_op();
  void end_op() { running_ = none; }
  // The tensor that the running op allocates next; or `none`.
  TensorId next_birth();
  // Where modules begin or end the schedule is found again.
  void module_boundary(NameId module, bool begins);

 private:
  Trace recorded_;
  Program program_;
  std::vector<std::vector<Use>> uses_;            // by op, without births
  std::vector<std::vector<TensorId>> births_of_;  // by op
  std::vector<ModuleBoundary> boundaries_;
  OpIndex next_ = none;
  OpIndex running_ = none;
  std::size_t next_birth_ = 0, next_boundary_ = 0;
};

}  // namespace tencache
