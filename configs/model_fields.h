// Reading the fields of a model file, for its two readers; not for others.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "traces/generate/model.h"

namespace tencache {

// A map of scalars. A key whose value is null counts as absent. Everything throws Error with file and line.
class ModelFields {
 public:
  // Throws unless `root` is a map that has each key once.
  ModelFields(const std::string& file, const YAML::Node& root);

  const std::string& file() const { return file_; }
  bool has(const std::string& key) const { return find(key).has_value(); }
  // A whole number from 0 to 10^15; for the sane range of each, see problem_of in traces/generate/model.h.
  std::optional<std::uint64_t> count(const std::string& key) const;
  // Of the first of these keys that is there; throws where none is.
  std::uint64_t count_of(std::initializer_list<const char*> keys) const;
  std::optional<double> real(const std::string& key) const;
  std::optional<bool> flag(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;
  std::optional<std::vector<std::string>> texts(const std::string& key) const;
  // A map of its own; of several, as compressed-tensors' groups are, `first`.
  std::optional<ModelFields> map(const std::string& key) const;
  std::optional<ModelFields> first_map() const;
  // How many entries the map or list of this key has.
  std::optional<std::uint64_t> size(const std::string& key) const;
  void only(const std::vector<std::string>& valid, const std::string& what) const;

  // At the line of `key`, or of the map where the key is missing.
  [[noreturn]] void fail(const std::string& key, const std::string& message) const;

 private:
  std::optional<YAML::Node> find(const std::string& key) const;

  std::string file_;
  YAML::Node root_;
};

// What each family implies; fields that a file may change afterwards. `model.family` is set.
void set_family_defaults(ModelDescription& model);

// Fills in what follows from the rest (key_value_heads, head_dimension, intermediate, positions) where it is 0, and
// checks the whole.
void complete(ModelDescription& model, const ModelFields& fields);

// What a map of quantization_config says. A method that is not known leaves `quantised` empty.
void read_quantization(ModelDescription& model, const ModelFields& fields);

// From a Hugging Face config.json. Of a model that also sees or hears, the text model.
ModelDescription model_of_config_json(const ModelFields& fields);
// From the params.json that Meta and Mistral publish their own checkpoints with.
ModelDescription model_of_params_json(const ModelFields& fields);

}  // namespace tencache
