// A trace whose durations vary as a rerun's would.
#pragma once

#include <cstdint>

#include "core/trace.h"

namespace tencache {

// Each op's duration multiplied by 1 + spread·u or divided by it, u uniform from 0 to 1, up and down alike. The same
// seed gives the same trace on every computer (mt19937_64 and the four operations of IEEE arithmetic). Gaps, and what
// the machine says how long it takes (transfers, updates that a policy moves to the CPU), stay.
Trace jittered(Trace trace, double spread, std::uint64_t seed);

}  // namespace tencache
