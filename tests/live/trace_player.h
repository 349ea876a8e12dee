// A live program that does what a trace says, on a driver of rules that keeps time: it announces ops, allocates and
// frees as a PyTorch program does, and launches kernels that take as long as recorded. What it computes is nothing.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/trace.h"
#include "executor/live/live_runtime.h"
#include "tests/live/rules/rules_driver.h"
#include "tests/live/rules/turns.h"

namespace tencache::rules {

// When what happened in a step, in ascending order.
struct Interval {
  Nanoseconds begin_ns = 0, end_ns = 0;
};

struct PlayedStep {
  Nanoseconds begin_ns = 0, end_ns = 0;
  Nanoseconds host_ns = 0;           // the program's thread computed
  Nanoseconds runtime_cpu_ns = 0;    // processor time of the runtime's code, in all threads; 0: not measured
  std::vector<Interval> in_runtime;  // its calls of the runtime, launches among them
};

class TracePlayer {
 public:
  // `op_ns`: what the runtime's code costs an op. All outlive the player.
  TracePlayer(const Trace& trace, const ModelGpu& model, RulesDriver& driver, Turns& turns, Nanoseconds op_ns);

  // The most that is alive at once, in multiples of `granularity`.
  static Bytes peak_bytes(const Trace& trace, Bytes granularity);

  // Steps under the runtime, one after the other; everything is released at the end. Throws what the runtime does.
  std::vector<PlayedStep> play(LiveRuntime& runtime, std::uint64_t steps);
  // What is there before the first step comes from pageable memory, one tensor after the other, as a program copies a
  // model that it has read. Returns how long that takes, until the device is done; everything is released then.
  struct Loaded {
    Nanoseconds took_ns = 0;
    Bytes bytes = 0, stored_bytes = 0;  // stored: of them in CPU memory
    std::uint64_t evictions = 0;
  };
  Loaded load(LiveRuntime& runtime);
  // PyTorch alone, with memory for everything: ops are queued ahead of the device, and a step ends with it.
  std::vector<PlayedStep> play_plain(std::uint64_t steps);
  // For LiveOptions::fence. The device's context is current on the program's thread.
  void fence();

 private:
  struct Lifetime {
    OpIndex first = none, last = none;  // of a tensor that is not persistent
  };
  static std::vector<Lifetime> lifetimes(const Trace& trace);
  Nanoseconds issue_ns(const Op& op) const;
  void spend(PlayedStep& step, Nanoseconds ns);
  void launch(const Op& op, std::span<const RulesDriver::ProgramAccess> accesses);
  TensorId allocate_in_op(LiveRuntime& runtime, TensorId tensor);
  void release_all(LiveRuntime& runtime);
  void play_op(LiveRuntime& runtime, OpIndex index, bool mark, PlayedStep& step);

  const Trace& trace_;
  const ModelGpu& model_;
  RulesDriver& driver_;
  Turns& turns_;
  Nanoseconds op_ns_;
  std::vector<Lifetime> lifetimes_;
  std::vector<TensorId> live_;  // the runtime's number of each of the trace's
};

}  // namespace tencache::rules
