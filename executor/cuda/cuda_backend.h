// The way into the CUDA backend for code that does not include CUDA's headers, also where it is not part of the build.
#pragma once

#include <memory>
#include <string>

#include "executor/accelerator.h"

namespace tencache {

// Opens a GPU, counted from 0. Throws Error that says what is missing: the backend in this build, a driver, a device.
std::shared_ptr<Accelerator> open_cuda(int ordinal = 0);

}  // namespace tencache
