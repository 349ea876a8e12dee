// Inside the generator: self-attention, from projections over scores, softmax and weighted sum to the output. The flash
// kernel keeps one fp32 number per row and head instead of the scores.
#pragma once

#include "traces/generate/kv_cache.h"
#include "traces/generate/linear.h"
#include "traces/generate/norm.h"

namespace tencache::generator {

// DeepSeek's multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), forward.
//
// Keys and values of all heads are products of one narrow vector a token; only that vector and the rotated part of the
// key, which the heads share, are cached. A prompt expands them and attends as usual. A new token multiplies its queries
// with the expanding weight instead, attends to the narrow vectors of all heads at once, and expands what comes out.
class LatentAttentionOps : BlockOps {
 public:
  using BlockOps::BlockOps;

  TensorId forward(Layer& layer, const MicroBatch& micro, TensorId x);

 private:
  struct Inputs {
    TensorId query = none, latent = none, key_rope = none;
  };
  TensorId attend_prompt(Layer& layer, const MicroBatch& micro, const Inputs& inputs);
  TensorId attend_cache(Layer& layer, const MicroBatch& micro, const Inputs& inputs);
  Count plain() const { return model_.head_dimension - model_.rope_dimension; }

  KvCacheOps cache_{rank_};
};

struct CoreAttentionState {
  TensorId weights = none, mask = none, dropped = none, log_sum_exp = none, context = none;
};

struct AttentionState {
  LinearState query, key, value, query_key_value, output;
  NormState query_norm, key_norm;
  TensorId q = none, k = none, v = none;
  CoreAttentionState core;
};

class AttentionOps : BlockOps {
 public:
  using BlockOps::BlockOps;

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

  KvCacheOps cache_{rank_};
};

}  // namespace tencache::generator
