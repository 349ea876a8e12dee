// Inside the generator: the ops of a model's blocks on one rank, as training and generation pass through them.
#pragma once

#include <vector>

#include "traces/generate/attention.h"
#include "traces/generate/feed_forward.h"
#include "traces/generate/linear.h"
#include "traces/generate/norm.h"

namespace tencache::generator {

// From token numbers, or the pixels of pictures, to the input of the first layer.
struct EmbeddingState {
  TensorId ids = none, mask = none;
  LinearState patches, projection;
  NormState norm;
};

class EmbeddingOps : BlockOps {
 public:
  using BlockOps::BlockOps;

  TensorId forward(EmbeddingBlock& embedding, const MicroBatch& micro, TensorId ids, EmbeddingState& state);
  void backward(EmbeddingBlock& embedding, const MicroBatch& micro, const EmbeddingState& state, TensorId dy);
};

// What follows the last layer, up to the loss.
struct HeadState {
  TensorId labels = none;
  TensorId scores = none;  // what the loss keeps: log-probabilities, or the logits
  TensorId log_sum_exp = none;
  TensorId returned = none;        // the logits, where the caller keeps them
  TensorId input_gradient = none;  // of the last product, where the forward pass has made it
  NormState final_norm, transform_norm;
  LinearState projection, transform, output;
  TensorId transform_out = none;
};

class HeadOps : BlockOps {
 public:
  using BlockOps::BlockOps;

  // Up to the loss, or to the logits where the options have none. Returns the logits, if they are there as a whole.
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
  // LossKind::fused_linear: the last product, the loss and both gradients, piece by piece.
  void fused_linear(ModelHead& head, Count rows, TensorId x, HeadState& state);
  void cross_entropy(ModelHead& head, Count rows, TensorId logits, HeadState& state);
  TensorId cross_entropy_backward(ModelHead& head, Count rows, const HeadState& state);
};

// The forward and the backward pass of a layer.
//
// Each forward function, here and in the other blocks, records in a state what its backward function needs. An
// activation lives until the last op that reads it, so what is kept for the backward pass follows from what the
// backward ops read. Gradients of activations are new tensors; where two ops contribute to one, the second adds to it
// in place.
struct LayerState {
  TensorId input = none, output = none;
  std::vector<TensorId> kept;  // by Recompute::ops and ::attention, in the order of the calls
  OpIndex first = 0, end = 0;  // of the forward pass
  NormState attention_norm, feed_forward_norm;
  AttentionState attention;
  LatentAttentionState latent_attention;
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
  void begin_pass(std::vector<TensorId>* kept, bool again);
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

// What it is made from must outlive it. It stays where it is: its parts refer to each other.
struct ModelOps {
  ModelOps(Step& step, Collectives& collectives)
      : context(step, collectives, step.options.model),
        linears(context),
        embedding(context, linears),
        layers(context, linears),
        head(context, linears) {}
  ModelOps(const ModelOps&) = delete;
  ModelOps& operator=(const ModelOps&) = delete;

  RankContext context;
  LinearOps linears;
  EmbeddingOps embedding;
  LayerOps layers;
  HeadOps head;
};

}  // namespace tencache::generator
