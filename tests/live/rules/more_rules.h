// Functions of the driver of rules that executor/cuda does not call yet, and its table so does not have: waits and
// copies on the device, and times. An entry moves to add_work_rules when the table gets it.
#pragma once

#include <cuda.h>

namespace tencache::rules {

struct MoreRules {
  decltype(&::cuStreamWaitEvent) cuStreamWaitEvent = nullptr;
  decltype(&::cuEventQuery) cuEventQuery = nullptr;
  decltype(&::cuEventElapsedTime) cuEventElapsedTime = nullptr;
  decltype(&::cuMemcpyDtoDAsync) cuMemcpyDtoDAsync = nullptr;
};

// Of the driver that is active.
MoreRules more_rules();

}  // namespace tencache::rules
