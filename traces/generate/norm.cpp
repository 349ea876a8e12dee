#include "traces/generate/norm.h"

namespace tencache::generator {

TensorId norm(const RankContext& rank, Norm& norm, TensorId x, Count rows, NormState& state) {
  const bool root_mean_square = norm.bias == nullptr;
  const Count elements = rows * norm.weight->elements();
  state.input = x;
  const TensorId y = rank.step.activation(norm.module, "output", elements);
  TensorId in_fp32 = none;
  if (rank.kernels.composes_norm(root_mean_square) && !rank.step.options.forward_only) {
    if (rank.kernels.casts()) {
      state.input = in_fp32 = rank.step.tensor(norm.module, "input_fp32", 4 * elements, Role::activation);
    }
    state.normalised = rank.step.activation(norm.module, "normalised", elements);
  }
  rank.step.op("norm", norm.module, rank.kernels.norm(root_mean_square, elements),
               {x, norm.weight->value, norm.bias ? norm.bias->value : none}, {y, in_fp32, state.normalised});
  return y;
}

TensorId norm_backward(const RankContext& rank, Norm& norm, const NormState& state, TensorId dy, TensorId residual,
                       Count rows, bool input_gradient) {
  Step::GradientUse dw, db;
  if (norm.weight->trainable) dw = rank.step.gradient_of(*norm.weight);
  if (norm.bias && norm.bias->trainable) db = rank.step.gradient_of(*norm.bias);
  if (!input_gradient && dw.tensor == none && db.tensor == none) return none;
  const Count elements = rows * norm.weight->elements();
  const TensorId dx = input_gradient ? rank.step.gradient(norm.module, "input_grad", elements) : TensorId{none};
  rank.step.op(
      "norm_backward", norm.module, rank.kernels.norm_backward(norm.bias == nullptr, residual != none, elements),
      {dy, state.input, state.normalised, norm.weight->value, residual, dw.read, db.read}, {dx, dw.tensor, db.tensor});
  return dx;
}

TensorId dropout_add(const RankContext& rank, const Module& module, std::string_view label, TensorId out,
                     TensorId residual, TensorId extra, Count tokens, TensorId& mask) {
  const Count elements = tokens * rank.model.hidden;
  if (rank.hidden_dropout)
    mask = rank.step.tensor(module, std::string(label) + ".dropout_mask", elements, Role::activation);
  const TensorId sum = rank.step.activation(module, std::string(label) + ".residual", elements);
  rank.step.op(rank.hidden_dropout ? "dropout_add" : "add", module,
               rank.kernels.residual(extra == none ? 2 : 3, rank.hidden_dropout, elements), {out, residual, extra},
               {sum, mask});
  return sum;
}

TensorId dropout_backward(const RankContext& rank, const Module& module, TensorId dy, TensorId mask, Count elements) {
  if (mask == none) return dy;
  const TensorId dx = rank.step.gradient(module, "dropout.input_grad", elements);
  rank.step.op("dropout_backward", module, rank.kernels.dropout(elements), {dy, mask}, {dx});
  return dx;
}

}  // namespace tencache::generator
