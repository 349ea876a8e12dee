// Inside the generator: what follows the last layer, up to the loss.
#pragma once

#include "traces/generate/linear.h"
#include "traces/generate/norm.h"

namespace tencache::generator {

struct HeadState {
  TensorId labels = none;
  TensorId scores = none;  // what the loss keeps: log-probabilities, or the logits
  TensorId log_sum_exp = none;
  NormState final_norm, transform_norm;
  LinearState projection, transform, output;
  TensorId transform_out = none;
};

class HeadOps {
 public:
  HeadOps(const RankContext& rank, LinearOps& linears)
      : rank_(rank), step_(rank.step), kernels_(rank.kernels), linears_(linears) {}

  // Up to the loss, or to the logits where the options have none. Returns the logits.
  TensorId forward(ModelHead& head, const MicroBatch& micro, TensorId x, TensorId labels, HeadState& state);
  TensorId backward(ModelHead& head, const MicroBatch& micro, const HeadState& state);

 private:
  // Rows that the head computes: every token, those that are predicted, or one of a sequence (the class token, what
  // BERT's pooler takes, or the last token that a generation goes on from).
  Count rows_of(const MicroBatch& micro) const;
  // Picks or spreads rows of a matrix.
  Cost moved(Count rows, Count width) const {
    return {.kernel = {.kind = KernelKind::gather}, .bytes = 2 * rows * width * step_.element_bytes()};
  }
  // Of an eighth of the rows, in fp32.
  static Bytes loss_chunk(Count scores) { return (4 * scores + 7) / 8; }
  void cross_entropy(ModelHead& head, Count rows, TensorId logits, HeadState& state);
  TensorId cross_entropy_backward(ModelHead& head, Count rows, const HeadState& state);

  const RankContext& rank_;
  Step& step_;
  const StackKernels& kernels_;
  LinearOps& linears_;
};

}  // namespace tencache::generator
