// Model descriptions: parameter names, shapes and totals as published.
#include "traces/generate/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "configs/model_yaml.h"
#include "core/error.h"

namespace tencache {
namespace {

ModelDescription opt_6_7b() {
  ModelDescription model;
  model.name = "opt-6.7b";
  model.family = ModelFamily::opt;
  model.layers = 32;
  model.hidden = 4096;
  model.heads = model.key_value_heads = 32;
  model.head_dimension = 128;
  model.intermediate = 16384;
  model.vocabulary = 50272;
  model.positions = 2050;
  model.max_sequence = 2048;
  return model;
}

const ParameterShape* find(const std::vector<ParameterShape>& parameters, const std::string& name) {
  const auto found =
      std::find_if(parameters.begin(), parameters.end(), [&](const ParameterShape& p) { return p.name == name; });
  return found == parameters.end() ? nullptr : &*found;
}

TEST(Model, ParametersHaveHuggingFacesNamesAndShapes) {
  const auto parameters = parameters_of(opt_6_7b(), Head::classification);
  const ParameterShape* query = find(parameters, "model.decoder.layers.31.self_attn.q_proj.weight");
  ASSERT_NE(query, nullptr);
  EXPECT_EQ(query->module, "model.decoder.layers.31.self_attn");
  EXPECT_EQ(query->layer, 31);
  EXPECT_EQ(query->shape, (std::vector<std::uint64_t>{4096, 4096}));
  const ParameterShape* positions = find(parameters, "model.decoder.embed_positions.weight");
  ASSERT_NE(positions, nullptr);
  EXPECT_EQ(positions->layer, -1);
  EXPECT_EQ(positions->shape, (std::vector<std::uint64_t>{2050, 4096}));
  EXPECT_EQ(parameters.back().name, "score.weight");
  EXPECT_EQ(parameters.back().shape, (std::vector<std::uint64_t>{2, 4096}));
  std::set<std::string> names;
  for (const ParameterShape& parameter : parameters) EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
}

TEST(Model, AnEncoderOfImagesHasNoLanguageModelHead) {
  ModelDescription model;
  model.family = ModelFamily::vit;
  EXPECT_EQ(usual_head(model), Head::classification);
  EXPECT_THROW(parameters_of(model, Head::language_model), Error);
}

TEST(Model, ImpossibleDescriptionsAreNamed) {
  EXPECT_EQ(problem_of(opt_6_7b()), "");
  ModelDescription model = opt_6_7b();
  model.layers = 0;
  EXPECT_EQ(problem_of(model), "layers is 0; it must be from 1 to 16384");
  model = opt_6_7b();
  model.key_value_heads = 5;
  EXPECT_EQ(problem_of(model), "heads, 32, is no multiple of key_value_heads, 5");
  model.key_value_heads = 8;
  EXPECT_NE(problem_of(model), "");
}

std::uint64_t count(const std::string& name, Head head) { return parameter_count(read_model(name), head); }
std::size_t tensors(const ModelDescription& model, Head head) { return parameters_of(model, head).size(); }

std::string failure(const std::string& text, const std::string& file = "model.yaml") {
  try {
    parse_model(text, file);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ShippedModels, HaveThePublishedTotals) {
  std::size_t published = 0;
  for (const ModelDescription& model : list_models()) {
    EXPECT_FALSE(model.source.empty()) << model.name;
    if (model.published_parameters == 0) continue;
    EXPECT_EQ(parameter_count(model, usual_head(model)), model.published_parameters) << model.name;
    ++published;
  }
  EXPECT_GE(published, 20u);
}

// What people quote for these models, beside the files: a file and the code cannot both be wrong in the same way.
TEST(ShippedModels, HaveTheTotalsThatAreCommonKnowledge) {
  EXPECT_EQ(count("gpt2", Head::language_model), 124'439'808u);
  EXPECT_EQ(count("opt-6.7b", Head::language_model), 6'658'473'984u);
  EXPECT_EQ(count("bloom-7b1", Head::language_model), 7'069'016'064u);
  EXPECT_EQ(count("llama-3-8b", Head::language_model), 8'030'261'248u);
  EXPECT_EQ(count("mixtral-8x7b", Head::language_model), 46'702'792'704u);
  EXPECT_EQ(count("vit-base", Head::classification), 86'567'656u);
  // The model card of gpt-oss (OpenAI 2025) has 116.83 and 20.91 billion; the page of DeepSeek-V3 671.
  EXPECT_EQ(count("qwen3-30b-a3b", Head::language_model), 30'532'122'624u);
  EXPECT_EQ(count("deepseek-v2-lite", Head::language_model), 15'706'484'224u);
  EXPECT_EQ(count("deepseek-v3", Head::language_model), 671'026'419'200u);
  EXPECT_EQ(count("gpt-oss-20b", Head::language_model), 20'914'757'184u);
  EXPECT_EQ(count("gpt-oss-120b", Head::language_model), 116'829'156'672u);
  ModelDescription falcon = read_model("falcon-7b");
  falcon.tied_embeddings = false;  // as the checkpoint stores it
  EXPECT_EQ(parameter_count(falcon, Head::language_model), 7'217'189'760u);
  // BertModel is the encoder with its pooler, without a head; what `bert.` holds under the classification head.
  std::uint64_t encoder = 0;
  for (const ParameterShape& parameter : parameters_of(read_model("bert-base"), Head::classification)) {
    if (parameter.name.starts_with("bert.")) encoder += parameter.elements();
  }
  EXPECT_EQ(encoder, 109'482'240u);
  // Rounded figures of model pages and papers.
  EXPECT_NEAR(static_cast<double>(count("falcon2-11b", Head::language_model)), 11.1e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(count("falcon3-10b", Head::language_model)), 10.3e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(count("granite-8b", Head::language_model)), 8.05e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(count("opt-66b", Head::language_model)), 66e9, 0.5e9);
  // The 52B's is called so: its feed-forward blocks are narrower than that.
  EXPECT_NEAR(static_cast<double>(count("mlp-offload-40b", Head::language_model)), 48.2e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(count("mlp-offload-52b", Head::language_model)), 44.3e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(count("mlp-offload-70b", Head::language_model)), 68.6e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(count("mlp-offload-100b", Head::language_model)), 105.9e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(count("deep-optimizer-states-7b", Head::language_model)), 5.95e9, 0.01e9);
}

// 10Cache states its hit rates as fractions: of 517 parameter tensors (OPT-6.7B), 365 (BLOOM-7B) and 195 (Falcon-7B).
// OPT's are with the classification head; BLOOM's and Falcon's with the language-model head tied to the embedding, or
// without any: a classification head would make them 366 and 196, and OPT's tied one 516.
TEST(ShippedModels, HaveAsManyTensorsAsTenCachesPaperCounts) {
  EXPECT_EQ(tensors(read_model("opt-6.7b"), Head::classification), 517u);
  EXPECT_EQ(tensors(read_model("opt-6.7b"), Head::language_model), 516u);
  EXPECT_EQ(tensors(read_model("bloom-7b1"), Head::language_model), 365u);
  EXPECT_EQ(tensors(read_model("bloom-7b1"), Head::classification), 366u);
  EXPECT_EQ(tensors(read_model("falcon-7b"), Head::language_model), 195u);
  EXPECT_EQ(tensors(read_model("falcon-7b"), Head::classification), 196u);
}

TEST(ShippedModels, CoverTheFamiliesAndAreFoundByAlias) {
  std::set<std::string> names;
  std::set<ModelFamily> families;
  for (const ModelDescription& model : list_models()) {
    EXPECT_TRUE(names.insert(model.name).second) << model.name;
    for (const std::string& alias : model.aliases) {
      EXPECT_TRUE(names.insert(alias).second) << alias;
      EXPECT_EQ(read_model(alias).name, model.name);
    }
    EXPECT_EQ(read_model(model.name).name, model.name) << "the file's name is the model's";
    families.insert(model.family);
  }
  EXPECT_EQ(families.size(), 11u);
  try {
    read_model("opt-6.8b");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("unknown model 'opt-6.8b'"),
                                             testing::HasSubstr("the nearest are opt-6.7b"),
                                             testing::HasSubstr("`tencache models` lists all")));
  }
}

TEST(ShippedModels, FamiliesNameTheirParametersAsHuggingFaceDoes) {
  using Shape = std::vector<std::uint64_t>;
  struct Expected {
    const char *model, *parameter;
    Shape shape;
  };
  const Expected expected[] = {
      {"opt-350m", "model.decoder.project_in.weight", {1024, 512}},
      {"bloom-7b1", "transformer.word_embeddings_layernorm.bias", {4096}},
      {"bloom-7b1", "transformer.h.29.self_attention.query_key_value.weight", {12288, 4096}},
      {"falcon-7b", "transformer.h.0.self_attention.query_key_value.weight", {4672, 4544}},
      {"falcon-11b", "transformer.h.59.self_attention.query_key_value.weight", {6144, 4096}},
      {"falcon-11b", "lm_head.weight", {65024, 4096}},
      {"gpt2", "transformer.h.0.attn.c_attn.weight", {768, 2304}},
      {"llama-3-8b", "model.layers.31.self_attn.k_proj.weight", {1024, 4096}},
      {"granite-8b", "model.layers.0.mlp.gate_proj.bias", {14336}},
      {"mixtral-8x7b", "model.layers.0.block_sparse_moe.experts.7.w2.weight", {4096, 14336}},
      {"mixtral-8x7b", "model.layers.31.block_sparse_moe.gate.weight", {8, 4096}},
      {"qwen2.5-32b", "model.layers.63.self_attn.k_proj.bias", {1024}},
      {"qwen3-8b", "model.layers.0.self_attn.q_norm.weight", {128}},
      {"qwen3-30b-a3b", "model.layers.47.mlp.experts.127.down_proj.weight", {2048, 768}},
      {"qwen3-30b-a3b", "model.layers.0.self_attn.k_norm.weight", {128}},
      {"deepseek-v2-lite", "model.layers.0.mlp.gate_proj.weight", {10944, 2048}},
      {"deepseek-v2-lite", "model.layers.1.mlp.shared_experts.up_proj.weight", {2816, 2048}},
      {"deepseek-v2-lite", "model.layers.26.self_attn.q_proj.weight", {3072, 2048}},
      {"deepseek-v3", "model.layers.60.self_attn.q_b_proj.weight", {24576, 1536}},
      {"deepseek-v3", "model.layers.60.self_attn.kv_a_proj_with_mqa.weight", {576, 7168}},
      {"deepseek-v3", "model.layers.3.self_attn.kv_b_proj.weight", {32768, 512}},
      {"deepseek-v3", "model.layers.3.mlp.gate.e_score_correction_bias", {256}},
      {"gpt-oss-20b", "model.layers.23.self_attn.sinks", {64}},
      {"gpt-oss-20b", "model.layers.0.mlp.router.bias", {32}},
      {"gpt-oss-120b", "model.layers.35.mlp.experts.127.gate_up_proj", {2880, 5760}},
      {"gpt-oss-120b", "model.layers.35.mlp.experts.127.down_proj_bias", {2880}},
      {"bert-base", "bert.encoder.layer.11.attention.self.query.weight", {768, 768}},
      {"bert-base", "cls.predictions.bias", {30522}},
      {"vit-base", "vit.embeddings.position_embeddings", {1, 197, 768}},
      {"vit-base", "classifier.weight", {1000, 768}},
  };
  for (const Expected& one : expected) {
    const ModelDescription model = read_model(one.model);
    const auto parameters = parameters_of(model, usual_head(model));
    const ParameterShape* found = find(parameters, one.parameter);
    ASSERT_NE(found, nullptr) << one.model << " " << one.parameter;
    EXPECT_EQ(found->shape, one.shape) << one.parameter;
  }
  EXPECT_EQ(
      find(parameters_of(read_model("qwen2.5-32b"), Head::language_model), "model.layers.0.self_attn.o_proj.bias"),
      nullptr);
  const auto falcon = parameters_of(read_model("falcon-7b"), Head::language_model);
  EXPECT_EQ(find(falcon, "transformer.h.0.mlp.dense_h_to_4h.bias"), nullptr);
  EXPECT_EQ(find(falcon, "transformer.h.0.post_attention_layernorm.weight"), nullptr);
  EXPECT_EQ(find(falcon, "lm_head.weight"), nullptr);
}

// Of a model that also sees, the text model alone: what stands beside its section, it takes from there.
TEST(ConfigJson, TheTextModelMayBeASection) {
  const std::string text = R"("hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
      "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 32)";
  const ModelDescription plain =
      parse_model(R"({"model_type": "qwen3", "tie_word_embeddings": true, )" + text + "}", "m/config.json");
  const ModelDescription nested =
      parse_model(R"({"model_type": "qwen3_vl", "tie_word_embeddings": true, "vision_config": {"hidden_size": 9},
                      "text_config": {"model_type": "qwen3_vl_text", )" +
                      text + "}}",
                  "m/config.json");
  EXPECT_EQ(parameter_count(nested, Head::language_model), parameter_count(plain, Head::language_model));
  EXPECT_TRUE(nested.tied_embeddings && nested.query_key_norm);
  EXPECT_TRUE(plain.read_as.empty());
  EXPECT_EQ(nested.read_as,
            "of 'qwen3_vl' the text model alone, which is in text_config; model_type 'qwen3_vl' is read as 'qwen3', "
            "which it is by another name; vision_config is left out");
  // As older files have it, beside its section.
  const ModelDescription beside = parse_model(
      R"({"model_type": "qwen2_5_vl", "vision_config": {}, "text_config": {}, )" + text + "}", "m/config.json");
  EXPECT_TRUE(beside.attention_bias && !beside.attention_output_bias);
  const ModelDescription llava =
      parse_model(R"({"model_type": "llava", "text_config": {"model_type": "llama", )" + text + "}}", "m/config.json");
  EXPECT_EQ(llava.family, ModelFamily::llama);
}

TEST(ConfigJson, SomeAreOthersByName) {
  const std::string phi = R"("hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064, "max_position_embeddings": 4096,
      "tie_word_embeddings": false)";
  const ModelDescription model = parse_model(R"({"model_type": "phi3", )" + phi + "}", "phi-3-mini/config.json");
  EXPECT_EQ(parameter_count(model, Head::language_model), 3'821'079'552u);  // as published
  EXPECT_NE(model.read_as.find("'phi3' is read as 'llama'"), std::string::npos);
  const ModelDescription mimo = parse_model(R"({"model_type": "mimo", )" + phi + "}", "mimo/config.json");
  EXPECT_TRUE(mimo.attention_bias && !mimo.attention_output_bias);
}

// Llama's feed-forward block: 4·4096·2/3 = 10922, ·1.3 = 14198, up to a multiple of 1024: 14336.
TEST(ConfigJson, ReadsParamsJson) {
  const ModelDescription llama =
      parse_model(R"({"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256,
                      "multiple_of": 1024, "ffn_dim_multiplier": 1.3, "norm_eps": 1e-05})",
                  "llama-3-8b/params.json");
  EXPECT_EQ(llama.name, "llama-3-8b");
  EXPECT_EQ(parameter_count(llama, Head::language_model), 8'030'261'248u);
  const ModelDescription seven = parse_model(
      R"({"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-06, "vocab_size": -1})",
      "llama-7b/params.json");
  EXPECT_EQ(parameter_count(seven, Head::language_model), 6'738'415'616u);
  EXPECT_NE(seven.read_as.find("32000"), std::string::npos);
  const ModelDescription mixtral =
      parse_model(R"({"dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32,
                      "n_kv_heads": 8, "vocab_size": 32000, "moe": {"num_experts": 8, "num_experts_per_tok": 2}})",
                  "mixtral/params.json");
  EXPECT_EQ(parameter_count(mixtral, Head::language_model), 46'702'792'704u);
  EXPECT_THROW(
      parse_model(R"({"dim": 64, "n_layers": 2, "n_heads": 2, "vocab_size": 9, "moe_args": {}})", "params.json"),
      Error);
}

// The two readers agree: the published config.json of these models (abridged) against our own files.
TEST(ConfigJson, GivesTheShippedDescription) {
  const std::pair<const char*, const char*> cases[] = {
      {"qwen2.5-32b", R"({"model_type": "qwen2", "hidden_size": 5120, "num_hidden_layers": 64,
        "num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 27648, "vocab_size": 152064,
        "max_position_embeddings": 32768, "tie_word_embeddings": false})"},
      {"qwen3-8b", R"({"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "head_dim": 128,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 12288, "vocab_size": 151936,
        "max_position_embeddings": 40960, "attention_bias": false, "tie_word_embeddings": false})"},
      {"opt-350m", R"({"model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "ffn_dim": 4096, "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 512,
        "do_layer_norm_before": false, "_remove_final_layer_norm": false, "architectures": ["OPTForCausalLM"]})"},
      {"bloom-7b1", R"({"model_type": "bloom", "n_embed": 4096, "n_layer": 30, "num_attention_heads": 32,
        "vocab_size": 250880, "seq_length": 2048, "layer_norm_epsilon": 1e-05})"},
      {"falcon-7b", R"({"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "bias": false,
        "num_attention_heads": 71, "multi_query": true, "parallel_attn": true, "new_decoder_architecture": false,
        "vocab_size": 65024})"},
      {"falcon-11b", R"({"model_type": "falcon", "hidden_size": 4096, "num_hidden_layers": 60, "bias": false,
        "num_attention_heads": 32, "num_kv_heads": 8, "ffn_hidden_size": 16384, "new_decoder_architecture": true,
        "multi_query": true, "num_ln_in_parallel_attn": 1, "vocab_size": 65024, "max_position_embeddings": 8192,
        "tie_word_embeddings": false, "rope_scaling": null})"},
      {"gpt2", R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": null,
        "n_positions": 1024, "vocab_size": 50257})"},
      {"llama-3-8b", R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128256,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "attention_bias": false,
        "max_position_embeddings": 8192, "tie_word_embeddings": false})"},
      {"mistral-7b", R"({"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 32000,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "max_position_embeddings": 32768})"},
      {"mixtral-8x7b", R"({"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32,
        "vocab_size": 32000, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 32768})"},
      {"qwen3-30b-a3b", R"({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "head_dim": 128,
        "num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "vocab_size": 151936, "max_position_embeddings": 40960, "attention_bias": false,
        "tie_word_embeddings": false})"},
      {"deepseek-v2-lite", R"({"model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27,
        "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 10944, "moe_layer_freq": 1,
        "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "first_k_dense_replace": 1, "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400, "max_position_embeddings": 163840,
        "attention_bias": false, "tie_word_embeddings": false})"},
      {"deepseek-v3", R"({"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280, "max_position_embeddings": 163840,
        "num_nextn_predict_layers": 1, "attention_bias": false, "tie_word_embeddings": false})"},
      {"gpt-oss-120b", R"({"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36, "head_dim": 64,
        "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 2880, "num_local_experts": 128,
        "num_experts_per_tok": 4, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"],
        "vocab_size": 201088, "max_position_embeddings": 131072, "attention_bias": true,
        "tie_word_embeddings": false})"},
      {"bert-base", R"({"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 30522,
        "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 512,
        "type_vocab_size": 2})"},
      {"vit-large", R"({"model_type": "vit", "hidden_size": 1024, "num_hidden_layers": 24, "image_size": 224,
        "num_attention_heads": 16, "intermediate_size": 4096, "patch_size": 16, "num_channels": 3,
        "qkv_bias": true})"},
  };
  for (const auto& [name, json] : cases) {
    ModelDescription expected = read_model(name),
                     model = parse_model(json, std::string("Some/") + name + "/config.json");
    EXPECT_EQ(model.name, name);
    EXPECT_EQ(model.family, expected.family) << name;
    EXPECT_EQ(model.max_sequence, expected.max_sequence) << name;
    EXPECT_EQ(model.heads, expected.heads) << name;
    EXPECT_EQ(model.key_value_heads, expected.key_value_heads) << name;
    EXPECT_EQ(model.head_dimension, expected.head_dimension) << name;
    EXPECT_EQ(model.experts_per_token, expected.experts_per_token) << name;
    EXPECT_EQ(model.norm_first, expected.norm_first) << name;
    model.labels = expected.labels;
    const Head head = usual_head(model);
    const auto ours = parameters_of(expected, head), theirs = parameters_of(model, head);
    ASSERT_EQ(ours.size(), theirs.size()) << name;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].name, theirs[i].name);
      EXPECT_EQ(ours[i].shape, theirs[i].shape) << ours[i].name;
    }
  }
}

