// What single calls of the CUDA driver take on the host, alone and while a kernel runs, and whether that kernel notices.
// `calibrate` measures what the executor does with them (a chunk mapped, copies queued); these are the parts.
#pragma once

#include <string>
#include <vector>

#include "executor/calibrate.h"
#include "executor/cuda/cuda_device.h"

namespace tencache {

struct CallTime {
  std::string call;            // the function, or what is done with several
  Bytes bytes = 0;             // 0: it has no size
  bool beside_kernel = false;  // while a kernel runs on a stream of its own
  MeasuredMedian seconds;
};

struct DriverCalls {
  std::vector<CallTime> calls;
  // A kernel that is busy for a while, from its launch to the host's knowing that it is over: by itself, and while
  // another thread maps and unmaps memory all the time.
  MeasuredMedian kernel_alone, kernel_beside_mapping;
};

// On the calling thread and one more. Gives everything back. Throws Error as the driver does.
DriverCalls time_driver_calls(CudaDevice& device, int repetitions);

}  // namespace tencache
