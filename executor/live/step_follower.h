// Records one step of a live program as a trace, and tells in later steps where in it the program is.
//
// A live program has no ids that stay the same from step to step, so a tensor is known by where it was born: (op
// position in the step, ordinal among the op's allocations). What is alive when the step begins is persistent. A tensor
// that is born in a step and dies in the next one (a gradient) is one tensor of the trace: old and new ones are paired
// by size in order of birth. From then on each op is checked against the recording: its name, and the sizes of what it
// uses. On a mismatch the program is off the schedule until a module boundary or a step boundary is found again.
//
// Knows nothing of the engine: the runtime carries the answers over. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/trace.h"

namespace tencache {

class StepFollower {
 public:
  // What the runtime must tell the engine.
  enum class Signal : std::uint8_t { nothing, deviated, profile };

  struct OpInfo {
    NameId name = 0;
    Device device = Device::gpu;
    std::int32_t group = -1;
    bool placeable = false, reorderable = false;
  };

  NamePool& names() { return names_; }
  const NamePool& names() const { return names_; }
  void set_header(const TraceHeader& header) { header_ = header; }
  void set_phase(Phase phase) { phase_ = phase; }
  void set_follow(bool follow) { follow_ = follow; }
  void record_next() { record_next_ = true; }
  bool records_next() const { return record_next_; }
  bool recording() const { return recording_; }
  // While on, ops belong to no step: they are not recorded; on the schedule they leave it until the next boundary,
  // which is no deviation of the program.
  void set_aside(bool on) { aside_ = on; }

  // ---- What happens. Ids are the memory's.
  void created(TensorId tensor, Bytes bytes, Role role);
  void destroyed(TensorId tensor);
  void marked(TensorId tensor, Role role, std::string_view name);
  // `profile`: a step was recorded; take it from `program()`, `to_memory()`, `to_program()`.
  Signal iteration_boundary();
  void module_begin(NameId module);
  NameId module_end();  // of the innermost; which one it was
  // The op's place in the recording or `none`. `deviated` is in `signal` when the program leaves the schedule here.
  OpIndex begin_op(const OpInfo& op, std::span<const Use> uses, Nanoseconds gap_before_ns, Signal& signal);
  // A tensor that `created` announced is an output of the running op. Its tensor in the recording or `none`.
  TensorId born(TensorId tensor);
  void end_op(Nanoseconds duration_ns);
  // Of an op that was begun earlier (a task whose duration is known late); `record` is what `recorded_op` said then.
  std::uint32_t recorded_op() const;
  void set_duration(std::uint32_t record, Nanoseconds duration_ns);

  // ---- The recording.
  bool recorded() const { return !program_.trace.ops.empty(); }
  const Trace& recorded_trace() const { return recorded_; }
  // What is followed: the recording, or how it is to be run from now on, as `arrange` says: `ops` of the recording,
  // each as it is to run, in the order of `order` (indices of `ops`).
  const Program& program() const { return program_; }
  void arrange(const std::vector<Op>& ops, const std::vector<OpIndex>& order);
  std::vector<TensorId> to_memory() const;
  std::vector<TensorId> to_program() const;
  TensorId program_tensor(TensorId tensor) const { return live_[tensor].program; }
  std::uint64_t deviations() const { return deviations_; }
  const std::string& first_deviation() const { return first_deviation_; }
  std::uint64_t step() const { return step_; }

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
  // A tensor of the recording that is made.
  struct Draft {
    Bytes bytes = 0;
    Role role = Role::activation;
    NameId name = 0;
    bool old = false;   // alive when the step began
    bool gone = false;  // died in the step
    std::uint32_t born_at = none;
    std::uint64_t birth = 0;
  };
  struct DraftOp {
    OpInfo info;
    NameId module = 0;
    Phase phase = Phase::forward;
    Nanoseconds duration_ns = 0, gap_before_ns = 0;
    std::vector<Use> uses;              // tensors are drafts
    std::vector<std::uint32_t> births;  // drafts
  };
  struct Boundary {
    NameId module = 0;
    bool begins = false;
    OpIndex op = 0;  // of the next op
  };

  void start_recording();
  void add_draft(Live& live, bool old);
  void build_program();
  std::vector<std::uint32_t> pair_old_and_new() const;
  std::string name_of(std::uint32_t index, const std::vector<std::uint32_t>& ordinals) const;
  void module_boundary(NameId module, bool begins);
  Signal leave(const std::string& why);
  bool matches(const OpInfo& op, std::span<const Use> uses, std::string& why) const;

  NamePool names_;
  TraceHeader header_;
  Phase phase_ = Phase::forward;
  bool follow_ = true, record_next_ = false, recording_ = false;
  std::uint64_t step_ = 0;  // 0: before the first boundary
  std::uint64_t births_ = 0;
  std::vector<Live> live_;
  std::vector<NameId> modules_;  // open ones

  // The recording that is made.
  std::vector<Draft> drafts_;
  std::vector<DraftOp> draft_ops_;
  std::vector<Boundary> draft_boundaries_;
  bool in_op_ = false;
  bool aside_ = false;

  // The recording that is followed.
  Trace recorded_;
  Program program_;
  std::vector<std::vector<Use>> uses_;            // by op, without births
  std::vector<std::vector<TensorId>> births_of_;  // by op
  std::vector<Boundary> boundaries_;
  OpIndex cursor_ = none;  // of the next op; none: off the schedule
  OpIndex running_ = none;
  std::size_t ordinal_ = 0;
  std::size_t boundary_cursor_ = 0;
  std::uint64_t deviations_ = 0;
  std::string first_deviation_;
};

}  // namespace tencache
