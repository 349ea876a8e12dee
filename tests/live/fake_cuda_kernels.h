// The kernels of executor/cuda as the fake driver runs them.
#pragma once

#include <cuda.h>

#include <functional>
#include <string>

#include "core/units.h"

namespace tencache {

using FakeTouch = std::function<void(CUdeviceptr begin, Bytes bytes)>;

// What a launch of a kernel does; `touch` is told of the memory that it will read and write. The parameters are read
// before this returns, as a real driver does.
std::function<void()> fake_kernel_job(const std::string& name, void** parameters, const FakeTouch& touch);

}  // namespace tencache
