// Places for the blocks of a program whose allocations are all known before it runs: what a plan made offline reaches.
#pragma once

#include <cstdint>
#include <vector>

#include "core/units.h"
#include "traces/allocations.h"

namespace tencache {

enum class PlacementRule : std::uint8_t {
  // The largest first, each at the lowest address that is free during its whole life.
  largest_first,
  // STWeaver's "split and fuse" (infinigence/STAlloc, Synthesizer and Allocator): sizes from the largest down; blocks
  // of a size form lanes, one after the other in time; each block goes into a band of earlier lanes where it lies on
  // top of what is there during its life, and what finds no place in any makes bands of its own, one a lane. What lives
  // from one iteration to a later one has an area apart.
  split_and_fuse,
};

struct Placement {
  std::vector<std::uint64_t> offset;  // by block
  Bytes height = 0;                   // of all memory that the plan needs
};

// Sizes are rounded up to 512 bytes. What lives across the border of an iteration is placed first, the largest first;
// then each iteration is planned by itself around it, or above it (split_and_fuse). Equal iterations get equal plans.
Placement place(const Allocations& allocations, PlacementRule rule);

}  // namespace tencache
