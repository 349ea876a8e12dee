// Where the ops come from. An owned program is a trace, whose ops the engine orders and repeats; a live program
// announces its ops itself, and gives the engine tasks to run on its lanes. The engine asks either the same questions.
//
// Ids of tensors are the memory's, unless said otherwise; an owned program's are the same.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/engine/op_lanes.h"
#include "core/policy.h"
#include "core/residency.h"
#include "core/reveal.h"
#include "core/schedule.h"
#include "core/trace.h"

namespace tencache {

struct RunLimits {
  std::uint64_t max_iterations = 30;
  bool until_steady = true;  // stop when the state recurs, or at 2 million completions after the 4th iteration
  // Where chunks move: the last iteration ends as the others do, where another one begins.
  bool ends_as_others = true;
};

// What a lane would issue next.
struct NextOp {
  OpIndex op = none;
  Nanoseconds gap_before_ns = 0;  // host time that passes first
  bool begins_iteration = false;  // the first of an iteration that is not the first one
};

class ProgramSource {
 public:
  virtual ~ProgramSource() = default;
  ProgramSource(const ProgramSource&) = delete;
  ProgramSource& operator=(const ProgramSource&) = delete;

  // ---- What is known of it; null until it is.
  const Program* program() const { return program_; }
  const Op* op(OpIndex op) const { return op == none || program_ == nullptr ? nullptr : &program_->trace.ops[op]; }
  std::string name_of(OpIndex op) const { return std::string(program_->trace.name(program_->trace.ops[op])); }
  // "tensor 'weight'", or "tensor 7".
  std::string title_of(TensorId tensor) const;
  // Sets what a policy sees of the program.
  virtual void show(View& view) const = 0;
  // Tensors of governed roles that the GPU reads; none of a live program.
  virtual std::span<const TensorId> read_on_gpu() const { return {}; }

  // ---- The lanes' ops, in order.
  virtual bool uses(std::uint8_t lane) const = 0;  // false: none will ever come
  virtual std::optional<NextOp> next(std::uint8_t lane) const = 0;
  // What of the other lanes the next op depends on and is not done; nothing: it may be issued.
  virtual std::optional<StallCause> blocked_by(std::uint8_t lane, const OpLanes& lanes) const = 0;
  // The lane's next op becomes this one, whose memory stays where it is until it is done.
  virtual void issue(std::uint8_t lane, std::uint64_t iteration, ActiveOp& op) = 0;
  // What the op will make once it runs, each tensor in multiples of `unit`; none: no schedule tells.
  virtual std::optional<Bytes> births(OpIndex, Bytes /*unit*/) const { return 0; }
  // Which module the GPU enters with the op, if the program does not tell by itself.
  virtual std::optional<NameId> module_of(OpIndex op) const = 0;
  // The lane is done with it; on the communication lane it may still run.
  virtual void passed(std::uint8_t lane) = 0;
  // The op is done. If it is a gate: what it decided, valid until the next call.
  virtual std::span<const Use> reveal(OpIndex) { return {}; }
  // An op with these uses is done. Appends the tensors whose last use of the iteration it was, or which it frees, and
  // whose values nothing needs any more.
  virtual void done(TierId tier, OpIndex op, std::span<const Use> uses, const Residency& memory,
                    std::vector<TensorId>& spent) = 0;
  // Nothing of the tensor is left; its id may come again.
  virtual void gone(TensorId) {}
  // Ops or tasks that are announced and not issued.
  virtual std::size_t pending(std::uint8_t lane) const = 0;

  // ---- Iterations.
  virtual bool stops_at(std::uint64_t iteration) const = 0;
  virtual bool looks_for_steady_state() const = 0;
  virtual bool all_done() const = 0;
  // Ops of the lane issued and done in this iteration, for the hash of the state.
  virtual std::array<std::uint64_t, 2> progress(std::uint8_t lane, std::uint64_t iteration) const = 0;

 protected:
  explicit ProgramSource(const Program* program) : program_(program) {}
  virtual TensorId in_program(TensorId tensor) const = 0;

  const Program* program_;
};

class OwnedProgram final : public ProgramSource {
 public:
  // `shown`: what policies see of it. Throws Error if the program does not suit the machine. `governed`: by role,
  // Requirements::governed.
  OwnedProgram(const Program& program, const Program& shown, const MachineSpec& spec, const Machine& machine,
               const std::array<bool, role_count>& governed, const Layout& layout);

  // `as_others`: the last iteration ends as the others do, where the next one begins. Throws Error if the run would
  // take longer than clocks go.
  void limit(const RunLimits& limits, bool as_others);

  void show(View& view) const override;
  std::span<const TensorId> read_on_gpu() const override { return read_on_gpu_; }
  bool uses(std::uint8_t lane) const override { return !sequences_[lane].ops.empty(); }
  std::optional<NextOp> next(std::uint8_t lane) const override;
  std::optional<StallCause> blocked_by(std::uint8_t lane, const OpLanes& lanes) const override;
  void issue(std::uint8_t lane, std::uint64_t iteration, ActiveOp& op) override;
  std::optional<NameId> module_of(OpIndex op) const override { return shown_.trace.ops[op].module; }
  void passed(std::uint8_t lane) override;
  std::span<const Use> reveal(OpIndex op) override {
    const std::span<const Use> decided = revelations_.reveal(op);
    return shown_schedule_ ? decided : std::span<const Use>();  // else it was known
  }
  void done(TierId tier, OpIndex op, std::span<const Use> uses, const Residency& memory,
            std::vector<TensorId>& spent) override;
  std::size_t pending(std::uint8_t) const override { return 0; }
  bool stops_at(std::uint64_t iteration) const override { return iteration == limits_.max_iterations; }
  bool looks_for_steady_state() const override { return limits_.until_steady; }
  bool all_done() const override;
  std::array<std::uint64_t, 2> progress(std::uint8_t lane, std::uint64_t iteration) const override;

