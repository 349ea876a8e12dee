// A recording made smaller, so that it can be run on a computer that the original would not fit.
#pragma once

#include <string>

#include "core/trace.h"

namespace tencache {

// Multiplies the bytes of every tensor (none becomes less than 1) and every duration and gap, rounded down. The traffic
// that an op says it has (Op::bytes) scales with the bytes.
void scale_trace(Trace& trace, double bytes_factor, double time_factor);

// "1/1024", "0.25" or "0". Throws Error naming `option` for anything else, a factor below 0 or above 1.
double parse_scale(const std::string& option, const std::string& text);

}  // namespace tencache
