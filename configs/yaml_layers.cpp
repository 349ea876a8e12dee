#include "configs/yaml_layers.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "core/error.h"
#include "core/parse_number.h"
#include "core/text.h"

namespace tencache {
namespace {

constexpr std::uint64_t exbibyte = 1ull << 60;
constexpr Nanoseconds longest_duration_ns = 3600 * second_ns;

bool is_name(const std::string& text) {
  if (text.empty() || text.size() > 64 || std::isalnum(static_cast<unsigned char>(text.front())) == 0) return false;
  return text != "null" && text != "Null" && text != "NULL" && std::ranges::all_of(text, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
         });
}

std::optional<YamlValue> find(const YamlValue& map, const std::string& key) {
  for (const auto& entry : map.node) {
    if (entry.first.IsScalar() && entry.first.Scalar() == key) return YamlValue{entry.second, map.file};
  }
  return std::nullopt;
}

// The name of a list's element; its other keys are checked where it is read.
std::string element_name(const YamlValue& element, const std::string& path) {
  if (!element.node.IsMap()) fail_at(element, path + ": expected a map, found " + describe(element.node));
  const auto name = find(element, "name");
  if (!name) fail_at(element, path + ": key 'name' is missing");
  if (!name->node.IsScalar()) fail_at(*name, path + ".name: expected text, found " + describe(name->node));
  return name->node.Scalar();
}

}  // namespace

void fail_at(const YamlValue& value, const std::string& message) {
  throw Error(*value.file, line_of(value.node), message);
}

std::uint64_t line_of(const YAML::Node& node) {
  const int line = node.Mark().line;
  return line < 0 ? 0 : static_cast<std::uint64_t>(line) + 1;
}

std::string describe(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Map:
      return "a map";
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Scalar:
      return "'" + node.Scalar() + "'";
    default:
      return "nothing";
  }
}

std::string join_names(const std::vector<std::string>& names) { return names.empty() ? "none" : join(names); }

YAML::Node load_yaml(std::string_view text, const std::string& file) {
  try {
    return YAML::Load(std::string(text));
  } catch (const YAML::Exception& error) {
    const int line = error.mark.line;  // -1: the whole file
    throw Error(file, line < 0 ? 0 : static_cast<std::uint64_t>(line) + 1,
                (file.ends_with(".json") ? "not valid JSON: " : "not valid YAML: ") + error.msg);
  }
}

YamlMap::YamlMap(std::vector<YamlValue> layers, std::string what, const std::vector<std::string>& valid)
    : layers_(std::move(layers)), what_(std::move(what)) {
  for (const YamlValue& layer : layers_) {
    if (!layer.node.IsMap()) {
      fail_at(layer, what_ + ": expected a map with keys of " + join_names(valid) + ", found " + describe(layer.node));
    }
    std::vector<std::string> seen;
    for (const auto& entry : layer.node) {
      const YamlValue key{entry.first, layer.file};
      if (!key.node.IsScalar()) fail_at(key, what_ + ": a key is " + describe(key.node));
      const std::string& text = key.node.Scalar();
      if (std::ranges::find(valid, text) == valid.end()) {
        fail_at(key, "unknown key '" + text + "' in " + what_ + "; valid keys are " + join_names(valid));
      }
      if (std::ranges::find(seen, text) != seen.end()) fail_at(key, "key '" + text + "' stands twice");
      seen.push_back(text);
    }
  }
}

std::optional<YamlValue> YamlMap::get(const std::string& key) const {
  for (const YamlValue& layer : layers_) {
    if (const auto value = find(layer, key)) return value->is_null() ? std::nullopt : value;
  }
  return std::nullopt;
}

bool YamlMap::is_null(const std::string& key) const {
  for (const YamlValue& layer : layers_) {
    if (const auto value = find(layer, key)) return value->is_null();
  }
  return false;
}

YamlValue YamlMap::require(const std::string& key) const {
  if (const auto value = get(key)) return *value;
  fail_at(top(), "key '" + key + "' is missing in " + what_);
}

bool YamlMap::stands_above(const std::string& key, const std::string& other) const {
  for (const YamlValue& layer : layers_) {
    if (find(layer, other)) return false;
    if (const auto value = find(layer, key)) return !value->is_null();
  }
  return false;
}