 private:
  static constexpr std::int64_t no_need = std::numeric_limits<std::int64_t>::min() / 2;
  struct Sequence {
    std::vector<OpIndex> ops;  // in program order
    // Ops of the other lane that must be done first, relative to the iteration's first; no_need: none. By op;
    // empty if the other lane has no ops.
    std::vector<std::int64_t> needs;
    std::uint64_t issued = 0, passed = 0;  // ever; passed <= issued <= begun_iterations_ * ops
    std::uint64_t iteration = 0;           // of the next to be issued
    std::size_t at = 0;                    // its place in `ops`: issued = iteration * ops + at
  };

  void note_what_the_gpu_reads(const std::array<bool, role_count>& governed);
  void find_needs(bool blocking_step);
  // The next op that uses it, in this iteration, writes it without reading it.
  bool overwritten_next(TensorId tensor) const;
  // One of what ends its life in this iteration is over. Whether it was the last.
  bool use_ends(TensorId tensor);
  StallCause cause_of(std::int64_t place, const Sequence& other) const;
  TensorId in_program(TensorId tensor) const override { return tensor; }

  Schedule schedule_;  // for policies, and for what few programs need: it is made only if it is asked
  const Program& shown_;
  std::optional<Schedule> shown_schedule_;  // for policies, if they see another program
  Revelations revelations_;                 // of what `shown_` hides
  UseLister lister_;
  RunLimits limits_;
  std::uint64_t begun_iterations_ = 0;  // at most
  std::array<Sequence, lane_count> sequences_;
  std::vector<std::uint32_t> uses_left_;   // by tensor, in this iteration: 1 .. uses_total_, which it starts from
  std::vector<std::uint32_t> uses_total_;  // by tensor; one more where an op frees it
  bool forgets_overwritten_;               // Layout's
  bool overlaps_;                          // ops of the communication stream run beside others
  bool runs_ahead_;                        // the host does
  std::vector<TensorId> read_on_gpu_;
};

class LiveProgram final : public ProgramSource {
 public:
  // `seals`: policies are not shown which experts the gates of the recorded step chose.
  explicit LiveProgram(bool seals) : ProgramSource(nullptr), seals_(seals) {}

  // ---- What the program announces.
  void add_task(std::uint8_t lane, OpIndex op, Tag tag, std::vector<Use> uses, Nanoseconds duration_ns);
  void drop_tasks(std::uint8_t lane) { tasks_[lane].clear(); }
  bool has_tasks() const {  // that are not issued
    return std::ranges::any_of(tasks_, [](const std::deque<Task>& tasks) { return !tasks.empty(); });
  }
  // Its schedule, and which tensor of the memory is which of the program, both ways. `tensors`: ids of the memory.
  void set_profile(std::shared_ptr<const Program> program, std::vector<TensorId> to_memory,
                   std::vector<TensorId> to_program, std::size_t tensors);
  void match(TensorId memory_tensor, TensorId program_tensor);
  void created(TensorId tensor);
  void deviate() { deviated_ = true; }
  // The gate chose these experts. Their weights, valid until the next call, as EventKind::revealed has them; empty if
  // the op is no gate, or policies see no sealed program.
  std::span<const Use> reveal(OpIndex gate, std::span<const std::uint32_t> chosen);
  // True if it is expected to follow its schedule again, after it had left it.
  bool return_to_schedule();

  void show(View& view) const override;
  bool uses(std::uint8_t) const override { return true; }
  std::optional<NextOp> next(std::uint8_t lane) const override;
  std::optional<StallCause> blocked_by(std::uint8_t lane, const OpLanes& lanes) const override;
  void issue(std::uint8_t lane, std::uint64_t iteration, ActiveOp& op) override;
  std::optional<Bytes> births(OpIndex op, Bytes unit) const override;
  std::optional<NameId> module_of(OpIndex) const override { return {}; }
  void passed(std::uint8_t) override {}
  void done(TierId, OpIndex op, std::span<const Use>, const Residency&, std::vector<TensorId>&) override {
    if (op != none && revelations_.shown(op)) revelations_.done(op);
  }
  void gone(TensorId tensor) override;
  std::size_t pending(std::uint8_t lane) const override { return tasks_[lane].size(); }
  bool stops_at(std::uint64_t) const override { return false; }
  bool looks_for_steady_state() const override { return false; }
  bool all_done() const override { return false; }
  std::array<std::uint64_t, 2> progress(std::uint8_t, std::uint64_t) const override { return {0, 0}; }

 private:
  struct Task {
    OpIndex op;
    Tag tag;
    std::vector<Use> uses;
    Nanoseconds duration_ns;
    std::uint64_t sequence;  // ascending over both lanes
  };

  TensorId in_program(TensorId tensor) const override {
    return tensor < to_program_.size() ? to_program_[tensor] : none;
  }

  const bool seals_;
  std::shared_ptr<const Program> profile_;
  std::unique_ptr<const Program> sealed_;  // null: it has no gates, or they are no secret
  std::unique_ptr<Schedule> schedule_;     // of what policies see
  Revelations revelations_;                // of what `sealed_` hides
  std::unique_ptr<const Experts> experts_;
  std::vector<Use> decided_;
  // Inverse of each other where neither is `none`, but for tensors of the memory that were matched anew.
  std::vector<TensorId> to_memory_, to_program_;
  std::array<std::deque<Task>, lane_count> tasks_;
  std::uint64_t task_sequence_ = 0;
  bool deviated_ = false;  // in this iteration or before, and not planned again since
};

}  // namespace tencache
