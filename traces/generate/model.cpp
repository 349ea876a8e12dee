#include "traces/generate/model.h"

#include <algorithm>
#include <array>

#include "core/check.h"
#include "core/error.h"

namespace tencache {
namespace {

using Count = std::uint64_t;

// Collects parameters in module order.
class Parameters {
 public:
  Parameters(const ModelDescription& model, Head head) : model_(model), head_(head) {}

  std::vector<ParameterShape> list();

 private:
  void add(const std::string& name, const std::string& module, std::vector<Count> shape) {
    list_.push_back({name, module, layer_, std::move(shape)});
  }
  // `module` is the block that holds the linear layer; empty: the layer is a module of its own.
  void linear(const std::string& name, const std::string& module, Count out, Count in, bool bias) {
    add(name + ".weight", module.empty() ? name : module, {out, in});
    if (bias) add(name + ".bias", module.empty() ? name : module, {out});
  }
  // GPT-2's linear layer, whose weight is stored the other way round.
  void conv1d(const std::string& name, const std::string& module, Count in, Count out) {
    add(name + ".weight", module, {in, out});
    add(name + ".bias", module, {out});
  }
  void norm(const std::string& name) { norm(name, model_.hidden); }
  void norm(const std::string& name, Count width) {
    add(name + ".weight", name, {width});
    if (model_.norm_bias) add(name + ".bias", name, {width});
  }
  void embedding(const std::string& name, Count rows, Count width) { add(name + ".weight", name, {rows, width}); }

  template <typename Layer>
  void each_layer(const std::string& prefix, Layer layer) {
    for (Count i = 0; i < model_.layers; ++i) {
      layer_ = static_cast<std::int64_t>(i);
      layer(prefix + std::to_string(i) + ".");
    }
    layer_ = -1;
  }

  // A decoder's: one linear layer without bias, on the width of the token embedding.
  void decoder_head(Count width) {
    if (head_ == Head::classification) {
      linear("score", "", model_.labels, width, false);
    } else if (!model_.tied_embeddings) {
      linear("lm_head", "", model_.vocabulary, width, false);
    }
  }

  void opt();
  void bloom();
  void falcon();
  void gpt2();
  void llama();
  void llama_attention(const std::string& attention);
  void latent_attention(const std::string& attention);
  void mixtral_experts(const std::string& block);
  void experts(const std::string& block);
  void gpt_oss_experts(const std::string& block);
  void gated_feed_forward(const std::string& block, Count width, bool bias);
  void bert();
  void vit();
  void encoder_attention(const std::string& attention, const std::string& self);

  Count query_width() const { return model_.heads * model_.head_dimension; }
  Count key_value_width() const { return model_.key_value_heads * model_.head_dimension; }