std::vector<YamlValue> YamlMap::layers_of(const std::string& key) const {
  std::vector<YamlValue> result;
  for (const YamlValue& layer : layers_) {
    const auto value = find(layer, key);
    if (!value) continue;
    if (value->is_null()) break;
    result.push_back(*value);
  }
  return result;
}

std::vector<std::vector<YamlValue>> YamlMap::elements(const std::string& key) const {
  std::vector<std::vector<YamlValue>> result;
  const std::vector<YamlValue> layers = layers_of(key);
  if (layers.empty()) return result;
  const auto list = std::ranges::find_if(layers, [](const YamlValue& v) { return !v.node.IsMap(); });
  if (list == layers.end()) fail_at(layers.front(), key + ": expected a list, found a map");
  std::vector<std::string> names;
  each_item(*list, key, [&](const YamlValue& item) {
    names.push_back(element_name(item, key));
    result.push_back({item});
  });
  std::vector<bool> removed(names.size(), false);
  for (auto layer = list; layer-- != layers.begin();) {
    std::vector<std::string> seen;
    for (const auto& entry : layer->node) {
      const YamlValue name{entry.first, layer->file}, changes{entry.second, layer->file};
      if (!name.node.IsScalar()) fail_at(name, key + ": a key is " + describe(name.node));
      if (std::ranges::find(seen, name.node.Scalar()) != seen.end()) {
        fail_at(name, "key '" + name.node.Scalar() + "' stands twice");
      }
      seen.push_back(name.node.Scalar());
      const auto found = std::ranges::find(names, name.node.Scalar());
      if (found == names.end()) {
        fail_at(name, key + ": there is no '" + name.node.Scalar() + "' to change; valid are " + join_names(names));
      }
      const auto at = static_cast<std::size_t>(found - names.begin());
      removed[at] = changes.is_null();
      if (!changes.is_null()) result[at].insert(result[at].begin(), changes);
    }
  }
  for (std::size_t i = names.size(); i-- > 0;) {
    if (removed[i]) result.erase(result.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return result;
}

void each_item(const YamlValue& value, const std::string& path, const std::function<void(const YamlValue&)>& read_one) {
  if (!value.node.IsSequence()) fail_at(value, path + ": expected a list, found " + describe(value.node));
  for (const YAML::Node& item : value.node) read_one({item, value.file});
}

std::string FigureReader::text(const YamlValue& value, const std::string& path) const {
  if (!value.node.IsScalar()) fail_at(value, path + ": expected text, found " + describe(value.node));
  return value.node.Scalar();
}

std::string FigureReader::name(const YamlValue& value, const std::string& path) const {
  std::string result = text(value, path);
  if (!is_name(result)) {
    fail_at(value, path + ": '" + result +
                       "' is no name; write up to 64 letters, digits, '_', '-' and '.', a letter or digit first");
  }
  return result;
}

std::size_t FigureReader::choice(const YamlValue& value, const std::string& path,
                                 const std::vector<std::string>& valid) const {
  const std::string wanted = text(value, path);
  const auto found = std::ranges::find(valid, wanted);
  if (found == valid.end()) fail_at(value, path + ": unknown '" + wanted + "'; valid are " + join_names(valid));
  return static_cast<std::size_t>(found - valid.begin());
}

// Returns the plain value and keeps where it comes from.
YamlValue FigureReader::figure(const YamlValue& value, const std::string& path) {
  if (!value.node.IsMap()) {
    if (!value.node.IsScalar()) fail_at(value, path + ": expected a value, found " + describe(value.node));
    return value;
  }
  const YamlMap keys({value}, path, {"value", "source", "retrieved", "confidence", "spread"});
  const auto given = keys.get("spread");
  const double spread = given ? positive_number(*given, path + ".spread") : 0;
  if (spread > 10) fail_at(*given, path + ".spread: above 10, which leaves nothing known of the figure");
  add_fact_of(keys, path).spread = spread;
  YamlValue plain = keys.require("value");
  if (!plain.node.IsScalar()) fail_at(plain, path + ".value: expected a value, found " + describe(plain.node));
  return plain;
}

Fact& FigureReader::add_fact_of(const YamlMap& keys, const std::string& path) {
  Fact fact{.path = path, .source = {}, .confidence = {}, .retrieved = {}, .spread = 0};
  if (const auto source = keys.get("source")) fact.source = text(*source, path + ".source");
  if (const auto retrieved = keys.get("retrieved")) fact.retrieved = text(*retrieved, path + ".retrieved");
  const YamlValue confidence = keys.require("confidence");
  fact.confidence = text(confidence, path + ".confidence");
  choice(confidence, path + ".confidence", {"published", "measured", "estimated"});
  return facts_.emplace_back(std::move(fact));
}

BytesPerSecond FigureReader::between(const YamlValue& value, const std::string& path) {
  const YamlMap keys({value}, path, {"low", "high", "source", "retrieved", "confidence"});
  const auto bound = [&](const char* key) {
    const YamlValue given = keys.require(key);
    if (!given.node.IsScalar()) fail_at(given, path + "." + key + ": expected a value, found " + describe(given.node));
    return static_cast<double>(bandwidth(given, path + "." + key));
  };
  const double low = bound("low"), high = bound("high");
  if (!(low < high && high < static_cast<double>(exbibyte))) fail_at(value, path + ": low must be below high");
  Fact& fact = add_fact_of(keys, path);
  if (fact.confidence != "estimated") fail_at(value, path + ": what lies between low and high is 'estimated'");
  fact.spread = std::sqrt(high / low) - 1;
  if (fact.spread > 10) fail_at(value, path + ": low and high leave nothing known of the figure");
  return static_cast<BytesPerSecond>(std::sqrt(low * high));
}

// Parses with one of core/units.h and places its complaint.
template <typename Parse>
auto FigureReader::quantity(const YamlValue& value, const std::string& path, Parse parse) {
  const YamlValue plain = figure(value, path);
  try {
    return parse(plain.node.Scalar());
  } catch (const Error& error) {
    fail_at(plain, path + ": " + error.what());
  }
}

template <typename Parse>
Bytes FigureReader::size(const YamlValue& value, const std::string& path, Parse parse) {
  const Bytes result = quantity(value, path, parse);
  if (result > exbibyte && result != unlimited) fail_at(value, path + ": more than 1 EiB; write unlimited");
  return result;
}

Bytes FigureReader::bytes(const YamlValue& value, const std::string& path) {
  return size(value, path, [](const std::string& t) { return parse_bytes(t); });
}

Bytes FigureReader::capacity(const YamlValue& value, const std::string& path, std::string_view unit) {
  return size(value, path, [unit](const std::string& t) { return parse_capacity(t, unit); });
}

BytesPerSecond FigureReader::bandwidth(const YamlValue& value, const std::string& path) {
  if (value.node.IsMap() && value.node["low"]) return between(value, path);
  const BytesPerSecond result = quantity(value, path, [](const std::string& t) { return parse_bandwidth(t); });
  if (result == 0) fail_at(value, path + ": must be above 0");
  if (result > exbibyte && result != unlimited) fail_at(value, path + ": more than 1 EiB/s; write unlimited");
  return result;
}

Nanoseconds FigureReader::duration(const YamlValue& value, const std::string& path) {
  const Nanoseconds result = quantity(value, path, [](const std::string& t) { return parse_duration(t); });
  if (result > longest_duration_ns) fail_at(value, path + ": more than an hour");
  return result;
}

std::uint32_t FigureReader::count(const YamlValue& value, const std::string& path, std::uint32_t minimum,
                                  std::uint32_t maximum) {
  const YamlValue plain = figure(value, path);
  const std::string& digits = plain.node.Scalar();
  const auto result = parse_number<std::uint32_t>(digits);
  if (!result || *result < minimum || *result > maximum) {
    fail_at(plain, path + ": '" + digits + "' is not a whole number from " + std::to_string(minimum) + " to " +
                       std::to_string(maximum));
  }
  return *result;
}

double FigureReader::positive_number(const YamlValue& value, const std::string& path) {
  const YamlValue plain = figure(value, path);
  const std::string& digits = plain.node.Scalar();
  const std::optional<double> result = parse_number(digits);
  if (!result || *result <= 0) fail_at(plain, path + ": '" + digits + "' is not a number above 0, such as 1.5e9");
  return *result;
}

std::vector<Fact> FigureReader::take_facts() {
  std::ranges::sort(facts_, {}, &Fact::path);
  return std::move(facts_);
}

std::optional<Fact> FigureReader::take_fact(const std::string& path) {
  const auto found = std::ranges::find(facts_, path, &Fact::path);
  if (found == facts_.end()) return std::nullopt;
  Fact fact = std::move(*found);
  facts_.erase(found);
  return fact;
}

}  // namespace tencache
