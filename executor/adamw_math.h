// The arithmetic of an AdamW step on one element, the same on the host and on a device: each line is made of correctly
// rounded IEEE operations, and neither compiler may contract them (-ffp-contract=off, -fmad=false).
#pragma once

#include <cmath>
#include <cstdint>

#include "executor/host_device.h"

namespace tencache::adamw_math {

// What is the same for all elements of a step, but for the gradients' coefficient.
struct Factors {
  float decay, step_size, root_correction2, beta1, rest1, beta2, rest2, epsilon;
};

// The new parameter. Moments are changed in place.
TENCACHE_HOST_DEVICE inline float updated(float parameter, float gradient, float coefficient, float& first_moment,
                                          float& second_moment, const Factors& by) {
  const float clipped = gradient * coefficient;
  first_moment = first_moment * by.beta1 + clipped * by.rest1;
  second_moment = second_moment * by.beta2 + clipped * clipped * by.rest2;
  const float denominator = sqrtf(second_moment) / by.root_correction2 + by.epsilon;
  return parameter * by.decay - first_moment / denominator * by.step_size;
}

// A float's bits to those of a bfloat16: to the nearest, ties to even; a NaN stays one.
TENCACHE_HOST_DEVICE inline std::uint16_t to_bfloat16_bits(std::uint32_t bits) {
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<std::uint16_t>(nan ? 0x7fc0u : rounded);
}

}  // namespace tencache::adamw_math
