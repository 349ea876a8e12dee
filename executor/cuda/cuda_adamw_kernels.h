// AdamW on a CUDA device, on a stream of its own.
#pragma once

#include "executor/adamw_kernels.h"
#include "executor/cuda/cuda_kernels.h"

namespace tencache {

class CudaAdamWKernels final : public AdamWKernels {
 public:
  // The device outlives it.
  explicit CudaAdamWKernels(CudaDevice& device);
  ~CudaAdamWKernels() override;
  CudaAdamWKernels(const CudaAdamWKernels&) = delete;
  CudaAdamWKernels& operator=(const CudaAdamWKernels&) = delete;

  void norm(const std::byte* gradient, bool low, std::size_t elements, double* partials) override;
  void clip(std::span<const std::span<const double>> partials, double max_norm, float* coefficient) override;
  void step(const AdamWArrays& arrays, const float* coefficient, std::uint64_t step,
            const AdamWOptions& options) override;
  void finish() override { kernels_.finish(); }

 private:
  CudaDevice& device_;
  const CudaDriver& driver_;
  CudaKernels kernels_;
  CUfunction norm_, add_, clip_, step_;
  CUdeviceptr sum_ = 0;  // a double
};

}  // namespace tencache
