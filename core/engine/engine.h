// The engine: the only place that knows the rules of moving tensors, so that no policy can lose data, overfill a tier
// or stall for ever.
//
// It drives two styles of program over one Machine port: *owned* ops, which it orders and executes itself (`run`), and
// *intercepted* ops, which a live program announces (`begin`, `allocate`, `end`, `destroy`). It asks one Policy what to
// move and keeps these rules, whatever the policy says:
//   - an op starts when every chunk it reads is valid on its device and everything it writes has room there; what it
//     uses is pinned from the moment it is issued until it is done;
//   - a chunk's last valid copy goes only if the value is dead; a write makes every other copy stale at the op's end;
//   - room is reserved when a transfer starts, that of an eviction when its destination is chosen; the room of a chunk
//     that leaves is free when its copy is over, that of clean and dead chunks at once;
//   - demand goes before prefetches, prefetches in order of request, cleaning last;
//   - when nothing is under way and the op still waits, the answer is out of memory, with the op and the bytes; a
//     policy that keeps copies going while every op waits is not listened to until one starts.
// The order of the rules and their tie-breaks: docs/engine.md.
//
// This class is the door for inputs and the pump: what starts after each; and it owns the state (engine_state.h): where
// ops come from (program_source.h), the lanes they wait in (op_lanes.h), copies (transfer_table.h, mapped_copies.h) and
// the figures (ledger.h). The rules by which it changes: an op's life (op_runner.h), copies (mover.h), room
// (room_maker.h), the talk with the policy (policy_session.h).
//
// Time enters only with an input (a completion or a call), so a log of inputs replayed gives the same decisions.
// Threading: none; callers serialise. The spec, machine, policy and program must outlive the engine.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/engine/engine_state.h"
#include "core/engine/event_log.h"
#include "core/engine/input.h"
#include "core/engine/mover.h"
#include "core/engine/op_lanes.h"
#include "core/engine/op_runner.h"
#include "core/engine/policy_session.h"
#include "core/engine/program_source.h"
#include "core/error.h"
#include "core/machine.h"
#include "core/metrics.h"
#include "core/policy.h"
#include "core/residency.h"

namespace tencache {

class Engine {
 public:
  // `program` is null for an intercepted program whose schedule is not known yet. Throws Error when the policy's layout
  // does not suit the machine.
  Engine(const MachineSpec& spec, Machine& machine, Policy& policy, const Program* program, EngineOptions options = {});
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // A logged input, as the calls below and completions are: all go through one door, `enter`.
  void handle(Input input);
  void handle(const Completion& completion) {
    if (completion.status == CompletionStatus::observed) {
      enter(completion.end_ns, input::Observed{completion});
    } else if (!finished_) {
      enter(completion.end_ns, completion);
    }
  }

  // ---- Owned program. Persistent tensors are laid out where the policy or the machine says, then it runs.
  // A trace that does not fit is a result (`fits` false), not an exception. Call once.
  RunResult run(const RunLimits& limits);

  // The same in steps, for who drives several engines on one clock: `start`; then, until `settled()`, completions to
  // `handle`, or, until `finished()`, `stand_still` when nothing can complete any more. Both throw OutOfMemory, the
  // reason for `give_up`.
  void start(const RunLimits& limits);
  bool finished() const { return finished_; }
  // And all that counts was observed: true at once where completions say what is over. Until then completions go on
  // coming to `handle`, which takes observations alone from a finished engine.
  bool settled() const { return finished_ && state_.ledger.settled(); }
  // Nothing can be observed any more: figures are complete as far as they can be.
  void settle() { state_.ledger.settle(); }
  // Starts what can be started after all; false if there is nothing of that kind.
  bool stand_still();
  // An op waits for memory.
  bool waiting() const { return state_.lanes.waiting(); }
  [[noreturn]] void throw_out_of_memory();
  void give_up(const OutOfMemory& reason);
  // The driver saw that the state recurred: the iterations from this boundary to the last one are the period.
  void finish_period(std::size_t first_boundary);
  // Iterations done.
  std::uint64_t iteration() const { return state_.moment.iteration; }
  // Those of them whose figures are complete.
  std::uint64_t iterations_counted() const { return state_.ledger.iterations(); }
  // A hash of what decides what happens next, but for the machine: residency in its order, transfers, lanes, the
  // policy's fingerprint; times relative to `now`. Left out: the order of queues, and priority and purpose of what is
  // in them.
  std::uint64_t state_hash(Nanoseconds now) const;

