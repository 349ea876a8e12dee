#include "core/error.h"
#include "executor/cuda/cuda_backend.h"

namespace tencache {

std::shared_ptr<Accelerator> open_cuda(int /*ordinal*/) {
  throw Error(
      "this build has no CUDA backend: the CUDA toolkit (nvcc and cuda.h) was not found when it was configured; "
      "install "
      "it and configure again, or let ordinary memory stand in for the GPU's (--device host)");
}

}  // namespace tencache
