// Inside the generator: self-attention, from projections over scores, softmax and weighted sum to the output. The flash
// kernel keeps one fp32 number per row and head instead of the scores.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "traces/generate/blocks.h"
#include "traces/generate/context.h"
#include "traces/generate/linear.h"
#include "traces/generate/norm.h"

namespace tencache::generator {

// Inside the generator: the KV cache of a micro-batch in one layer, which grows piece by piece.

// Of a layer that sees only the last `window` tokens (0: all), which the cache keeps; `width`: values of a token on
// this rank. The micro-batch has a cache.
struct CacheShape {
  Count width = 0, window = 0;

  // Tokens that one more token sees.
  Count seen(Count tokens) const { return window != 0 && tokens > window ? window : tokens; }
};

class KvCacheOps {
 public:
  explicit KvCacheOps(const RankContext& rank) : step_(rank.step) {}

  // Of a token's values, as they are kept.
  static Bytes token_bytes(const Step& step, Count width);

  // Adds the micro-batch's tokens, which `sources` have.
  void write(const Module& module, const MicroBatch& micro, CacheShape shape, std::initializer_list<TensorId> sources);
  // Adds a prompt's tokens piece by piece, each by an op of cost `cost(tokens)` that reads a piece of the layer's input
  // `x`, which is cut for it, and `weights`; so that policies may keep the input instead (Recompute::choose).
  void write_pieces(const Module& module, const MicroBatch& micro, CacheShape shape, TensorId x,
                    std::span<const TensorId> weights, const std::function<Cost(Count tokens)>& cost);
  // The choices that the next op, a new token's attention, has of those pieces.
  void choose(const Module& module, const MicroBatch& micro);
  // What a kernel reads to attend to all tokens that the last one sees: the pieces, or what an op expands them to.
  std::vector<TensorId> read(const Module& module, const MicroBatch& micro, CacheShape shape);

  // The kernel that does, and writes `context`.
  void attend(const Module& module, const Cost& cost, std::span<const TensorId> reads, TensorId context);

 private:
  // Of new tokens it runs where the generation has that, and policies may place it.
  void op(std::string_view name, const Module& module, Cost cost, std::span<const TensorId> reads,
          std::span<const TensorId> writes);

  Step& step_;
};

struct LatentAttentionState {
  LinearState query_down, query, down, up, output;
  NormState query_down_norm, norm;
  TensorId q = none, latent = none, key_rope = none;
  TensorId key = none, expanded = none, context = none, log_sum_exp = none;  // of a prompt, or in training
};

// DeepSeek's multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).
//
// Keys and values of all heads are products of one narrow vector a token; only that vector and the rotated part of the
// key, which the heads share, are cached. A prompt expands them and attends as usual. A new token multiplies its
// queries with the expanding weight instead, attends to the narrow vectors of all heads at once, and expands what comes
// out. Training is as a prompt.
class LatentAttentionOps : BlockOps {
 public:
  using BlockOps::BlockOps;

  TensorId forward(Layer& layer, const MicroBatch& micro, TensorId x, LatentAttentionState& state);
  // Adds to *dx in place, or makes it; dx null: not wanted.
  void backward(Layer& layer, const MicroBatch& micro, const LatentAttentionState& state, TensorId dy, TensorId* dx);

 private:
  void attend_prompt(Layer& layer, const MicroBatch& micro, LatentAttentionState& state);
  TensorId attend_cache(Layer& layer, const MicroBatch& micro, const LatentAttentionState& state);
  Cost flash(KernelKind kind, const MicroBatch& micro) const;
  Count plain() const { return model_.head_dimension - model_.rope_dimension; }

  KvCacheOps cache_{rank_};
};

struct CoreAttentionState {
  TensorId weights = none;  // what the softmax's backward pass reads: in fp32 where it was computed so
  TensorId mask = none, dropped = none, log_sum_exp = none, context = none;
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
  // Of a prompt whose keys and values a policy may have made again.
  void attend_in_pieces(Layer& layer, const MicroBatch& micro, TensorId x, AttentionState& state);
  // The softmax is computed in fp32, and what follows reads a copy.
  bool fp32_softmax() const {
    return kernels_.eager() && step_.element_bytes() < 4 && facts_of(model_.family).fp32_softmax;
  }
  Cost flash(KernelKind kind, const MicroBatch& micro, Count window) const;
  CacheShape cache_shape(const Layer& layer) const {
    return {.width = 2 * rank_.key_value_heads * model_.head_dimension, .window = layer.window};
  }
  // Of a chunk of a context: keys and values become pieces, and with earlier ones are attended to.
  void append_context(const Layer& layer, const MicroBatch& micro, const AttentionState& qkv);
  Cost over_context(KernelKind kind, const MicroBatch& micro) const;
  // So many tokens before the micro-batch's own, which all of them see.
  void add_past(Cost& cost, KernelKind kind, const MicroBatch& micro, Count past) const;
  // Of one new token a sequence over all that it sees in the cache.
  TensorId attend_cache(Layer& layer, const MicroBatch& micro, TensorId q);
  void core_forward(Layer& layer, const MicroBatch& micro, const AttentionState& qkv, CoreAttentionState& state);
  void core_backward(Layer& layer, const MicroBatch& micro, const AttentionState& state, TensorId d_context,
                     TensorId dq, TensorId dk, TensorId dv);

  KvCacheOps cache_{rank_};
};

}  // namespace tencache::generator
