// Records one step of a live program as a trace, and tells in later steps where in it the program is.
//
// A live program has no ids that stay the same from step to step, so a tensor is known by where it was born: (op
// position in the step, ordinal among the op's allocations). A step is recorded (step_draft.h). From then on each op is
// checked against the recording (followed_step.h): its name, and that it uses the recorded tensors or others of their
// sizes. What is born may be larger or smaller than recorded: a cache of keys and values grows with each step, and so
// does all that is computed from it. On a mismatch the program is off the schedule until a module boundary or a step
// boundary is found again. A program may have changed for good, so the recording is replaced after a few steps that
// left it (RecordingPatience).
//
// Knows nothing of the engine: the runtime carries the answers over. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/trace.h"
#include "executor/live/followed_step.h"
#include "executor/live/step_draft.h"

namespace tencache {

// When a recording is replaced: after a few steps in a row that left it. The first one has no such grace: a decoder's
// second step still reads what the prompt's made in another way than all later ones do. If the new recording is left as
// well, the program has no step that repeats, and recording (planning, for the policy) becomes rarer each time.
class RecordingPatience {
 public:
  void step_left() { left_ = true; }
  bool has_left() const { return left_; }
  // If the step that runs is one more that leaves the recording.
  bool would_end() const { return in_a_row_ + 1 >= limit_; }
  // Of a step that has a recording.
  void step_ended(bool left) {
    in_a_row_ = left ? in_a_row_ + 1 : 0;
    if (!left) limit_ = usual_limit;
  }
  void step_begins() { left_ = false; }
  void recorded_anew() {
    limit_ = std::max(usual_limit, 2 * limit_);
    in_a_row_ = 0;
  }

 private:
  static constexpr std::uint64_t usual_limit = 3;

  bool left_ = false;  // in the step that runs
  std::uint64_t in_a_row_ = 0, limit_ = 1;
};

class StepFollower {
 public:
  // What the runtime must tell the engine.
  enum class Signal : std::uint8_t { nothing, deviated, profile };

  NamePool& names() { return names_; }
  const NamePool& names() const { return names_; }
  void set_phase(Phase phase) { draft_.set_phase(phase); }
  void record_next() { record_next_ = true; }
  bool records_next() const { return record_next_ || (left_this_step() && patience_.would_end()); }
  bool recording() const { return draft_.recording(); }
  // While on, ops belong to no step: they are not recorded; on the schedule they leave it until the next boundary,
  // which is no deviation of the program.
  void set_aside(bool on) { aside_ = on; }
  // While on, ops are not announced: neither steps nor modules find the schedule, which is no deviation of the program.
  void set_unseen(bool on);

  // ---- What happens. Ids are the memory's.
  void created(TensorId tensor, Bytes bytes, Role role);
  void destroyed(TensorId tensor);
  void marked(TensorId tensor, Role role, std::string_view name);
  // `profile`: a step was recorded; take it from `program()`, `to_memory()`, `to_program()`.
  Signal iteration_boundary();
  void module_begin(NameId module);
  NameId module_end();  // of the innermost; which one it was
  // The op's place in the recording or `none`. `deviated` is in `signal` when the program leaves the schedule here. Of
  // `op` the program fills in what it knows; module, phase and duration are the follower's.
  OpIndex begin_op(const Op& op, std::span<const Use> uses, Signal& signal);
  // The last op chose experts of the block: its place in the recording if it is the one that did so there, else `none`.
  OpIndex chose(NameId block);
  std::vector<std::uint32_t> numbers_of(OpIndex gate, std::span<const std::string> experts) const {
    return followed_.numbers(gate, experts);
  }
  // A tensor that `created` announced is an output of the running op. Its tensor in the recording or `none`.
  TensorId born(TensorId tensor);
  void end_op(Nanoseconds duration_ns);
  // Of an op that was begun earlier (a task whose duration is known late); `record` is what `recorded_op` said then.
  std::uint32_t recorded_op() const { return aside_ ? none : draft_.last_op(); }
  void set_duration(std::uint32_t record, Nanoseconds duration_ns) { draft_.set_duration(record, duration_ns); }
  void set_gap(std::uint32_t record, Nanoseconds gap_ns) { draft_.set_gap(record, gap_ns); }
  void set_issue(std::uint32_t record, Nanoseconds issue_ns) { draft_.set_issue(record, issue_ns); }

  // ---- The recording.
  bool recorded() const { return followed_.known(); }
  const Trace& recorded_trace() const { return followed_.recorded(); }
  // What is followed.
  const Program& program() const { return followed_.program(); }
  void arrange(const std::vector<Op>& ops, const std::vector<OpIndex>& order) { followed_.arrange(ops, order); }
  std::vector<TensorId> to_memory() const;
  std::vector<TensorId> to_program() const;
  TensorId program_tensor(TensorId tensor) const { return live_[tensor].program; }
  std::uint64_t deviations() const { return deviations_; }
  const std::string& first_deviation() const { return first_deviation_; }
  // Since there is a recording: the ops of steps, and how many of them the policy knew to come.
  std::uint64_t ops() const { return ops_; }
  std::uint64_t ops_on_schedule() const { return ops_on_schedule_; }

 private:
  struct Live {
    Bytes bytes = 0;
    Role role = Role::activation;
    NameId name = 0;
    TensorId program = none;     // in the recording that is followed
    std::uint32_t draft = none;  // in the recording that is made
    bool alive = false;
    std::uint64_t birth = 0;  // order of creation
  };
  void start_recording();
  void finish_recording();
  void add_draft(Live& live, bool old) { live.draft = draft_.add(live.bytes, live.role, live.name, old); }
  Signal leave(const std::string& why);
  // Whether the step that ends here has left the recording, or stopped before its end.
  bool left_this_step() const;
  bool stopped_early() const {
    return !aside_ && followed_.on_schedule() && followed_.next() != program().trace.ops.size();
  }

  NamePool names_;
  bool record_next_ = false;
  std::uint64_t step_ = 0;  // 0: before the first boundary
  RecordingPatience patience_;
  std::uint64_t births_ = 0;
  std::vector<Live> live_;
  StepDraft draft_;
  FollowedStep followed_;
  bool in_op_ = false;
  bool aside_ = false;
  bool unseen_ = false, whole_ = true;  // whole: none of the step's ops was unseen
  std::uint64_t deviations_ = 0;
  std::string first_deviation_;
  std::uint64_t ops_ = 0, ops_on_schedule_ = 0;
};

}  // namespace tencache
