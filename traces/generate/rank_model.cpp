#include "traces/generate/rank_model.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/check.h"
#include "core/error.h"

namespace tencache::generator {
namespace {

enum class Part {
  query,
  key,
  value,
  query_key_value,
  attention_output,
  query_norm,
  key_norm,
  query_down,
  query_down_norm,
  latent,
  latent_norm,
  latent_up,
  sinks,
  attention_norm,
  feed_forward_norm,
  gate,
  up,
  down,
  router,
  tokens,
  positions,
  token_types,
  class_token,
  patches,
  embedding_projection,
  embedding_norm,
  final_norm,
  head_projection,
  head_transform,
  head_transform_norm,
  head_output
};

using Names = std::pair<std::string_view, Part>;

// Within a layer, without the layer's own prefix.
constexpr std::array layer_parts{Names{"self_attn.q_proj", Part::query},
                                 Names{"self_attn.k_proj", Part::key},
                                 Names{"self_attn.v_proj", Part::value},
                                 Names{"self_attn.out_proj", Part::attention_output},
                                 Names{"self_attn.o_proj", Part::attention_output},
                                 Names{"self_attention.query_key_value", Part::query_key_value},
                                 Names{"self_attention.dense", Part::attention_output},
                                 Names{"attn.c_attn", Part::query_key_value},
                                 Names{"attn.c_proj", Part::attention_output},
                                 Names{"attention.self.query", Part::query},
                                 Names{"attention.self.key", Part::key},
                                 Names{"attention.self.value", Part::value},
                                 Names{"attention.attention.query", Part::query},
                                 Names{"attention.attention.key", Part::key},
                                 Names{"attention.attention.value", Part::value},
                                 Names{"attention.output.dense", Part::attention_output},
                                 Names{"self_attn.q_norm", Part::query_norm},
                                 Names{"self_attn.k_norm", Part::key_norm},
                                 Names{"self_attn_layer_norm", Part::attention_norm},
                                 Names{"input_layernorm", Part::attention_norm},
                                 Names{"ln_attn", Part::attention_norm},
                                 Names{"ln_1", Part::attention_norm},
                                 Names{"attention.output.LayerNorm", Part::attention_norm},
                                 Names{"layernorm_before", Part::attention_norm},
                                 Names{"final_layer_norm", Part::feed_forward_norm},
                                 Names{"post_attention_layernorm", Part::feed_forward_norm},
                                 Names{"ln_mlp", Part::feed_forward_norm},
                                 Names{"ln_2", Part::feed_forward_norm},
                                 Names{"output.LayerNorm", Part::feed_forward_norm},
                                 Names{"layernorm_after", Part::feed_forward_norm},
                                 Names{"mlp.gate_proj", Part::gate},
                                 Names{"w1", Part::gate},
                                 Names{"mlp.up_proj", Part::up},
                                 Names{"w3", Part::up},
                                 Names{"fc1", Part::up},
                                 Names{"mlp.dense_h_to_4h", Part::up},
                                 Names{"gate_proj", Part::gate},
                                 Names{"up_proj", Part::up},
                                 Names{"gate_up_proj", Part::up},
                                 Names{"down_proj", Part::down},
                                 Names{"mlp.c_fc", Part::up},
                                 Names{"intermediate.dense", Part::up},
                                 Names{"mlp.down_proj", Part::down},
                                 Names{"w2", Part::down},
                                 Names{"fc2", Part::down},
                                 Names{"mlp.dense_4h_to_h", Part::down},
                                 Names{"mlp.c_proj", Part::down},
                                 Names{"output.dense", Part::down},
                                 Names{"block_sparse_moe.gate", Part::router},
                                 Names{"mlp.gate", Part::router},
                                 Names{"mlp.gate.e_score_correction", Part::router},
                                 Names{"mlp.router", Part::router},
                                 Names{"self_attn.q_a_proj", Part::query_down},
                                 Names{"self_attn.q_a_layernorm", Part::query_down_norm},
                                 Names{"self_attn.q_b_proj", Part::query},
                                 Names{"self_attn.kv_a_proj_with_mqa", Part::latent},
                                 Names{"self_attn.kv_a_layernorm", Part::latent_norm},
                                 Names{"self_attn.kv_b_proj", Part::latent_up},
                                 Names{"self_attn.sinks", Part::sinks}};

// Outside the layers: the end of the name.
constexpr std::array other_parts{Names{"embed_tokens", Part::tokens},
                                 Names{"word_embeddings", Part::tokens},
                                 Names{"wte", Part::tokens},
                                 Names{"embed_positions", Part::positions},
                                 Names{"wpe", Part::positions},
                                 Names{"position_embeddings", Part::positions},
                                 Names{"token_type_embeddings", Part::token_types},
                                 Names{"cls_token", Part::class_token},
                                 Names{"patch_embeddings.projection", Part::patches},
                                 Names{"project_in", Part::embedding_projection},
                                 Names{"word_embeddings_layernorm", Part::embedding_norm},
                                 Names{"embeddings.LayerNorm", Part::embedding_norm},
                                 Names{"final_layer_norm", Part::final_norm},
                                 Names{"ln_f", Part::final_norm},
                                 Names{"model.norm", Part::final_norm},
                                 Names{"vit.layernorm", Part::final_norm},
                                 Names{"project_out", Part::head_projection},
                                 Names{"pooler.dense", Part::head_transform},
                                 Names{"transform.dense", Part::head_transform},
                                 Names{"transform.LayerNorm", Part::head_transform_norm},
                                 Names{"lm_head", Part::head_output},
                                 Names{"score", Part::head_output},
                                 Names{"classifier", Part::head_output},
                                 Names{"predictions.decoder", Part::head_output},
                                 Names{"cls.predictions", Part::head_output}};

// A parameter's name taken apart: "…layers.3." + "self_attn.q_proj" + ".weight".
struct NameParts {
  std::string prefix;  // of the layer, without the dot; empty outside the layers
  std::string middle;
  bool bias = false;
  std::int64_t expert = -1;
};

NameParts take_apart(const ParameterShape& shape) {
  NameParts parts;
  parts.middle = shape.name;
  const auto cut_end = [&](std::string_view end) {
    if (!parts.middle.ends_with(end)) return false;
    parts.middle.resize(parts.middle.size() - end.size());
    return true;
  };
  parts.bias = cut_end(".bias") || cut_end("_bias");
  if (!parts.bias) cut_end(".weight");
  if (shape.layer < 0) return parts;
  const std::string number = std::string(1, '.').append(std::to_string(shape.layer)).append(1, '.');
  const std::size_t at = parts.middle.find(number);
  TENCACHE_CHECK(at != std::string::npos);
  parts.prefix = parts.middle.substr(0, at + number.size() - 1);
  parts.middle.erase(0, at + number.size());
  for (const std::string_view experts : {"block_sparse_moe.experts.", "mlp.experts."}) {
    if (!parts.middle.starts_with(experts)) continue;
    const std::size_t dot = parts.middle.find('.', experts.size());
    parts.expert = std::stoll(parts.middle.substr(experts.size(), dot - experts.size()));
    parts.middle.erase(0, dot + 1);
  }
  constexpr std::string_view shared = "mlp.shared_experts.";
  if (parts.middle.starts_with(shared)) parts.middle.erase(0, shared.size());
  return parts;
}

Part part_of(const ParameterShape& shape, const NameParts& name) {
  if (shape.layer >= 0) {
    for (const auto& [text, part] : layer_parts) {
      if (name.middle == text) return part;
    }
  } else {
    for (const auto& [text, part] : other_parts) {
      if (!name.middle.ends_with(text)) continue;
      const std::size_t before = name.middle.size() - text.size();
      if (before == 0 || name.middle[before - 1] == '.') return part;
    }
  }
  throw Error("the generator does not know what parameter '" + shape.name +
              "' is for; this is a bug, please report it");
}

class Builder {
 public:
  Builder(Step& step, const ModelDescription& model, RankPosition position)
      : step_(step), options_(step.options), model_(model), position_(position) {}

