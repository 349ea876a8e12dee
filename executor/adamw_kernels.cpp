#include "executor/adamw_kernels.h"

namespace tencache {

void HostAdamWKernels::norm(const std::byte* gradient, bool low, std::size_t elements, double* partials) {
  const std::span<double> sums(partials, norm_blocks(elements));
  if (low) {
    grad_norm(std::span(reinterpret_cast<const Bfloat16*>(gradient), elements), sums);
  } else {
    grad_norm(std::span(reinterpret_cast<const float*>(gradient), elements), sums);
  }
}

void HostAdamWKernels::clip(std::span<const std::span<const double>> partials, double max_norm, float* coefficient) {
  double sum = 0;
  for (const std::span<const double> part : partials) sum = add_partials(sum, part);
  *coefficient = clip_coefficient(sum, max_norm);
}

void HostAdamWKernels::step(const AdamWArrays& arrays, const float* coefficient, std::uint64_t step,
                            const AdamWOptions& options) {
  const std::span<float> weight(arrays.weight, arrays.elements);
  const std::span<float> first_moment(arrays.first_moment, arrays.elements);
  const std::span<float> second_moment(arrays.second_moment, arrays.elements);
  if (arrays.rounded == nullptr) {
    const std::span gradient(reinterpret_cast<const float*>(arrays.gradient), arrays.elements);
    adamw_step(weight, gradient, first_moment, second_moment, *coefficient, step, options);
  } else {
    const std::span gradient(reinterpret_cast<const Bfloat16*>(arrays.gradient), arrays.elements);
    adamw_step(weight, std::span(arrays.rounded, arrays.elements), gradient, first_moment, second_moment, *coefficient,
               step, options);
  }
}

}  // namespace tencache
