// The kernels of executor/cuda as the driver of rules runs them: the host's version of the same functions.
#pragma once

#include <cuda.h>

#include <functional>
#include <string>

#include "core/units.h"

namespace tencache::rules {

// For cuModuleGetFunction. Null: no kernel of ours.
CUfunction find_kernel(const std::string& name);

// Called with the memory that a launch will read or write.
using KernelTouch = std::function<void(CUdeviceptr begin, Bytes bytes, bool write)>;

// What a launch does. The parameters are read before this returns. Nothing: the function is not one of find_kernel.
std::function<void()> launch_kernel(CUfunction function, void** parameters, const KernelTouch& touch);

}  // namespace tencache::rules
