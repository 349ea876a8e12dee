// A transformer as its published configuration describes it: what the workload generator starts from.
//
// One description covers decoders (OPT, BLOOM, Falcon, GPT-2, Llama, Mistral, Granite), mixtures of experts (Mixtral)
// and encoders (BERT, ViT). It is read from our own YAML (configs/models) or from a Hugging Face `config.json`
// (traces/model_reader.h), and every parameter carries its Hugging Face name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tencache {

// How a family names and arranges its parameters.
enum class ModelFamily : std::uint8_t { opt, bloom, falcon, gpt2, llama, mixtral, bert, vit };
enum class Head : std::uint8_t { language_model, classification };

struct ModelDescription {
  std::string name;  // as on Hugging Face, lower case, without the owner: "opt-6.7b"
  ModelFamily family = ModelFamily::llama;
  std::uint64_t layers = 0;
  std::uint64_t hidden = 0;
  std::uint64_t heads = 0;
  std::uint64_t key_value_heads = 0;  // = heads without grouped-query attention, 1 with multi-query attention
  std::uint64_t head_dimension = 0;
  std::uint64_t intermediate = 0;          // width of the feed-forward block
  std::uint64_t vocabulary = 0;            // rows of the token embedding as stored (padded if the checkpoint is)
  std::uint64_t positions = 0;             // rows of a learned position embedding, 0: rotary or ALiBi
  std::uint64_t max_sequence = 0;          // longest sequence that the model takes, 0: unknown
  std::uint64_t token_types = 0;           // BERT's segments
  std::uint64_t embedding_projection = 0;  // width of the token embedding where it differs (OPT-350M), 0: hidden
  std::uint64_t experts = 0, experts_per_token = 0;            // 0: dense
  std::uint64_t labels = 2;                                    // of the classification head
  std::uint64_t image_size = 0, patch_size = 0, channels = 0;  // ViT
  bool gated = false;  // feed-forward with gate, up and down projections (SwiGLU)
  bool attention_bias = true, feed_forward_bias = true;
  bool tied_embeddings = true;  // the language-model head is the token embedding
  bool parallel_block = false;  // Falcon: attention and feed-forward read the same input
  std::uint64_t norms_per_layer = 2;
  bool norm_bias = true;                   // LayerNorm; RMSNorm has a weight only
  std::uint64_t published_parameters = 0;  // with the language-model head, tied weights once; 0: not known
  std::string source;                      // where the figures come from
};

struct ParameterShape {
  std::string name;    // "model.decoder.layers.0.self_attn.q_proj.weight"
  std::string module;  // "model.decoder.layers.0.self_attn"
  std::vector<std::uint64_t> shape;
  std::uint64_t elements() const {
    std::uint64_t product = 1;
    for (const std::uint64_t extent : shape) product *= extent;
    return product;
  }
};

// Every parameter in the order of the model's modules; a tied weight stands once.
std::vector<ParameterShape> parameters_of(const ModelDescription& model, Head head);
std::uint64_t parameter_count(const ModelDescription& model, Head head);

}  // namespace tencache
