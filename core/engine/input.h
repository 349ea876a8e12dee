// What reaches the engine from outside: completions of the machine, and calls of a live program. All of them enter by
// Engine::handle, so their log, replayed in order, gives the same decisions.
#pragma once

#include <memory>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/machine.h"
#include "core/trace.h"

namespace tencache {

namespace input {

// Of an owned program: nothing was under way.
struct Standstill {};
// A completion that says when work was over which was `done` before. Only figures follow from it.
struct Observed {
  Completion completion;
};

// The others are calls of a live program; engine.h has their contracts.
struct Create {
  TensorId tensor = none;  // the id that it gets
  Bytes bytes = 0;
  Role role = Role::activation;
  bool persistent = false;
};
// Right after it was created: all of its content lies in that tier already, which has room for it.
struct Stored {
  TensorId tensor = none;
  TierId tier = no_tier;
};
struct Destroy {
  TensorId tensor = none;
};
struct Begin {
  OpIndex op = none;
  std::vector<Use> uses;
};
struct Allocate {
  TensorId tensor = none;
};
struct End {};
struct Task {
  std::uint8_t lane = 0;
  OpIndex op = none;
  Tag tag = 0;
  std::vector<Use> uses;
  Nanoseconds duration_ns = 0;
};
struct WaitedForTasks {
  Nanoseconds duration_ns = 0;  // until the input
};
struct ModuleBegin {
  NameId module = 0;
};
struct ModuleEnd {
  NameId module = 0;
};
struct Boundary {};
struct Profile {
  std::shared_ptr<const Program> program;
  std::vector<TensorId> to_memory, to_program;
};
struct Match {
  TensorId memory_tensor = none, program_tensor = none;
};
struct SetRole {
  TensorId tensor = none;
  Role role = Role::activation;
};
struct Deviated {};
struct Revealed {
  OpIndex gate = none;
  std::vector<std::uint32_t> chosen;
};
// A tier has so much from now on, and no less than is used.
struct Capacity {
  TierId tier = no_tier;
  Bytes bytes = 0;
};
struct CheckProgress {};
struct Abandon {};
struct LateWrite {
  TensorId tensor = none;
};
struct Pin {
  TensorId tensor = none;
  bool written = false;
};
struct Unpin {
  TensorId tensor = none;
  bool written = false;  // as it was pinned
};

}  // namespace input

struct Input {
  using What =
      std::variant<Completion, input::Standstill, input::Observed, input::Create, input::Stored, input::Destroy,
                   input::Begin, input::Allocate, input::End, input::Task, input::WaitedForTasks, input::ModuleBegin,
                   input::ModuleEnd, input::Boundary, input::Profile, input::Match, input::SetRole, input::Deviated,
                   input::Capacity, input::CheckProgress, input::Abandon, input::LateWrite, input::Pin, input::Unpin,
                   input::Revealed>;
  // In the log: the engine's time, which never decreases from one input to the next.
  Nanoseconds now = 0;
  What what;
};

// Whether the engine looks for what can start after an input of this kind. It does not after those that only note
// something, and those of a standstill look by themselves.
template <typename Kind>
inline constexpr bool may_start_something =
    !(std::is_same_v<Kind, input::Standstill> || std::is_same_v<Kind, input::Observed> ||
      std::is_same_v<Kind, input::Create> || std::is_same_v<Kind, input::Stored> ||
      std::is_same_v<Kind, input::WaitedForTasks> || std::is_same_v<Kind, input::Match> ||
      std::is_same_v<Kind, input::SetRole> || std::is_same_v<Kind, input::CheckProgress> ||
      std::is_same_v<Kind, input::LateWrite> || std::is_same_v<Kind, input::Pin> || std::is_same_v<Kind, input::Unpin>);

}  // namespace tencache
