// Hugging Face's config.json. The keys, their older names and their defaults are those of transformers'
// configuration_<family>.py; keys without a bearing on shapes are left alone. And params.json, whose width of the
// feed-forward block is computed as in FeedForward of Meta's llama/model.py.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "configs/model_fields.h"

namespace tencache {
namespace {

// The file does not say its model's name: "opt-6.7b/config.json" and "opt-6.7b.json" do. "./config.json" does not and
// is named after its type.
std::string name_of(const std::string& file, const std::string& type) {
  const std::filesystem::path path(file);
  std::string name = path.stem().string();
  if (name == "config" || name == "params") name = path.parent_path().filename().string();
  for (char& letter : name) {
    const auto c = static_cast<unsigned char>(letter);
    const bool kept = c < 0x80 && (std::isalnum(c) != 0 || c == '.' || c == '_');
    letter = kept ? static_cast<char>(std::tolower(c)) : '-';
  }
  while (!name.empty() && std::isalnum(static_cast<unsigned char>(name.front())) == 0) name.erase(0, 1);
  return name.empty() ? type : name.substr(0, 64);
}

// What changes the parameters in a way that a description does not cover.
void refuse(const ModelFields& fields, const std::string& key, bool refused) {
  if (fields.flag(key) == refused) {
    fields.fail(key, key + ": " + (refused ? "true" : "false") + " is not supported; the parameters would differ");
  }
}

void read_opt(ModelDescription& model, const ModelFields& fields, const std::string& /*type*/) {
  model.intermediate = fields.count_of({"ffn_dim"});
  model.max_sequence = fields.count("max_position_embeddings").value_or(2048);
  const std::uint64_t projection = fields.count("word_embed_proj_dim").value_or(model.hidden);
  model.embedding_projection = projection == model.hidden ? 0 : projection;
  model.norm_first = fields.flag("do_layer_norm_before").value_or(true);
  model.attention_bias = model.feed_forward_bias = fields.flag("enable_bias").value_or(true);
  refuse(fields, "layer_norm_elementwise_affine", false);
  refuse(fields, "_remove_final_layer_norm", true);
}

void read_falcon(ModelDescription& model, const ModelFields& fields, const std::string& /*type*/) {
  const bool new_architecture = fields.flag("new_decoder_architecture").value_or(false);
  if (new_architecture) {
    model.key_value_heads = fields.count("num_kv_heads").value_or(model.heads);
  } else {
    model.key_value_heads = fields.flag("multi_query").value_or(true) ? 1 : model.heads;
  }
  model.parallel_block = new_architecture || fields.flag("parallel_attn").value_or(true);
  const std::uint64_t parallel_norms = fields.count("num_ln_in_parallel_attn").value_or(new_architecture ? 2 : 1);
  model.norms_per_layer = model.parallel_block ? parallel_norms : 2;
  model.intermediate = fields.count("ffn_hidden_size").value_or(4 * model.hidden);
  model.max_sequence = fields.count("max_position_embeddings").value_or(2048);
  model.attention_bias = model.feed_forward_bias = fields.flag("bias").value_or(false);
}

void read_gpt2(ModelDescription& model, const ModelFields& fields, const std::string& /*type*/) {
  model.intermediate = fields.count("n_inner").value_or(4 * model.hidden);
  model.max_sequence = fields.has("n_positions") || fields.has("max_position_embeddings")
                           ? fields.count_of({"n_positions", "max_position_embeddings"})
                           : 1024;
  // Hugging Face's "gelu_new" is composed of eight ops; "gelu" and "gelu_pytorch_tanh" are one kernel.
  if (fields.text("activation_function").value_or("gelu_new") == "gelu_new") {
    model.activation = Activation::gelu_composed;
  }
  refuse(fields, "add_cross_attention", true);
}

void read_llama(ModelDescription& model, const ModelFields& fields, const std::string& type) {
  const bool mistral = type == "mistral" || type == "mixtral";
  model.intermediate = fields.count_of({"intermediate_size"});
  model.key_value_heads = fields.count("num_key_value_heads").value_or(mistral ? 8 : model.heads);
  model.head_dimension = fields.count("head_dim").value_or(0);
  model.max_sequence = fields.count_of({"max_position_embeddings"});
  if (!mistral) {
    // Qwen2's file does not say what its code has: biases on the projections of queries, keys and values.
    model.attention_bias = type == "qwen2" || fields.flag("attention_bias").value_or(false);
    model.feed_forward_bias = fields.flag("mlp_bias").value_or(false);
  }
  model.query_key_norm = type == "qwen3" || type == "qwen3_moe";
  if (type == "qwen3_moe") {
    // Experts in every layer: the width of a dense one goes unused.
    model.intermediate = fields.count_of({"moe_intermediate_size"});
    model.experts = fields.count_of({"num_experts", "num_local_experts"});
    model.experts_per_token = fields.count("num_experts_per_tok").value_or(8);
    if (fields.count("decoder_sparse_step").value_or(1) != 1) {
      fields.fail("decoder_sparse_step", "decoder_sparse_step: only 1, experts in every layer, is supported");
    }
    if (fields.size("mlp_only_layers").value_or(0) != 0) {
      fields.fail("mlp_only_layers", "mlp_only_layers: layers without experts are not supported");
    }
  }
  if (type == "mixtral") {
    model.experts = fields.count("num_local_experts").value_or(8);
    model.experts_per_token = fields.count("num_experts_per_tok").value_or(2);
  }
}

void read_deepseek(ModelDescription& model, const ModelFields& fields, const std::string& type) {
  model.intermediate = fields.count_of({"intermediate_size"});
  model.max_sequence = fields.count_of({"max_position_embeddings"});
  model.experts = fields.count_of({"n_routed_experts"});
  model.experts_per_token = fields.count_of({"num_experts_per_tok"});
  model.expert_intermediate = fields.count_of({"moe_intermediate_size"});
  model.shared_experts = fields.count("n_shared_experts").value_or(0);
  model.dense_layers = fields.count("first_k_dense_replace").value_or(0);
  model.query_rank = fields.count("q_lora_rank").value_or(0);
  model.key_value_rank = fields.count_of({"kv_lora_rank"});
  model.rope_dimension = fields.count_of({"qk_rope_head_dim"});
  model.head_dimension = fields.count_of({"qk_nope_head_dim"}) + model.rope_dimension;
  model.value_dimension = fields.count_of({"v_head_dim"});
  model.router_bias = type == "deepseek_v3";
  refuse(fields, "attention_bias", true);
  if (fields.count("moe_layer_freq").value_or(1) != 1) {
    fields.fail("moe_layer_freq", "moe_layer_freq: only 1, experts in every layer after the dense ones, is supported");
  }
}

void read_gpt_oss(ModelDescription& model, const ModelFields& fields, const std::string& /*type*/) {
  model.intermediate = fields.count_of({"intermediate_size"});
  model.key_value_heads = fields.count_of({"num_key_value_heads"});
  model.head_dimension = fields.count("head_dim").value_or(64);
  model.max_sequence = fields.count_of({"max_position_embeddings"});
  model.experts = fields.count_of({"num_local_experts"});
  model.experts_per_token = fields.count_of({"num_experts_per_tok", "experts_per_token"});
  model.sliding_window = fields.count("sliding_window").value_or(128);
  const std::vector<std::string> kinds = fields.texts("layer_types").value_or(std::vector<std::string>());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] == (i % 2 == 0 ? "sliding_attention" : "full_attention")) continue;
    fields.fail("layer_types", "layer_types: only sliding_attention and full_attention by turns are supported");
  }
  refuse(fields, "attention_bias", false);
}

