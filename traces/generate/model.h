// A transformer as its published configuration describes it: what the workload generator starts from.
//
// One description covers decoders (OPT, BLOOM, Falcon, GPT-2, Llama, Mistral, Granite, Qwen), mixtures of experts
// (Mixtral, Qwen3, DeepSeek-V2 and -V3, gpt-oss) and encoders (BERT, ViT). It is read from our own YAML (configs/models) or from a Hugging Face
// `config.json` (configs/model_yaml.h), and every parameter carries its Hugging Face name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/enum_names.h"

namespace tencache {

struct ModelDescription;

enum class ModelFamily : std::uint8_t {
  opt,
  bloom,
  falcon,
  gpt2,
  llama,
  mixtral,
  bert,
  vit,
  qwen3_moe,
  deepseek,
  gpt_oss
};

// What all models of a family have in common, beside the names of their parameters.
struct FamilyFacts {
  ModelFamily family = ModelFamily::llama;
  const char* name = "";
  bool causal = true;             // a token sees only those before it
  bool rotary = false;            // positions turn queries and keys
  bool own_widths = false;        // heads × head_dimension need not be hidden, key_value_heads may be fewer than heads
  bool images = false;            // it reads pixels, not tokens
  bool segments = false;          // its embedding has token_types
  bool transposed = false;        // weights of linear layers are stored as {in, out}
  bool llama_attention = false;   // query_key_norm, attention_output_bias
  bool experts = false;           // its layers have experts in place of the feed-forward block
  bool latent_attention = false;  // keys and values are made of one narrow vector a token (DeepSeek-V2, section 2.1)
  bool trained = true;            // its backward pass is modelled
  // Hugging Face's eager attention computes the softmax in fp32 and casts its result: of 16 bits both are kept.
  bool fp32_softmax = false;
  std::optional<std::uint64_t> position_rows = {};  // of a learned position embedding, beyond the longest sequence
  bool hidden_dropout = false, attention_dropout = false;        // in training, as its configurations are published
  std::vector<std::string> lora_targets = {"q_proj", "v_proj"};  // what Hugging Face's PEFT adapts unless told
  void (*set_defaults)(ModelDescription&) = nullptr;  // of the keys that a model file may leave out; may be null
};
const FamilyFacts& facts_of(ModelFamily family);
const std::vector<FamilyFacts>& model_families();  // in the order of their names

enum class Head : std::uint8_t { language_model, classification };
template <>
inline constexpr auto enum_texts<Head> = std::to_array<std::string_view>({"lm", "classification"});

// Of the feed-forward block. gelu: one kernel; gelu_composed: of eight ops, as Hugging Face's "gelu_new"; gelu_bloom:
// of nine that keep their input only. Stacks other than eager run each as one kernel.
enum class Activation : std::uint8_t { relu, gelu, gelu_composed, gelu_bloom, silu };
template <>
inline constexpr auto enum_texts<Activation> = std::to_array<std::string_view>({"relu", "gelu", "gelu_composed",
                                                                                "gelu_bloom", "silu"});

struct ModelDescription {
  std::string name;                  // as on Hugging Face, lower case, without the owner: "opt-6.7b"
  std::vector<std::string> aliases;  // other names that it is found by
  ModelFamily family = ModelFamily::llama;
  std::uint64_t layers = 0;
  std::uint64_t hidden = 0;
  std::uint64_t heads = 0;
  std::uint64_t key_value_heads = 0;  // = heads without grouped-query attention, 1 with multi-query attention
  std::uint64_t head_dimension = 0;
  std::uint64_t intermediate = 0;          // width of the feed-forward block
  std::uint64_t vocabulary = 0;            // rows of the token embedding as stored (padded if the checkpoint is)
  std::uint64_t positions = 0;             // rows of a learned position embedding (OPT: two more than its longest
                                           // sequence; ViT: a row per patch and one for the class), 0: rotary, ALiBi
  std::uint64_t max_sequence = 0;          // longest sequence that the model takes, 0: unknown
  std::uint64_t token_types = 0;           // BERT's segments
  std::uint64_t embedding_projection = 0;  // width of the token embedding where it differs (OPT-350M), 0: hidden
  std::uint64_t experts = 0, experts_per_token = 0;  // 0: dense
  std::uint64_t expert_intermediate = 0;  // width of an expert where it differs from `intermediate`, 0: the same
  std::uint64_t shared_experts = 0;       // run for every token, as one block of so many experts' width
  std::uint64_t dense_layers = 0;         // the first layers, which have a feed-forward block and no experts
  // Latent attention. head_dimension is that of queries and keys, of which the last rope_dimension numbers are rotated.
  std::uint64_t query_rank = 0;      // width that queries are made of, 0: they are made of the layer's input
  std::uint64_t key_value_rank = 0;  // width of the vector that keys and values are made of
  std::uint64_t rope_dimension = 0, value_dimension = 0;  // of a head
  std::uint64_t sliding_window = 0;  // every second layer, the first among them, sees so many tokens; 0: all see all
  std::uint64_t labels = 2;          // of the classification head
  std::uint64_t image_size = 0, patch_size = 0, channels = 0;  // ViT
  Activation activation = Activation::gelu;
  bool gated = false;  // feed-forward with gate, up and down projections (SwiGLU)
  bool attention_bias = true, feed_forward_bias = true;
  bool router_bias = false;           // of a router (gpt-oss: added to its scores; DeepSeek-V3: to choose by)
  bool attention_output_bias = true;  // llama: of the last of its four projections (Qwen2 has biases on the others)
  bool query_key_norm = false;        // llama: queries and keys are normalised, head by head (Qwen3)
  bool tied_embeddings = true;        // the language-model head is the token embedding
  bool parallel_block = false;        // Falcon: attention and feed-forward read the same input
  std::uint64_t norms_per_layer = 2;
  bool norm_bias = true;                   // LayerNorm; RMSNorm has a weight only
  bool norm_first = true;                  // norms before attention and feed-forward, and one after the last layer;
                                           // false (OPT-350M, BERT): after each, and none after the last layer
  bool embedding_norm = false;             // a norm right after the embedding (BLOOM, BERT)
  std::uint64_t published_parameters = 0;  // with usual_head(), tied weights once; 0: not known
  std::string quantised;                   // format (weight_format.h) that the checkpoint has; empty: none, or unknown
  std::string quantisation;                // what its file says of it, for people; empty: nothing
  std::vector<std::string> unquantised;    // modules that it leaves out, as patterns (weight_format.h)
  std::string source;                      // where the figures come from
  std::string read_as;                     // what of its file was taken for what, for people; empty: all as it stands

