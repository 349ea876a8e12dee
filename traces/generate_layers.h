// Inside the generator: the blocks of a model (embedding, layers, head) as one rank has them, and the ops of their
// forward and backward passes.
//
// Each forward function returns what its backward function needs. An activation lives until the last op that reads it,
// so what is kept for the backward pass follows from what the backward ops read. Gradients of activations are new
// tensors; where two ops contribute to one, the second adds to it in place.
#pragma once

#include <deque>
#include <vector>

#include "traces/generate_parallel.h"
#include "traces/generate_stack.h"
#include "traces/generate_step.h"

namespace tencache::generator {

// A linear layer: y = x W + b, with the low-rank addition x A B where it is adapted.
struct Linear {
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;
  Parameter* lora_a = nullptr;
  Parameter* lora_b = nullptr;
  Count in = 0, out = 0;  // of this rank
  std::string label;      // "q_proj"
  Module module;
  explicit operator bool() const { return weight != nullptr; }
};

struct Norm {
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;
  Module module;
  explicit operator bool() const { return weight != nullptr; }
};

struct FeedForward {
  Linear gate, up, down;  // gate: gated ones only
};

struct Layer {
  Norm attention_norm, feed_forward_norm;  // feed_forward_norm: absent where both read the same (Falcon-7B)
  Linear query, key, value, query_key_value, attention_output;
  Norm query_norm, key_norm;  // head by head; Qwen3 only
  FeedForward feed_forward;
  Linear router;
  std::vector<FeedForward> experts;
  Module module, attention_module, feed_forward_module;
  std::vector<Parameter*> parameters;
};

struct Embedding {
  Parameter *tokens = nullptr, *positions = nullptr, *token_types = nullptr, *class_token = nullptr;
  Linear patches, projection;  // ViT; OPT-350M
  Norm norm;
  Module module;
  std::vector<Parameter*> parameters;
};

struct ModelHead {
  Norm final_norm;
  Linear projection;  // OPT-350M
  Linear transform;   // BERT: before the decoder; or the pooler
  Norm transform_norm;
  Linear output;  // to the vocabulary (tied: the token embedding) or to the labels
  Module module;
  std::vector<Parameter*> parameters;
};

// Layers one after another: first, and one past the last.
struct LayerRange {
  Count begin = 0, end = 0;
};

// The parameters of one rank and the blocks that use them.
struct RankModel {
  std::deque<Parameter> parameters;  // in the order of the model's modules
  bool has_embedding = false, has_head = false;
  Embedding embedding;
  std::vector<Layer> layers;       // of all chunks, in the order of the model
  std::vector<LayerRange> chunks;  // of `layers`
  ModelHead head;
};

// One micro-batch.
struct MicroBatch {
  Count index = 0;
  Count sequences = 0, length = 0;  // of this rank
  Count tokens() const { return sequences * length; }
};

struct LinearState {
  TensorId input = none, lora_hidden = none;
};
struct NormState {
  TensorId input = none;
  TensorId normalised = none;  // before the weight, where the stack keeps it
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
};
struct LayerState {
  TensorId input = none;
  std::vector<TensorId> kept;  // by Recompute::ops, in the order of the calls
  NormState attention_norm, feed_forward_norm;
  AttentionState attention;
  TensorId attention_mask = none;
  FeedForwardState feed_forward;
  ExpertsState experts;
  TensorId feed_forward_mask = none;
};
struct EmbeddingState {
  TensorId ids = none, mask = none;
  LinearState patches, projection;
  NormState norm;
};
struct HeadState {
  TensorId labels = none;
  TensorId scores = none;  // what the loss keeps: log-probabilities, or the logits
  TensorId log_sum_exp = none;
  NormState final_norm, transform_norm;
  LinearState projection, transform, output;
  TensorId transform_out = none;
};

// The ops of one rank. All methods append to the step.
class LayerOps {
 public:
  LayerOps(Step& step, Collectives& collectives, const ModelDescription& model);

  TensorId embed(Embedding& embedding, const MicroBatch& micro, TensorId ids, EmbeddingState& state);
  void embed_backward(Embedding& embedding, const MicroBatch& micro, const EmbeddingState& state, TensorId dy);

  // Forward, or again for the backward pass.
  TensorId layer(Layer& layer, const MicroBatch& micro, TensorId x, LayerState& state);
  // `input_gradient` false: nothing before this layer is trained; returns none.
  TensorId layer_backward(Layer& layer, const MicroBatch& micro, LayerState& state, TensorId dy, bool input_gradient);

  // The head up to the loss, or to the logits where the options have none.
  void head(ModelHead& head, const MicroBatch& micro, TensorId x, TensorId labels, HeadState& state);
  TensorId head_backward(ModelHead& head, const MicroBatch& micro, const HeadState& state);

