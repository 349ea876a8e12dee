// The engine: the only place that knows the rules of moving tensors, so that no policy can lose data, overfill a tier
// or stall for ever.
//
// It drives two styles of program over one Machine port: *owned* ops, which it orders and executes itself (`run`), and
// *intercepted* ops, which a live program announces (`begin`, `allocate`, `end`, `destroy`). It asks one Policy what to
// move and keeps these rules, whatever the policy says:
//   - an op starts when every chunk it reads is valid on its device and everything it writes has room there; what it
//     uses is pinned from the moment it is issued until it is done;
//   - a chunk's last valid copy goes only if the value is dead; a write makes every other copy stale at the op's end;
//   - room is reserved when a transfer starts, that of an eviction when its destination is chosen; room of a chunk on
//   its
//     way out is free when its copy is over, that of clean and dead chunks at once;
//   - demand goes before prefetches, prefetches in order of request, cleaning last;
//   - when nothing is under way and the op still waits, the answer is out of memory, with the op and the bytes; a
//   policy
//     that keeps copies going while every op waits is not listened to until one starts.
// The order of the rules and their tie-breaks: docs/engine.md.
//
// Time enters only with an input (a completion or a call), so a log of inputs replayed gives the same decisions.
// Threading: none; callers serialise. The spec, machine, policy and program must outlive the engine.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/event_log.h"
#include "core/engine/input.h"
#include "core/error.h"
#include "core/machine.h"
#include "core/machine_spec.h"
#include "core/metrics.h"
#include "core/policy.h"
#include "core/residency.h"
#include "core/schedule.h"
#include "core/timeline.h"
#include "core/trace.h"

namespace tencache {

inline constexpr std::size_t lane_count = 2;  // 0: GPU, 1: CPU

struct EngineOptions {
  Timeline* timeline = nullptr;                               // recorded if given
  EventLog* log = nullptr;                                    // inputs and decisions recorded if given
  std::function<void(std::uint64_t iteration)> on_iteration;  // progress; called at each boundary
  DecisionSink on_decision = {};                              // if given; costs a view each
  Rehearse rehearse = {};                                     // what the policy's planner may simulate with, if given
};

struct RunLimits {
  std::uint64_t max_iterations = 30;
  bool until_steady = true;  // stop when the state at an iteration's end recurs; else run max_iterations
};

class Engine {
 public:
  // `program` is null for an intercepted program whose schedule is not known yet. Throws Error when the policy's layout
  // does not suit the machine.
  Engine(const MachineSpec& spec, Machine& machine, Policy& policy, const Program* program, EngineOptions options = {});

  // ---- Owned program. Persistent tensors are laid out where the policy or the machine says, then it runs.
  // A trace that does not fit is a result (`fits` false), not an exception. Call once.
  RunResult run(const RunLimits& limits);

  // The same in steps, for who drives several engines on one clock: `start`; then, until `finished()`, completions to
  // `handle`, or `stand_still` when nothing can complete any more. Both throw OutOfMemory, the reason for `give_up`.
  void start(const RunLimits& limits);
  bool finished() const { return finished_; }
  // Starts what can be started after all; false if there is nothing of that kind.
  bool stand_still();
  // An op waits for memory.
  bool waiting() const { return lanes_[0].waiting || lanes_[1].waiting; }
  [[noreturn]] void throw_out_of_memory();
  void give_up(const OutOfMemory& reason);
  // The driver saw that the state recurred: the iterations from this boundary to the last one are the period.
  void finish_period(std::size_t first_boundary);
  // Iterations done.
  std::uint64_t iteration() const { return iteration_; }
  // A hash of what decides what happens next, but for the machine: residency in its order, transfers, lanes, the
  // policy's fingerprint; times relative to `now`. Left out: the order of queues, and priority and purpose of what is
  // in them.
  std::uint64_t state_hash(Nanoseconds now) const;