  bool has_experts(std::uint64_t layer) const { return experts != 0 && layer >= dense_layers; }
  std::uint64_t expert_width() const { return expert_intermediate != 0 ? expert_intermediate : intermediate; }
  std::uint64_t window_of(std::uint64_t layer) const { return layer % 2 == 0 ? sliding_window : 0; }  // 0: sees all
};

struct ParameterShape {
  std::string name;         // "model.decoder.layers.0.self_attn.q_proj.weight"
  std::string module;       // what holds it: "model.decoder.layers.0.self_attn"; a norm, an embedding, an expert, and a
                            // linear layer that is in no attention or feed-forward block, are modules of their own
  std::int64_t layer = -1;  // which layer it belongs to, -1: none
  std::vector<std::uint64_t> shape;  // as stored: a Linear's weight is {out, in}, GPT-2's Conv1D's {in, out}
  std::uint64_t elements() const {
    std::uint64_t product = 1;
    for (const std::uint64_t extent : shape) product *= extent;
    return product;
  }
};

// The head that the published checkpoint has: classification for ViT, language_model (BERT: of masked tokens) else.
Head usual_head(const ModelDescription& model);

// Every parameter under the name that the Hugging Face classes (…ForCausalLM, BertForMaskedLM,
// …ForSequenceClassification, ViTForImageClassification) give it, in the order of their modules; a tied weight stands
// once. `problem_of` is empty for the model. Throws Error for a language-model head on ViT.
std::vector<ParameterShape> parameters_of(const ModelDescription& model, Head head);
std::uint64_t parameter_count(const ModelDescription& model, Head head);

std::string to_string(ModelFamily family);

// Empty if the description is consistent and of a sane size, so that no count of its parameters overflows; else what
// is wrong with it, for people.
std::string problem_of(const ModelDescription& model);

}  // namespace tencache
