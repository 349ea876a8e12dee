// Where a run stands. The engine alone changes it; its parts look at it.
#pragma once

#include <cstdint>

#include "core/timeline.h"
#include "core/trace.h"
#include "core/units.h"

namespace tencache {

// When and why the last missing byte of a waiting op was late; docs/engine.md, "Stalls".

// asked_ns <= room_ns <= first_hop_ns, but for room_ns -1: it found no room yet.
struct Lateness {
  Nanoseconds asked_ns = 0;      // before: `before`
  Nanoseconds room_ns = 0;       // until then it waited for room: `room`
  Nanoseconds first_hop_ns = 0;  // until then on the first link: `first_hop`
  StallCause before = StallCause::memory, room = StallCause::memory, first_hop = StallCause::memory,
             last = StallCause::memory;
};

struct Moment {
  Nanoseconds now = 0;          // of the present input; never decreases
  std::uint64_t iteration = 0;  // iterations done
  std::uint64_t input = 1;  // counts inputs, and the rounds of a standstill; a policy is asked for room once in each
  OpIndex position = none;  // the GPU's, in the program; none before its first op and off the schedule
};

}  // namespace tencache