void read_bert(ModelDescription& model, const ModelFields& fields, const std::string& /*type*/) {
  model.intermediate = fields.count_of({"intermediate_size"});
  model.max_sequence = fields.count("max_position_embeddings").value_or(512);
  model.token_types = fields.count("type_vocab_size").value_or(2);
  refuse(fields, "add_cross_attention", true);
}

void read_vit(ModelDescription& model, const ModelFields& fields, const std::string& /*type*/) {
  model.intermediate = fields.count_of({"intermediate_size"});
  model.image_size = fields.count("image_size").value_or(224);
  model.patch_size = fields.count("patch_size").value_or(16);
  model.channels = fields.count("num_channels").value_or(3);
  model.attention_bias = fields.flag("qkv_bias").value_or(true);
}

void read_bloom(ModelDescription& model, const ModelFields& fields, const std::string& /*type*/) {
  model.max_sequence = fields.count("seq_length").value_or(0);
}

struct ModelType {
  const char* name;  // model_type
  ModelFamily family;
  void (*read)(ModelDescription& model, const ModelFields& fields, const std::string& type);
};
constexpr ModelType types[] = {{"bert", ModelFamily::bert, read_bert},
                               {"bloom", ModelFamily::bloom, read_bloom},
                               {"deepseek_v2", ModelFamily::deepseek, read_deepseek},
                               {"deepseek_v3", ModelFamily::deepseek, read_deepseek},
                               {"falcon", ModelFamily::falcon, read_falcon},
                               {"gpt2", ModelFamily::gpt2, read_gpt2},
                               {"gpt_oss", ModelFamily::gpt_oss, read_gpt_oss},
                               {"granite", ModelFamily::llama, read_llama},
                               {"llama", ModelFamily::llama, read_llama},
                               {"mistral", ModelFamily::llama, read_llama},
                               {"mixtral", ModelFamily::mixtral, read_llama},
                               {"opt", ModelFamily::opt, read_opt},
                               {"qwen2", ModelFamily::llama, read_llama},
                               {"qwen3", ModelFamily::llama, read_llama},
                               {"qwen3_moe", ModelFamily::qwen3_moe, read_llama},
                               {"vit", ModelFamily::vit, read_vit}};

