// What allocators make of a program's allocations: how much of a GPU each reserves, what of that nobody uses, and why.
//
// No engine and no policy: the events are replayed in their order on an empty GPU. Where they are of one steady
// iteration, nothing of what came before it is known, which may be most of what a long-running process has reserved.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/caching_allocator.h"
#include "core/stitching_allocator.h"
#include "core/units.h"
#include "studies/address_map.h"
#include "traces/allocations.h"

namespace tencache {

struct FragmentAllocator {
  enum class Kind : std::uint8_t {
    caching,   // PyTorch's, with settings
    gmlake,    // stitched
    stweaver,  // placed before the run by STWeaver's rule
    planned,   // placed before the run, the largest first
    exact,     // what is asked for and nothing else
  };
  Kind kind = Kind::caching;
  std::string name;  // "default", "expandable", "max_split_size_mb:20"
  CachingSettings settings = {};
  StitchingSettings stitching = {};

  // What a user sets to have it; empty: nothing, or it is another allocator.
  std::string setting() const;
};
// "default", "expandable", "gmlake", "stweaver", "planned", "exact", or settings. Throws Error.
FragmentAllocator fragment_allocator(const std::string& name);
// Those that are compared where none are named.
std::vector<std::string> usual_fragment_allocators();

// When an allocation failed.
struct FragmentOutOfMemory {
  std::uint64_t event = 0;
  std::uint32_t iteration = 0;  // from 1; 0: before the first
  Bytes wanted = 0;             // by the program
  Bytes asked_for = 0;          // of the device: what PyTorch's message says
  AllocatorFigures then = {};
};

struct FragmentIteration {
  Bytes allocated_bytes = 0, reserved_bytes = 0;  // at most
  std::uint64_t device_calls = 0;                 // allocations and frees of segments
  std::uint64_t retries = 0;
};

struct FragmentRun {
  FragmentAllocator allocator;
  Bytes requested_peak = 0, allocated_peak = 0, reserved_peak = 0;
  AllocatorFigures at_peak = {};  // when the reserved memory reached its peak, or when memory ran out
  AllocatorFigures at_end = {};
  std::vector<FragmentIteration> iterations = {};  // the first is what comes before the first mark, if anything does
  std::optional<FragmentOutOfMemory> out_of_memory = {};

  // Peak allocated ÷ peak reserved, as GMLake and STWeaver report it.
  double utilisation() const;
};

inline constexpr Bytes no_fragment_limit = Bytes{1} << 44;  // more than any GPU has

// `limit`: memory for segments. With `map`, of this size, it is filled.
FragmentRun run_fragment(const Allocations& allocations, const FragmentAllocator& allocator, Bytes limit,
                         AddressMap* map = nullptr);

enum class FragmentVerdict : std::uint8_t {
  fits_gains,     // it runs as it is; the setting reserves less
  fits_no_gain,   // it runs as it is, and no setting gains 1 %
  cured,          // the default runs out of memory, with the setting it runs
  needs_memory,   // the program asks for more than there is: no setting helps
  needs_another,  // no setting helps, but a plan or stitching may
};

// What to set, of settings that were tried.
struct FragmentAdvice {
  FragmentVerdict verdict = FragmentVerdict::fits_no_gain;
  std::optional<FragmentRun> best = {};  // with the setting, or the plan
  FragmentRun standard = {};
};
FragmentAdvice advise_on_fragments(const Allocations& allocations, Bytes limit);

}  // namespace tencache
