// Placing updates by a recording's durations.
#pragma once

#include <memory>

#include "core/policy.h"
#include "core/trace.h"

namespace tencache {

// The policy, but where updates run and in which order it is asked with the durations of `recording`, a trace of the
// same program, instead of those of the step that the run itself has recorded: that is one step of many, and copies
// disturbed it. So a run decides as the prediction that was made from the recording. What is not the recorded step
// (another program, an update alone) is asked about as it is. The policy outlives what is returned.
std::unique_ptr<Policy> with_durations_of(Trace recording, Policy& policy);

}  // namespace tencache
