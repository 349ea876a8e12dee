#include "executor/cuda/cuda_adamw_kernels.h"

#include "core/error.h"

namespace tencache {
namespace {

#include "adamw_kernels_ptx.inc"  // unsigned char adamw_kernels_ptx[]

constexpr std::uint64_t threads_a_sum = 8;  // for each block of the norm

CUdeviceptr pointer(const void* device) { return reinterpret_cast<CUdeviceptr>(device); }

}  // namespace

CudaAdamWKernels::CudaAdamWKernels(CudaDevice& device)
    : device_(device),
      driver_(device.driver()),
      kernels_(device, adamw_kernels_ptx, "the optimizer"),
      norm_(kernels_.find("tencache_adamw_norm")),
      add_(kernels_.find("tencache_adamw_add")),
      clip_(kernels_.find("tencache_adamw_clip")),
      step_(kernels_.find("tencache_adamw_step")) {
  check_cuda(driver_, driver_.cuMemAlloc(&sum_, sizeof(double)), "memory for a sum");
}

CudaAdamWKernels::~CudaAdamWKernels() {
  try {
    kernels_.finish();
  } catch (const Error&) {
    return;
  }
  driver_.cuMemFree(sum_);
}

void CudaAdamWKernels::norm(const std::byte* gradient, bool low, std::size_t elements, double* partials) {
  device_.bind();
  CUdeviceptr from = pointer(gradient), to = pointer(partials);
  std::uint32_t is_low = low ? 1 : 0;
  std::uint64_t count = elements;
  void* parameters[] = {&from, &is_low, &count, &to};
  kernels_.launch(norm_, norm_blocks(elements) * threads_a_sum, parameters);
}

void CudaAdamWKernels::clip(std::span<const std::span<const double>> partials, double max_norm, float* coefficient) {
  device_.bind();
  std::uint32_t first = 1;
  for (const std::span<const double> part : partials) {
    CUdeviceptr from = pointer(part.data());
    std::uint64_t count = part.size();
    void* parameters[] = {&sum_, &from, &count, &first};
    kernels_.launch_one(add_, parameters);
    first = 0;
  }
  CUdeviceptr to = pointer(coefficient);
  void* parameters[] = {&sum_, &max_norm, &to};
  kernels_.launch_one(clip_, parameters);
}

void CudaAdamWKernels::step(const AdamWArrays& arrays, const float* coefficient, std::uint64_t step,
                            const AdamWOptions& options) {
  device_.bind();
  CUdeviceptr weight = pointer(arrays.weight), rounded = pointer(arrays.rounded), gradient = pointer(arrays.gradient),
              first_moment = pointer(arrays.first_moment), second_moment = pointer(arrays.second_moment),
              factor = pointer(coefficient);
  std::uint32_t low = arrays.rounded != nullptr ? 1 : 0;
  adamw_math::Factors by = adamw_factors(options, step);
  std::uint64_t elements = arrays.elements;
  void* parameters[] = {&weight, &rounded, &gradient, &low, &first_moment, &second_moment, &factor, &by, &elements};
  kernels_.launch(step_, elements, parameters);
}

}  // namespace tencache