  const ModelDescription& model_;
  Head head_;
  std::int64_t layer_ = -1;
  std::vector<ParameterShape> list_;
};

std::vector<ParameterShape> Parameters::list() {
  static constexpr void (*by_family[])(Parameters&) = {
      [](Parameters& p) { p.opt(); },   [](Parameters& p) { p.bloom(); }, [](Parameters& p) { p.falcon(); },
      [](Parameters& p) { p.gpt2(); },  [](Parameters& p) { p.llama(); }, [](Parameters& p) { p.llama(); },
      [](Parameters& p) { p.bert(); },  [](Parameters& p) { p.vit(); },   [](Parameters& p) { p.llama(); },
      [](Parameters& p) { p.llama(); }, [](Parameters& p) { p.llama(); }};
  by_family[static_cast<std::size_t>(model_.family)](*this);
  return std::move(list_);
}

void Parameters::opt() {
  const Count embedding_width = model_.embedding_projection != 0 ? model_.embedding_projection : model_.hidden;
  embedding("model.decoder.embed_tokens", model_.vocabulary, embedding_width);
  embedding("model.decoder.embed_positions", model_.positions, model_.hidden);
  if (embedding_width != model_.hidden) {
    linear("model.decoder.project_out", "", embedding_width, model_.hidden, false);
    linear("model.decoder.project_in", "", model_.hidden, embedding_width, false);
  }
  if (model_.norm_first) norm("model.decoder.final_layer_norm");
  each_layer("model.decoder.layers.", [&](const std::string& layer) {
    const std::string attention = layer + "self_attn";
    linear(attention + ".k_proj", attention, model_.hidden, model_.hidden, model_.attention_bias);
    linear(attention + ".v_proj", attention, model_.hidden, model_.hidden, model_.attention_bias);
    linear(attention + ".q_proj", attention, model_.hidden, model_.hidden, model_.attention_bias);
    linear(attention + ".out_proj", attention, model_.hidden, model_.hidden, model_.attention_bias);
    norm(layer + "self_attn_layer_norm");
    linear(layer + "fc1", "", model_.intermediate, model_.hidden, model_.feed_forward_bias);
    linear(layer + "fc2", "", model_.hidden, model_.intermediate, model_.feed_forward_bias);
    norm(layer + "final_layer_norm");
  });
  decoder_head(embedding_width);
}

void Parameters::bloom() {
  embedding("transformer.word_embeddings", model_.vocabulary, model_.hidden);
  if (model_.embedding_norm) norm("transformer.word_embeddings_layernorm");
  each_layer("transformer.h.", [&](const std::string& layer) {
    const std::string attention = layer + "self_attention", mlp = layer + "mlp";
    norm(layer + "input_layernorm");
    linear(attention + ".query_key_value", attention, 3 * model_.hidden, model_.hidden, model_.attention_bias);
    linear(attention + ".dense", attention, model_.hidden, model_.hidden, model_.attention_bias);
    norm(layer + "post_attention_layernorm");
    linear(mlp + ".dense_h_to_4h", mlp, model_.intermediate, model_.hidden, model_.feed_forward_bias);
    linear(mlp + ".dense_4h_to_h", mlp, model_.hidden, model_.intermediate, model_.feed_forward_bias);
  });
  norm("transformer.ln_f");
  decoder_head(model_.hidden);
}

void Parameters::falcon() {
  embedding("transformer.word_embeddings", model_.vocabulary, model_.hidden);
  each_layer("transformer.h.", [&](const std::string& layer) {
    const std::string attention = layer + "self_attention", mlp = layer + "mlp";
    const Count fused = query_width() + 2 * key_value_width();
    linear(attention + ".query_key_value", attention, fused, model_.hidden, model_.attention_bias);
    linear(attention + ".dense", attention, model_.hidden, query_width(), model_.attention_bias);
    linear(mlp + ".dense_h_to_4h", mlp, model_.intermediate, model_.hidden, model_.feed_forward_bias);
    linear(mlp + ".dense_4h_to_h", mlp, model_.hidden, model_.intermediate, model_.feed_forward_bias);
    if (!model_.parallel_block) {
      norm(layer + "post_attention_layernorm");
      norm(layer + "input_layernorm");
    } else if (model_.norms_per_layer == 2) {
      norm(layer + "ln_attn");
      norm(layer + "ln_mlp");
    } else {
      norm(layer + "input_layernorm");
    }
  });
  norm("transformer.ln_f");
  decoder_head(model_.hidden);
}

void Parameters::gpt2() {
  embedding("transformer.wte", model_.vocabulary, model_.hidden);
  embedding("transformer.wpe", model_.positions, model_.hidden);
  each_layer("transformer.h.", [&](const std::string& layer) {
    const std::string attention = layer + "attn", mlp = layer + "mlp";
    norm(layer + "ln_1");
    conv1d(attention + ".c_attn", attention, model_.hidden, 3 * model_.hidden);
    conv1d(attention + ".c_proj", attention, model_.hidden, model_.hidden);
    norm(layer + "ln_2");
    conv1d(mlp + ".c_fc", mlp, model_.hidden, model_.intermediate);
    conv1d(mlp + ".c_proj", mlp, model_.intermediate, model_.hidden);
  });
  norm("transformer.ln_f");
  decoder_head(model_.hidden);
}

void Parameters::llama_attention(const std::string& attention) {
  linear(attention + ".q_proj", attention, query_width(), model_.hidden, model_.attention_bias);
  linear(attention + ".k_proj", attention, key_value_width(), model_.hidden, model_.attention_bias);
  linear(attention + ".v_proj", attention, key_value_width(), model_.hidden, model_.attention_bias);
  linear(attention + ".o_proj", attention, model_.hidden, query_width(), model_.attention_output_bias);
  if (model_.family == ModelFamily::gpt_oss) add(attention + ".sinks", attention, {model_.heads});
  if (!model_.query_key_norm) return;
  norm(attention + ".q_norm", model_.head_dimension);
  norm(attention + ".k_norm", model_.head_dimension);
}

// Queries of the input or of a narrower vector; keys and values of one vector, beside which the rotated part of the
// key, which all heads share, comes straight from the input.
void Parameters::latent_attention(const std::string& attention) {
  const Count heads = model_.heads, plain = model_.head_dimension - model_.rope_dimension;
  if (model_.query_rank != 0) {
    linear(attention + ".q_a_proj", attention, model_.query_rank, model_.hidden, false);
    norm(attention + ".q_a_layernorm", model_.query_rank);
    linear(attention + ".q_b_proj", attention, query_width(), model_.query_rank, false);
  } else {
    linear(attention + ".q_proj", attention, query_width(), model_.hidden, false);
  }
  linear(attention + ".kv_a_proj_with_mqa", attention, model_.key_value_rank + model_.rope_dimension, model_.hidden,
         false);
  norm(attention + ".kv_a_layernorm", model_.key_value_rank);
  linear(attention + ".kv_b_proj", attention, heads * (plain + model_.value_dimension), model_.key_value_rank, false);
  linear(attention + ".o_proj", attention, model_.hidden, heads * model_.value_dimension, false);
}

// The router, then each expert: gate (w1), down (w2), up (w3).
void Parameters::mixtral_experts(const std::string& block) {
  linear(block + ".gate", block, model_.experts, model_.hidden, false);
  for (Count i = 0; i < model_.experts; ++i) {
    const std::string expert = block + ".experts." + std::to_string(i);
    linear(expert + ".w1", expert, model_.intermediate, model_.hidden, false);
    linear(expert + ".w2", expert, model_.hidden, model_.intermediate, false);
    linear(expert + ".w3", expert, model_.intermediate, model_.hidden, false);
  }
}

void Parameters::gated_feed_forward(const std::string& block, Count width, bool bias) {
  linear(block + ".gate_proj", block, width, model_.hidden, bias);
  linear(block + ".up_proj", block, width, model_.hidden, bias);
  linear(block + ".down_proj", block, model_.hidden, width, bias);
}

// Qwen3, DeepSeek.
void Parameters::experts(const std::string& block) {
  linear(block + ".gate", block, model_.experts, model_.hidden, false);
  if (model_.router_bias) add(block + ".gate.e_score_correction_bias", block, {model_.experts});
  for (Count i = 0; i < model_.experts; ++i) {
    gated_feed_forward(block + ".experts." + std::to_string(i), model_.expert_width(), false);
  }
  if (model_.shared_experts == 0) return;
  gated_feed_forward(block + ".shared_experts", model_.shared_experts * model_.expert_width(), false);
}

// Hugging Face stacks the experts of a layer in one tensor; here each has its own, as it moves alone. Gate and up are
// one product. Stored as {in, out}.
void Parameters::gpt_oss_experts(const std::string& block) {
  linear(block + ".router", block, model_.experts, model_.hidden, model_.router_bias);
  const Count width = model_.expert_width();
  for (Count i = 0; i < model_.experts; ++i) {
    const std::string expert = block + ".experts." + std::to_string(i);
    add(expert + ".gate_up_proj", expert, {model_.hidden, 2 * width});
    add(expert + ".gate_up_proj_bias", expert, {2 * width});
    add(expert + ".down_proj", expert, {width, model_.hidden});
    add(expert + ".down_proj_bias", expert, {model_.hidden});
  }
}

// Llama, Mistral, Granite, Falcon3, Qwen; and mixtures of experts, whose layers differ in the names of these.
void Parameters::llama() {
  embedding("model.embed_tokens", model_.vocabulary, model_.hidden);
  each_layer("model.layers.", [&](const std::string& layer) {
    if (facts_of(model_.family).latent_attention) {
      latent_attention(layer + "self_attn");
    } else {
      llama_attention(layer + "self_attn");
    }
    if (!model_.has_experts(static_cast<Count>(layer_))) {
      gated_feed_forward(layer + "mlp", model_.intermediate, model_.feed_forward_bias);
    } else if (model_.family == ModelFamily::mixtral) {
      mixtral_experts(layer + "block_sparse_moe");
    } else if (model_.family == ModelFamily::gpt_oss) {
      gpt_oss_experts(layer + "mlp");
    } else {
      experts(layer + "mlp");
    }
    norm(layer + "input_layernorm");
    norm(layer + "post_attention_layernorm");
  });
  norm("model.norm");
  decoder_head(model_.hidden);
}

void Parameters::encoder_attention(const std::string& attention, const std::string& self) {
  linear(self + ".query", attention, model_.hidden, model_.hidden, model_.attention_bias);
  linear(self + ".key", attention, model_.hidden, model_.hidden, model_.attention_bias);
  linear(self + ".value", attention, model_.hidden, model_.hidden, model_.attention_bias);
  linear(attention + ".output.dense", attention, model_.hidden, model_.hidden, true);
}

void Parameters::bert() {
  embedding("bert.embeddings.word_embeddings", model_.vocabulary, model_.hidden);
  embedding("bert.embeddings.position_embeddings", model_.positions, model_.hidden);
  embedding("bert.embeddings.token_type_embeddings", model_.token_types, model_.hidden);
  norm("bert.embeddings.LayerNorm");
  each_layer("bert.encoder.layer.", [&](const std::string& layer) {
    const std::string attention = layer + "attention";
    encoder_attention(attention, attention + ".self");
    norm(attention + ".output.LayerNorm");
    linear(layer + "intermediate.dense", "", model_.intermediate, model_.hidden, true);
    linear(layer + "output.dense", "", model_.hidden, model_.intermediate, true);
    norm(layer + "output.LayerNorm");
  });
  if (head_ == Head::classification) {
    linear("bert.pooler.dense", "", model_.hidden, model_.hidden, true);
    linear("classifier", "", model_.labels, model_.hidden, true);
    return;
  }
  add("cls.predictions.bias", "cls.predictions", {model_.vocabulary});
  linear("cls.predictions.transform.dense", "", model_.hidden, model_.hidden, true);
  norm("cls.predictions.transform.LayerNorm");
  if (!model_.tied_embeddings)
    add("cls.predictions.decoder.weight", "cls.predictions", {model_.vocabulary, model_.hidden});
}

void Parameters::vit() {
  if (head_ == Head::language_model) {
    throw Error("model " + model_.name +
                " is an encoder of images and has no language-model head; take classification");
  }
  add("vit.embeddings.cls_token", "vit.embeddings", {1, 1, model_.hidden});
  add("vit.embeddings.position_embeddings", "vit.embeddings", {1, model_.positions, model_.hidden});
  const std::string projection = "vit.embeddings.patch_embeddings.projection";
  add(projection + ".weight", projection, {model_.hidden, model_.channels, model_.patch_size, model_.patch_size});
  add(projection + ".bias", projection, {model_.hidden});
  each_layer("vit.encoder.layer.", [&](const std::string& layer) {
    const std::string attention = layer + "attention";
    encoder_attention(attention, attention + ".attention");
    linear(layer + "intermediate.dense", "", model_.intermediate, model_.hidden, true);
    linear(layer + "output.dense", "", model_.hidden, model_.intermediate, true);
    norm(layer + "layernorm_before");
    norm(layer + "layernorm_after");
  });
  norm("vit.layernorm");
  linear("classifier", "", model_.labels, model_.hidden, true);
}

void set_llama_defaults(ModelDescription& model) {
  model.gated = true;
  model.activation = Activation::silu;
  model.attention_bias = model.feed_forward_bias = model.norm_bias = model.tied_embeddings = false;
}

std::string out_of_range(const char* what, Count value, Count minimum, Count maximum) {
  return std::string(what) + " is " + std::to_string(value) + "; it must be from " + std::to_string(minimum) + " to " +
         std::to_string(maximum);
}

}  // namespace

const std::vector<FamilyFacts>& model_families() {
  static const std::vector<FamilyFacts> families = {
      {.family = ModelFamily::bert,
       .name = "bert",
       .causal = false,
       .segments = true,
       .position_rows = 0,
       .hidden_dropout = true,
       .attention_dropout = true,
       .lora_targets = {"query", "value"},
       .set_defaults =
           [](ModelDescription& model) {
             model.embedding_norm = true;
             model.norm_first = false;
             model.token_types = 2;
           }},
      {.family = ModelFamily::bloom,
       .name = "bloom",
       .fp32_softmax = true,
       .lora_targets = {"query_key_value"},
       .set_defaults =
           [](ModelDescription& model) {
             model.embedding_norm = true;
             model.activation = Activation::gelu_bloom;
           }},
      {.family = ModelFamily::deepseek,
       .name = "deepseek",
       .rotary = true,
       .own_widths = true,
       .experts = true,
       .latent_attention = true,
       .set_defaults = set_llama_defaults},
      {.family = ModelFamily::falcon,
       .name = "falcon",
       .rotary = true,
       .own_widths = true,
       .lora_targets = {"query_key_value"},
       .set_defaults =
           [](ModelDescription& model) {
             model.attention_bias = model.feed_forward_bias = false;
             model.parallel_block = true;
             model.norms_per_layer = 1;
           }},
      {.family = ModelFamily::gpt2,
       .name = "gpt2",
       .transposed = true,
       .position_rows = 0,
       .hidden_dropout = true,
       .attention_dropout = true,
       .lora_targets = {"c_attn"}},
      {.family = ModelFamily::gpt_oss,
       .name = "gpt_oss",
       .rotary = true,
       .own_widths = true,
       .llama_attention = true,
       .experts = true,
       .trained = false,
       .set_defaults =
           [](ModelDescription& model) {
             set_llama_defaults(model);
             model.attention_bias = model.feed_forward_bias = model.router_bias = true;
           }},
      {.family = ModelFamily::llama,
       .name = "llama",
       .rotary = true,
       .own_widths = true,
       .llama_attention = true,
       .fp32_softmax = true,
       .set_defaults = set_llama_defaults},
      {.family = ModelFamily::mixtral,
       .name = "mixtral",
       .rotary = true,
       .own_widths = true,
       .llama_attention = true,
       .experts = true,
       .fp32_softmax = true,
       .set_defaults = set_llama_defaults},
      {.family = ModelFamily::opt,
       .name = "opt",
       .fp32_softmax = true,
       .position_rows = 2,
       .hidden_dropout = true,
       .set_defaults = [](ModelDescription& model) { model.activation = Activation::relu; }},
      {.family = ModelFamily::qwen3_moe,
       .name = "qwen3_moe",
       .rotary = true,
       .own_widths = true,
       .llama_attention = true,
       .experts = true,
       .fp32_softmax = true,
       .set_defaults =
           [](ModelDescription& model) {
             set_llama_defaults(model);
             model.query_key_norm = true;
           }},
      {.family = ModelFamily::vit,
       .name = "vit",
       .causal = false,
       .images = true,
       .fp32_softmax = true,
       .lora_targets = {"query", "value"},
       .set_defaults =
           [](ModelDescription& model) {
             model.tied_embeddings = false;
             model.channels = 3;
           }},
  };
  return families;
}

const FamilyFacts& facts_of(ModelFamily family) {
  const auto& all = model_families();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& facts) { return facts.family == family; });
  TENCACHE_CHECK(found != all.end());
  return *found;
}

