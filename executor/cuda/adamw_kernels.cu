// AdamW on a device, with the bits of executor/adamw.cpp: sums are taken in its order, and without contraction.
#include <cstdint>

#include "executor/adamw_math.h"

namespace math = tencache::adamw_math;

namespace {

constexpr unsigned lanes = 8;                   // running sums of a block of the norm
constexpr std::uint64_t block_elements = 4096;  // norm_block_elements of adamw.h

__device__ std::uint64_t first_index() { return static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ std::uint64_t stride() { return static_cast<std::uint64_t>(gridDim.x) * blockDim.x; }

// Element i of floats, or of bfloat16.
__device__ float element(const void* values, std::uint32_t low, std::uint64_t i) {
  if (low == 0) return static_cast<const float*>(values)[i];
  return __uint_as_float(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(values)[i]) << 16);
}

}  // namespace

// The sum of squares of each block of 4096 elements: eight neighbouring threads a block, one for each running sum.
// Threads a block of the grid: a multiple of 32.
extern "C" __global__ void tencache_adamw_norm(const void* gradient, std::uint32_t low, std::uint64_t elements,
                                               double* partials) {
  const std::uint64_t blocks = (elements + block_elements - 1) / block_elements;
  // Whole warps stay together for the exchange below.
  for (std::uint64_t at = first_index(); at / 32 * 32 < blocks * lanes; at += stride()) {
    const std::uint64_t block = at / lanes;
    const std::uint64_t end = min((block + 1) * block_elements, elements);
    double sum = 0;
    for (std::uint64_t i = block * block_elements + at % lanes; i < end; i += lanes) {
      const double value = element(gradient, low, i);
      sum += value * value;
    }
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    sum += __shfl_xor_sync(0xffffffff, sum, 4);
    if (block < blocks && at % lanes == 0) partials[block] = sum;
  }
}

// Adds partials to *sum, one after the other; `first`: *sum starts with 0. One thread.
extern "C" __global__ void tencache_adamw_add(double* sum, const double* partials, std::uint64_t count,
                                              std::uint32_t first) {
  double total = first != 0 ? 0 : *sum;
#pragma unroll 16
  for (std::uint64_t i = 0; i < count; i++) total += partials[i];
  *sum = total;
}

// clip_coefficient of adamw.h. One thread.
extern "C" __global__ void tencache_adamw_clip(const double* sum, double max_norm, float* coefficient) {
  const double value = max_norm / (sqrt(*sum) + 1e-6);
  *coefficient = max_norm == 0.0 || value >= 1.0 ? 1.0f : static_cast<float>(value);
}

// A step. `low`: the gradient is bfloat16, and so is `rounded`, which takes the new weights; else it is not used.
extern "C" __global__ void tencache_adamw_step(float* weight, std::uint16_t* rounded, const void* gradient,
                                               std::uint32_t low, float* first_moment, float* second_moment,
                                               const float* coefficient, math::Factors by, std::uint64_t elements) {
  const float factor = *coefficient;
  for (std::uint64_t i = first_index(); i < elements; i += stride()) {
    const float value =
        math::updated(weight[i], element(gradient, low, i), factor, first_moment[i], second_moment[i], by);
    weight[i] = value;
    if (low != 0) rounded[i] = math::to_bfloat16_bits(__float_as_uint(value));
  }
}
