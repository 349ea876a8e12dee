// Inside the generator: normalisation, dropout and residuals.
// The statistics of a normalisation (a mean and a deviation a token) are left out, as in the literature's closed form.
#pragma once

#include "traces/generate/blocks.h"
#include "traces/generate/context.h"

namespace tencache::generator {

struct NormState {
  TensorId input = none;
  TensorId normalised = none;  // before the weight, where the stack keeps it
};

// `rows`, each as wide as the norm's weight, are normalised each by itself.
TensorId norm(const RankContext& rank, Norm& norm, TensorId x, Count rows, NormState& state);
// The gradient of the norm's input, plus `residual`, the gradient that by-passes it (none: nothing does).
// `input_gradient` false: only the weight's is wanted; returns none.
TensorId norm_backward(const RankContext& rank, Norm& norm, const NormState& state, TensorId dy, TensorId residual,
                       Count rows, bool input_gradient);

// residual + dropout(out) (+ extra, where attention and feed-forward are parallel), as one kernel.
TensorId dropout_add(const RankContext& rank, const Module& module, std::string_view label, TensorId out,
                     TensorId residual, TensorId extra, Count tokens, TensorId& mask);
// `mask` none: there was no dropout; returns dy.
TensorId dropout_backward(const RankContext& rank, const Module& module, TensorId dy, TensorId mask, Count elements);

}  // namespace tencache::generator
