// What a caching and migration policy is: an object that answers questions and turns events into actions.
//
// A policy never touches memory, threads, clocks or devices and cannot tell the simulated machine from a real one. It
// sees the state through a View, which is a pure function of the events so far, so the same events give the same
// decisions. Every question has a default: the smallest policy overrides one function, or none.
// The engine guards the rules (engine.h); an action it cannot take is refused with an event, never half done.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/allocator.h"
#include "core/enum_names.h"
#include "core/machine_spec.h"
#include "core/residency.h"
#include "core/reveal.h"
#include "core/schedule.h"
#include "core/trace.h"

namespace tencache {

// ---- Events: what happened. -----------------------------------------------------------------------------------------

enum class EventKind : std::uint8_t {
  profile_ready,  // the recorded schedule is known: View::program and View::schedule are set
  iteration_begin,
  iteration_end,
  module_begin,
  module_end,
  op_issued,  // before the op waits for its inputs: the hints of a plan fire here
  op_ready,   // all it needs is there
  op_done,
  revealed,       // `op`, a gate, is done: `uses` are the experts that it chose, in the order of the ops that read them
  transfer_done,  // a chunk reached `to`
  refused,        // an action was not taken, see `refusal`
  tensor_created,
  tensor_freed,       // live programs
  schedule_deviated,  // a live program left the recorded order; View::op is `none` until it is found again
  capacity_changed,   // of the tier `to`: what was too much has left it
};
inline constexpr std::size_t event_kind_count = 15;
enum class Refusal : std::uint8_t { none, stale, no_room, io_error };
template <>
inline constexpr auto enum_texts<EventKind> =
    std::to_array<std::string_view>({"profile_ready", "iteration_begin", "iteration_end", "module_begin", "module_end",
                                     "op_issued", "op_ready", "op_done", "revealed", "transfer_done", "refused",
                                     "tensor_created", "tensor_freed", "schedule_deviated", "capacity_changed"});
template <>
inline constexpr auto enum_texts<Refusal> = std::to_array<std::string_view>({"none", "stale", "no_room", "io_error"});

struct Event {
  EventKind kind = EventKind::op_issued;
  Refusal refusal = Refusal::none;
  Device device = Device::gpu;  // of the op
  TierId from = no_tier, to = no_tier;
  OpIndex op = none;  // in the program; `none` for an op that the schedule does not know
  TensorId tensor = none;
  ChunkId chunk = none;
  NameId module = 0;
  std::span<const Use> uses = {};  // op events: the op's tensors (ids of the memory, see View::program_tensor)
};

class Policy;

// What a rehearsal tells: a program, simulated from its start under another policy object until the state recurs.
struct Rehearsal {
  bool fits = false;
  bool complete = false;            // false: a limit ended it; the figures are of what ran by then
  bool recurs = false;              // the state recurred: more iterations would be the same again
  Nanoseconds iteration_ns = 0;     // mean of the steady period; 0 if not one iteration was done
  std::uint64_t events = 0;         // completions simulated: what planning budgets count
  Bytes stored = 0;                 // written to tiers of storage in an iteration, mean of the steady period
  std::vector<std::uint8_t> tiers;  // if complete, valid copies at the end: by chunk, a bit for each tier
};
struct RehearsalLimits {
  std::uint64_t events = std::numeric_limits<std::uint64_t>::max();  // completions, about
  std::uint64_t iterations = 8;                                      // at most; fewer if the state recurs
  // The rehearsal ends, and is not complete, once the mean after the first `settling` has to be above that; or when one
  // of these takes an eighth longer (some may be long and others short), or one of those, but the first, twice as long.
  Nanoseconds hopeless_ns = std::numeric_limits<Nanoseconds>::max();
  std::uint64_t settling = 1;
};
// The candidate must be an object of its own, and not one that rehearses. A rank of several is rehearsed alone.
using Rehearse = std::function<Rehearsal(const Program& program, const MachineSpec& machine, Policy& candidate,
                                         const RehearsalLimits& limits)>;
// The same of a trace, whose ops are placed and ordered as the candidate says.
using RehearseTrace = std::function<Rehearsal(const Trace& trace, const MachineSpec& machine, Policy& candidate,
                                              const RehearsalLimits& limits)>;

// ---- The view: what a policy may look at. ---------------------------------------------------------------------------

struct View {
  const MachineSpec& machine;
  const Residency& memory;  // where every chunk is, room, the order from coldest to warmest
  // The recorded iteration, null until it is known; sealed (core/reveal.h), unless the policy is an oracle.
  const Program* program = nullptr;
  const Schedule* schedule = nullptr;  // null with `program`
  Nanoseconds now = 0;                 // of the event
  std::uint64_t iteration = 0;
  OpIndex op = 0;  // the GPU's present position in the program; `none` off the schedule

