#include "executor/adamw.h"

#include <algorithm>
#include <array>
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

// Eight running sums, one for each index modulo 8, then a tree. Compilers turn the lanes into vectors without changing
// the order of any addition.
double block_sum_of_squares(const float* values, std::size_t count) {
  constexpr std::size_t lanes = 8;
  std::array<double, lanes> sums{};
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const double value = values[i + lane];
      sums[lane] += value * value;
    }
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) {
    const double value = values[i];
    sums[lane] += value * value;
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace

void grad_norm(std::span<const float> gradient, std::span<double> partials) {
  TENCACHE_CHECK(partials.size() == norm_blocks(gradient.size()));
  for (std::size_t block = 0; block < partials.size(); ++block) {
    const std::size_t begin = block * norm_block_elements;
    partials[block] =
        block_sum_of_squares(gradient.data() + begin, std::min(norm_block_elements, gradient.size() - begin));
  }
}

double add_partials(double sum, std::span<const double> partials) {
  for (const double partial : partials) sum += partial;
  return sum;
}

float clip_coefficient(double sum_of_squares, double max_norm) {
  if (max_norm == 0.0) return 1.0f;
  // The 1e-6 is PyTorch's, against a division by zero.
  const double coefficient = max_norm / (std::sqrt(sum_of_squares) + 1e-6);
  return coefficient >= 1.0 ? 1.0f : static_cast<float>(coefficient);
}

void adamw_step(std::span<float> parameter, std::span<const float> gradient, std::span<float> first_moment,
                std::span<float> second_moment, float coefficient, std::uint64_t step, const AdamWOptions& options) {
  const std::size_t count = parameter.size();
  TENCACHE_CHECK(step >= 1 && gradient.size() == count && first_moment.size() == count &&
                 second_moment.size() == count);
  const double correction1 = 1.0 - power(options.beta1, step);
  const double correction2 = 1.0 - power(options.beta2, step);
  const float decay = static_cast<float>(1.0 - options.learning_rate * options.weight_decay);
  const float step_size = static_cast<float>(options.learning_rate / correction1);
  const float root_correction2 = static_cast<float>(std::sqrt(correction2));
  const float beta1 = static_cast<float>(options.beta1), rest1 = static_cast<float>(1.0 - options.beta1);
  const float beta2 = static_cast<float>(options.beta2), rest2 = static_cast<float>(1.0 - options.beta2);
  const float epsilon = static_cast<float>(options.epsilon);

  float* __restrict p = parameter.data();
  const float* __restrict g = gradient.data();
  float* __restrict m = first_moment.data();
  float* __restrict v = second_moment.data();
  for (std::size_t i = 0; i < count; ++i) {
    const float clipped = g[i] * coefficient;
    m[i] = m[i] * beta1 + clipped * rest1;
    v[i] = v[i] * beta2 + clipped * clipped * rest2;
    const float denominator = std::sqrt(v[i]) / root_correction2 + epsilon;
    p[i] = p[i] * decay - m[i] / denominator * step_size;
  }
}

}  // namespace tencache
