// Where a run stands. The engine alone changes it; its parts look at it.
#pragma once

#include <cstdint>

#include "core/trace.h"
#include "core/units.h"

namespace tencache {

struct Moment {
  Nanoseconds now = 0;          // of the present input; never decreases
  std::uint64_t iteration = 0;  // iterations done
  std::uint64_t input = 1;  // counts inputs, and the rounds of a standstill; a policy is asked for room once in each
  OpIndex position = none;  // the GPU's, in the program; none before its first op and off the schedule
};

}  // namespace tencache
