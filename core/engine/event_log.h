// The engine's inputs and decisions, recorded: what the gate test compares between a host run and its replay.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/engine/input.h"
#include "core/enum_names.h"
#include "core/machine.h"
#include "core/policy.h"

namespace tencache {

// What made the engine decide.
enum class Reason : std::uint8_t {
  demand,       // `op` needs the tensor
  policy,       // an action of the policy, in answer to `event` (of `op`, where it has one)
  room,         // the policy named it as a victim: room for `chunk`, of `op` or, with `prefetch`, of a prefetch
  coldest,      // the same, but the policy named too little and the engine took the coldest
  reclaim,      // the GPU holds it too, and `chunk` is to leave for this tier
  dead,         // its value is needed no more
  overwritten,  // `op` has written the tensor: other copies are stale
  standstill,   // nothing was under way and an op waited
  retry,        // the copy that was to be read has gone
};
template <>
inline constexpr auto enum_texts<Reason> = std::to_array<std::string_view>({"demand", "policy", "room", "coldest",
                                                                            "reclaim", "dead", "overwritten",
                                                                            "standstill", "retry"});

struct Why {
  Reason reason = Reason::demand;
  bool prefetch = false;
  EventKind event = EventKind::op_issued;
  OpIndex op = none;
  ChunkId chunk = none;
  bool operator==(const Why&) const = default;
};

// One decision, as the engine carried it out. `release`: a copy of no use goes, without being asked for.
struct Decision {
  enum class Kind : std::uint8_t { fetch, evict, clean, drop, promote, cancel, allocate, release, refuse, start_op };
  Kind kind = Kind::fetch;
  TierId from = no_tier, to = no_tier;
  ChunkId chunk = none;
  OpIndex op = none;  // the GPU's position
  Nanoseconds now = 0;
  Refusal refusal = Refusal::none;  // of kind refuse
  Why why;
  bool operator==(const Decision&) const = default;
};
template <>
inline constexpr auto enum_texts<Decision::Kind> = std::to_array<std::string_view>({"fetch", "evict", "clean", "drop",
                                                                                    "promote", "cancel", "allocate",
                                                                                    "release", "refuse", "start_op"});
// One line a decision: for messages of tests and for people.
std::string describe(const Decision& decision);

// Told of each decision as it is taken, before it shows in the view.
using DecisionSink = std::function<void(const Decision& decision, const View& view)>;

struct EventLog {
  Nanoseconds start_ns = 0;  // of an owned program
  bool pretended = false;    // by the machine (Machine::pretends)
  std::vector<Input> inputs;
  std::vector<Decision> decisions;
};

// A machine that only repeats the completions of a log, in their order and at their times. That the engine submits what
// it submitted then shows in its decisions; `diverged` tells only of a completion of something never submitted.
class LogMachine final : public Machine {
 public:
  explicit LogMachine(const EventLog& log) : log_(log), now_(log.start_ns) {}

  Fence submit(const CopyCommand&, Tag) override { return ++last_fence_; }
  Fence execute(const OpCommand&, Tag) override { return ++last_fence_; }
  void cancel(Fence) override {}
  bool wait(Completion& completion) override;
  Nanoseconds now() const override { return now_; }
  bool pretends() const override { return log_.pretended; }
  const std::string& diverged() const { return diverged_; }

 private:
  const EventLog& log_;
  std::size_t next_ = 0;
  Fence last_fence_ = 0;
  Nanoseconds now_;
  std::string diverged_;
};

}  // namespace tencache