TEST(ConfigJson, IsNamedAfterItsFolderOrFile) {
  const std::string json = R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 2, "vocab_size": 100})";
  EXPECT_EQ(parse_model(json, "models/My Model/config.json").name, "my-model");
  EXPECT_EQ(parse_model(json, "models/GPT2-tiny.json").name, "gpt2-tiny");
  for (const char* file : {"config.json", "./config.json", "../config.json"}) {
    EXPECT_EQ(parse_model(json, file).name, "gpt2") << file;
  }
}

TEST(ConfigJson, CountsItsLabels) {
  const std::string start = R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 2, "vocab_size": 100, )";
  EXPECT_EQ(parse_model(start + R"("id2label": {"0": "a", "1": "b", "2": "c"}})", "m.json").labels, 3u);
  EXPECT_EQ(parse_model(start + R"("n_positions": 8})", "m.json").labels, 2u);
}

TEST(ModelFile, ErrorsSayWhereAndWhatIsValid) {
  const std::string good =
      "name: m\nfamily: llama\nlayers: 2\nhidden: 64\nheads: 4\nintermediate: 128\nvocabulary: 100\n";
  EXPECT_EQ(failure(good), "");
  EXPECT_EQ(failure(good + "layer: 3\n").substr(0, 52), "model.yaml:8: unknown key 'layer' in a model; valid ");
  EXPECT_EQ(failure(good + "labels: -1\n"),
            "model.yaml:8: labels: '-1' is not a whole number from 0 to 1000000000000000");
  EXPECT_EQ(failure(good + "experts: 8\n"), "model.yaml:8: experts is 8; it must be from 0 to 0");
  EXPECT_EQ(failure(good + "layers: 3\n"), "model.yaml:8: key 'layers' stands twice");
  EXPECT_EQ(failure(good + "key_value_heads: 3\n"), "model.yaml:5: heads, 4, is no multiple of key_value_heads, 3");
  EXPECT_EQ(failure(good + "tied_embeddings: maybe\n"),
            "model.yaml:8: tied_embeddings: 'maybe'; valid are true, false");
  EXPECT_EQ(failure("name: m\nfamily: llama\nlayers: 2\nhidden: 64\n"),
            "model.yaml:1: key 'heads' is missing in a model");
  EXPECT_EQ(failure("name: m\nfamily: llama\nlayers: 2\nhidden: 65\nheads: 4\n"),
            "model.yaml:5: hidden, 65, is no multiple of heads, 4; give head_dimension if that is meant");
  EXPECT_EQ(failure("name: m\nfamily: opt\nlayers: 2\nhidden: 64\nheads: 4\nvocabulary: 100\nmax_sequence: 16\n"
                    "query_key_norm: true\n"),
            "model.yaml:8: query_key_norm: only the llama, mixtral and qwen3_moe families have such norms");
  EXPECT_EQ(
      failure("name: m\nfamily: gpt\n"),
      "model.yaml:2: unknown family 'gpt'; valid are bert, bloom, deepseek, falcon, gpt2, gpt_oss, llama, mixtral, "
      "opt, qwen3_moe, vit");
  EXPECT_EQ(failure("name: m\nfamily: llama\nlayers: 2\nhidden: 99999999999\nheads: 1\n"),
            "model.yaml:4: hidden is 99999999999; it must be from 1 to 262144");
  EXPECT_EQ(failure("{\"model_type\": \"t5\"}", "config.json"),
            "config.json:1: model_type 't5' is not supported; supported are bert, bloom, deepseek_v2, deepseek_v3, "
            "falcon, gpt2, gpt_oss, granite, llama, mistral, mixtral, opt, qwen2, qwen3, qwen3_moe, vit; `python -m "
            "tencache_recorder --meta` records what transformers can build");
  EXPECT_EQ(failure("{\"model_type\": \"gemma3\",\n\"text_config\": {\"hidden_size\": 8,\n\"model_type\": "
                    "\"gemma3_text\"}}",
                    "config.json")
                .substr(0, 73),
            "config.json:3: model_type 'gemma3_text' of text_config is not supported; ");
  EXPECT_EQ(failure("{\"model_type\": \"gpt_oss\", \"hidden_size\": 64, \"num_hidden_layers\": 2, \"vocab_size\": 9,\n"
                    "\"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"intermediate_size\": 64,\n"
                    "\"max_position_embeddings\": 64, \"num_local_experts\": 4, \"num_experts_per_tok\": 2,\n"
                    "\"layer_types\": [\"full_attention\"]}",
                    "config.json"),
            "config.json:4: layer_types: only sliding_attention and full_attention by turns are supported");
  EXPECT_EQ(failure(good + "sliding_window: 8\n"), "model.yaml:8: sliding_window is 8; it must be from 0 to 0");
  EXPECT_EQ(failure("{\n\"model_type\": \"opt\"}", "config.json"),
            "config.json:1: key 'hidden_size' or 'n_embd' or 'n_embed' or 'd_model' is missing in a model");
  EXPECT_EQ(failure("hidden: 4\n"),
            "model.yaml:1: neither 'family', as in a model description, nor 'model_type', as in Hugging Face's "
            "config.json, nor 'dim' and 'n_layers', as in the params.json of Meta and Mistral");
  EXPECT_NE(failure("{\"model_type\": \"opt\", "), "");
  EXPECT_EQ(failure("- a\n"), "model.yaml:1: expected a map with the keys of a model, found a list");
}

}  // namespace
}  // namespace tencache
