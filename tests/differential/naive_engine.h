// A second engine and a second simulated machine for owned programs, written from docs/engine.md: everything is found
// by scanning everything, at every input. Slow and obvious; tests/differential/differential_test.cpp compares the fast
// ones with it. Limits: tiers of the exact layout, but tier 0 may be movable; a fixed number of iterations; no figures
// but what happened when.
#pragma once

#include <vector>

#include "core/machine_spec.h"
#include "core/policy.h"
#include "core/trace.h"

namespace tencache {

struct NaiveOp {
  std::uint8_t lane = 0;
  OpIndex op = none;
  Nanoseconds start_ns = 0, end_ns = 0;
  bool operator==(const NaiveOp&) const = default;
};

struct NaiveTransfer {
  LinkId link = no_link;
  ChunkId chunk = none;
  TierId from = no_tier, to = no_tier;
  bool urgent = false, done = false;
  Nanoseconds start_ns = 0, end_ns = 0;
  bool operator==(const NaiveTransfer&) const = default;
};

// Of a chunk within tier 0.
struct NaiveMove {
  std::size_t server = 0;  // a lane, or lane_count and a link: it waits for the hole
  ChunkId chunk = none;
  std::uint64_t to = 0;
  Nanoseconds decided_ns = 0, takes_ns = 0;
  bool operator==(const NaiveMove&) const = default;
};

struct NaiveResult {
  bool fits = true;
  std::vector<Nanoseconds> iteration_ns;
  std::vector<NaiveOp> ops;                     // in order of their end
  std::vector<NaiveTransfer> transfers;         // in order of their end
  std::vector<NaiveMove> moves;                 // in order of their decision
  std::vector<std::vector<ChunkId>> residents;  // by tier, from the coldest to the warmest valid copy
};

NaiveResult run_naive(const Program& program, const MachineSpec& machine, Policy& policy, std::uint64_t iterations);

}  // namespace tencache