  RankModel build(const std::vector<ParameterShape>& shapes);

 private:
  void add(const ParameterShape& shape);
  Parameter& store(const ParameterShape& shape, const std::string& name, Part part, bool bias, bool of_expert = false);
  bool is_trained(const ParameterShape& shape, Part part, bool bias) const;
  WeightUse use_of(Part part, const ParameterShape& shape) const;
  void slice(const ParameterShape& shape, Part part, bool bias, Parameter& parameter) const;
  void add_to_layer(Layer& layer, Part part, const NameParts& name, Parameter& parameter);
  void add_outside(Part part, const NameParts& name, const ParameterShape& shape);
  void attach(Linear& linear, const NameParts& name, Parameter& parameter);
  void attach(Norm& norm, const NameParts& name, Parameter& parameter);
  void adapt(Linear& linear, std::vector<Parameter*>& parameters);
  bool is_adapted(const Linear& linear) const;
  // This rank's part of `extent`, and where it begins.
  Count local(Count extent) const {
    const Count n = options_.tensor_parallel;
    return extent * (position_.tensor + 1) / n - extent * position_.tensor / n;
  }

  Step& step_;
  const GenerateOptions& options_;
  const ModelDescription& model_;
  RankPosition position_;
  RankModel result_;
  std::vector<LayerRange> ranges_;  // of the model's layers, by chunk
};

// The rows and columns of this rank's slice (Megatron-LM): the first product of a block is split by its outputs, the
// second by its inputs, embedding and head by the vocabulary; norms and what is added after the sum are whole.
void Builder::slice(const ParameterShape& shape, Part part, bool bias, Parameter& parameter) const {
  parameter.rows = shape.shape.front();
  parameter.columns = shape.elements() / parameter.rows;
  const bool transposed =
      facts_of(model_.family).transposed || (parameter.of_expert && model_.family == ModelFamily::gpt_oss);
  const bool stored_transposed = transposed && !bias && shape.layer >= 0 && shape.shape.size() == 2;
  if (stored_transposed) std::swap(parameter.rows, parameter.columns);
  if (options_.tensor_parallel == 1) return;
  const Count heads = model_.heads / options_.tensor_parallel;
  const Count key_value_heads = std::max<Count>(1, model_.key_value_heads / options_.tensor_parallel);
  const Count rows = parameter.rows, columns = parameter.columns;
  switch (part) {
    case Part::query:
      parameter.rows = heads * model_.head_dimension;
      break;
    case Part::key:
    case Part::value:
      parameter.rows = key_value_heads * model_.head_dimension;
      break;
    case Part::query_key_value:
      parameter.rows = (heads + 2 * key_value_heads) * model_.head_dimension;
      break;
    case Part::latent_up:
      parameter.rows = rows / options_.tensor_parallel;  // head by head
      break;
    case Part::sinks:
      parameter.rows = heads;
      break;
    case Part::gate:
    case Part::up:
    case Part::tokens:
      parameter.rows = local(rows);
      break;
    case Part::attention_output:
    case Part::down:
      if (!bias) parameter.columns = local(columns);
      break;
    case Part::head_output:
      if (options_.head == Head::language_model) parameter.rows = local(rows);
      break;
    default:
      break;
  }
  parameter.split = parameter.rows != rows || parameter.columns != columns;
}

// For formats that tell weights apart. A tied embedding is the head as well.
WeightUse Builder::use_of(Part part, const ParameterShape& shape) const {
  switch (part) {
    case Part::value:
    case Part::query_key_value:
    case Part::latent_up:
      return WeightUse::value;
    case Part::key:
      return WeightUse::key;
    case Part::attention_output:
      return WeightUse::attention_output;
    case Part::down:
      return WeightUse::down;
    case Part::query:
    case Part::query_down:
    case Part::latent:
    case Part::gate:
    case Part::up:
      return WeightUse::linear;
    case Part::tokens:
      return model_.tied_embeddings && options_.head == Head::language_model ? WeightUse::head : WeightUse::embedding;
    case Part::head_output:
      return shape.name == "lm_head.weight" ? WeightUse::head : WeightUse::other;
    default:
      return WeightUse::other;
  }
}

// Under --train-layers. A head that is tied to the embedding is frozen with it.
bool Builder::is_trained(const ParameterShape& shape, Part part, bool bias) const {
  // DeepSeek-V3's routers choose by a bias that no gradient reaches: a rule moves it (arXiv 2412.19437, section 2.1.2).
  if (part == Part::router && bias && model_.family == ModelFamily::deepseek) return false;
  if (options_.trained.biases_only) return bias;
  if (!options_.trained.last_layers) return true;
  if (shape.layer >= 0)
    return shape.layer + static_cast<std::int64_t>(*options_.trained.last_layers) >=
           static_cast<std::int64_t>(options_.model.layers);
  return part == Part::final_norm || part == Part::head_output;
}

Parameter& Builder::store(const ParameterShape& shape, const std::string& name, Part part, bool bias, bool of_expert) {
  Parameter& parameter = result_.parameters.emplace_back();
  parameter.name = name;
  parameter.module = shape.module;
  parameter.layer = shape.layer;
  parameter.of_expert = of_expert;
  slice(shape, part, bias, parameter);
  const bool head_is_new = options_.head == Head::classification && part == Part::head_output;
  parameter.trainable =
      !options_.forward_only && (options_.lora_rank == 0 || head_is_new) && is_trained(shape, part, bias);
  if (options_.weights != nullptr && !parameter.trainable && !bias &&
      !(options_.weights->name == model_.quantised && leaves_out(model_.unquantised, name))) {
    const WeightFacts facts{.use = use_of(part, shape),
                            .of_expert = of_expert,
                            .layer = static_cast<Count>(std::max<std::int64_t>(shape.layer, 0))};
    parameter.packing = options_.weights->packing_of(facts, parameter.columns, model_);
  }
  return parameter;
}

void Builder::attach(Linear& linear, const NameParts& name, Parameter& parameter) {
  if (name.bias) {
    linear.bias = &parameter;
    if (linear.weight != nullptr) return;
  } else {
    linear.weight = &parameter;
    linear.out = parameter.rows;
    linear.in = parameter.columns;
  }
  linear.module = step_.module(parameter.module);
  const std::size_t dot = name.middle.rfind('.');
  linear.label = dot == std::string::npos ? name.middle : name.middle.substr(dot + 1);
  // "dense" and "output" say little: take what stands before as well.
  if (linear.label == "dense" && dot != std::string::npos) {
    const std::size_t before = name.middle.rfind('.', dot - 1);
    linear.label = name.middle.substr(before == std::string::npos ? 0 : before + 1);
    std::replace(linear.label.begin(), linear.label.end(), '.', '_');
  }
}

void Builder::attach(Norm& norm, const NameParts& name, Parameter& parameter) {
  (name.bias ? norm.bias : norm.weight) = &parameter;
  norm.module = step_.module(parameter.module);
}

void Builder::add_to_layer(Layer& layer, Part part, const NameParts& name, Parameter& parameter) {
  FeedForward* block = &layer.feed_forward;
  if (name.expert >= 0) {
    const std::size_t expert = static_cast<std::size_t>(name.expert);
    if (layer.experts.size() <= expert) layer.experts.resize(expert + 1);
    block = &layer.experts[expert];
  }
  layer.parameters.push_back(&parameter);
  switch (part) {
    case Part::attention_norm:
      return attach(layer.attention_norm, name, parameter);
    case Part::feed_forward_norm:
      return attach(layer.feed_forward_norm, name, parameter);
    case Part::query:
      return attach(layer.query, name, parameter);
    case Part::key:
      return attach(layer.key, name, parameter);
    case Part::value:
      return attach(layer.value, name, parameter);
    case Part::query_key_value:
      return attach(layer.query_key_value, name, parameter);
    case Part::attention_output:
      return attach(layer.attention_output, name, parameter);
    case Part::query_norm:
      return attach(layer.query_norm, name, parameter);
    case Part::key_norm:
      return attach(layer.key_norm, name, parameter);
    case Part::query_down:
      return attach(layer.latent.query_down, name, parameter);
    case Part::query_down_norm:
      return attach(layer.latent.query_down_norm, name, parameter);
    case Part::latent:
      return attach(layer.latent.down, name, parameter);
    case Part::latent_norm:
      return attach(layer.latent.norm, name, parameter);
    case Part::latent_up:
      return attach(layer.latent.up, name, parameter);
    case Part::sinks:
      layer.sinks = &parameter;
      return;
    case Part::gate:
      return attach(block->gate, name, parameter);
    case Part::up:
      block->joined = name.middle == "gate_up_proj";
      return attach(block->up, name, parameter);
    case Part::down:
      return attach(block->down, name, parameter);
    case Part::router:
      return attach(layer.router, name, parameter);
    default:
      TENCACHE_CHECK(false);
  }
}

void Builder::add_outside(Part part, const NameParts& name, const ParameterShape& shape) {
  const bool of_embedding = part == Part::tokens || part == Part::positions || part == Part::token_types ||
                            part == Part::class_token || part == Part::patches || part == Part::embedding_projection ||
                            part == Part::embedding_norm;
  if (of_embedding ? !result_.has_embedding : !result_.has_head) return;
  Parameter& parameter = store(shape, shape.name, part, name.bias);
  EmbeddingBlock& embedding = result_.embedding;
  ModelHead& head = result_.head;
  (of_embedding ? embedding.parameters : head.parameters).push_back(&parameter);
  switch (part) {
    case Part::tokens:
      embedding.tokens = &parameter;
      break;
    case Part::positions:
      embedding.positions = &parameter;
      break;
    case Part::token_types:
      embedding.token_types = &parameter;
      break;
    case Part::class_token:
      embedding.class_token = &parameter;
      break;
    case Part::patches:
      attach(embedding.patches, name, parameter);
      break;
    case Part::embedding_projection:
      attach(embedding.projection, name, parameter);
      break;
    case Part::embedding_norm:
      attach(embedding.norm, name, parameter);
      break;
    case Part::final_norm:
      attach(head.final_norm, name, parameter);
      break;
    case Part::head_projection:
      attach(head.projection, name, parameter);
      break;
    case Part::head_transform:
      attach(head.transform, name, parameter);
      break;
    case Part::head_transform_norm:
      attach(head.transform_norm, name, parameter);
      break;
    case Part::head_output:
      attach(head.output, name, parameter);
      break;
    default:
      TENCACHE_CHECK(false);
  }
}

bool Builder::is_adapted(const Linear& linear) const {
  if (options_.lora_rank == 0 || !linear) return false;
  const std::vector<std::string>& targets = options_.lora_targets;
  return std::find(targets.begin(), targets.end(), linear.label) != targets.end();
}

// The low-rank pair beside a frozen weight; split like the weight: A by its inputs or B by its outputs.
void Builder::adapt(Linear& linear, std::vector<Parameter*>& parameters) {
  if (!is_adapted(linear)) return;
  std::string base = linear.weight->name;
  base.resize(base.size() - std::string_view(".weight").size());
  const auto make = [&](const char* name, Count rows, Count columns) {
    Parameter& parameter = result_.parameters.emplace_back();
    parameter.name = base + name;
    parameter.module = linear.weight->module;
    parameter.layer = linear.weight->layer;
    parameter.rows = rows;
    parameter.columns = columns;
    parameter.trainable = !options_.forward_only;
    parameters.push_back(&parameter);
    return &parameter;
  };
  linear.lora_a = make(".lora_A.weight", options_.lora_rank, linear.in);
  linear.lora_b = make(".lora_B.weight", linear.out, options_.lora_rank);
}

RankModel Builder::build(const std::vector<ParameterShape>& shapes) {
  const Count stages = options_.pipeline_parallel;
  Count layers = 0;
  for (Count chunk = 0; chunk < options_.pipeline_chunks; ++chunk) {
    const LayerRange range = layers_of_chunk(model_.layers, stages, options_.pipeline_chunks, position_.stage, chunk);
    ranges_.push_back(range);
    result_.chunks.push_back({layers, layers + range.end - range.begin});
    layers = result_.chunks.back().end;
  }
  result_.has_embedding = position_.stage == 0;
  result_.has_head = position_.stage + 1 == stages;
  result_.layers.resize(layers);
  for (const ParameterShape& shape : shapes) add(shape);
  for (Layer& layer : result_.layers) {
    for (Linear* linear : layer.linears()) adapt(*linear, layer.parameters);
  }
  if (result_.has_head) {
    ModelHead& head = result_.head;
    if (!head.output.weight) {  // tied
      Parameter* tied = result_.embedding.tokens;
      if (tied == nullptr) {
        const auto tokens = std::find_if(shapes.begin(), shapes.end(), [](const ParameterShape& shape) {
          return shape.layer < 0 && part_of(shape, take_apart(shape)) == Part::tokens;
        });
        TENCACHE_CHECK(tokens != shapes.end());
        tied = &store(*tokens, "lm_head.weight", Part::tokens, false);
        tied->module = "lm_head";
      }
      head.output.weight = tied;
      head.output.out = tied->rows;
      head.output.in = tied->columns;
      head.output.label = "lm_head";
      head.output.module = step_.module("lm_head");
      head.parameters.push_back(tied);
    }
    head.module = head.output.module;
  }
  if (result_.has_embedding) {
    EmbeddingBlock& embedding = result_.embedding;
    embedding.module = embedding.patches ? step_.module("vit.embeddings") : step_.module(embedding.tokens->module);
  }
  return std::move(result_);
}

void Builder::add(const ParameterShape& shape) {
  const NameParts name = take_apart(shape);
  const Part part = part_of(shape, name);
  if (shape.layer < 0) {
    add_outside(part, name, shape);
    return;
  }
  const Count index = static_cast<Count>(shape.layer);
  const auto range = std::find_if(ranges_.begin(), ranges_.end(), [&](const LayerRange& candidate) {
    return index >= candidate.begin && index < candidate.end;
  });
  if (range == ranges_.end()) return;
  const LayerRange& chunk = result_.chunks[static_cast<std::size_t>(range - ranges_.begin())];
  Layer& layer = result_.layers[chunk.begin + index - range->begin];
  if (layer.module.name.empty()) {
    layer.module = step_.module(name.prefix);
    layer.window = model_.window_of(index);
  }
  Parameter& parameter = store(shape, shape.name, part, name.bias, name.expert >= 0);
  if (name.expert >= 0) parameter.expert = static_cast<Count>(name.expert);
  add_to_layer(layer, part, name, parameter);
  if (part == Part::attention_output) layer.attention_module = step_.module(shape.module);
  // With experts, the block that holds them and the router.
  const bool holds = part == Part::router || (part == Part::down && !model_.has_experts(index));
  if (holds) layer.feed_forward_module = step_.module(shape.module);
}

}  // namespace

std::vector<Linear*> Layer::linears() {
  std::vector<Linear*> all = {&latent.query_down, &query,       &key,       &value,
                              &query_key_value,   &latent.down, &latent.up, &attention_output};
  const auto add = [&](FeedForward& block) { all.insert(all.end(), {&block.gate, &block.up, &block.down}); };
  add(feed_forward);
  for (FeedForward& expert : experts) add(expert);
  std::erase_if(all, [](const Linear* linear) { return !*linear; });
  return all;
}

LayerRange layers_of_chunk(Count layers, Count stages, Count chunks, Count stage, Count chunk) {
  if (chunks == 1) return {layers * stage / stages, layers * (stage + 1) / stages};
  // The first virtual stages have one more, so the sums of the stages differ by one layer at most, and the last stage,
  // which has the head, has the fewest.
  const Count parts = stages * chunks, part = chunk * stages + stage;
  const auto begin = [&](Count index) { return index * (layers / parts) + std::min(index, layers % parts); };
  return {begin(part), begin(part + 1)};
}

Bytes stored_bytes(const Parameter& parameter, Bytes element) {
  if (parameter.packing == nullptr) return parameter.elements() * element;
  return parameter.packing->bytes(parameter.rows, parameter.columns, element);
}

RankModel build_rank_model(Step& step, const ModelDescription& model, const std::vector<ParameterShape>& shapes,
                           RankPosition position) {
  RankModel result = Builder(step, model, position).build(shapes);
  const GenerateOptions& options = step.options;
  const Count n = options.data_parallel;
  for (Parameter& parameter : result.parameters) {
    const Count elements = parameter.elements();
    const bool shared = n > 1 && (options.zero >= 3 || (options.zero >= 1 && parameter.trainable));
    parameter.first_element = shared ? elements * position.data / n : 0;
    parameter.shard_elements = shared ? elements * (position.data + 1) / n - parameter.first_element : elements;
    const bool stored_in_parts = n > 1 && options.zero >= 3;
    Bytes bytes = (stored_in_parts ? parameter.shard_elements : elements) * step.element_bytes();
    if (parameter.packing != nullptr) {
      bytes = stored_bytes(parameter, step.element_bytes());
      if (stored_in_parts) bytes = bytes * (position.data + 1) / n - bytes * position.data / n;
    }
    // A training step uses all experts, so its experts are parameters like all others.
    const Role role = parameter.of_expert && options.generation ? Role::expert : Role::parameter;
    if (bytes > 0) parameter.stored = step.persistent(parameter.name, bytes, role);
    if (!stored_in_parts) parameter.value = parameter.stored;
  }
  return result;
}

}  // namespace tencache::generator
