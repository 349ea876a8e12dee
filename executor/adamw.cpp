#include "executor/adamw.h"

#include <cmath>

#include "core/check.h"

namespace tencache {
namespace {

// base^exponent by squaring: multiplications only, so the bits do not depend on a mathematical library.
double power(double base, std::uint64_t exponent) {
  double result = 1.0;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result *= base;
    base *= base;
  }
  return result;
}

}  // namespace

void adamw_step(std::span<float> parameter, std::span<const float> gradient, std::span<float> first_moment,
                std::span<float> second_moment, std::uint64_t step, const AdamWOptions& options) {
  const std::size_t count = parameter.size();
  TENCACHE_CHECK(step >= 1 && gradient.size() == count && first_moment.size() == count &&
                 second_moment.size() == count);
  const auto decay = static_cast<float>(1.0 - options.learning_rate * options.weight_decay);
  const auto step_size = static_cast<float>(options.learning_rate / (1.0 - power(options.beta1, step)));
  const auto root_correction2 = static_cast<float>(std::sqrt(1.0 - power(options.beta2, step)));
  const auto beta1 = static_cast<float>(options.beta1), rest1 = static_cast<float>(1.0 - options.beta1);
  const auto beta2 = static_cast<float>(options.beta2), rest2 = static_cast<float>(1.0 - options.beta2);
  const auto epsilon = static_cast<float>(options.epsilon);
  float* __restrict p = parameter.data();
  const float* __restrict g = gradient.data();
  float* __restrict m = first_moment.data();
  float* __restrict v = second_moment.data();
  for (std::size_t i = 0; i < count; ++i) {
    m[i] = m[i] * beta1 + g[i] * rest1;
    v[i] = v[i] * beta2 + g[i] * g[i] * rest2;
    const float denominator = sqrtf(v[i]) / root_correction2 + epsilon;
    p[i] = p[i] * decay - m[i] / denominator * step_size;
  }
}

}  // namespace tencache
