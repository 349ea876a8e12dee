// What the file of a policy includes, whether it lies in this folder or is a shared library (`--policy-library F`):
// TENCACHE_POLICY at its end makes it known. docs/writing-a-policy.md makes one from nothing.
//
// A library shares C++ objects with the program that loads it: both must be compiled from the same headers with the
// same C++ ABI. Each library carries a stamp of what it was compiled against, and one that differs is refused. The
// stamp's own layout, and the name of the function that returns it, never change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <memory>

#include "core/policy.h"
#include "policies/counterparts.h"
#include "policies/model_shape.h"
#include "policies/options.h"

namespace tencache {

// One policy, in a shared library as in the program. Texts and functions live as long as what holds them.
struct PolicyEntry {
  const char* name;     // as on the command line
  const char* summary;  // one line
  const char* source;   // paper or system
  std::unique_ptr<Policy> (*make)(Options& options);
  // In listings the program's own policies come by their place, of equal ones by name; others come after them.
  std::uint32_t place = std::numeric_limits<std::uint32_t>::max();

  // For tuning; null where there is nothing to say.
  // Where settings demand another option's value, adds it. What they name already stays. `largest_parameter`: elements.
  void (*complete)(std::uint64_t largest_parameter, Settings& settings) = nullptr;
  // What settings reserve beside what a simulation holds. `resolved`: all options.
  ReservedMemory (*reserved_memory)(const Settings& resolved, const ModelShape& model) = nullptr;
  // What other tools are told to do the same.
  Counterparts counterparts = {};
};

// Goes up when what a policy sees or overrides changes: virtual functions, or members without a change of size.
inline constexpr std::uint32_t policy_abi_version = 5;

// Sizes of what crosses the border, and the compiler's ABI: catches a changed header whose version was forgotten.
consteval std::uint64_t policy_abi_layout() {
  std::uint64_t hash = 14695981039346656037ull;
  for (const std::size_t part : {sizeof(Policy),
                                 sizeof(Requirements),
                                 sizeof(Layout),
                                 sizeof(RoomRequest),
                                 sizeof(Event),
                                 sizeof(View),
                                 sizeof(Action),
                                 sizeof(Actions),
                                 sizeof(Rehearsal),
                                 sizeof(Options),
                                 sizeof(Options::Info),
                                 sizeof(PolicyEntry),
                                 sizeof(Residency),
                                 sizeof(Copy),
                                 sizeof(Schedule),
                                 sizeof(MachineSpec),
                                 sizeof(Tier),
                                 sizeof(Link),
                                 sizeof(Resource),
                                 sizeof(Trace),
                                 sizeof(Op),
                                 sizeof(Tensor),
                                 sizeof(TraceHeader),
                                 sizeof(Program),
                                 static_cast<std::size_t>(__GXX_ABI_VERSION)}) {
    hash = (hash ^ part) * 1099511628211ull;
  }
  return hash;
}

struct PolicyLibrary {
  std::uint32_t abi_version;
  std::uint32_t entry_count;
  std::uint64_t abi_layout;
  const char* compiler;
  const PolicyEntry* entries;
};

// For PolicyEntry::make.
template <typename P>
std::unique_ptr<Policy> make_policy_of(Options& options) {
  return std::make_unique<P>(options);
}

// Adds policies to those that the program ships. Before the first use of the registry: see TENCACHE_POLICY.
bool ship_policies(std::initializer_list<PolicyEntry> entries);

}  // namespace tencache

// At the end of a policy's file: its entry, in braces; of several policies, with commas between. In the program's own
// folder of policies this adds them to those it ships; anywhere else it makes the file a policy library, which has it
// once.
#ifdef TENCACHE_SHIPS_POLICIES
#define TENCACHE_POLICY(...) TENCACHE_SHIP_POLICIES(__COUNTER__, __VA_ARGS__)
#define TENCACHE_SHIP_POLICIES(number, ...) TENCACHE_SHIP_POLICIES_AS(number, __VA_ARGS__)
#define TENCACHE_SHIP_POLICIES_AS(number, ...) \
  [[maybe_unused]] static const bool ships_policies_##number = tencache::ship_policies({__VA_ARGS__});
#else
#define TENCACHE_POLICY(...)                                                                                   \
  extern "C" __attribute__((visibility("default"))) const tencache::PolicyLibrary* tencache_policy_library() { \
    static constexpr tencache::PolicyEntry entries[] = {__VA_ARGS__};                                          \
    static constexpr tencache::PolicyLibrary library = {tencache::policy_abi_version,                          \
                                                        static_cast<std::uint32_t>(std::size(entries)),        \
                                                        tencache::policy_abi_layout(), __VERSION__, entries};  \
    return &library;                                                                                           \
  }
#endif

// Its name in version 0.1.
#define TENCACHE_POLICY_LIBRARY(...) TENCACHE_POLICY(__VA_ARGS__)
