// Kernels of a module on a stream of their own.
#pragma once

#include <cstdint>

#include "executor/cuda/cuda_device.h"

namespace tencache {

// Used by one thread.
class CudaKernels {
 public:
  // The device outlives it. `image`: PTX. Throws Error if the driver cannot compile it (it is older than the toolkit
  // that this was built with).
  CudaKernels(CudaDevice& device, const unsigned char* image, const char* what);
  ~CudaKernels();
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  CUfunction find(const char* name) const;
  // `threads`: how many have work. Whole blocks are started; kernels go on in strides beyond them.
  void launch(CUfunction function, std::uint64_t threads, void** parameters) const;
  void launch_one(CUfunction function, void** parameters) const;  // one thread
  CUstream stream() const { return stream_; }
  void finish() const;  // waits for the stream

 private:
  void start(CUfunction function, unsigned grid, unsigned block, void** parameters) const;

  CudaDevice& device_;
  const CudaDriver& driver_;
  CUmodule module_ = nullptr;
  CUstream stream_ = nullptr;
};

}  // namespace tencache