  // Between ids of the program and of the memory. Replayed programs: the same. Live: `none` where there is no match.
  TensorId memory_tensor(TensorId program_tensor) const {
    return to_memory == nullptr ? program_tensor : (*to_memory)[program_tensor];
  }
  TensorId program_tensor(TensorId memory_tensor) const {
    if (to_program == nullptr) return memory_tensor;
    return memory_tensor < to_program->size() ? (*to_program)[memory_tensor] : none;
  }
  // Ops until the tensor (an id of the memory) is used again; `none`: never, or not known.
  std::uint32_t distance_to_next_use(TensorId tensor) const {
    if (schedule == nullptr || op == none) return none;
    const TensorId id = program_tensor(tensor);
    if (id == none) return none;
    const std::uint32_t known = schedule->distance_to_next_use(id, op);
    return reveals() ? std::min(known, distance_to_revealed_use(id)) : known;
  }
  // Whether gates reveal what the program does not say.
  bool reveals() const { return revelations != nullptr; }
  // The experts that an op reads whose gate is done: they are not among the schedule's uses. Empty until then, and once
  // the op is over. Ids of the program.
  std::span<const Use> revealed_uses(OpIndex index) const {
    return reveals() ? revelations->uses(index) : std::span<const Use>();
  }
  // As distance_to_next_use, by what is revealed alone. An id of the program.
  std::uint32_t distance_to_revealed_use(TensorId tensor) const {
    const OpIndex next = reveals() && op != none ? revelations->next_use(tensor, op) : none;
    if (next == none) return none;
    return next > op ? next - op : next + static_cast<OpIndex>(schedule->op_count()) - op;
  }
  bool dead(TensorId tensor) const { return (*dead_flags)[tensor] != 0; }
  // Whether the run offers rehearsals, and one; needs `program`. A pure function of program, machine and candidate.
  bool can_rehearse() const { return rehearsals != nullptr && *rehearsals; }
  Rehearsal rehearse(Policy& candidate, const RehearsalLimits& limits) const {
    return (*rehearsals)(*program, machine, candidate, limits);
  }
  // Transfers queued or running on the link.
  std::uint32_t transfers_on(LinkId link) const { return link_load[link]; }

