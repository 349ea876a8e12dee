// A simulated machine whose completions promise order (Completes, core/machine.h): the program's thread runs ahead of
// the GPU. It stands between the engine and the simulated machine of one rank, and is given where chunks lie
// (`look_at`).
//
// The host. A gap, and the launch of an op of the GPU's streams, are done by the rank's one thread, one after the
// other, in the order in which the engine asks for them. What copies cost the host (`HostCosts::per_transfer_ns`, for
// each submitted) it pays first, as soon as it is free. A launch takes no time. It waits until the window is open:
// fewer than RunAhead::ops ops of the streams are launched and not over, and, while a copy is handed over and not over,
// the durations of those behind the first one of their stream are less than RunAhead::time_ns. Then the op completes
// for the engine.
// A move is given to its lane or link at once, and counts neither for the window nor for what is handed over.
// Links between GPU and CPU memory are streams: a copy completes when it is handed over, which is while fewer than
// RunAhead::copies are handed over and not over, or less data than flows in RunAhead::copies_ns at the link's
// bandwidth. Until then it can be cancelled; what was completes after all else that happened by then, in order of
// submission. All else (files, the CPU's ops and their gaps) runs on threads of the host and completes when it is over.
// The device. Every stream and thread is a line (core/ordering.h) and takes its works in order; a move is a work of its
// link's line, or of the GPU lane's where it has none, that reads the old place and writes the new one. A work begins,
// its latency included, once those before it on its line have been let go and the works that it waits for are over:
// those that touched the same bytes, by RegionTickets; an op when it is launched, a copy when it is handed over, a move
// and work of a thread when it is submitted. Then it takes the time that sim/sim_world.h says.
// Bytes are addresses where the tier's layout has them. Where it has none (the exact layout), each chunk is its own
// memory: then a chunk that takes the room of another does not wait for what was done to that one.
// In each step links hand over, in order of their ids, then the host goes on, then lines let works go, in order of
// lanes and links.
//
// What is done is observed when it is over, with the lane that it waited for last: its own where that was a move, of
// which nobody hears otherwise. A copy that fails after it was handed over ends the run (Error): on a GPU it leaves a
// context that is of no use.
// Threading: none, as the machine below.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "core/machine.h"
#include "core/ordering.h"
#include "core/residency.h"
#include "sim/sim_machine.h"

namespace tencache {

class OrderedMachine final : public Machine {
 public:
  // Both outlive it. The spec is that of the machine below, and runs ahead.
  OrderedMachine(SimMachine& below, const MachineSpec& spec);

  // Where chunks lie, as the engine has it; it outlives this object. Called before all else.
  void look_at(const Residency& memory) { memory_ = &memory; }

  Fence submit(const CopyCommand& copy, Tag tag) override;
  Fence execute(const OpCommand& op, Tag tag) override;
  void cancel(Fence fence) override;
  Nanoseconds move(const MoveCommand& move) override;
  bool moves() const override { return below_.moves(); }
  bool wait(Completion& completion) override;
  Nanoseconds now() const override { return below_.now(); }
  Completes completes() const override { return Completes::ordered; }
  std::string last_error() const override { return below_.last_error(); }
  bool pretends() const override { return below_.pretends(); }
  std::uint64_t state() const override;
  void map(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place, MappedFor what) override {
    below_.map(tensor, chunk, begin, bytes, place, what);
  }
  void unmap(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place) override {
    below_.unmap(tensor, chunk, begin, bytes, place);
  }
  bool maps() const override { return below_.maps(); }

  // `wait` in steps, for who drives several machines on one clock: what the machine below completed, and the next
  // completion for the engine; false if there is none at the present time.
  void take(const Completion& below);
  bool next(Completion& completion);

 private:
  struct Access {
    std::size_t region = 0;
    ByteRange extent;
    bool write = false;
  };
  // Of a line, from its ticket until it is over.
  struct Work {
    Fence fence = 0;
    Tag tag = 0;
    std::uint64_t number = 0;  // of its ticket
    bool ordered = false;      // it completed for the engine when it got its ticket
    bool cancelled = false;
    CopyCommand copy = {};
    OpCommand op = {};               // without its uses
    MoveCommand move = {};           // of no bytes: it is none
    std::vector<Ticket> waits = {};  // not over, as far as it was looked at
    std::uint64_t identity = 0;
    Fence below = 0;  // once it was let go
    std::uint8_t waited_for = 0;
    Nanoseconds waited_until_ns = 0;
  };
  struct Offer {
    Fence fence = 0;
    Tag tag = 0;
    CopyCommand copy = {};
  };
  struct LineState {
    bool link = false, stream = false;  // stream: its completions promise order
    std::deque<Work> works;             // not over, in order; the first `let_go` are with the machine below
    std::size_t let_go = 0;
    std::deque<Offer> offered;  // of a stream of copies: not handed over
    Bytes bytes = 0;            // of the copies in `works`
    std::size_t moves = 0;      // of `works`
    Bytes bytes_at_once = 0;    // that are handed over whatever their number
  };
  // A gap, or the launch of an op.
  struct HostJob {
    Fence fence = 0;
    Tag tag = 0;
    OpCommand op = {};  // without its uses
    std::vector<Access> accesses = {};
  };

  void tell(const Work& work, CompletionStatus status, Nanoseconds start_ns, Nanoseconds end_ns);
  std::vector<Access> accesses_of(const CopyCommand& copy) const;
  std::vector<Access> accesses_of(const OpCommand& op) const;
  Access access(TierId tier, ChunkId first, ChunkId count, bool write) const;
  Access access(const CopyCommand& copy, bool source) const;
  std::vector<Access> accesses_of(const MoveCommand& move) const;
  void give_ticket(Line line, Work work, const std::vector<Access>& accesses);
  void launch(const HostJob& job);
  void end(Line line, const Completion& below);

  void go_on();
  void hand_over(Line line);
  void use_host();
  bool window_open() const;
  void let_go(Line line);

  SimMachine& below_;
  const MachineSpec& spec_;
  const Residency* memory_ = nullptr;
  std::vector<RegionTickets> regions_;  // by tier; then that of the staging buffers
  LineClocks clocks_;
  std::vector<LineState> lines_;  // lanes, then links
  std::deque<HostJob> host_;
  bool host_busy_ = false, host_pays_ = false;  // pays: for copies
  std::uint64_t uncharged_ = 0;                 // copies and moves that the host has not begun to pay for
  Nanoseconds launched_ns_ = 0;                 // of ops of the streams that are not over
  Ticket ended_;                                // the last work that was over
  std::deque<Completion> ready_;                // for the engine
  std::vector<Completion> withdrawn_;  // copies that were cancelled before they were handed over, still to be told
  Fence last_fence_ = 0;
  Waits waits_;  // memory for give_ticket
};

}  // namespace tencache
