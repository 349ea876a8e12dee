// AdamW on the memory of the device that an op lane runs on: the functions of adamw.h on addresses there. Host and GPU
// compute the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "executor/adamw.h"

namespace tencache {

// A parameter in a step; all arrays have `elements` elements.
struct AdamWArrays {
  float* weight = nullptr;              // the master, where there is one
  Bfloat16* rounded = nullptr;          // takes the new weights rounded; nullptr: weights and gradient are float
  const std::byte* gradient = nullptr;  // float, or bfloat16 with `rounded`
  float* first_moment = nullptr;
  float* second_moment = nullptr;
  std::size_t elements = 0;
};

// Used by one thread. Calls take effect in their order; `finish` waits for them.
class AdamWKernels {
 public:
  virtual ~AdamWKernels() = default;
  // grad_norm; `low`: the gradient is bfloat16.
  virtual void norm(const std::byte* gradient, bool low, std::size_t elements, double* partials) = 0;
  // add_partials of all of them in order, and clip_coefficient.
  virtual void clip(std::span<const std::span<const double>> partials, double max_norm, float* coefficient) = 0;
  virtual void step(const AdamWArrays& arrays, const float* coefficient, std::uint64_t step,
                    const AdamWOptions& options) = 0;
  virtual void finish() = 0;
};

// On the calling thread.
class HostAdamWKernels final : public AdamWKernels {
 public:
  void norm(const std::byte* gradient, bool low, std::size_t elements, double* partials) override;
  void clip(std::span<const std::span<const double>> partials, double max_norm, float* coefficient) override;
  void step(const AdamWArrays& arrays, const float* coefficient, std::uint64_t step,
            const AdamWOptions& options) override;
  void finish() override {}
};

}  // namespace tencache