 private:
  // generate_layers.cpp
  TensorId layer_forward(Layer& layer, const MicroBatch& micro, TensorId x, LayerState& state);
  // Whether the layer's activations are computed again.
  bool recomputes(const Layer& layer) const;
  void recompute(Layer& layer, const MicroBatch& micro, LayerState& state);
  // Whether the forward pass that runs again ends before the layer's last product. The product's input is the last
  // tensor that the backward pass needs, unless a dropout mask or a norm comes behind it.
  bool stops_early() const {
    return again_ && step_.options.recompute != Recompute::block && !hidden_dropout_ &&
           (model_.norm_first || model_.parallel_block);
  }
  // Recompute::ops keeps every second product, from the first on.
  bool keeps_product() { return kept_ != nullptr && products_++ % 2 == 0; }
  // A result that is kept, in the forward pass; and the same one when that runs again.
  void keep(TensorId result) { kept_->push_back(result); }
  TensorId take_kept() { return (*kept_)[next_kept_++]; }
  // `last`: the layer's last product, which need not run if the pass stops early; then returns none.
  TensorId linear(Linear& linear, TensorId x, Count tokens, LinearState& state, bool last = false);
  // Adds to *dx in place, or makes it; dx null: not wanted. `parts`: the weight's gradient is made piece by piece.
  void linear_backward(Linear& linear, const LinearState& state, TensorId dy, Count tokens, TensorId* dx,
                       bool parts = false);
  TensorId weight_for(Linear& linear);
  // Precision::fp8: whether the layer's products are in fp8. Those of the blocks are, if all their dimensions are
  // multiples of 16, which torch._scaled_mm demands. Adapters are in bf16.
  bool computes_in_fp8(const Linear& linear, Count tokens) const;
  // A copy in fp8, for one product; `operand`: "weight". One kernel, because the scale is known before (delayed
  // scaling).
  TensorId cast_to_fp8(const Linear& linear, std::string_view operand, TensorId source);
  // The same of an input. Layers one after the other that read the same input share it, unless the stack is eager.
  TensorId input_in_fp8(const Linear& linear, TensorId input);
  // `rows`, each as wide as the norm's weight, are normalised each by itself.
  TensorId norm(Norm& norm, TensorId x, Count rows, NormState& state);
  TensorId norm_backward(Norm& norm, const NormState& state, TensorId dy, TensorId residual, Count rows,
                         bool input_gradient);
  TensorId dropout_add(const Module& module, std::string_view label, TensorId out, TensorId residual, TensorId extra,
                       Count tokens, TensorId& mask);
  TensorId dropout_backward(const Module& module, TensorId dy, TensorId mask, Count elements);
  Count head_rows(const MicroBatch& micro) const;
  // Picks or spreads rows of a matrix.
  Cost rows_of(Count rows, Count width) const {
    return {.kernel = {.kind = KernelKind::gather}, .bytes = 2 * rows * width * step_.element_bytes()};
  }
  // Of an eighth of the rows, in fp32.
  static Bytes loss_chunk(Count scores) { return (4 * scores + 7) / 8; }
  void cross_entropy(ModelHead& head, Count rows, TensorId logits, HeadState& state);
  TensorId cross_entropy_backward(ModelHead& head, Count rows, const HeadState& state);

  // generate_attention.cpp
  TensorId attention(Layer& layer, const MicroBatch& micro, TensorId x, AttentionState& state);
  void attention_backward(Layer& layer, const MicroBatch& micro, AttentionState& state, TensorId dy, TensorId* dx);
  void rotate(const Module& module, Count tokens, AttentionState& state);
  Cost flash(KernelKind kind, const MicroBatch& micro) const;
  void core_attention(Layer& layer, const MicroBatch& micro, const AttentionState& qkv, CoreAttentionState& state);
  void core_attention_backward(Layer& layer, const MicroBatch& micro, const AttentionState& state, TensorId d_context,
                               TensorId dq, TensorId dk, TensorId dv);

  // generate_feed_forward.cpp
  TensorId feed_forward(FeedForward& block, TensorId x, Count tokens, FeedForwardState& state, bool last);
  void feed_forward_backward(FeedForward& block, const FeedForwardState& state, TensorId dy, TensorId* dx);
  Count expert_capacity(Count tokens) const;
  TensorId experts(Layer& layer, TensorId x, Count tokens, ExpertsState& state);
  void experts_backward(Layer& layer, const ExpertsState& state, TensorId dy, Count tokens, TensorId* dx);

  Step& step_;
  Collectives& collectives_;
  const ModelDescription& model_;
  StackKernels kernels_;
  Count local_heads_, local_key_value_heads_;
  bool hidden_dropout_ = false, attention_dropout_ = false, causal_ = true, rotary_ = false;
  // Of the forward pass of a layer that runs at the moment.
  bool again_ = false;                     // for the backward pass
  std::vector<TensorId>* kept_ = nullptr;  // LayerState::kept under Recompute::ops, else null
  std::size_t next_kept_ = 0;
  Count products_ = 0;
  TensorId cast_of_ = none;  // the last input that was cast to fp8 in this pass of the layer
  TensorId cast_ = none;     // and its copy
  bool taken_ = false;       // the last linear layer's result was kept, with the sum over tensor-parallel ranks
};

}  // namespace tencache::generator
