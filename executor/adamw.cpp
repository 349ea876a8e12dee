#include "executor/adamw.h"

#include <algorithm>
#include <array>
#include <bit>
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

float value_of(float value) { return value; }
float value_of(Bfloat16 value) { return to_float(value); }

// Eight running sums, one for each index modulo 8, then a tree. Compilers turn the lanes into vectors without changing
// the order of any addition.
template <class Element>
double block_sum_of_squares(const Element* values, std::size_t count) {
  constexpr std::size_t lanes = 8;
  std::array<double, lanes> sums{};
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const double value = value_of(values[i + lane]);
      sums[lane] += value * value;
    }
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) {
    const double value = value_of(values[i]);
    sums[lane] += value * value;
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

template <class Element>
void sum_blocks(std::span<const Element> gradient, std::span<double> partials) {
  TENCACHE_CHECK(partials.size() == norm_blocks(gradient.size()));
  for (std::size_t block = 0; block < partials.size(); ++block) {
    const std::size_t begin = block * norm_block_elements;
    partials[block] =
        block_sum_of_squares(gradient.data() + begin, std::min(norm_block_elements, gradient.size() - begin));
  }
}

}  // namespace

Bfloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return {adamw_math::to_bfloat16_bits(bits)};
}

adamw_math::Factors adamw_factors(const AdamWOptions& options, std::uint64_t step) {
  adamw_math::Factors by{};
  by.decay = static_cast<float>(1.0 - options.learning_rate * options.weight_decay);
  by.step_size = static_cast<float>(options.learning_rate / (1.0 - power(options.beta1, step)));
  by.root_correction2 = static_cast<float>(std::sqrt(1.0 - power(options.beta2, step)));
  by.beta1 = static_cast<float>(options.beta1);
  by.rest1 = static_cast<float>(1.0 - options.beta1);
  by.beta2 = static_cast<float>(options.beta2);
  by.rest2 = static_cast<float>(1.0 - options.beta2);
  by.epsilon = static_cast<float>(options.epsilon);
  return by;
}

float to_float(Bfloat16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

void grad_norm(std::span<const float> gradient, std::span<double> partials) { sum_blocks(gradient, partials); }
void grad_norm(std::span<const Bfloat16> gradient, std::span<double> partials) { sum_blocks(gradient, partials); }

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
  const adamw_math::Factors by = adamw_factors(options, step);
  float* __restrict p = parameter.data();
  const float* __restrict g = gradient.data();
  float* __restrict m = first_moment.data();
  float* __restrict v = second_moment.data();
  for (std::size_t i = 0; i < count; ++i) p[i] = adamw_math::updated(p[i], g[i], coefficient, m[i], v[i], by);
}

void adamw_step(std::span<float> master, std::span<Bfloat16> parameter, std::span<const Bfloat16> gradient,
                std::span<float> first_moment, std::span<float> second_moment, float coefficient, std::uint64_t step,
                const AdamWOptions& options) {
  const std::size_t count = master.size();
  TENCACHE_CHECK(step >= 1 && parameter.size() == count && gradient.size() == count && first_moment.size() == count &&
                 second_moment.size() == count);
  const adamw_math::Factors by = adamw_factors(options, step);
  float* __restrict w = master.data();
  Bfloat16* __restrict p = parameter.data();
  const Bfloat16* __restrict g = gradient.data();
  float* __restrict m = first_moment.data();
  float* __restrict v = second_moment.data();
  for (std::size_t i = 0; i < count; ++i) {
    w[i] = adamw_math::updated(w[i], to_float(g[i]), coefficient, m[i], v[i], by);
    p[i] = to_bfloat16(w[i]);
  }
}

}  // namespace tencache
