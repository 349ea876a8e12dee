#include "executor/cuda/cuda_kernels.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace tencache {
namespace {

constexpr unsigned threads_a_block = 256;  // whole warps
constexpr std::uint64_t most_blocks = 4096;

}  // namespace

CudaKernels::CudaKernels(CudaDevice& device, const unsigned char* image, const char* what)
    : device_(device), driver_(device.driver()) {
  device_.bind();
  if (const CUresult result = driver_.cuModuleLoadData(&module_, image); result != CUDA_SUCCESS) {
    throw Error("CUDA: the driver does not take the kernels of " + std::string(what) + ": " +
                cuda_error(driver_, result) + "; they were built with CUDA " + std::to_string(CUDA_VERSION / 1000) +
                "." + std::to_string(CUDA_VERSION % 1000 / 10) + ", the driver must be for that or a later one");
  }
  const CUresult made = driver_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
  if (made != CUDA_SUCCESS) driver_.cuModuleUnload(module_);
  check_cuda(driver_, made, "making a stream for ops");
}

CudaKernels::~CudaKernels() {
  if (!device_.try_bind()) return;
  driver_.cuStreamSynchronize(stream_);
  driver_.cuStreamDestroy(stream_);
  driver_.cuModuleUnload(module_);
}

CUfunction CudaKernels::find(const char* name) const {
  CUfunction function = nullptr;
  device_.bind();
  check_cuda(driver_, driver_.cuModuleGetFunction(&function, module_, name), name);
  return function;
}

void CudaKernels::start(CUfunction function, unsigned grid, unsigned block, void** parameters) const {
  check_cuda(driver_, driver_.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream_, parameters, nullptr),
             "starting a kernel");
}

void CudaKernels::launch(CUfunction function, std::uint64_t threads, void** parameters) const {
  const std::uint64_t blocks = std::max<std::uint64_t>(1, (threads + threads_a_block - 1) / threads_a_block);
  start(function, static_cast<unsigned>(std::min(blocks, most_blocks)), threads_a_block, parameters);
}

void CudaKernels::launch_one(CUfunction function, void** parameters) const { start(function, 1, 1, parameters); }

void CudaKernels::finish() const {
  device_.bind();
  check_cuda(driver_, driver_.cuStreamSynchronize(stream_), "an op");
}

}  // namespace tencache
