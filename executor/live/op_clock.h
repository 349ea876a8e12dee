// The times of the op that runs, on the clock that its caller reads. Not thread-safe.
#pragma once

#include "core/units.h"

namespace tencache {

class OpClock {
 public:
  // The op's tensors are there.
  void begin(Nanoseconds now) {
    begin_ns_ = now;
    waited_ns_ = 0;
  }
  // It waited for room meanwhile.
  void wait(Nanoseconds waited_ns) { waited_ns_ += waited_ns; }
  // Returns how long it ran, without waits.
  Nanoseconds end(Nanoseconds now) {
    pause(now);
    return now - begin_ns_ - waited_ns_;
  }
  // What came before `now` is no gap between ops.
  void pause(Nanoseconds now) { last_end_ns_ = now; }
  Nanoseconds gap(Nanoseconds now) const { return now - last_end_ns_; }

 private:
  Nanoseconds begin_ns_ = 0, waited_ns_ = 0, last_end_ns_ = 0;
};

}  // namespace tencache
