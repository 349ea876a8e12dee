#include "executor/training_config.h"

#include <yaml-cpp/yaml.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "core/error.h"

namespace tencache {
namespace {

std::uint64_t line_of(const YAML::Mark& mark) { return mark.line < 0 ? 0 : static_cast<std::uint64_t>(mark.line) + 1; }

struct Key {
  std::string name;
  std::function<void(const YAML::Node&)> read;
};

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  [[noreturn]] void fail(const YAML::Node& node, const std::string& message) const {
    throw Error(file_, line_of(node.Mark()), message);
  }

  // Reads a map whose keys must all be among `keys`, each at most once.
  void read_map(const YAML::Node& node, const std::string& where, const std::vector<Key>& keys) const {
    if (!node.IsMap()) fail(node, where + " must be a map of keys to values");
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) fail(entry.first, "a key of " + where + " must be a plain word");
      const std::string name = entry.first.Scalar();
      if (!seen.insert(name).second) fail(entry.first, "'" + name + "' is given twice in " + where);
      const Key* found = nullptr;
      std::string valid;
      for (const Key& key : keys) {
        if (key.name == name) found = &key;
        valid += (valid.empty() ? "" : ", ") + key.name;
      }
      if (found == nullptr) fail(entry.first, "unknown key '" + name + "' in " + where + "; valid keys: " + valid);
      found->read(entry.second);
    }
  }

  Key text(const char* name, std::string& value) const {
    return {name, [this, name, &value](const YAML::Node& node) {
              if (!node.IsScalar() || node.Scalar().empty()) fail(node, std::string(name) + " must be a text");
              value = node.Scalar();
            }};
  }
  Key flag(const char* name, bool& value) const {
    return {name, [this, name, &value](const YAML::Node& node) {
              if (!YAML::convert<bool>::decode(node, value)) fail(node, std::string(name) + " must be true or false");
            }};
  }
  template <class Integer>
  Key integer(const char* name, Integer& value, std::uint64_t minimum, std::uint64_t maximum) const {
    return {name, [this, name, minimum, maximum, &value](const YAML::Node& node) {
              std::uint64_t number = 0;
              if (!node.IsScalar() || node.Scalar().starts_with('-') ||
                  !YAML::convert<std::uint64_t>::decode(node, number) || number < minimum || number > maximum) {
                fail(node, std::string(name) + " must be a whole number from " + std::to_string(minimum) + " to " +
                               std::to_string(maximum));
              }
              value = static_cast<Integer>(number);
            }};
  }
  template <class Choice>
  Key choice(const char* name, Choice& value, std::vector<std::pair<std::string, Choice>> choices) const {
    return {name, [this, name, choices = std::move(choices), &value](const YAML::Node& node) {
              std::string valid;
              for (const auto& [text, choice] : choices) {
                if (node.IsScalar() && node.Scalar() == text) {
                  value = choice;
                  return;
                }
                valid += (valid.empty() ? "" : " or ") + text;
              }
              fail(node, std::string(name) + " must be " + valid);
            }};
  }
  // From `minimum` to below `limit`.
  Key real(const char* name, double& value, double minimum, double limit) const {
    return {name, [this, name, minimum, limit, &value](const YAML::Node& node) {
              if (!YAML::convert<double>::decode(node, value) || !std::isfinite(value) || value < minimum ||
                  value >= limit) {
                const std::string upper = std::isinf(limit) ? "" : " and below " + YAML::Dump(YAML::Node(limit));
                fail(node,
                     std::string(name) + " must be a number of at least " + YAML::Dump(YAML::Node(minimum)) + upper);
              }
            }};
  }
  Key map(const char* name, std::vector<Key> keys) const {
    return {name, [this, name, keys = std::move(keys)](const YAML::Node& node) {
              read_map(node, std::string("'") + name + "'", keys);
            }};
  }

 private:
  std::string file_;
};

}  // namespace

TrainingConfig read_training_config(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw Error(path + ": is a directory; give a training configuration, such as configs/training/gpt-small.yaml");
  }
  YAML::Node root;
  try {
    root = YAML::LoadFile(path);
  } catch (const YAML::BadFile&) {
    throw Error(path +
                ": cannot be read; give the path of a training configuration, such as configs/training/gpt-small.yaml");
  } catch (const YAML::Exception& error) {
    throw Error(path, line_of(error.mark), error.msg);
  }
  constexpr double no_limit = std::numeric_limits<double>::infinity();
  TrainingConfig config;
  config.file = path;
  const Reader reader(path);
  const std::vector<Key> keys = {
      reader.text("name", config.name),
      reader.map(
          "model",
          {reader.integer("layers", config.layers, 1, 1000), reader.integer("width", config.width, 1, 65536),
           reader.integer("heads", config.heads, 1, 1024), reader.integer("context", config.context, 1, 65536),
           reader.integer("vocabulary", config.vocabulary, 256, 10'000'000),
           reader.real("dropout", config.dropout, 0.0, 1.0), reader.flag("tied_head", config.tied_head),
           reader.choice<TrainingPrecision>("precision", config.precision,
                                            {{"fp32", TrainingPrecision::fp32}, {"bf16", TrainingPrecision::bf16}}),
           reader.choice<Recompute>("recompute", config.recompute,
                                    {{"none", Recompute::none}, {"block", Recompute::block}})}),
      reader.map("data", {reader.text("text", config.text), reader.integer("batch", config.batch, 1, 65536)}),
      reader.map(
          "optimizer",
          {reader.real("learning_rate", config.adamw.learning_rate, 0.0, no_limit),
           reader.real("beta1", config.adamw.beta1, 0.0, 1.0), reader.real("beta2", config.adamw.beta2, 0.0, 1.0),
           reader.real("epsilon", config.adamw.epsilon, 0.0, no_limit),
           reader.real("weight_decay", config.adamw.weight_decay, 0.0, no_limit),
           reader.real("clip", config.clip, 0.0, no_limit),
           reader.integer("sub_group_parameters", config.sub_group_parameters, 1, 1'000'000'000'000)}),
      reader.integer("steps", config.steps, 1, 1'000'000'000),
      reader.integer("seed", config.seed, 0, std::numeric_limits<std::int64_t>::max()),
  };
  reader.read_map(root, "the training configuration", keys);
  for (const char* key : {"name", "model", "data", "optimizer"}) {
    if (!root[key]) throw Error(path, 1, std::string("the key '") + key + "' is missing");
  }
  if (config.text.empty()) throw Error(path, line_of(root["data"].Mark()), "'text' is missing in 'data'");
  if (config.width % config.heads != 0) {
    throw Error(
        path, line_of(root["model"].Mark()),
        "width " + std::to_string(config.width) + " is not a multiple of heads " + std::to_string(config.heads));
  }
  config.text = (std::filesystem::path(path).parent_path() / config.text).lexically_normal().string();
  return config;
}

}  // namespace tencache
