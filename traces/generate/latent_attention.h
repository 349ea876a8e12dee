// Inside the generator: DeepSeek's multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), forward.
//
// Keys and values of all heads are products of one narrow vector a token; only that vector and the rotated part of the
// key, which the heads share, are cached. A prompt expands them and attends as usual. A new token multiplies its queries
// with the expanding weight instead, attends to the narrow vectors of all heads at once, and expands what comes out.
#pragma once

#include "traces/generate/kv_cache.h"
#include "traces/generate/linear.h"
#include "traces/generate/norm.h"

namespace tencache::generator {

class LatentAttentionOps {
 public:
  LatentAttentionOps(const RankContext& rank, LinearOps& linears)
      : rank_(rank), step_(rank.step), model_(rank.model), linears_(linears), cache_(rank) {}

  TensorId forward(Layer& layer, const MicroBatch& micro, TensorId x);

 private:
  struct Inputs {
    TensorId query = none, latent = none, key_rope = none;
  };
  TensorId attend_prompt(Layer& layer, const MicroBatch& micro, const Inputs& inputs);
  TensorId attend_cache(Layer& layer, const MicroBatch& micro, const Inputs& inputs);
  Count plain() const { return model_.head_dimension - model_.rope_dimension; }

  const RankContext& rank_;
  Step& step_;
  const ModelDescription& model_;
  LinearOps& linears_;
  KvCacheOps cache_;
};

}  // namespace tencache::generator
