// Policies from a shared library (`--policy-library F`): what such a library includes and exports.
// docs/writing-a-policy.md makes one from nothing.
//
// A library shares C++ objects with the program that loads it: both must be compiled from the same headers with the
// same C++ ABI. Each library carries a stamp of what it was compiled against, and one that differs is refused. The
// stamp's own layout, and the name of the function that returns it, never change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>

#include "core/policy.h"
#include "policies/options.h"

namespace tencache {

// Goes up when what a policy sees or overrides changes: virtual functions, or members without a change of size.
inline constexpr std::uint32_t policy_abi_version = 1;

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

// One policy, in a library as in the registry. Texts and functions live as long as what holds them.
struct PolicyEntry {
  const char* name;     // as on the command line
  const char* summary;  // one line
  const char* source;   // paper or system
  std::unique_ptr<Policy> (*make)(Options& options);
};

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

}  // namespace tencache

// At the end of a library: its entries, each in braces. A library has one.
#define TENCACHE_POLICY_LIBRARY(...)                                                                           \
  extern "C" __attribute__((visibility("default"))) const tencache::PolicyLibrary* tencache_policy_library() { \
    static constexpr tencache::PolicyEntry entries[] = {__VA_ARGS__};                                          \
    static constexpr tencache::PolicyLibrary library = {tencache::policy_abi_version,                          \
                                                        static_cast<std::uint32_t>(std::size(entries)),        \
                                                        tencache::policy_abi_layout(), __VERSION__, entries};  \
    return &library;                                                                                           \
  }
