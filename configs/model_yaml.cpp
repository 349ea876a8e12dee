#include "configs/model_yaml.h"

#include <algorithm>
#include <boost/describe.hpp>
#include <boost/mp11.hpp>
#include <filesystem>

#include "configs/model_fields.h"
#include "configs/shipped_files.h"
#include "configs/yaml_layers.h"
#include "core/error.h"
#include "core/names.h"
#include "core/parse_number.h"
#include "core/units.h"
#include "traces/file/file_io.h"

namespace tencache {

BOOST_DESCRIBE_STRUCT(ModelDescription, (),
                      (layers, hidden, heads, key_value_heads, head_dimension, intermediate, vocabulary, positions,
                       max_sequence, token_types, embedding_projection, experts, experts_per_token, expert_intermediate,
                       shared_experts, dense_layers, query_rank, key_value_rank, rope_dimension, value_dimension,
                       sliding_window, labels, image_size, patch_size, channels, norms_per_layer, published_parameters,
                       attention_bias, attention_output_bias, feed_forward_bias, tied_embeddings, parallel_block,
                       norm_first, query_key_norm, router_bias))

namespace {

constexpr Bytes maximum_model_file_bytes = 4 * MiB;
constexpr std::uint64_t maximum_count = 1'000'000'000'000'000;

ModelFamily family_of(const ModelFields& fields) {
  const std::string wanted = fields.text("family").value_or("");
  std::vector<std::string> names;
  for (const FamilyFacts& facts : model_families()) {
    if (facts.name == wanted) return facts.family;
    names.push_back(facts.name);
  }
  fields.fail("family", "unknown family '" + wanted + "'; valid are " + join_names(names));
}

bool is_model_name(const std::string& text) {
  return !text.empty() && text.size() <= 64 && std::isalnum(static_cast<unsigned char>(text.front())) != 0 &&
         std::ranges::all_of(text, [](unsigned char c) {
           return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '_' || c == '-' || c == '.';
         });
}

// visit(name, pointer) for each member of ModelDescription that a file says as a number, or as true or false.
template <typename Value, typename Visit>
void each_member(Visit visit) {
  boost::mp11::mp_for_each<boost::describe::describe_members<ModelDescription, boost::describe::mod_public>>(
      [&](auto member) {
        if constexpr (std::is_same_v<decltype(member.pointer), Value ModelDescription::*const>) {
          visit(member.name, member.pointer);
        }
      });
}

// Our own format: the description's fields under their names.
ModelDescription model_of_yaml(const ModelFields& fields) {
  ModelDescription model;
  std::vector<std::string> valid = {"name", "aliases", "family"};
  each_member<std::uint64_t>([&](const char* key, auto) { valid.emplace_back(key); });
  each_member<bool>([&](const char* key, auto) { valid.emplace_back(key); });
  valid.insert(valid.end(), {"activation", "source", "quantization_config"});
  fields.only(valid, "a model");

  model.family = family_of(fields);
  set_family_defaults(model);
  const auto name = fields.text("name");
  if (!name) fields.fail("name", "key 'name' is missing in a model");
  model.name = *name;
  model.aliases = fields.texts("aliases").value_or(std::vector<std::string>());
  for (const std::string& alias : model.aliases) {
    if (!is_model_name(alias)) fields.fail("aliases", "aliases: '" + alias + "' is no name");
  }
  model.source = fields.text("source").value_or("");
  if (const auto quantization = fields.map("quantization_config")) read_quantization(model, *quantization);
  fields.count_of({"layers"});
  fields.count_of({"hidden"});
  fields.count_of({"heads"});
  each_member<std::uint64_t>(
      [&](const char* key, auto member) { model.*member = fields.count(key).value_or(model.*member); });
  each_member<bool>([&](const char* key, auto member) { model.*member = fields.flag(key).value_or(model.*member); });
  if (const auto activation = fields.text("activation")) {
    const auto known = parse_enum<Activation>(*activation);
    if (!known)
      fields.fail("activation", "activation: unknown '" + *activation + "'; valid are " + enum_names<Activation>());
    model.activation = *known;
  }
  if (!fields.has("attention_output_bias")) model.attention_output_bias = model.attention_bias;
  complete(model, fields);
  return model;
}

ModelDescription read_model_file(const std::string& path) {
  ModelDescription model = parse_model(read_file(path, maximum_model_file_bytes), path);
  // NVIDIA's ModelOpt writes the format into a file beside it.
  const std::filesystem::path beside = std::filesystem::path(path).parent_path() / "hf_quant_config.json";
  if (model.quantisation.empty() && path.ends_with("config.json") && std::filesystem::is_regular_file(beside)) {
    const ModelFields fields(beside.string(),
                             load_yaml(read_file(beside.string(), maximum_model_file_bytes), beside.string()));
    if (const auto quantization = fields.map("quantization")) read_quantization(model, *quantization);
  }
  return model;
}

}  // namespace

ModelFields::ModelFields(const std::string& file, const YAML::Node& root) : file_(file), root_(root) {
  if (!root.IsMap())
    throw Error(file, line_of(root), "expected a map with the keys of a model, found " + describe(root));
  std::vector<std::string> seen;
  for (const auto& entry : root) {
    if (!entry.first.IsScalar()) throw Error(file, line_of(entry.first), "a key is " + describe(entry.first));
    const std::string& key = entry.first.Scalar();
    if (std::ranges::find(seen, key) != seen.end()) {
      throw Error(file, line_of(entry.first), "key '" + key + "' stands twice");
    }
    seen.push_back(key);
  }
}

std::optional<YAML::Node> ModelFields::find(const std::string& key) const {
  for (const auto& entry : root_) {
    if (entry.first.Scalar() == key && !entry.second.IsNull()) return entry.second;
  }
  return std::nullopt;
}

void ModelFields::fail(const std::string& key, const std::string& message) const {
  const auto node = find(key);
  throw Error(file_, line_of(node ? *node : root_), message);
}

void ModelFields::only(const std::vector<std::string>& valid, const std::string& what) const {
  for (const auto& entry : root_) {
    const std::string& key = entry.first.Scalar();
    if (std::ranges::find(valid, key) != valid.end()) continue;
    throw Error(file_, line_of(entry.first),
                "unknown key '" + key + "' in " + what + "; valid keys are " + join_names(valid));
  }
}

std::optional<std::uint64_t> ModelFields::count(const std::string& key) const {
  const auto node = find(key);
  if (!node) return std::nullopt;
  const std::string digits = node->IsScalar() ? node->Scalar() : describe(*node);
  const auto value = parse_number<std::uint64_t>(digits);
  if (!node->IsScalar() || !value || *value > maximum_count) {
    fail(key, key + ": '" + digits + "' is not a whole number from 0 to " + std::to_string(maximum_count));
  }
  return value;
}

std::uint64_t ModelFields::count_of(std::initializer_list<const char*> keys) const {
  std::string names;
  for (const char* key : keys) {
    if (const auto value = count(key)) return *value;
    names += (names.empty() ? "'" : " or '") + std::string(key) + "'";
  }
  fail("", "key " + names + " is missing in a model");
}

std::optional<double> ModelFields::real(const std::string& key) const {
  const auto node = find(key);
  if (!node) return std::nullopt;
  const auto value = node->IsScalar() ? parse_number(node->Scalar()) : std::nullopt;
  if (!value) fail(key, key + ": " + describe(*node) + " is not a number");
  return value;
}

std::optional<bool> ModelFields::flag(const std::string& key) const {
  const auto node = find(key);
  if (!node) return std::nullopt;
  const std::string value = describe(*node);
  if (value == "'true'") return true;
  if (value == "'false'") return false;
  fail(key, key + ": " + value + "; valid are true, false");
}

std::optional<std::string> ModelFields::text(const std::string& key) const {
  const auto node = find(key);
  if (!node) return std::nullopt;
  if (!node->IsScalar()) fail(key, key + ": expected text, found " + describe(*node));
  return node->Scalar();
}

std::optional<std::vector<std::string>> ModelFields::texts(const std::string& key) const {
  const auto node = find(key);
  if (!node) return std::nullopt;
  if (!node->IsSequence()) fail(key, key + ": expected a list, found " + describe(*node));
  std::vector<std::string> result;
  for (const YAML::Node& item : *node) {
    if (!item.IsScalar()) fail(key, key + ": expected text, found " + describe(item));
    result.push_back(item.Scalar());
  }
  return result;
}

std::optional<ModelFields> ModelFields::map(const std::string& key) const {
  const auto node = find(key);
  return node ? std::optional(ModelFields(file_, *node)) : std::nullopt;
}

std::optional<ModelFields> ModelFields::first_map() const {
  for (const auto& entry : root_) {
    if (entry.second.IsMap()) return ModelFields(file_, entry.second);
  }
  return std::nullopt;
}

std::optional<std::uint64_t> ModelFields::size(const std::string& key) const {
  const auto node = find(key);
  if (!node) return std::nullopt;
  if (!node->IsMap() && !node->IsSequence()) fail(key, key + ": expected a map, found " + describe(*node));
  return node->size();
}

void set_family_defaults(ModelDescription& model) {
  if (const auto set = facts_of(model.family).set_defaults) set(model);
}

void complete(ModelDescription& model, const ModelFields& fields) {
  if (!is_model_name(model.name)) {
    fields.fail("name", "name: '" + model.name +
                            "' is no name; write up to 64 lower-case letters, digits, '_', '-' and '.', a letter or "
                            "digit first");
  }
  if (model.key_value_heads == 0) model.key_value_heads = model.heads;
  if (model.head_dimension == 0 && model.heads != 0) {
    if (model.hidden % model.heads != 0) {
      fields.fail("heads", "hidden, " + std::to_string(model.hidden) + ", is no multiple of heads, " +
                               std::to_string(model.heads) + "; give head_dimension if that is meant");
    }
    model.head_dimension = model.hidden / model.heads;
  }
  if (model.intermediate == 0 && !model.gated) model.intermediate = 4 * model.hidden;
  const FamilyFacts& facts = facts_of(model.family);
  if (model.positions == 0 && facts.position_rows && model.max_sequence != 0) {
    model.positions = model.max_sequence + *facts.position_rows;
  }
  if (model.positions == 0 && facts.images && model.patch_size != 0) {
    const std::uint64_t patches = model.image_size / model.patch_size;
    model.positions = model.max_sequence = patches * patches + 1;
  }
  // The message opens with the name of the field, so that its line can be found.
  if (const std::string problem = problem_of(model); !problem.empty()) {
    fields.fail(problem.substr(0, problem.find_first_of(" ,:")), problem);
  }
}

ModelDescription parse_model(std::string_view text, const std::string& file) {
  const ModelFields fields(file, load_yaml(text, file));
  if (fields.has("family")) return model_of_yaml(fields);
  if (fields.has("model_type")) return model_of_config_json(fields);
  if (fields.has("dim") && fields.has("n_layers")) return model_of_params_json(fields);
  fields.fail("",
              "neither 'family', as in a model description, nor 'model_type', as in Hugging Face's config.json, nor "
              "'dim' and 'n_layers', as in the params.json of Meta and Mistral");
}

std::string find_model_file(const std::string& name_or_file) {
  // "meta-llama/Llama-3.1-8B" is how Hugging Face's hub names a model, unless there is such a file.
  std::error_code ignored;
  const bool may_be_of_hub = std::ranges::count(name_or_file, '/') == 1 && !name_or_file.starts_with("/") &&
                             !name_or_file.starts_with(".") && !name_or_file.ends_with(".yaml") &&
                             !name_or_file.ends_with(".yml") && !name_or_file.ends_with(".json") &&
                             !std::filesystem::exists(name_or_file, ignored);
  if (is_config_path(name_or_file) && !may_be_of_hub) return name_or_file;
  if (const auto path = find_shipped("models", name_or_file)) return *path;
  std::vector<std::string> aliases;
  for (const auto& [name, path] : shipped_files("models")) {
    const ModelDescription model = read_model_file(path);
    if (match_name(name_or_file, model.aliases)) return path;
    aliases.insert(aliases.end(), model.aliases.begin(), model.aliases.end());
  }
  const std::string last = name_or_file.substr(name_or_file.rfind('/') + 1);
  fail_unknown("models", "model", name_or_file, last + "/config.json", aliases);
}

ModelDescription read_model(const std::string& name_or_file) { return read_model_file(find_model_file(name_or_file)); }

std::vector<ModelDescription> list_models() {
  std::vector<ModelDescription> result;
  for (const auto& [name, path] : shipped_files("models")) result.push_back(read_model_file(path));
  return result;
}

}  // namespace tencache