  // ---- Intercepted program. `now` is the time of the call. After `begin` and `allocate` the caller waits, feeding
  // completions to `handle`, until `ready()`. One op at a time on the GPU lane.
  TensorId create(Bytes bytes, Role role, bool persistent, Nanoseconds now);
  // The tensor, just created, has its content in that tier, which has room for all of it.
  void stored(TensorId tensor, TierId tier, Nanoseconds now) { enter(now, input::Stored{tensor, tier}); }
  // Never waits; also inside an op.
  void destroy(TensorId tensor, Nanoseconds now) { enter(now, input::Destroy{tensor}); }
  // `op` is its place in the recorded schedule, `none` if it has none.
  void begin(OpIndex op, std::span<const Use> uses, Nanoseconds now) {
    begin_.op = op;
    begin_.uses.assign(uses.begin(), uses.end());
    enter(now, begin_);
  }
  // Room for a tensor created inside the running op.
  void allocate(TensorId tensor, Nanoseconds now) { enter(now, input::Allocate{tensor}); }
  void end(Nanoseconds now) { enter(now, input::End{}); }
  // An owned task of a live program: ordered after the lane's earlier ones and after those of the other lane that touch
  // the same tensors, and run by the machine, which finds `tag` (less than 2^40) in its own tag. `idle()`
  // tells when all are done.
  void task(std::uint8_t lane, OpIndex op, Tag tag, std::span<const Use> uses, Nanoseconds duration_ns,
            Nanoseconds now) {
    enter(now, input::Task{lane, op, tag, {uses.begin(), uses.end()}, duration_ns});
  }
  // The program had nothing to do on the GPU's lane since then: it waited for tasks of the CPU's.
  void waited_for_tasks(Nanoseconds since, Nanoseconds now) {
    enter(now, input::WaitedForTasks{std::max(now, state_.moment.now) - since});
  }
  // Of the lane: tasks that are not done.
  std::size_t tasks_left(std::uint8_t lane) const {
    return state_.lanes[lane].active.size() + state_.program->pending(lane);
  }
  void module_begin(NameId module, Nanoseconds now) { enter(now, input::ModuleBegin{module}); }
  void module_end(NameId module, Nanoseconds now) { enter(now, input::ModuleEnd{module}); }
  void iteration_boundary(Nanoseconds now) { enter(now, input::Boundary{}); }
  // The schedule of a live program became known, or the program left it.
  void set_profile(const Program& program, std::vector<TensorId> to_memory, std::vector<TensorId> to_program,
                   Nanoseconds now);
  void set_program_tensor(TensorId memory_tensor, TensorId program_tensor) {
    enter(state_.moment.now, input::Match{memory_tensor, program_tensor});
  }
  void schedule_deviated(Nanoseconds now) { enter(now, input::Deviated{}); }
  // The gate, an op of the schedule that is over, chose these experts (numbers as core/reveal.h has them).
  void reveal(OpIndex gate, std::vector<std::uint32_t> chosen, Nanoseconds now) {
    enter(now, input::Revealed{gate, std::move(chosen)});
  }
  // Of a tier below the GPU's, whose memory comes from anywhere: it has so much from now on, and no less than is used.
  void set_capacity(TierId tier, Bytes bytes, Nanoseconds now) { enter(now, input::Capacity{tier, bytes}); }
  bool ready() const { return !state_.lanes[0].waiting; }
  bool idle() const { return tasks_left(gpu_lane) + tasks_left(cpu_lane) == 0; }
  // Throws OutOfMemory if an op or a task waits and nothing is under way any more. Call when Machine::wait says so.
  void check_progress() { enter(state_.moment.now, input::CheckProgress{}); }
  // Gives up what waits, so that the program can go on after OutOfMemory: an op of the program that waits, alone; else
  // all tasks that have not begun. They are as if never announced; of a running op the tensor that waits for room is
  // none of its own any more (destroy it).
  void abandon(Nanoseconds now) { enter(now, input::Abandon{}); }
  // The running op, which was said to read the tensor only, has written it.
  void late_write(TensorId tensor) { enter(state_.moment.now, input::LateWrite{tensor}); }
  // A tensor's role became known.
  void set_role(TensorId tensor, Role role) { enter(state_.moment.now, input::SetRole{tensor, role}); }
  // The tensor, resident in the GPU tier, stays there until as many calls of `unpin`. `written`: the running op writes
  // it, and so may others until `unpin`; no copy is made of it meanwhile.
  void pin(TensorId tensor, bool written = false) { enter(state_.moment.now, input::Pin{tensor, written}); }
  void unpin(TensorId tensor, bool written = false) { enter(state_.moment.now, input::Unpin{tensor, written}); }

