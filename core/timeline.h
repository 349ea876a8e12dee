// What happened when: spans per lane, occupancy per tier. Written by the engine, so one structure serves both machines;
// read by the report, the Perfetto export and the dashboard.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/machine.h"
#include "core/machine_spec.h"
#include "core/stall_cause.h"
#include "core/trace.h"
#include "core/units.h"

namespace tencache {

// By the kinds of tier that the link joins.
StallCause cause_of(const MachineSpec& machine, LinkId link);

// move: a chunk goes to another place of its tier, from when that was decided for as long as it takes by itself; it is
// on the lane that waits for the hole.
enum class SpanKind : std::uint8_t { op, gap, stall, transfer, move };

// The lanes of spans, and of the ops among them: the GPU's compute stream, the CPU, the GPU's communication stream.
inline constexpr std::uint8_t gpu_lane = 0, cpu_lane = 1, communication_lane = 2;
inline constexpr std::size_t lane_count = 3;
inline constexpr std::uint8_t first_link_lane = lane_count;  // transfers: plus the link

struct Span {
  Nanoseconds start_ns = 0, end_ns = 0;
  SpanKind kind = SpanKind::op;
  StallCause cause = StallCause::memory;  // stalls
  bool urgent = false;                    // transfers: a demand miss, or lifted to one
  std::uint8_t lane = 0;
  std::uint64_t iteration = 0;
  OpIndex op = none;       // the op; of a transfer: the op at which it was asked for
  TensorId tensor = none;  // transfers, moves
  ChunkId chunk = none;
  Bytes bytes = 0;
  TierId from = no_tier, to = no_tier;

  bool of_chunk() const { return kind == SpanKind::transfer || kind == SpanKind::move; }
};

// A chunk's room was taken in a tier or given back.
struct OccupancySample {
  Nanoseconds time_ns = 0;
  TierId tier = 0;
  Role role = Role::activation;  // of the chunk's tensor, as far as it is known by then
  TensorId tensor = none;        // of the memory: live ids are used again
  Bytes used = 0;                // of the tier, with this change
  std::int64_t change = 0;       // bytes, negative: given back
};

struct Timeline {
  bool keeps_spans = true;                      // else only the occupancy is written
  std::vector<Span> spans = {};                 // in order of their end, but for moves, which end later
  std::vector<OccupancySample> occupancy = {};  // in order of time; one whenever a tier's use changed
};

// The spans from an iteration on, and the occupancy from the start of the first of them; what the tiers held by then
// comes as one sample for each tensor.
Timeline from_iteration(const Timeline& timeline, std::uint64_t first);

}  // namespace tencache