  const std::vector<TensorId>* to_memory = nullptr;
  const std::vector<TensorId>* to_program = nullptr;
  const std::vector<std::uint8_t>* dead_flags = nullptr;
  std::span<const std::uint32_t> link_load = {};
  const Rehearse* rehearsals = nullptr;
  const Revelations* revelations = nullptr;
};

// ---- Actions: what a policy wants done. -----------------------------------------------------------------------------

enum class Verb : std::uint8_t {
  fetch,   // bring the tensor's missing chunks into `tier`
  evict,   // free its room in `tier`: dropped where another valid copy or death allows, else moved to `destination`
  clean,   // copy to `destination` and keep it in `tier`
  drop,    // as evict, but only what needs no transfer
  cancel,  // take back prefetches of the tensor into `tier` that have not started
  hold,    // do not start the op while the tensor is on its way to `tier`
};
template <>
inline constexpr auto enum_texts<Verb> = std::to_array<std::string_view>({"fetch", "evict", "clean", "drop", "cancel",
                                                                          "hold"});

inline constexpr std::uint32_t all_chunks = none;

struct Action {
  Verb verb = Verb::fetch;
  TierId tier = 0;
  TierId destination = no_tier;      // evict, clean: `no_tier` lets the engine choose the fastest with room
  bool urgent = false;               // overtakes prefetches, queues behind demand of the same link in order
  TensorId tensor = none;            // an id of the memory
  std::uint32_t chunk = all_chunks;  // within the tensor
  OpIndex not_before = none;         // fetch: wait in the queue until the GPU is issued this op
  OpIndex op = none;                 // hold
};

class Actions {
 public:
  void fetch(TensorId tensor, TierId tier = 0, OpIndex not_before = none) {
    list_.push_back({.verb = Verb::fetch, .tier = tier, .tensor = tensor, .not_before = not_before});
  }
  void evict(TensorId tensor, TierId destination = no_tier, TierId tier = 0) {
    list_.push_back({.verb = Verb::evict, .tier = tier, .destination = destination, .tensor = tensor});
  }
  void clean(TensorId tensor, TierId destination = no_tier, TierId tier = 0) {
    list_.push_back({.verb = Verb::clean, .tier = tier, .destination = destination, .tensor = tensor});
  }
  void drop(TensorId tensor, TierId tier = 0) { list_.push_back({.verb = Verb::drop, .tier = tier, .tensor = tensor}); }
  void cancel(TensorId tensor, TierId tier = 0) {
    list_.push_back({.verb = Verb::cancel, .tier = tier, .tensor = tensor});
  }
  void hold(OpIndex op, TensorId tensor, TierId tier = 0) {
    list_.push_back({.verb = Verb::hold, .tier = tier, .tensor = tensor, .op = op});
  }
  void push(const Action& action) { list_.push_back(action); }
  std::vector<Action>& list() { return list_; }

 private:
  std::vector<Action> list_;
};

// ---- Questions. -----------------------------------------------------------------------------------------------------

template <typename T>
constexpr std::array<T, role_count> for_every_role(T value) {
  std::array<T, role_count> values{};
  values.fill(value);
  return values;
}

struct Requirements {
  // Only these roles are counted.
  static Requirements governing(std::initializer_list<Role> roles) {
    Requirements r;
    r.governed.fill(false);
    for (const Role role : roles) r.governed[static_cast<std::size_t>(role)] = true;
    return r;
  }

  std::array<bool, role_count> governed = for_every_role(true);  // counted in the hit rate
  bool module_hooks = false;  // the system works through hooks of the framework: each module call costs host time
};

enum class FreeDead : std::uint8_t {
  now,          // at the end of its last use
  when_victim,  // its room is kept until it is chosen as a victim, then dropped without a write
  never,        // as if alive: written out and fetched back (what G10's UVM does)
};

// How memory is laid out, and the rules the engine keeps for this policy (engine-wide defaults are the members').
struct Layout {
  std::vector<AllocatorSpec> allocators;  // one a tier; empty: exact everywhere
  Bytes chunk_bytes = 16 * MiB;           // the unit that moves; 0: whole tensors
  bool exclusive_copies = false;          // a fetch frees its source, every eviction writes
  bool promote = true;                    // demand lifts a queued prefetch of the same chunk
  bool use_touches = true;  // false: the cold end is the first to arrive (FIFO), not the least recently used
  FreeDead free_dead = FreeDead::now;
  bool unlimited_gpu = false;  // `ideal`
  bool overlap_faults =
      false;  // an op's compute overlaps its own arrivals that were not demanded (G10's simulator only)
  bool blocking_step = false;  // an iteration begins when all CPU ops of the one before are done (DeepSpeed's step())
  std::array<bool, max_tiers> allocate_each{};  // copies into the tier take fresh memory, at the machine's cost
  // What CPU memory tensors of a role lie in: it decides how fast they are copied (core/machine_spec.h).
  std::array<CopyMemory, role_count> copy_memory = for_every_role(CopyMemory::pinned);
  CopyMemory staging_memory = CopyMemory::pinned;  // of the staging buffers
  bool fallback_eviction =
      true;  // where the policy names no victims the engine takes the coldest; false: out of memory
  // Where persistent tensors of a role start; no_tier: the machine says.
  std::array<TierId, role_count> initial = for_every_role(no_tier);
  // Before that: by chunk, a bit for each tier that has a copy at the start, as Rehearsal::tiers. What finds no room
  // there starts as above. Empty: nothing is said.
  std::vector<std::uint8_t> start;
  // The policy promises that it needs no copy of a value that is overwritten before it is read: the value dies with its
  // last read, as that of a tensor that is not persistent. The engine checks the schedule; live it keeps them all.
  bool forgets_overwritten = false;
};

// One a tier: the layout's, or the machine's where that is exact. A GPU without a limit has no holes to make.
std::vector<AllocatorSpec> allocators_of(const MachineSpec& machine, const Layout& layout);

struct RoomRequest {
  TierId tier = 0;
  Bytes bytes = 0;          // still to be freed
  bool prefetch = false;    // for a prefetch: naming nobody is a fair answer
  ChunkId incoming = none;  // what the room is for; `none`: outputs of the op
};

// An op that a gate has decided, and the weights of the expert that it reads.
struct DecidedOp {
  OpIndex op = none;
  std::span<const TensorId> experts;
};

// Says where ops run that gates decide, told of one gate after the other in the order of the program: by what is
// revealed then, it changes `devices`, by op of `decided`, from where the ops were placed. Only ops that the trace marks
// as placeable can move, to the CPU.
class DecidedPlaces {
 public:
  virtual ~DecidedPlaces() = default;
  virtual void place(OpIndex gate, std::span<const DecidedOp> decided, std::span<Device> devices) = 0;
};

class Policy {
 public:
  virtual ~Policy() = default;

