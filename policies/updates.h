// What the policies that leave the optimizer to the CPU have in common.
#pragma once

#include "core/trace.h"

namespace tencache {

// Policy::place: on the CPU if the trace says that the op may be placed or, an update that was recorded on the GPU, if
// it writes a persistent tensor other than an input. Else where it was recorded.
Device updates_on_cpu(const Trace& trace, const Op& op);

}  // namespace tencache
