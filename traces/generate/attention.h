// Inside the generator: self-attention, from projections over scores, softmax and weighted sum to the output. The flash
// kernel keeps one fp32 number per row and head instead of the scores.
#pragma once

#include "traces/generate/kv_cache.h"
#include "traces/generate/linear.h"
#include "traces/generate/norm.h"

namespace tencache::generator {

struct CoreAttentionState {
  TensorId weights = none, mask = none, dropped = none, log_sum_exp = none, context = none;
};

struct AttentionState {
  LinearState query, key, value, query_key_value, output;
  NormState query_norm, key_norm;
  TensorId q = none, k = none, v = none;
  CoreAttentionState core;
};

class AttentionOps {
 public:
  AttentionOps(const RankContext& rank, LinearOps& linears)
      : rank_(rank), step_(rank.step), model_(rank.model), kernels_(rank.kernels), linears_(linears), cache_(rank) {}

  TensorId forward(Layer& layer, const MicroBatch& micro, TensorId x, AttentionState& state);
  // Adds to *dx in place, or makes it; dx null: not wanted.
  void backward(Layer& layer, const MicroBatch& micro, AttentionState& state, TensorId dy, TensorId* dx);

 private:
  void rotate(const Module& module, Count tokens, AttentionState& state);
  Cost flash(KernelKind kind, const MicroBatch& micro, Count window) const;
  CacheShape cache_shape(const Layer& layer) const {
    return {.width = 2 * rank_.key_value_heads * model_.head_dimension, .window = layer.window};
  }
  // Of one new token a sequence over all that it sees in the cache.
  TensorId attend_cache(Layer& layer, const MicroBatch& micro, TensorId q);
  void core_forward(Layer& layer, const MicroBatch& micro, const AttentionState& qkv, CoreAttentionState& state);
  void core_backward(Layer& layer, const MicroBatch& micro, const AttentionState& state, TensorId d_context,
                     TensorId dq, TensorId dk, TensorId dv);

  const RankContext& rank_;
  Step& step_;
  const ModelDescription& model_;
  const StackKernels& kernels_;
  LinearOps& linears_;
  KvCacheOps cache_;
};

}  // namespace tencache::generator
