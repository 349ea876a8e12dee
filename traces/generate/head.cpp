#include "traces/generate/head.h"

#include <algorithm>
#include <cmath>

namespace tencache::generator {

Count HeadOps::rows_of(const MicroBatch& micro) const {
  if (step_.options.generation) return micro.sequences;
  if (step_.options.head != Head::language_model) return rank_.causal ? micro.tokens() : micro.sequences;
  const double share = step_.options.predicted_tokens;
  return std::max<Count>(1, static_cast<Count>(std::llround(share * static_cast<double>(micro.tokens()))));
}

TensorId HeadOps::forward(ModelHead& head, const MicroBatch& micro, TensorId x, TensorId labels, HeadState& state) {
  state.labels = labels;
  const Count tokens = micro.tokens(), rows = rows_of(micro);
  const bool language_model = step_.options.head == Head::language_model;
  if (head.final_norm) x = norm(rank_, head.final_norm, x, tokens, state.final_norm);
  if (head.projection) x = linears_.linear(head.projection, x, tokens, state.projection);
  if (language_model && rows < tokens) {
    const TensorId predicted = step_.activation(head.module, "predicted", rows * rank_.model.hidden);
    step_.op("gather", head.module, moved(rows, rank_.model.hidden), {x, labels}, {predicted});
    x = predicted;
  }
  if (head.transform) {
    x = linears_.linear(head.transform, x, rows, state.transform);
    state.transform_out = x;
    const TensorId activated = step_.activation(head.transform.module, "activated", rows * head.transform.out);
    step_.op(language_model ? "gelu" : "tanh", head.transform.module, {}, {x}, {activated});
    if (!language_model) state.transform_out = activated;  // tanh needs its result only
    x = activated;
    if (head.transform_norm) x = norm(rank_, head.transform_norm, x, rows, state.transform_norm);
  }
  const TensorId logits = linears_.linear(head.output, x, rows, state.output);
  if (!step_.options.loss) return logits;
  const Phase phase = step_.phase;
  step_.phase = Phase::loss;
  // Decoders classify by the last token, the others' scores are not looked at.
  cross_entropy(head, language_model ? rows : micro.sequences, logits, state);
  step_.phase = phase;
  return logits;
}

// What the loss keeps: full the logarithms of all probabilities (decoders in fp32, BERT in the model's precision), the
// others the logits and a number a row.
void HeadOps::cross_entropy(ModelHead& head, Count rows, TensorId logits, HeadState& state) {
  const Bytes e = kernels_.element_bytes();
  const Count scores = rows * head.output.out;
  const LossKind kind = *step_.options.loss;
  const TensorId loss = step_.tensor(head.module, "loss", 4, Role::activation);
  TensorId sums = none;
  if (step_.options.head == Head::language_model && head.output.weight->split) {
    // Each rank has its part of the vocabulary: the largest score, the sum and the label's score go around.
    sums = step_.tensor(head.module, "vocabulary_sums", 3 * 4 * rows, Role::workspace);
    step_.op("vocabulary_sums", head.module, {}, {logits, state.labels}, {sums});
    rank_.collectives.all_reduce(Group::tensor, head.module, sums);
  }
  if (kind != LossKind::full) {
    state.scores = logits;
    state.log_sum_exp = step_.tensor(head.module, "log_sum_exp", 4 * rows, Role::activation);
    TensorId chunk = none;
    if (kind == LossKind::chunked)
      chunk = step_.tensor(head.module, "logits_chunk", loss_chunk(scores), Role::workspace);
    step_.op("cross_entropy", head.module, kernels_.chunked_loss(kind, scores, false), {logits, state.labels, sums},
             {state.log_sum_exp, loss, chunk});
    return;
  }
  const bool casts = kernels_.casts() && rank_.causal;
  const Bytes number = casts ? 4 : e;
  state.scores = step_.tensor(head.module, "log_probabilities", scores * number, Role::activation);
  TensorId read = logits;
  if (casts) {
    read = step_.tensor(head.module, "logits_fp32", 4 * scores, Role::activation);
    step_.op("logits_to_fp32", head.module, {.kernel = {.kind = KernelKind::elementwise}, .bytes = scores * (e + 4)},
             {logits}, {read});
  }
  // Rows too long for a multiprocessor's memory, which PyTorch's kernel reads more than once.
  step_.op("cross_entropy", head.module, {.kernel = {.kind = KernelKind::norm}, .bytes = scores * 2 * number},
           {read, state.labels, sums}, {state.scores, loss});
}

TensorId HeadOps::cross_entropy_backward(ModelHead& head, Count rows, const HeadState& state) {
  const Bytes e = kernels_.element_bytes();
  const Count scores = rows * head.output.out;
  const LossKind kind = *step_.options.loss;
  if (kind != LossKind::full) {
    TensorId chunk = none;
    if (kind == LossKind::chunked)
      chunk = step_.tensor(head.module, "logits_chunk", loss_chunk(scores), Role::workspace);
    step_.op("cross_entropy_backward", head.module, kernels_.chunked_loss(kind, scores, true),
             {state.scores, state.labels, state.log_sum_exp}, {state.scores, chunk});
    return state.scores;
  }
  const bool casts = kernels_.casts() && rank_.causal;
  const Bytes number = casts ? 4 : e;
  // Cleared, then a number a row.
  const TensorId d_scores = step_.tensor(head.module, "log_probabilities_grad", number * scores, Role::gradient);
  step_.op("nll_loss_backward", head.module,
           {.kernel = {.kind = KernelKind::elementwise, .launches = 2}, .bytes = scores * number}, {state.labels},
           {d_scores});
  TensorId d_logits =
      step_.tensor(head.module, casts ? "logits_grad_fp32" : "logits_grad", number * scores, Role::gradient);
  step_.op("cross_entropy_backward", head.module, {.kernel = {.kind = KernelKind::norm}, .bytes = scores * 3 * number},
           {d_scores, state.scores}, {d_logits});
  if (casts) {
    const TensorId d_full = d_logits;
    d_logits = step_.gradient(head.module, "logits_grad", scores);
    step_.op("logits_grad_cast", head.module, {.kernel = {.kind = KernelKind::elementwise}, .bytes = scores * (e + 4)},
             {d_full}, {d_logits});
  }
  return d_logits;
}

TensorId HeadOps::backward(ModelHead& head, const MicroBatch& micro, const HeadState& state) {
  const Count tokens = micro.tokens(), rows = rows_of(micro);
  const bool language_model = step_.options.head == Head::language_model;
  const TensorId d_logits = cross_entropy_backward(head, rows, state);
  TensorId dx = none;
  linears_.linear_backward(head.output, state.output, d_logits, rows, &dx, *step_.options.loss == LossKind::chunked);
  if (head.output.weight->split) rank_.collectives.all_reduce(Group::tensor, head.module, dx);
  if (head.transform) {
    if (head.transform_norm) dx = norm_backward(rank_, head.transform_norm, state.transform_norm, dx, none, rows, true);
    const TensorId d_transform = step_.gradient(head.transform.module, "activated_grad", rows * head.transform.out);
    step_.op(language_model ? "gelu_backward" : "tanh_backward", head.transform.module, {}, {dx, state.transform_out},
             {d_transform});
    dx = none;
    linears_.linear_backward(head.transform, state.transform, d_transform, rows, &dx);
  }
  if (rows < tokens) {
    // The other tokens' gradients are zero.
    const TensorId all = step_.gradient(head.module, "input_grad", tokens * rank_.model.hidden);
    step_.op("scatter", head.module, moved(tokens, rank_.model.hidden), {dx}, {all});
    dx = all;
  }
  if (head.projection) {
    TensorId wide = none;
    linears_.linear_backward(head.projection, state.projection, dx, tokens, &wide);
    dx = wide;
  }
  if (head.final_norm) dx = norm_backward(rank_, head.final_norm, state.final_norm, dx, none, tokens, true);
  return dx;
}

}  // namespace tencache::generator
