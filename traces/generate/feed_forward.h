// Inside the generator: the feed-forward block: two linear layers, or three (gated), and mixtures of experts.
#pragma once

#include <vector>

#include "traces/generate/linear.h"

namespace tencache::generator {

struct FeedForwardState {
  LinearState gate, up, down;
  TensorId gate_out = none, activated = none, up_out = none;
  std::vector<TensorId> kept;  // by a composed activation
  Count tokens = 0;
};

struct ExpertsState {
  LinearState router;
  TensorId weights = none;
  std::vector<TensorId> outputs;  // of each expert
  std::vector<FeedForwardState> experts;
  FeedForwardState shared;
};

class FeedForwardOps : BlockOps {
 public:
  using BlockOps::BlockOps;

  // `last`: the block's product ends the layer. Returns none if the pass stops before that.
  TensorId forward(FeedForward& block, TensorId x, Count tokens, FeedForwardState& state, bool last);
  void backward(FeedForward& block, const FeedForwardState& state, TensorId dy, TensorId* dx);

  // The layer's experts that have tokens, with their router. Returns none if the pass stops early.
  TensorId experts_forward(Layer& layer, const MicroBatch& micro, TensorId x, ExpertsState& state);
  void experts_backward(Layer& layer, const ExpertsState& state, TensorId dy, Count tokens, TensorId* dx);

 private:
  Count expert_capacity(Count tokens) const;
};

}  // namespace tencache::generator
