// What a live program gives to streams of an accelerator, told to a machine whose completions promise order: before an
// op the stream waits for copies and moves of what it uses, behind it others wait for the stream. Frees need nothing:
// memory remembers who used it (executor/device_order.h). Other machines are told nothing.
//
// Whatever the stream is given between `begin` and `end` counts as the op's, announced or not: at its end, and when a
// tensor of it goes, others come after all that the stream was given so far.
//
// Threading: none of its own; calls of the op's come one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "executor/host_machine.h"

namespace tencache {

class ProgramStreams {
 public:
  // `stream`: the calling thread's current one. Tells nobody anything until `follow`.
  explicit ProgramStreams(std::function<DeviceStream()> stream) : current_(std::move(stream)) {}
  ProgramStreams(const ProgramStreams&) = delete;
  ProgramStreams& operator=(const ProgramStreams&) = delete;

  // The machine outlives this object.
  void follow(HostMachine& machine) {
    if (machine.completes() == Completes::ordered) machine_ = &machine;
  }
  // The machine's completions promise order.
  bool ordered() const { return machine_ != nullptr; }
  // An op that uses these is about to begin: room may be made for it.
  void coming(std::span<const Use> uses);
  // They are in tier 0. `record`: its time is asked for, and told with that number; else `none`.
  void begin(std::uint32_t record);
  // It has got memory for this one.
  void allocated(TensorId tensor);
  // A tensor goes, which it may use.
  void gone(TensorId tensor);
  // Of a duration that is known from before; 0: it is not.
  void end(Nanoseconds duration_ns);
  // It has not begun, and never will.
  void abandon() { uses_.clear(); }

  // What is known of the ops whose time was asked for since the last call, in their order: how long the stream took for
  // each, waits for copies left out, and how long it had nothing to do before. Waits for them.
  struct Time {
    std::uint32_t record = none;
    Nanoseconds duration_ns = 0, gap_ns = 0;
  };
  std::vector<Time> take_times();
  // Nobody asks for them any more.
  void forget_times();
  // What asking cost the host since the last call: an op whose time nobody asks for does without.
  Nanoseconds take_cost() { return std::exchange(cost_ns_, 0); }

 private:
  const std::function<DeviceStream()> current_;
  HostMachine* machine_ = nullptr;
  DeviceStream stream_ = nullptr;  // of the op
  std::vector<Use> uses_;
  // Of an op whose time is asked for: its stream came to these, of which each second one ends what the one before
  // began.
  struct Timed {
    std::uint32_t record = none;
    DeviceStream stream = nullptr;
    bool waited = false;  // at its beginning, for copies or moves
    std::vector<DeviceEvent> events = {};
  };
  void mark_time();
  std::vector<Timed> timed_;
  bool times_ = false;  // the op is the last of timed_
  Nanoseconds cost_ns_ = 0;
};

}  // namespace tencache
