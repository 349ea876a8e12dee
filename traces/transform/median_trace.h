// One trace of several recordings of the same step.
#pragma once

#include <vector>

#include "core/trace.h"

namespace tencache {

// The first trace with each op's duration replaced by the median over all, then all of them scaled so that their sum is
// that of the median step; gaps likewise. Delays hit some ops of every step and few ops in most: the sum of medians
// alone is of a step faster than any. Throws Error where their ops or tensors differ. `traces` is not empty.
Trace median_trace(const std::vector<Trace>& traces);

}  // namespace tencache
