// Inside the generator: the blocks of a model (embedding, layers, head) as one rank has them.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "traces/generate/step.h"

namespace tencache::generator {

struct ContextCache;  // traces/generate/context_cache.h

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
  bool is_trained() const { return weight->trainable || (bias != nullptr && bias->trainable); }
};

struct FeedForward {
  Linear gate, up, down;  // gate: gated ones only
  bool joined = false;    // gate and up are one layer, `up`, by turns (gpt-oss)
};

// From the layer's input down to narrow vectors; from that of keys and values up again.
struct LatentProjections {
  Linear query_down, down, up;
  Norm query_down_norm, norm;
};

struct Layer {
  Norm attention_norm, feed_forward_norm;  // feed_forward_norm: absent where both read the same (Falcon-7B)
  Linear query, key, value, query_key_value, attention_output;
  Norm query_norm, key_norm;   // head by head; Qwen3 only
  LatentProjections latent;    // latent attention only
  Parameter* sinks = nullptr;  // a score a head that takes part in the softmax and leads nowhere (gpt-oss)
  Count window = 0;            // tokens that a token sees; 0: all
  FeedForward feed_forward;    // or the shared experts
  Linear router;
  std::vector<FeedForward> experts;
  Module module, attention_module, feed_forward_module;
  std::vector<Parameter*> parameters;

  // All that there are but the router, those of the experts last.
  std::vector<Linear*> linears();
};

struct EmbeddingBlock {
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
  EmbeddingBlock embedding;
  std::vector<Layer> layers;       // of all chunks, in the order of the model
  std::vector<LayerRange> chunks;  // of `layers`
  ModelHead head;
};

// Keys and values of a micro-batch's tokens in one layer.
struct KvCache {
  struct Piece {
    TensorId tensor = none;
    Count end = 0;         // one past the last token that it has room for
    OpIndex maker = none;  // the op that can make it again of the layer's input, which is kept
  };
  std::vector<Piece> pieces;
  Count tokens = 0;  // of each sequence so far
  Count room = 0;    // for so many of them there is, or was, a place
};

// One micro-batch.
struct MicroBatch {
  Count index = 0;
  Count sequences = 0, length = 0;  // of this rank
  // Of the layer that runs, in a generation; else null. Its tokens' keys and values are added to it.
  KvCache* cache = nullptr;
  Count piece_tokens = 0;  // of a new piece of it
  // Of the layer that runs, where a context is trained chunk by chunk; else null. The micro-batch is a chunk of it.
  ContextCache* context = nullptr;
  Count before = 0;  // tokens before the chunk
  // The same of a layer with experts: how many of the tokens each expert gets. Empty: all get equally many.
  std::span<const Count> expert_tokens = {};
  Count tokens() const { return sequences * length; }
};

}  // namespace tencache::generator