  // ---- Intercepted program. `now` is the time of the call. After `begin` and `allocate` the caller waits, feeding
  // completions to `handle`, until `ready()`. One op at a time on the GPU lane.
  TensorId create(Bytes bytes, Role role, bool persistent, Nanoseconds now);
  // Never waits; also inside an op.
  void destroy(TensorId tensor, Nanoseconds now) { handle({now, input::Destroy{tensor}}); }
  // `op` is its place in the recorded schedule, `none` if it has none.
  void begin(OpIndex op, std::span<const Use> uses, Nanoseconds now) {
    handle({now, input::Begin{op, {uses.begin(), uses.end()}}});
  }
  // Room for a tensor created inside the running op.
  void allocate(TensorId tensor, Nanoseconds now) { handle({now, input::Allocate{tensor}}); }
  void end(Nanoseconds now) { handle({now, input::End{}}); }
  // An owned task of a live program: ordered after the lane's earlier ones and after those of the other lane that touch
  // the same tensors, and run by the machine, which finds `tag` (less than 2^40) in its own tag: task_tag(). `idle()`
  // tells when all are done.
  void task(std::uint8_t lane, OpIndex op, Tag tag, std::span<const Use> uses, Nanoseconds duration_ns,
            Nanoseconds now) {
    handle({now, input::Task{lane, op, tag, {uses.begin(), uses.end()}, duration_ns}});
  }
  // The program had nothing to do on the GPU's lane since then: it waited for tasks of the CPU's.
  void waited_for_tasks(Nanoseconds since, Nanoseconds now) {
    handle({now, input::WaitedForTasks{std::max(now, now_) - since}});
  }
  // Of the lane: tasks that are not done.
  std::size_t tasks_left(std::uint8_t lane) const { return lanes_[lane].active.size() + lanes_[lane].tasks.size(); }
  static Tag task_tag(Tag of_execute) { return (of_execute & 0x00ff'ffff'ffff'ffff) >> 8; }
  void module_begin(NameId module, Nanoseconds now) { handle({now, input::ModuleBegin{module}}); }
  void module_end(NameId module, Nanoseconds now) { handle({now, input::ModuleEnd{module}}); }
  void iteration_boundary(Nanoseconds now) { handle({now, input::Boundary{}}); }
  // The schedule of a live program became known, or the program left it.
  void set_profile(const Program& program, std::vector<TensorId> to_memory, std::vector<TensorId> to_program,
                   Nanoseconds now);
  void set_program_tensor(TensorId memory_tensor, TensorId program_tensor) {
    handle({now_, input::Match{memory_tensor, program_tensor}});
  }
  void schedule_deviated(Nanoseconds now) { handle({now, input::Deviated{}}); }
  bool ready() const { return !lanes_[0].waiting; }
  bool idle() const {
    return lanes_[0].active.empty() && lanes_[1].active.empty() && lanes_[1].tasks.empty() && lanes_[0].tasks.empty();
  }
  // Throws OutOfMemory if an op or a task waits and nothing is under way any more. Call when Machine::wait says so.
  void check_progress() { handle({now_, input::CheckProgress{}}); }
  // Gives up what waits, so that the program can go on after OutOfMemory: an op of the program that waits, alone; else
  // all tasks that have not begun. They are as if never announced; of a running op the tensor that waits for room is
  // none of its own any more (destroy it).
  void abandon(Nanoseconds now) { handle({now, input::Abandon{}}); }
  // The running op, which was said to read the tensor only, has written it.
  void late_write(TensorId tensor) { handle({now_, input::LateWrite{tensor}}); }
  // A tensor's role became known.
  void set_role(TensorId tensor, Role role) { handle({now_, input::SetRole{tensor, role}}); }
  // From outside an op: the tensor, resident in the GPU tier, stays there until as many calls of `unpin`.
  void pin(TensorId tensor) { handle({now_, input::Pin{tensor}}); }
  void unpin(TensorId tensor) { handle({now_, input::Unpin{tensor}}); }

  // ---- Both. The door: every input is logged, happens at its time or, if that is past, now, and then all that can
  // start does.
  void handle(Input input);
  void handle(const Completion& completion) { handle({completion.end_ns, completion}); }
  const Residency& memory() const { return memory_; }
  Residency& memory() { return memory_; }
  const Counters& counters() const { return counters_; }
  bool transfers_under_way() const { return transfers_in_flight_ > 0; }
  // The result so far, of an intercepted program; boundaries are those of iteration_boundary.
  RunResult result() const;

 private:
  using TransferId = std::uint32_t;
  enum class Purpose : std::uint8_t { fetch, evict, clean };
  enum Priority : std::uint8_t { urgent, normal, background, priority_count };

  // When and why the waiting op's last missing byte was late; see docs/engine.md, "Stalls".
  struct Lateness {
    Nanoseconds asked_ns = 0;      // before: `before`
    Nanoseconds room_ns = 0;       // until then it waited for room: `room`
    Nanoseconds first_hop_ns = 0;  // until then on the first link: `first_hop`
    StallCause before = StallCause::memory, room = StallCause::memory, first_hop = StallCause::memory,
               last = StallCause::memory;
  };

  // One link, or two with pinned buffers between them.
  struct Route {
    std::array<LinkId, 2> links{no_link, no_link};
    std::uint8_t hops = 0;         // 0: there is none
    BytesPerSecond bandwidth = 0;  // of the slowest
  };

  struct Transfer {
    ChunkId chunk = none;
    TierId from = no_tier, to = no_tier;
    Purpose purpose = Purpose::fetch;
    Priority priority = normal;
    bool queued = false, in_flight = false;
    bool discard = false;     // its content became useless under way
    bool overlapped = false;  // a waiting op counts it among its overlapped arrivals
    std::uint8_t hop = 0;
    Route route;
    std::uint32_t staging_first = 0, staging_count = 0;
    OpIndex requested_at = none;
    OpIndex not_before = none;  // deferred until that op is issued
    Nanoseconds started_ns = 0;
    Fence fence = 0;
    TransferId previous = none, next = none;  // in its queue
    TransferId next_of_chunk = none;
    Lateness lateness;
    LinkId link() const { return route.links[hop]; }
  };

  struct Queue {
    std::array<TransferId, priority_count> first{none, none, none}, last{none, none, none};  // waiting
    std::uint32_t in_flight = 0;
    std::uint32_t length = 0;
    // A link whose latencies overlap gets more than `copies_in_flight`, up to its queue depth, while the data behind
    // the first is less than what flows during one latency.
    std::vector<Bytes> bytes_in_flight;  // in order of submission; only of such a link
    Bytes per_latency = 0;               // 0: not such a link
  };

  // The op does not start while the tensor is on its way to the tier.
  struct Hold {
    TensorId tensor = none;
    TierId tier = 0;
  };

  struct ActiveOp {
    OpIndex op = none;
    Tag tag = 0;  // of a task
    std::uint64_t iteration = 0;
    bool external = false;
    bool started = false;
    bool late = false;             // something was missing when it was issued
    std::uint32_t overlapped = 0;  // of `missing`: arrivals beside which it computes (Layout::overlap_faults)
    Nanoseconds computed_ns = -1;  // then: when its compute was over; -1: it is not, or nothing overlapped it
    bool meets = false;            // it starts together with ops of other ranks
    std::span<const Use> uses;
    std::vector<Use> own_uses;     // what `uses` points to for intercepted ops and tasks
    std::vector<ChunkId> outputs;  // need room; from next_output on without it
    std::size_t next_output = 0;
    std::vector<ChunkId> stranded;  // to read, but on their way to another tier: fetched when they arrive there
    StallCause stranded_cause = StallCause::memory;  // over which link the last of them arrived
    std::vector<ChunkId> write_waits;                // to write, but a transfer still reads them
    std::uint32_t missing = 0;                       // chunks without which it cannot start
    Bytes room_needed = 0;                           // of the missing chunks, not reserved yet
    std::vector<Hold> holds;
    Nanoseconds issued_ns = 0, ready_ns = 0, duration_ns = 0;
    Lateness lateness;
  };

  struct Task {
    OpIndex op;
    Tag tag;
    std::vector<Use> uses;
    Nanoseconds duration_ns;
    std::uint64_t sequence;
  };

  static constexpr std::int64_t no_need = std::numeric_limits<std::int64_t>::min() / 2;
  struct Lane {
    TierId tier = no_tier;
    std::vector<OpIndex> ops;  // owned program: in program order
    std::vector<std::int64_t>
        needs;  // ops of the other lane that must be done first, relative to the iteration's first
    std::uint64_t issued = 0, done = 0;  // ever
    std::deque<ActiveOp> active;
    std::deque<Task> tasks;
    bool waiting = false;  // the last active op is issued and has not started
    bool gap_pending = false, gap_done = false, boundary_crossed = false;
    Nanoseconds blocked_since_ns = -1;  // waits for an op of the other lane; -1: does not
    Nanoseconds idle_since_ns = 0;      // from there on time is unattributed
    NameId module = 0;
  };

  void take(Completion& completion);
  void take(input::Standstill& standstill);
  void take(input::Create& create);
  void take(input::Destroy& destroy);
  void take(input::Begin& begin);
  void take(input::Allocate& allocate);
  void take(input::End& end);
  void take(input::Task& task);
  void take(input::WaitedForTasks& waited);
  void take(input::ModuleBegin& begin);
  void take(input::ModuleEnd& end);
  void take(input::Boundary& boundary);
  void take(input::Profile& profile);
  void take(input::Match& match);
  void take(input::SetRole& set);
  void take(input::Deviated& deviated);
  void take(input::CheckProgress& check);
  void take(input::Abandon& abandon);
  void take(input::LateWrite& late_write);
  void take(input::Pin& pin);
  void take(input::Unpin& unpin);
  bool under_way(std::uint64_t commands) const;

  // engine.cpp and engine_program.cpp: program, ops, events.
  void load_program();
  void place_initially(TensorId tensor);
  void compute_dependencies();
  bool advance_lane(std::uint8_t lane);
  bool dependencies_met(const Lane& lane, std::uint8_t index) const;
  bool issue_next(std::uint8_t lane);
  void issue(std::uint8_t lane, ActiveOp& op);
  void require(std::uint8_t lane, ActiveOp& op, const Use& use);
  void require_chunk(std::uint8_t lane, ActiveOp& op, const Use& use, ChunkId chunk);
  void take_rooms(std::uint8_t lane, ActiveOp& op);
  bool try_start(std::uint8_t lane, ActiveOp& op);
  void overlap(ActiveOp& op, TransferId coming);
  bool end_beside_arrivals(std::uint8_t lane, ActiveOp& op);
  void computed(std::uint8_t lane, Nanoseconds start_ns, Nanoseconds end_ns);
  bool on_its_way(TensorId tensor, TierId tier) const;
  void finish(std::uint8_t lane, Nanoseconds start_ns, Nanoseconds end_ns);
  void finish_use(TierId tier, const Use& use);
  void room_taken(std::uint8_t lane, ActiveOp& op, ChunkId chunk);
  void enter_module(NameId module);
  void note_boundary();
  void cross_boundary();
  void count_hits(const ActiveOp& op);
  void count_held();
  void abandon_waiting(std::uint8_t lane);
  void kill(TensorId tensor);
  void remove_if_gone(TensorId tensor);
  void advance_time(Nanoseconds now);
  void account_gap(std::uint8_t lane, Nanoseconds until, OpIndex op, bool waits_for_cpu = false);
  void account_stall(std::uint8_t lane, Nanoseconds until, StallCause cause, OpIndex op);
  void account_late(std::uint8_t lane, const ActiveOp& op, Nanoseconds start_ns);
  void account_compute(std::uint8_t lane, const ActiveOp& op, Nanoseconds until);
  void note_cpu_computing(Nanoseconds begin, Nanoseconds end);
  Nanoseconds cpu_computed(Nanoseconds from, Nanoseconds until) const;
  void account_phase(Nanoseconds from, Nanoseconds until, OpIndex op, bool waits_for_cpu);
  void add_span(const Span& span);
  void emit(const Event& event);
  void apply(const Action& action);
  Refusal apply_to_chunk(const Action& action, ChunkId chunk);
  void refuse(Refusal reason, const Action& action, ChunkId chunk);
  void pump();
  bool standstill();
  bool out_of_patience() const { return copies_waited_ > 1000 + 16 * memory_.chunk_total(); }
  bool runs_an_op() const;
  void finish_if_done();
  void lift_what_it_waits_for(const Lane& lane);
  [[noreturn]] void throw_op_failed(std::uint8_t lane);
  View view() const;
  void decide(Decision::Kind kind, ChunkId chunk, TierId from, TierId to, Refusal refusal = Refusal::none);
  // What is decided in its life is decided for this reason.
  class Because {
   public:
    Because(Engine& engine, const Why& why) : engine_(engine), before_(engine.why_) { engine.why_ = why; }
    ~Because() { engine_.why_ = before_; }
    Because(const Because&) = delete;
    Because& operator=(const Because&) = delete;

   private:
    Engine& engine_;
    Why before_;
  };

  // engine_transfers.cpp, engine_queues.cpp and engine_room.cpp: routes, requests, queues, copies, room.
  Route find_route(TierId from, TierId to) const;
  TierId source_for(ChunkId chunk, TierId to) const;
  bool arrives_on_the_way(ChunkId chunk, TierId from, TierId to) const;
  bool request_fetch(ChunkId chunk, TierId to, Priority priority, OpIndex not_before, Refusal& refusal);
  bool request_out(ChunkId chunk, TierId from, TierId destination, Purpose purpose, Priority priority,
                   Refusal& refusal);
  bool evict(ChunkId chunk, TierId from, TierId destination, Priority priority, Refusal& refusal);
  bool can_drop(ChunkId chunk, TierId tier) const;
  bool reserve_destination(ChunkId chunk, TierId tier);
  void reclaim(TierId tier, Bytes bytes);
  void make_room(TierId tier, Bytes bytes, bool prefetch, ChunkId incoming, ChunkId first, Priority priority);
  TransferId new_transfer(ChunkId chunk, TierId from, TierId to, Purpose purpose, Priority priority);
  void free_transfer(TransferId id);
  TransferId find_transfer(ChunkId chunk, TierId to) const;
  void enqueue(TransferId id, bool at_front);
  void dequeue(TransferId id);
  void withdraw(TransferId id);  // of one that is not in flight
  void promote(TransferId id);   // demand wants it: lifted, if the layout says so
  void lift(TransferId id);
  void release_deferred(OpIndex op);
  bool start_transfers(LinkId link);
  void start_behind_blocked();
  bool start_behind_blocked(LinkId link);
  bool takes_another(const Queue& queue, LinkId link) const;
  Nanoseconds setup_of(Bytes bytes, TierId tier) const;  // of a copy into the tier
  bool source_stands(TransferId id) const;
  void find_new_source(TransferId id);
  bool try_start_transfer(TransferId id);
  bool room_for_fetch(TransferId id);
  bool take_staging(Transfer& t);
  void free_staging(Transfer& t);
  void submit(TransferId id);
  void complete_transfer(TransferId id, const Completion& completion);
  void next_hop(TransferId id, Nanoseconds now);
  void arrive(TransferId id);
  void fail_transfer(TransferId id, bool cancelled);
  void release_source(const Transfer& t);   // of an eviction, unless somebody needs it again
  void rescue(ChunkId chunk, TierId tier);  // needed again although chosen as a victim
  void stop_transfers_from(ChunkId chunk, TierId tier);
  void invalidate(ChunkId chunk, TierId tier);  // the copy there is useless
  void drop_copy(ChunkId chunk, TierId tier);   // releases the room, or condemns it while a transfer reads it
  void free_copy(ChunkId chunk, TierId tier);
  bool take_copy(ChunkId chunk, TierId tier);
  void map_copy(ChunkId chunk, TierId tier);
  std::string title_of(TensorId tensor) const;  // by its name, where the program has one
  void sample_occupancy(ChunkId chunk, TierId tier, Bytes used_before);

  const MachineSpec& spec_;
  Machine& machine_;
  Policy& policy_;
  const Program* program_;
  std::shared_ptr<const Program> profile_;
  EngineOptions options_;
  Layout layout_;
  Residency memory_;
  std::unique_ptr<Schedule> schedule_;
  std::array<std::array<Route, max_tiers>, max_tiers> routes_{};

  std::array<Lane, lane_count> lanes_;
  std::deque<std::pair<Nanoseconds, Nanoseconds>> cpu_computing_;  // begins and ends; what no stall can reach is gone
  std::array<Queue, max_links> queues_;
  std::vector<Transfer> transfers_;
  std::vector<TransferId> free_transfers_;
  std::vector<TransferId> first_of_chunk_;
  std::multimap<OpIndex, TransferId> deferred_;  // prefetches that wait for their op to be issued
  std::vector<bool> staging_used_;
  std::uint32_t transfers_in_flight_ = 0;
  std::uint64_t enqueued_ = 0;                  // transfers, ever
  std::array<Bytes, max_tiers> room_wanted_{};  // by waiting ops: prefetches may not take it
  std::uint64_t epoch_ = 1;                     // counts inputs; within one, a policy is asked for room once
  std::array<std::array<std::uint64_t, 2>, max_tiers> asked_epoch_{};
  std::array<StallCause, max_tiers> last_room_cause_{};
  std::map<ChunkId, int> failures_;

  std::vector<std::uint8_t> dead_;        // by tensor
  std::vector<std::uint8_t> doomed_;      // destroyed, waits for transfers to end
  std::vector<std::uint8_t> born_;        // has had content
  std::vector<std::uint32_t> uses_left_;  // in this life; owned programs
  std::vector<std::uint32_t> uses_total_;
  std::vector<TensorId> read_on_gpu_;  // governed tensors; owned programs
  std::array<std::uint32_t, max_links> link_load_{};

  struct PendingEvent {
    Event event;
    int refusal_depth;
  };
  std::deque<PendingEvent> events_;
  bool draining_ = false;
  int refusal_depth_ = 0;
  std::multimap<OpIndex, Hold> holds_;
  std::uint64_t task_sequence_ = 0;
  std::vector<Action> applying_;
  Why why_;

  Nanoseconds now_ = 0;
  std::uint64_t iteration_ = 0;
  OpIndex position_ = none;
  Phase phase_ = Phase::forward;       // that the GPU lane's time counts for
  Nanoseconds updates_begun_ns_ = -1;  // the CPU's first of this iteration; -1: none begun since it began
  Counters counters_;
  std::vector<Nanoseconds> boundary_ns_;  // each one
  std::vector<Counters> boundaries_;      // each one; of a live program the first and the last
  std::vector<std::uint64_t> hashes_;
  std::optional<std::size_t> recurs_;  // the earlier boundary with the same state
  RunLimits limits_;
  std::uint64_t commands_ = 0;       // given to the machine, ever
  std::uint64_t copies_waited_ = 0;  // that ended while no op ran
  std::string misfit_, misfit_op_;
  Bytes misfit_bytes_ = 0;
  std::vector<TensorId> to_memory_, to_program_;
  bool finished_ = false;
  bool live_ = false;
  bool deviated_ = false;  // in this iteration or before, and not planned again since
  std::array<bool, role_count> governed_{};
};

}  // namespace tencache
