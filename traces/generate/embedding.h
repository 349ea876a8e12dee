// Inside the generator: from token numbers, or the pixels of pictures, to the input of the first layer.
#pragma once

#include "traces/generate/linear.h"
#include "traces/generate/norm.h"

namespace tencache::generator {

struct EmbeddingState {
  TensorId ids = none, mask = none;
  LinearState patches, projection;
  NormState norm;
};

class EmbeddingOps {
 public:
  EmbeddingOps(const RankContext& rank, LinearOps& linears)
      : rank_(rank), step_(rank.step), kernels_(rank.kernels), linears_(linears) {}

  TensorId forward(EmbeddingBlock& embedding, const MicroBatch& micro, TensorId ids, EmbeddingState& state);
  void backward(EmbeddingBlock& embedding, const MicroBatch& micro, const EmbeddingState& state, TensorId dy);

 private:
  const RankContext& rank_;
  Step& step_;
  const StackKernels& kernels_;
  LinearOps& linears_;
};

}  // namespace tencache::generator
