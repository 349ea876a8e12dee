// AdamW with gradient clipping by global norm, as plain functions on spans of floats; with weights and gradients in
// bfloat16, on float masters of the weights.
//
// The same bits wherever, in whatever order and in whatever split into sub-groups it runs: every step is one correctly
// rounded IEEE operation (add, subtract, multiply, divide, square root; no contraction, no library function), the
// update is element by element, and the norm is a fixed reduction tree: sums over blocks of `norm_block_elements`
// of a parameter, counted from the parameter's first element, which `clip_coefficient` adds in order. So a sub-group
// may be any set of whole parameters, or of pieces cut at block boundaries. Nothing here allocates, keeps state or
// throws; different sub-groups may run on different threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "executor/adamw_math.h"

namespace tencache {

inline constexpr std::size_t norm_block_elements = 4096;

// The upper half of a float.
struct Bfloat16 {
  std::uint16_t bits = 0;
};
// To the nearest, ties to even; a NaN stays one. As LibTorch rounds.
Bfloat16 to_bfloat16(float value);
float to_float(Bfloat16 value);

// Defaults are those of PyTorch's AdamW.
struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 1e-2;
};

// What a step needs of the options; steps count from 1.
adamw_math::Factors adamw_factors(const AdamWOptions& options, std::uint64_t step);

// Sums of squares that `grad_norm` writes for a gradient of that many elements.
constexpr std::size_t norm_blocks(std::size_t elements) {
  return (elements + norm_block_elements - 1) / norm_block_elements;
}

// The sum of squares of each block of the gradient, in order. `partials` has norm_blocks(gradient.size()) elements.
void grad_norm(std::span<const float> gradient, std::span<double> partials);
void grad_norm(std::span<const Bfloat16> gradient, std::span<double> partials);

// Adds partials to a running sum, one after the other: call it for all parameters in their order, starting with 0.
double add_partials(double sum, std::span<const double> partials);

// What gradients are to be multiplied with so that their global norm is at most `max_norm`; 1 if it is already, or if
// `max_norm` is 0 (no clipping). `sum_of_squares` is that of all gradients. A norm that is not finite gives NaN or 0,
// which shows in the loss, as in PyTorch.
float clip_coefficient(double sum_of_squares, double max_norm);

// One AdamW step (decoupled weight decay, bias correction) of the elements given. `step` counts from 1. The gradient is
// multiplied with `coefficient` on the fly and stays as it is. All spans have the same size and do not overlap.
void adamw_step(std::span<float> parameter, std::span<const float> gradient, std::span<float> first_moment,
                std::span<float> second_moment, float coefficient, std::uint64_t step, const AdamWOptions& options);
// The same of the master, which is then rounded to the parameter; what the parameter was does not matter.
void adamw_step(std::span<float> master, std::span<Bfloat16> parameter, std::span<const Bfloat16> gradient,
                std::span<float> first_moment, std::span<float> second_moment, float coefficient, std::uint64_t step,
                const AdamWOptions& options);

}  // namespace tencache
