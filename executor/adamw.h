// AdamW (Loshchilov and Hutter, algorithm 2) on spans of floats: what `calibrate` measures of the processor. The same
// bits in whatever split it runs: every step is one correctly rounded IEEE operation, element by element.
#pragma once

#include <cstdint>
#include <span>

namespace tencache {

// Defaults are those of PyTorch's AdamW.
struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 1e-2;
};

// One step (decoupled weight decay, bias correction) of the elements given. `step` counts from 1. All spans have the
// same size and do not overlap. Allocates nothing; different elements may be updated on different threads.
void adamw_step(std::span<float> parameter, std::span<const float> gradient, std::span<float> first_moment,
                std::span<float> second_moment, std::uint64_t step, const AdamWOptions& options);

}  // namespace tencache
