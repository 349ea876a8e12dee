// One step of a live program while it is recorded, and the trace that becomes of it. Not thread-safe.
//
// What is alive when the step begins is persistent. A tensor that is born in a step and dies in the next one (a
// gradient) is one tensor of the trace: old and new ones are paired by size in order of birth. So is one that grows (a
// cache of keys and values): an op makes the new one from the old one, which dies. It has its first size there.
// A tensor that the program holds for longer than its last use is freed by the op that ran last before its death, or by
// the step's last one.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/trace.h"

namespace tencache {

struct ModuleBoundary {
  NameId module = 0;
  bool begins = false;
  OpIndex op = 0;  // the next one
};

// Where other ops may come than were recorded: from a gate to the end of its block. Which experts run there, one after
// the other, is the gate's choice.
struct GatedRegion {
  struct Call {
    NameId expert = 0;
    OpIndex begin = 0, end = 0;  // its first op, and the one after its last
  };
  OpIndex gate = none;
  OpIndex end = 0;             // the first op after the block
  std::size_t boundaries = 0;  // of the step, up to the block's end
  NameId block = 0;
  std::vector<Call> calls{};
};

// A step as a trace, and how to know it again.
struct RecordedStep {
  Trace trace;
  std::vector<std::vector<Use>> uses;         // by op, without births
  std::vector<std::vector<TensorId>> births;  // by op, in order
  std::vector<ModuleBoundary> boundaries;
  std::vector<GatedRegion> regions;  // in the order of their gates
};

// Tensors are drafts here: numbers that `add` gives. What is told while nothing is recorded is not kept, but for phase
// and modules.
class StepDraft {
 public:
  void set_phase(Phase phase) { phase_ = phase; }
  void module_begin(NameId module);
  NameId module_end();  // of the innermost; which one it was

  void start();
  bool recording() const { return recording_; }
  bool has_ops() const { return !ops_.empty(); }
  // `old`: alive when the step began. The first ones, in order of birth. `none` while nothing is recorded.
  std::uint32_t add(Bytes bytes, Role role, NameId name, bool old);
  // `in_op`: while the last op runs.
  void died(std::uint32_t tensor, bool in_op);
  void marked(std::uint32_t tensor, Role role, NameId name);
  // Phase, module and what it accesses are filled in.
  void begin_op(Op op, std::vector<Use> uses);
  // The tensor is an output of the last op.
  void born(std::uint32_t tensor);
  // The last op has chosen experts of this module, whose weights are named after it (core/reveal.h). In the trace it is
  // an op of that module, and the gate of those that run in one of its experts.
  void chose(NameId block);
  std::uint32_t last_op() const { return recording_ ? static_cast<std::uint32_t>(ops_.size() - 1) : none; }
  void set_duration(std::uint32_t op, Nanoseconds duration_ns);
  void set_gap(std::uint32_t op, Nanoseconds gap_ns);
  void set_issue(std::uint32_t op, Nanoseconds issue_ns);
  void stop() { recording_ = false; }
  // Of what was recorded until `stop`. `ids`: by draft, its tensor in the trace or `none`.
  RecordedStep finish(const NamePool& names, std::vector<TensorId>& ids) const;

 private:
  struct DraftTensor {
    Bytes bytes = 0;
    Role role = Role::activation;
    NameId name = 0;
    bool old = false;   // alive when the step began
    bool gone = false;  // died in the step
    std::uint32_t born_at = none;
    std::uint32_t gone_after = none;  // the op before its death; none: it died before the first one, or not at all
  };
  struct DraftOp {
    Op op;
    std::vector<Use> uses;
    std::vector<std::uint32_t> births;
  };

  std::vector<std::uint32_t> pair_old_and_new() const;
  void pair_grown(std::vector<std::uint32_t>& stands_for) const;
  std::vector<TensorId> add_tensors(Trace& trace) const;
  // By op, of the trace's tensors.
  std::vector<std::vector<TensorId>> frees(const Trace& trace, const std::vector<TensorId>& ids) const;
  std::set<std::string> experts_of(std::string_view block, const NamePool& names) const;
  std::vector<GatedRegion> find_regions(const NamePool& names) const;
  // Says in the step which ops a gate decides, and takes experts that none chooses for parameters.
  static void reveal(RecordedStep& step);
  std::string name_of(std::uint32_t tensor, std::uint32_t ordinal, const NamePool& names) const;

  bool recording_ = false;
  Phase phase_ = Phase::forward;
  std::vector<NameId> modules_;  // open ones
  std::vector<DraftTensor> tensors_;
  std::vector<DraftOp> ops_;
  std::vector<ModuleBoundary> boundaries_;
  std::vector<std::pair<OpIndex, NameId>> gates_;  // and their blocks
};

}  // namespace tencache