// What is one of these by another name: the same parameters, computed in the same way.
struct Namesake {
  const char* name;
  const char* type;
  const char* except = "";  // what is not the same
};
constexpr Namesake namesakes[] = {
    {"kimi_k2", "deepseek_v3"},
    {"mimo", "qwen2", "its layers that predict further tokens are left out"},
    {"ministral", "mistral"},
    {"ministral3", "mistral"},
    {"phi3", "llama", "its queries, keys and values, and its gate and up, are one product each"},
    {"qwen2_5_vl", "qwen2"},
    {"qwen2_vl", "qwen2"},
    {"qwen3_vl", "qwen3"},
    {"qwen3_vl_moe", "qwen3_moe"},
    {"smollm3", "llama"},
};

const ModelType* type_named(const std::string& name) {
  const auto known = std::ranges::find(types, name, &ModelType::name);
  return known == std::end(types) ? nullptr : known;
}

void add_text(std::string& text, const std::string& more) {
  if (!more.empty()) text += (text.empty() ? "" : "; ") + more;
}

// The type that a name stands for, with what is to be said of it in `read_as`; null: none.
const ModelType* type_of(std::string name, std::string& read_as) {
  if (const ModelType* const known = type_named(name)) return known;
  constexpr std::string_view suffix = "_text";  // of the text model of one that also sees
  if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
  if (const ModelType* const known = type_named(name)) return known;
  const auto same = std::ranges::find(namesakes, name, &Namesake::name);
  if (same == std::end(namesakes)) return nullptr;
  add_text(read_as, "model_type '" + name + "' is read as '" + same->type + "', which it is by another name");
  add_text(read_as, same->except);
  return type_named(same->type);
}

// Where models that also see or hear have their text model.
constexpr const char* text_sections[] = {"text_config", "llm_config", "language_config"};
constexpr const char* other_sections[] = {"vision_config", "audio_config"};

std::string supported_types() {
  std::string names;
  for (const ModelType& candidate : types) names += (names.empty() ? "" : ", ") + std::string(candidate.name);
  return names + "; `python -m tencache_recorder --meta` records what transformers can build";
}

}  // namespace

