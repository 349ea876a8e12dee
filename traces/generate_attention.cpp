// Self-attention: projections, scores, softmax, weighted sum; the flash kernel keeps one fp32 number a row and head
// instead of the scores.
#include "traces/generate_layers.h"

namespace tencache::generator {

TensorId LayerOps::attention(Layer& layer, const MicroBatch& micro, TensorId x, AttentionState& state) {
  const Count tokens = micro.tokens();
  if (layer.query_key_value) {
    state.q = state.k = state.v = linear(layer.query_key_value, x, tokens, state.query_key_value);
  } else {
    state.q = linear(layer.query, x, tokens, state.query);
    state.k = linear(layer.key, x, tokens, state.key);
    state.v = linear(layer.value, x, tokens, state.value);
  }
  if (layer.query_norm) {
    state.q = norm(layer.query_norm, state.q, tokens * local_heads_, state.query_norm);
    state.k = norm(layer.key_norm, state.k, tokens * local_key_value_heads_, state.key_norm);
  }
  if (rotary_) rotate(layer.attention_module, tokens, state);
  core_attention(layer, micro, state, state.core);
  const TensorId y = linear(layer.attention_output, state.core.context, tokens, state.output);
  if (!taken_) collectives_.all_reduce(Group::tensor, layer.attention_module, y);
  return y;
}

// Composed of ops that each write a new tensor, or in place, unless that would change what is kept to begin with.
void LayerOps::rotate(const Module& module, Count tokens, AttentionState& state) {
  const Count queries = tokens * local_heads_ * model_.head_dimension;
  const Count keys = tokens * local_key_value_heads_ * model_.head_dimension;
  TensorId q = state.q, k = state.k;
  if (kernels_.eager() || kept_ != nullptr) {
    q = step_.activation(module, "rotated_query", queries);
    k = step_.activation(module, "rotated_key", keys);
  }
  step_.op("rotary", module, kernels_.rotary(queries + keys), {state.q, state.k}, {q, k});
  state.q = q;
  state.k = k;
}

// The fused kernel's work; a causal one skips the half above the diagonal.
Cost LayerOps::flash(KernelKind kind, const MicroBatch& micro) const {
  const Count scores = micro.tokens() * micro.length * local_heads_;
  const Count product = 2 * scores * model_.head_dimension * (causal_ ? 1 : 2);
  // Backward five products instead of two: the scores are computed again.
  return {.kernel = {.kind = kind,
                     .attention = step_.options.attention_kernel,
                     .causal = causal_,
                     .shape = {micro.sequences, local_heads_, local_key_value_heads_, micro.length, micro.length,
                               model_.head_dimension}},
          .flops = kind == KernelKind::attention ? product : 5 * product / 2};
}

void LayerOps::core_attention(Layer& layer, const MicroBatch& micro, const AttentionState& qkv,
                              CoreAttentionState& state) {
  const Module& module = layer.attention_module;
  const Count dimension = model_.head_dimension;
  const Count scores = micro.tokens() * micro.length * local_heads_;
  const Count sequences = micro.sequences * local_heads_, length = micro.length;
  const bool flash = step_.options.attention == AttentionKind::flash;
  if (flash && kept_ != nullptr && again_) {
    state.context = take_kept();
    state.log_sum_exp = take_kept();
    return;
  }
  state.context = step_.activation(module, "context", micro.tokens() * local_heads_ * dimension);
  if (flash) {
    if (!step_.options.forward_only)
      state.log_sum_exp = step_.tensor(module, "log_sum_exp", micro.tokens() * local_heads_ * 4, Role::activation);
    step_.op("flash_attention", module, this->flash(KernelKind::attention, micro), {qkv.q, qkv.k, qkv.v},
             {state.context, state.log_sum_exp});
    if (kept_ != nullptr) {
      keep(state.context);
      keep(state.log_sum_exp);
    }
    return;
  }
  const TensorId raw = step_.activation(module, "scores", scores);
  step_.op("attention_scores", module, matmul(sequences, length, length, dimension, {dimension, length}),
           {qkv.q, qkv.k}, {raw});
  state.weights = step_.activation(module, "weights", scores);
  step_.op("softmax", module, kernels_.softmax(scores), {raw}, {state.weights});
  state.dropped = state.weights;
  if (attention_dropout_) {
    state.mask = step_.tensor(module, "weights_dropout_mask", scores, Role::activation);
    state.dropped = step_.activation(module, "weights_dropout", scores);
    step_.op("dropout", module, kernels_.dropout(scores), {state.weights}, {state.dropped, state.mask});
  }
  step_.op("attention_values", module, matmul(sequences, length, dimension, length, {length, dimension}),
           {state.dropped, qkv.v}, {state.context});
}

void LayerOps::core_attention_backward(Layer& layer, const MicroBatch& micro, const AttentionState& state,
                                       TensorId d_context, TensorId dq, TensorId dk, TensorId dv) {
  const Module& module = layer.attention_module;
  const Count scores = micro.tokens() * micro.length * local_heads_;
  const Count sequences = micro.sequences * local_heads_, length = micro.length, dimension = model_.head_dimension;
  if (step_.options.attention == AttentionKind::flash) {
    step_.op("flash_attention_backward", module, flash(KernelKind::attention_backward, micro),
             {d_context, state.q, state.k, state.v, state.core.context, state.core.log_sum_exp}, {dq, dk, dv});
    return;
  }
  CoreAttentionState core = state.core;
  if (step_.options.recompute == Recompute::selective) {
    core = {};
    core_attention(layer, micro, state, core);
  }
  TensorId d_weights = step_.gradient(module, "weights_grad", scores);
  // Two products each; of the same work, so that one shape stands for both.
  step_.op("attention_values_backward", module, matmul(2 * sequences, length, length, dimension, {dimension, length}),
           {d_context, core.dropped, state.v}, {d_weights, dv});
  if (attention_dropout_) {
    const TensorId before = step_.gradient(module, "weights_dropout_grad", scores);
    step_.op("dropout_backward", module, kernels_.dropout(scores), {d_weights, core.mask}, {before});
    d_weights = before;
  }
  const TensorId d_scores = step_.gradient(module, "scores_grad", scores);
  step_.op("softmax_backward", module, kernels_.softmax_backward(scores), {d_weights, core.weights}, {d_scores});
  // With one tensor for query, key and value, their gradients are one as well, whose last third is there already.
  step_.op("attention_scores_backward", module, matmul(2 * sequences, length, dimension, length, {length, dimension}),
           {d_scores, state.q, state.k, dq == dv ? dv : TensorId{none}}, {dq, dk});
}

void LayerOps::attention_backward(Layer& layer, const MicroBatch& micro, AttentionState& state, TensorId dy,
                                  TensorId* dx) {
  const Count tokens = micro.tokens(), dimension = model_.head_dimension;
  TensorId d_context = none;
  linear_backward(layer.attention_output, state.output, dy, tokens, &d_context);
  const Module& module = layer.attention_module;
  TensorId dq = none, dk = none, dv = none;
  if (layer.query_key_value) {
    dq = dk = dv = step_.gradient(module, "query_key_value_grad", tokens * layer.query_key_value.out);
  } else {
    dq = step_.gradient(module, "query_grad", tokens * local_heads_ * dimension);
    dk = step_.gradient(module, "key_grad", tokens * local_key_value_heads_ * dimension);
    dv = step_.gradient(module, "value_grad", tokens * local_key_value_heads_ * dimension);
  }
  core_attention_backward(layer, micro, state, d_context, dq, dk, dv);
  if (layer.query_key_value && kernels_.concatenates()) {
    const TensorId parts = dq;
    dq = dk = dv = step_.gradient(module, "query_key_value_joined_grad", tokens * layer.query_key_value.out);
    step_.op("concatenate", module, kernels_.concatenate(tokens * layer.query_key_value.out), {parts}, {dq});
  }
  if (rotary_) {
    const Count rotated = tokens * (local_heads_ + local_key_value_heads_) * dimension;
    step_.op("rotary_backward", module, kernels_.rotary_backward(rotated), {dq, dk}, {dq, dk});
  }
  if (layer.query_norm) {
    dq = norm_backward(layer.query_norm, state.query_norm, dq, none, tokens * local_heads_, true);
    dk = norm_backward(layer.key_norm, state.key_norm, dk, none, tokens * local_key_value_heads_, true);
  }
  if (layer.query_key_value) {
    linear_backward(layer.query_key_value, state.query_key_value, dq, tokens, dx);
  } else {
    linear_backward(layer.value, state.value, dv, tokens, dx);
    linear_backward(layer.key, state.key, dk, tokens, dx);
    linear_backward(layer.query, state.query, dq, tokens, dx);
  }
  if (dx != nullptr) collectives_.all_reduce(Group::tensor, module, *dx);
}

}  // namespace tencache::generator
