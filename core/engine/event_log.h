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
  hole,         // for `chunk` there was enough memory, but in no one place
  revoked,      // less is left of the tier than was used
};
template <>
inline constexpr auto enum_texts<Reason> = std::to_array<std::string_view>({"demand", "policy", "room", "coldest",
                                                                            "reclaim", "dead", "overwritten",
                                                                            "standstill", "retry", "hole", "revoked"});

struct Why {
  Reason reason = Reason::demand;
  bool prefetch = false;
  EventKind event = EventKind::op_issued;
  OpIndex op = none;
  ChunkId chunk = none;
  bool operator==(const Why&) const = default;
};

// One decision, as the engine carried it out. `release`: a copy of no use goes, without being asked for. `move`: a copy
// goes to another place of its tier, to make a hole.
struct Decision {
  enum class Kind : std::uint8_t {
    fetch,
    evict,
    clean,
    drop,
    promote,
    cancel,
    allocate,
    release,
    refuse,
    start_op,
    move
  };
  Kind kind = Kind::fetch;
  TierId from = no_tier, to = no_tier;
  ChunkId chunk = none;
  OpIndex op = none;  // the GPU's position
  Nanoseconds now = 0;
  Refusal refusal = Refusal::none;  // of kind refuse
  std::uint64_t offset = 0;         // of kind move: where it goes
  Why why;
  bool operator==(const Decision&) const = default;
};
template <>
inline constexpr auto enum_texts<Decision::Kind> = std::to_array<std::string_view>(
    {"fetch", "evict", "clean", "drop", "promote", "cancel", "allocate", "release", "refuse", "start_op", "move"});

// Told of each decision as it is taken, before it shows in the view.
using DecisionSink = std::function<void(const Decision& decision, const View& view)>;

struct EventLog {
  Nanoseconds start_ns = 0;  // of an owned program
  bool pretended = false;    // by the machine (Machine::pretends)
  std::vector<Input> inputs;
  std::vector<Decision> decisions;
};

}  // namespace tencache
