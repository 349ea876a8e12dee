// The step that was recorded, and where in it a live program is that runs another one. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/reveal.h"
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
  void leave() { next_ = region_ = none; }
  // Whether the next op is this one, by its name and what it uses. `is`: whether a tensor is the recorded one, or may
  // stand for it.
  template <typename Is>
  bool matches(NameId name, std::span<const Use> uses, const Is& is) const {
    if (next_ == program_.trace.ops.size() || program_.trace.ops[next_].name != name) return false;
    if (in_region() && next_ == regions_[region_].end) return false;
    const auto same = [&is](const Use& use, const Use& recorded) {
      return use.read == recorded.read && use.write == recorded.write && is(use.tensor, recorded.tensor);
    };
    return std::ranges::equal(uses, uses_[next_], same);
  }
  // Of one that does not match: why.
  std::string mismatch(std::string_view name, NameId id) const;
  OpIndex begin_op();
  void end_op() { running_ = none; }
  // The tensor that the running op allocates next; or `none`.
  TensorId next_birth();
  // Where modules begin or end the schedule is found again.
  void module_boundary(NameId module, std::string_view name, bool begins);
  // The last op chose experts of the block. Its place if it is the recorded one, else `none`.
  OpIndex gate(NameId block) const;
  // Experts by their names after the block's and a dot, as core/reveal.h numbers them; others are left out.
  std::vector<std::uint32_t> numbers(OpIndex gate, std::span<const std::string> experts) const;
  // In a gated region, where ops may come that were not recorded, and others may not. They are no deviation.
  bool in_region() const { return region_ != none; }

 private:
  bool is_expert(const GatedRegion& region, std::string_view module) const;
  void region_boundary(NameId module, std::string_view name, bool begins);

  Trace recorded_;
  Program program_;
  std::vector<std::vector<Use>> uses_;            // by op, without births
  std::vector<std::vector<TensorId>> births_of_;  // by op
  std::vector<ModuleBoundary> boundaries_;
  std::vector<GatedRegion> regions_;
  std::optional<Experts> experts_;  // if there are regions
  std::uint32_t region_ = none;     // where the program is, on the schedule; else `none`
  std::size_t calls_ = 0;           // of experts in it
  NameId expert_ = 0;               // that runs
  OpIndex last_ = none;             // the op before
  OpIndex next_ = none;
  OpIndex running_ = none;
  std::size_t next_birth_ = 0, next_boundary_ = 0;
};

}  // namespace tencache
