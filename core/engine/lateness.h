// When and why the last missing byte of a waiting op was late; docs/engine.md, "Stalls".
#pragma once

#include "core/timeline.h"

namespace tencache {

// asked_ns <= room_ns <= first_hop_ns, but for room_ns -1: it found no room yet.
struct Lateness {
  Nanoseconds asked_ns = 0;      // before: `before`
  Nanoseconds room_ns = 0;       // until then it waited for room: `room`
  Nanoseconds first_hop_ns = 0;  // until then on the first link: `first_hop`
  StallCause before = StallCause::memory, room = StallCause::memory, first_hop = StallCause::memory,
             last = StallCause::memory;
};

}  // namespace tencache