Head usual_head(const ModelDescription& model) {
  return facts_of(model.family).images ? Head::classification : Head::language_model;
}

std::vector<ParameterShape> parameters_of(const ModelDescription& model, Head head) {
  return Parameters(model, head).list();
}

std::uint64_t parameter_count(const ModelDescription& model, Head head) {
  std::uint64_t total = 0;
  for (const ParameterShape& parameter : parameters_of(model, head)) total += parameter.elements();
  return total;
}

std::string to_string(ModelFamily family) { return facts_of(family).name; }

std::string problem_of(const ModelDescription& model) {
  struct Range {
    const char* what;
    Count value, minimum, maximum;
  };
  const FamilyFacts& facts = facts_of(model.family);
  const bool images = facts.images, learned_positions = images || facts.position_rows;
  const bool mixture = facts.experts, latent = facts.latent_attention;
  const bool windows = model.family == ModelFamily::gpt_oss, shares = model.family == ModelFamily::deepseek;
  const bool shares_experts = shares || model.family == ModelFamily::qwen3_moe;
  const Count one_if_latent = latent ? 1 : 0;
  // Widths of at most 2^18, 2^20 and 2^28, layers × experts of at most 2^20: a count stays below 2^62.
  const Range ranges[] = {
      {"layers", model.layers, 1, Count{1} << 14},
      {"hidden", model.hidden, 1, Count{1} << 18},
      {"heads", model.heads, 1, Count{1} << 14},
      {"key_value_heads", model.key_value_heads, 1, model.heads},
      {"head_dimension", model.head_dimension, 1, Count{1} << 14},
      {"heads × head_dimension", model.heads * model.head_dimension, 1, Count{1} << 20},
      {"intermediate", model.intermediate, 1, Count{1} << 20},
      {"vocabulary", model.vocabulary, images ? 0u : 1u, Count{1} << 28},
      {"positions", model.positions, learned_positions ? Count{1} : Count{0},
       learned_positions ? Count{1} << 28 : Count{0}},
      {"max_sequence", model.max_sequence, 0, Count{1} << 28},
      {"token_types", model.token_types, facts.segments ? Count{1} : Count{0},
       facts.segments ? Count{1} << 16 : Count{0}},
      {"embedding_projection", model.embedding_projection, 0,
       model.family == ModelFamily::opt ? Count{1} << 18 : Count{0}},
      {"experts", model.experts, mixture ? Count{1} : Count{0}, mixture ? Count{1} << 12 : Count{0}},
      {"experts_per_token", model.experts_per_token, mixture ? Count{1} : Count{0}, model.experts},
      {"layers × experts", model.layers * model.experts, 0, Count{1} << 20},
      {"expert_intermediate", model.expert_intermediate, 0, mixture ? Count{1} << 20 : Count{0}},
      {"shared_experts", model.shared_experts, 0, shares_experts ? Count{1} << 8 : Count{0}},
      {"dense_layers", model.dense_layers, 0, shares ? model.layers : 0},
      {"query_rank", model.query_rank, 0, latent ? Count{1} << 18 : Count{0}},
      {"key_value_rank", model.key_value_rank, one_if_latent, latent ? Count{1} << 18 : Count{0}},
      {"rope_dimension", model.rope_dimension, one_if_latent, latent ? model.head_dimension - 1 : 0},
      {"value_dimension", model.value_dimension, one_if_latent, latent ? Count{1} << 14 : Count{0}},
      {"sliding_window", model.sliding_window, 0, windows ? Count{1} << 28 : Count{0}},
      {"labels", model.labels, 1, Count{1} << 24},
      {"image_size", model.image_size, images ? Count{1} : Count{0}, images ? Count{1} << 16 : Count{0}},
      {"patch_size", model.patch_size, images ? Count{1} : Count{0}, model.image_size},
      {"channels", model.channels, images ? Count{1} : Count{0}, images ? Count{1} << 10 : Count{0}},
      {"norms_per_layer", model.norms_per_layer, model.parallel_block ? 1u : 2u, 2},
  };
  for (const Range& range : ranges) {
    if (range.value < range.minimum || range.value > range.maximum) {
      return out_of_range(range.what, range.value, range.minimum, range.maximum);
    }
  }
  if (model.heads % model.key_value_heads != 0) {
    return "heads, " + std::to_string(model.heads) + ", is no multiple of key_value_heads, " +
           std::to_string(model.key_value_heads);
  }
  if (latent && model.key_value_heads != model.heads) return "key_value_heads: latent attention has as many as heads";
  if (model.router_bias && !windows && !shares) return "router_bias: only the deepseek and gpt_oss families have one";
  if (!facts.own_widths &&
      (model.heads * model.head_dimension != model.hidden || model.key_value_heads != model.heads)) {
    return "the " + to_string(model.family) +
           " family has as many key_value_heads as heads, and heads × head_dimension "
           "is hidden; here they are " +
           std::to_string(model.key_value_heads) + ", " + std::to_string(model.heads) + ", " +
           std::to_string(model.head_dimension) + " and " + std::to_string(model.hidden);
  }
  if (model.parallel_block && model.family != ModelFamily::falcon) return "only the falcon family has a parallel_block";
  if (model.query_key_norm && (!facts.llama_attention || windows))
    return "query_key_norm: only the llama, mixtral and qwen3_moe families have such norms";
  if (model.attention_output_bias != model.attention_bias && !facts.llama_attention) {
    return "attention_output_bias: only in the families of llama's attention (gpt_oss, llama, mixtral, qwen3_moe) does "
           "it differ from attention_bias";
  }
  if (images && model.image_size % model.patch_size != 0) {
    return "image_size, " + std::to_string(model.image_size) + ", is no multiple of patch_size, " +
           std::to_string(model.patch_size);
  }
  return "";
}

}  // namespace tencache
