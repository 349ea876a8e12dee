// The host issues kernels one after the other, and runs ahead while they are long: a kernel starts when the one before
// it is done and the host has come to it. Where kernels are shorter than their issue, the GPU waits.
#pragma once

#include "core/trace.h"

namespace tencache {

// Sets the gap before each GPU op from its duration and its number of launches, each of which takes the host
// `launch_ns`. Every rank has a host of its own, which begins with the iteration.
void issue(Trace& trace, Nanoseconds launch_ns);

}  // namespace tencache
