// YAML maps that are laid over one another: a machine file over the file that it builds on, a rank's entry over both.
// Of each key the uppermost layer's value counts. Every value knows the file and line it comes from.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/machine_spec.h"

namespace tencache {

struct YamlValue {
  YamlValue(YAML::Node of, const std::string* from) : node(std::move(of)), file(from) {}
  YamlValue(const YamlValue&) = default;
  // Assigning to a YAML::Node makes the node that it stood for an alias of the other, in every copy of it.
  YamlValue& operator=(const YamlValue& other) {
    node.reset(other.node);
    file = other.file;
    return *this;
  }
  ~YamlValue() = default;

  YAML::Node node;
  const std::string* file;  // for messages; outlives the value

  bool is_null() const { return node.IsNull(); }
};

// Throws Error at the value's file and line.
[[noreturn]] void fail_at(const YamlValue& value, const std::string& message);
// Counted from 1; 0 where a node has none.
std::uint64_t line_of(const YAML::Node& node);
// "a map", "a list", "'text'", "nothing".
std::string describe(const YAML::Node& node);
// Throws Error with file and line.
YAML::Node load_yaml(std::string_view text, const std::string& file);
// "a, b, c", or "none".
std::string join_names(const std::vector<std::string>& names);

// Several maps as one. A key whose value is null is not there, whatever lower layers have.
class YamlMap {
 public:
  // Checks that each layer (the uppermost first, at least one) is a map, knows only the `valid` keys and each once.
  // `what` stands in messages: "a tier".
  YamlMap(std::vector<YamlValue> layers, std::string what, const std::vector<std::string>& valid);

  std::optional<YamlValue> get(const std::string& key) const;
  YamlValue require(const std::string& key) const;
  // Whether the uppermost layer that has the key says null.
  bool is_null(const std::string& key) const;
  // Whether a layer has the key, and neither it nor one above it the other.
  bool stands_above(const std::string& key, const std::string& other) const;
  // The key's maps in all layers that have it.
  std::vector<YamlValue> layers_of(const std::string& key) const;

  // The elements of a list, each as its layers: the list itself stands in one layer; those above it may hold a map
  // from an element's name to the keys that differ, or to null, which removes it.
  std::vector<std::vector<YamlValue>> elements(const std::string& key) const;

  const YamlValue& top() const { return layers_.front(); }

 private:
  std::vector<YamlValue> layers_;
  std::string what_;
};

// Throws Error if the value is not a list.
void each_item(const YamlValue& value, const std::string& path, const std::function<void(const YamlValue&)>& read_one);

// Values of one file, with where they come from. `path` stands in messages and facts: "links.h2d.bandwidth".
class FigureReader {
 public:
  std::string text(const YamlValue& value, const std::string& path) const;
  // A name becomes a key of results and a label of tables, and stands in YAML without quotes.
  std::string name(const YamlValue& value, const std::string& path) const;
  // The position in `valid`.
  std::size_t choice(const YamlValue& value, const std::string& path, const std::vector<std::string>& valid) const;

  // Figures: a plain value, or a map of `value`, `source`, `retrieved`, `confidence`, `spread`, which becomes a fact.
  // A bandwidth of which only bounds are known has `low` and `high` in place of the value, and counts as the middle of
  // their ratio, with the spread that reaches both.
  // All refuse what no machine has: sizes above 1 EiB, bandwidths of 0 or above 1 EiB/s, times above an hour.
  Bytes bytes(const YamlValue& value, const std::string& path);
  // Of a memory or an SSD: parse_capacity.
  Bytes capacity(const YamlValue& value, const std::string& path, std::string_view unit = "GiB");
  BytesPerSecond bandwidth(const YamlValue& value, const std::string& path);
  Nanoseconds duration(const YamlValue& value, const std::string& path);
  std::uint32_t count(const YamlValue& value, const std::string& path, std::uint32_t minimum, std::uint32_t maximum);
  double positive_number(const YamlValue& value, const std::string& path);

  // Sets the field by one of these, with its range, where the key is there. `path` without the key.
  template <typename Field, typename Read, typename... Range>
  std::optional<YamlValue> take(const YamlMap& keys, const std::string& key, const std::string& path, Field& field,
                                Read read, Range... range) {
    const std::optional<YamlValue> value = keys.get(key);
    if (value) field = (this->*read)(*value, path + key, range...);
    return value;
  }

  // Those of the figures read so far, sorted by path.
  std::vector<Fact> take_facts();
  // Takes the fact of that path out, if there is one.
  std::optional<Fact> take_fact(const std::string& path);
  void add_fact(Fact fact) { facts_.push_back(std::move(fact)); }

 private:
  YamlValue figure(const YamlValue& value, const std::string& path);
  Fact& add_fact_of(const YamlMap& keys, const std::string& path);
  BytesPerSecond between(const YamlValue& value, const std::string& path);
  template <typename Parse>
  auto quantity(const YamlValue& value, const std::string& path, Parse parse);
  template <typename Parse>
  Bytes size(const YamlValue& value, const std::string& path, Parse parse);

  std::vector<Fact> facts_;
};

}  // namespace tencache
