// The port between the engine and a machine. Two twins implement it: sim/sim_machine.h (virtual clock) and
// executor/host_machine.h (threads, mapped memory, files).
//
// Asynchronous: `submit` and `execute` return at once with a number; `wait` delivers completions, one at a time.
// The engine hands a link no more transfers than `copies_in_flight`, or than hide its latency (Link::queue_depth), so
// that urgent ones overtake in its own queues. Threading: all calls come from one thread at a time (the engine's);
// `wait` alone may block.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/check.h"
#include "core/machine_spec.h"
#include "core/trace.h"
#include "core/units.h"

namespace tencache {

// What was submitted, numbered by the machine from 1 in order of submission.
using Fence = std::uint64_t;
// What the engine recognises a completion by; opaque to the machine.
using Tag = std::uint64_t;

// One place of a chunk: which tier, where in it. `offset` is meaningful for layouts with addresses (best fit, size
// classes, fixed buffers, two-ended, movable); under the exact layout pages are mapped from anywhere and it is 0.
struct Place {
  TierId tier = no_tier;
  std::uint64_t offset = 0;
};

// copy: the next that touches the memory is a copy that fills it, or `unmap`; until that copy is over a machine may keep
// the memory out of sight of everybody else.
enum class MappedFor : std::uint8_t { op, copy };

// One copy of one chunk over one link. A staged transfer is two of these, the middle place being staging buffers; on a
// machine that `pretends`, two for each piece of what the buffers hold.
struct CopyCommand {
  LinkId link = no_link;
  TensorId tensor = none;
  ChunkId chunk = none;  // global
  Bytes begin = 0;       // of the chunk, or the piece, in its tensor
  Bytes bytes = 0;
  Place from, to;
  bool from_staging = false, to_staging = false;  // then `offset` is the first staging buffer's index
  Nanoseconds setup_ns = 0;                       // before it starts: taking fresh memory, where the policy reuses none
  CopyMemory memory = CopyMemory::pinned;         // only simulated machines are slower for what is not pinned
};

struct OpCommand {
  std::uint8_t lane = 0;  // core/timeline.h; the communication lane only where the machine `pretends`
  OpIndex op = none;      // in the program; `none` with idle
  bool idle = false;      // no work: the lane waits (host time before an op)
  Nanoseconds duration_ns = 0;
  Bytes bytes = 0;            // memory traffic, for the shared resources that the lane occupies; 0: none known
  NameId rendezvous = 0;      // starts when every rank that has this op in its program has come to it; 0: none
  std::span<const Use> uses;  // valid during the call only
};

// A chunk's content goes to another place of its tier, where nothing else lies; the two may overlap.
struct MoveCommand {
  TensorId tensor = none;
  ChunkId chunk = none;
  Bytes begin = 0;  // of the chunk in its tensor
  Bytes bytes = 0;
  Place from, to;
  LinkId link = no_link;  // for a copy that will come over it; no_link: for an op on lane 0
};

// What the completion of a copy or an op says. over: the work is over. ordered: whatever is submitted, executed, mapped
// or unmapped from now on comes after that work; when it was over is said later (CompletionStatus::observed) and decides
// nothing. What is over is ordered.
enum class Completes : std::uint8_t { over, ordered };

// observed: only of a machine that completes in order: when a copy or op was over that was `done` before; once for each.
enum class CompletionStatus : std::uint8_t { done, cancelled, failed, observed };

struct Completion {
  Fence fence = 0;
  Tag tag = 0;
  CompletionStatus status = CompletionStatus::done;
  Nanoseconds start_ns = 0;  // when the link or lane began it
  Nanoseconds end_ns = 0;    // when it was over, or ordered; never decreases from one completion to the next
  // observed: what the work waited for last, a lane of core/timeline.h (an op's own: a move), until when; nothing: 0.
  std::uint8_t waited_for = 0;
  Nanoseconds waited_until_ns = 0;
};

class Machine {
 public:
  virtual ~Machine() = default;

  // Starts the copy as soon as its link is free. Copies on a link run in order of submission.
  virtual Fence submit(const CopyCommand& copy, Tag tag) = 0;
  // Runs an op on its lane, in order of submission. Replay and owned tasks only.
  virtual Fence execute(const OpCommand& op, Tag tag) = 0;
  // Asks to stop a submitted copy early. Its completion still comes, as `cancelled` or, if too late, as `done`.
  virtual void cancel(Fence fence) = 0;
  // Waits for the next completion. False when nothing is under way.
  virtual bool wait(Completion& completion) = 0;
  virtual Nanoseconds now() const = 0;
  // Never changes.
  virtual Completes completes() const { return Completes::over; }
  // Why the last work that failed did, for messages: what, where; empty where that is not known.
  virtual std::string last_error() const { return {}; }
  // Whether its ops touch no data, so that one may run before what it reads has arrived (Layout::overlap_faults). It
  // has a communication lane, too.
  virtual bool pretends() const { return false; }
  // A hash of what the machine has in progress and remembers, times relative to now, for the recognition of the steady
  // state. A machine that cannot say it repeats its answer.
  virtual std::uint64_t state() const { return 0; }

  // Memory of a chunk is taken or given back: a real machine maps and unmaps pages or takes space in files, the
  // simulated one counts the space that its fault plan leaves on a disk. `map` throws Error if the memory is refused,
  // because a disk is full or the system refuses pages. Nothing has changed then, and it may be called again; after
  // OutOfMemory it is of no use.
  virtual void map(TensorId /*tensor*/, ChunkId /*chunk*/, Bytes /*begin*/, Bytes /*bytes*/, Place /*place*/,
                   MappedFor /*what*/) {}
  virtual void unmap(TensorId /*tensor*/, ChunkId /*chunk*/, Bytes /*begin*/, Bytes /*bytes*/, Place /*place*/) {}
  // False if these two do nothing, and need not be called. Never changes.
  virtual bool maps() const { return true; }
  // Moves a chunk. It comes after all that was submitted and touches the two places, and before all that is submitted
  // from now on; it has no completion. Returns how long it takes by itself, as far as that is known.
  virtual Nanoseconds move(const MoveCommand& /*move*/) { TENCACHE_CHECK(false); }
  // Whether it can move chunks of tier 0. Never changes.
  virtual bool moves() const { return false; }
  // A tensor comes into being (its address range is reserved) and goes.
  virtual void tensor_created(TensorId /*tensor*/, Bytes /*bytes*/) {}
  virtual void tensor_destroyed(TensorId /*tensor*/) {}
  // Persistent content that exists before the first op. The chunk's room is mapped already.
  virtual void initialise(TensorId /*tensor*/, ChunkId /*chunk*/, Bytes /*begin*/, Bytes /*bytes*/, Place /*place*/) {}
};

// ": " and why the machine's last failed work did, to be put behind what failed; empty where that is not known.
inline std::string reason_of_failure(const Machine& machine) {
  const std::string reason = machine.last_error();
  return reason.empty() ? reason : ": " + reason;
}

}  // namespace tencache
