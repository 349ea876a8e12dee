// Inside the generator: the forward and the backward pass of a layer.
//
// Each forward function, here and in the other blocks, records in a state what its backward function needs. An
// activation lives until the last op that reads it, so what is kept for the backward pass follows from what the
// backward ops read. Gradients of activations are new tensors; where two ops contribute to one, the second adds to it
// in place.
#pragma once

#include <vector>

#include "traces/generate/attention.h"
#include "traces/generate/feed_forward.h"
#include "traces/generate/latent_attention.h"

namespace tencache::generator {

struct LayerState {
  TensorId input = none, output = none;
  std::vector<TensorId> kept;  // by Recompute::ops, in the order of the calls
  NormState attention_norm, feed_forward_norm;
  AttentionState attention;
  TensorId attention_mask = none;
  FeedForwardState feed_forward;
  ExpertsState experts;
  TensorId feed_forward_mask = none;
};

class LayerOps {
 public:
  LayerOps(const RankContext& rank, LinearOps& linears)
      : rank_(rank),
        linears_(linears),
        attention_(rank, linears),
        latent_attention_(rank, linears),
        feed_forward_(rank, linears) {}

  TensorId forward(Layer& layer, const MicroBatch& micro, TensorId x, LayerState& state);
  // Before the backward passes of a micro-batch, from the last layer down.
  void begin_backward() { rebuilt_ = none; }
  // Computes again first what the forward pass dropped. `input_gradient` false: nothing before this layer is trained;
  // returns none.
  TensorId backward(Layer& layer, const MicroBatch& micro, LayerState& state, TensorId dy, bool input_gradient);

 private:
  // Returns none where it stops early.
  TensorId run_forward(Layer& layer, const MicroBatch& micro, TensorId x, LayerState& state);
  // Whether the layer's activations are computed again.
  bool recomputes(const Layer& layer) const;
  // The forward pass again; `state` is that of the first one and becomes that of the second one.
  void recompute(Layer& layer, const MicroBatch& micro, LayerState& state);

  const RankContext& rank_;
  LinearOps& linears_;
  AttentionOps attention_;
  LatentAttentionOps latent_attention_;
  FeedForwardOps feed_forward_;
  TensorId rebuilt_ = none;  // Recompute::reversible: the input of the layer before, which is the next one's output
};

}  // namespace tencache::generator