ModelDescription model_of_config_json(const ModelFields& file) {
  ModelDescription model;
  const std::string outer = file.text("model_type").value_or("");
  const ModelType* known = type_named(outer);
  std::optional<ModelFields> text;
  std::string section;
  for (const char* name : text_sections) {
    if (known != nullptr || text || !(text = file.map(name))) continue;
    section = name;
    // An empty section leaves everything beside it, as older files have it.
    if (!text->has("hidden_size") && file.has("hidden_size")) text.reset();
  }
  const ModelFields& fields = text ? *text : file;
  const std::string type = text ? text->text("model_type").value_or(outer) : outer;
  if (text) add_text(model.read_as, "of '" + outer + "' the text model alone, which is in " + section);
  if (known == nullptr) known = type_of(type, model.read_as);
  if (known == nullptr) {
    fields.fail("model_type", "model_type '" + type + "'" + (text ? " of " + section : "") +
                                  " is not supported; supported are " + supported_types());
  }
  for (const char* name : other_sections) {
    if (!file.has(name)) continue;
    add_text(model.read_as, std::string(name) + " is left out");
  }
  model.family = known->family;
  set_family_defaults(model);
  model.name = name_of(file.file(), outer);
  model.source = file.file();
  model.hidden = fields.count_of({"hidden_size", "n_embd", "n_embed", "d_model"});
  model.layers = fields.count_of({"num_hidden_layers", "n_layer", "num_layers"});
  model.heads = fields.count_of({"num_attention_heads", "n_head"});
  const bool images = facts_of(model.family).images;
  if (!images) model.vocabulary = fields.count_of({"vocab_size"});
  known->read(model, fields, known->name);
  model.attention_output_bias = model.attention_bias && known->name != std::string_view("qwen2");
  const auto tied = fields.flag("tie_word_embeddings");
  if (const auto said = tied ? tied : file.flag("tie_word_embeddings"); said && !images) model.tied_embeddings = *said;
  model.labels = file.count("num_labels").value_or(file.size("id2label").value_or(2));
  const auto quantization = file.map("quantization_config");
  if (const auto of_text = quantization ? quantization : fields.map("quantization_config")) {
    read_quantization(model, *of_text);
  }
  complete(model, fields);
  return model;
}

ModelDescription model_of_params_json(const ModelFields& fields) {
  ModelDescription model;
  for (const char* key : {"vision_encoder", "moe_args", "q_lora_rank"}) {
    if (fields.has(key))
      fields.fail(key, std::string(key) + ": give the config.json of the same model on Hugging Face");
  }
  const std::optional<ModelFields> experts = fields.map("moe");
  model.family = experts ? ModelFamily::mixtral : ModelFamily::llama;
  set_family_defaults(model);
  model.name = name_of(fields.file(), "llama");
  model.source = fields.file();
  model.hidden = fields.count_of({"dim"});
  model.layers = fields.count_of({"n_layers"});
  model.heads = fields.count_of({"n_heads"});
  model.key_value_heads = fields.count("n_kv_heads").value_or(model.heads);
  model.head_dimension = fields.count("head_dim").value_or(0);
  model.max_sequence = fields.count("max_position_embeddings").value_or(fields.count("max_seq_len").value_or(0));
  model.tied_embeddings = fields.flag("tied_embeddings").value_or(false);
  model.attention_output_bias = false;
  if (fields.real("vocab_size") == -1.0) {
    constexpr std::uint64_t of_llama_2 = 32'000;
    model.vocabulary = of_llama_2;
    model.read_as = "vocab_size -1 is read as 32000, the vocabulary of the tokenizer of Llama 1 and 2";
  } else {
    model.vocabulary = fields.count_of({"vocab_size"});
  }
  if (const auto width = fields.count("hidden_dim")) {
    model.intermediate = *width;
  } else {
    const double least =
        std::floor(static_cast<double>(4 * model.hidden * 2 / 3) * fields.real("ffn_dim_multiplier").value_or(1));
    const std::uint64_t multiple = std::max<std::uint64_t>(1, fields.count("multiple_of").value_or(256));
    if (!(least >= 0 && least < 1e15)) fields.fail("ffn_dim_multiplier", "ffn_dim_multiplier is out of range");
    model.intermediate = (static_cast<std::uint64_t>(least) + multiple - 1) / multiple * multiple;
  }
  if (experts) {
    model.experts = experts->count_of({"num_experts"});
    model.experts_per_token = experts->count_of({"num_experts_per_tok"});
  }
  complete(model, fields);
  return model;
}

}  // namespace tencache