  // ---- Both.
  const Residency& memory() const { return state_.memory; }
  Residency& memory() { return state_.memory; }
  const Counters& counters() const { return state_.ledger.counters(); }
  // The result so far, of an intercepted program; boundaries are those of iteration_boundary.
  RunResult result() const;

 private:
  // The door: an input is logged, happens at its time or, if that is past, now, and then all that can start does.
  template <typename What>
  void enter(Nanoseconds now, What&& what) {
    advance_time(now);
    if (follows_capacities_) follow_capacities();
    if (options_.log != nullptr) options_.log->inputs.push_back({state_.moment.now, what});
    take(what);
    if constexpr (may_start_something<std::remove_cvref_t<What>>) {
      if (finds_work()) pump();
    }
    finish_if_done();
  }
  // One for each kind of input; what they take may be moved from.
  void take(const Completion& completion);
  void take(input::Standstill&) { lift_standstill(); }
  void take(const input::Observed& observed);
  void take(input::Create& create);
  void take(input::Stored& stored);
  void take(input::Destroy& destroy);
  void take(input::Begin& begin);
  void take(input::Allocate& allocate) { runner_.allocate(allocate.tensor); }
  void take(input::End&);
  void take(input::Task& task);
  void take(input::WaitedForTasks& waited);
  void take(input::ModuleBegin& begin);
  void take(input::ModuleEnd& end);
  void take(input::Boundary&);
  void take(input::Profile& profile);
  void take(input::Match& match) { live().match(match.memory_tensor, match.program_tensor); }
  void take(input::SetRole& set) { state_.memory.set_role(set.tensor, set.role); }
  void take(input::Deviated&);
  void take(input::Revealed& revealed);
  void take(input::Capacity& capacity);
  void take(input::CheckProgress&);
  void take(input::Abandon&);
  void take(input::LateWrite& late_write) { runner_.late_write(late_write.tensor); }
  void take(input::Pin& pin);
  void take(input::Unpin& unpin);

  LiveProgram& live() {
    TENCACHE_CHECK(live_ != nullptr);
    return *live_;
  }
  View first_view() const;
  void place_initially(TensorId tensor);
  void initialise(TensorId tensor, ChunkId chunk, TierId tier);
  bool start_where_laid_out(TensorId tensor, ChunkId chunk);
  void advance_time(Nanoseconds now);
  // Tiers whose capacities change have what they have at this time.
  void follow_capacities();

  // The pump: lanes issue and start ops, links start copies, round after round until nothing moves.
  void pump();
  // Mostly not, after the calls of a live program whose tensors are all there.
  bool finds_work() const {
    return live_ == nullptr || state_.lanes.waiting() || live_->has_tasks() || state_.transfers.any_queued();
  }
  bool advance_lane(std::uint8_t lane);
  bool issue_next(std::uint8_t lane);
  bool blocked(std::uint8_t lane, OpIndex next);
  void issue(std::uint8_t lane);
  void cross_boundary(bool last = false);
  void finish_if_done();
  bool lift_standstill();
  bool under_way(std::uint64_t ops_given_before) const;
  [[noreturn]] void throw_op_failed(std::uint8_t lane);

  EngineOptions options_;
  EngineState state_;
  PolicySession session_;
  Mover mover_;
  OpRunner runner_;
  LiveProgram* const live_;            // the program, if it is one
  bool follows_capacities_ = false;    // of some tier
  Nanoseconds started_ns_ = 0;         // an owned program
  input::Begin begin_;                 // the last one, for the memory of its list
  bool finished_ = false;              // of an owned program; then nothing starts any more
  std::optional<OutOfMemory> misfit_;  // why it does not fit; then finished_
};

}  // namespace tencache