  // Whether it is told before they are done what gates will decide: a bound, no system. All traces and programs that
  // others are given are sealed.
  virtual bool oracle() const { return false; }
  virtual Requirements requirements() const { return {}; }
  // Called once, before all else, with the trace as it was recorded, if the run offers rehearsals before it begins.
  // Default: plans nothing.
  virtual void prepare(const Trace& trace, const MachineSpec& machine, const RehearseTrace& rehearse);
  // Which level of recomputation each of the trace's choices takes: changes `levels`, by choice, from `keep`, to levels
  // that the choices offer. Asked once, before `place` and `order`, if the trace has choices. Default: keeps all.
  virtual void recompute(const Trace& trace, const MachineSpec& machine, std::vector<RecomputeLevel>& levels) const;
  // Called once, before the run. `program` is null for a live program whose schedule is not known yet.
  virtual Layout layout(const MachineSpec& machine, const Program* program) const;
  virtual void on(const Event& event, const View& view, Actions& actions);
  // Whether `on` does anything at events of this kind; asked before the run, so that others need not be told.
  virtual bool hears(EventKind) const { return true; }
  // Appends victims in the order to evict them; those that are pinned or on their way out already are passed over.
  // Default: the coldest first.
  virtual void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims);
  // Where the optimizer's ops run: changes `devices`, of each op of the trace, from where it was recorded. Only updates
  // recorded on the GPU can move, to the CPU. Default: nothing does.
  virtual void place(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) const;
  // Where ops run that gates decide, asked once after `place`; null: where `place` says. `trace` outlives what is made.
  virtual std::unique_ptr<DecidedPlaces> place_decided(const Trace& trace, const MachineSpec& machine) const;
  // Which tensors GPU ops read where they lie in CPU memory, over the link, without a copy: sets flags, by tensor of the
  // trace. Such an op takes as long as its own work or the link, whichever is longer. Default: none.
  virtual void read_in_place(const Trace& trace, const MachineSpec& machine, std::vector<bool>& tensors) const;
  // The order of the optimizer's sub-groups, where the trace (ops placed already) says they may be reordered. `groups`:
  // of one run of reorderable ops, as recorded. Default: as recorded.
  virtual void order(const Trace& trace, const MachineSpec& machine, std::vector<std::int32_t>& groups) const;
  // Identifies the policy's inner state, so that a steady state can be recognised. Default: it has none.
  virtual std::uint64_t fingerprint() const { return 0; }
  // What a reader of the result should know of how the policy came to its plan, a sentence each. Default: nothing.
  virtual void notes(std::vector<std::string>& notes) const;
};

// The coldest evictable chunks of the tier, until `bytes` are reached: the default of make_room.
void coldest_victims(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims);

}  // namespace tencache
