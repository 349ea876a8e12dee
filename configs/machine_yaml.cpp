#include "configs/machine_yaml.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <optional>

#include "core/error.h"

namespace tencache {
namespace {

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

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

// Names become keys of results and labels of tables, and stand in YAML without quotes.
bool is_name(const std::string& text) {
  if (text.empty() || text.size() > 64 || std::isalnum(static_cast<unsigned char>(text.front())) == 0) return false;
  return text != "null" && text != "Null" && text != "NULL" &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.'; });
}

class MachineReader {
 public:
  explicit MachineReader(std::string file) { machine_.file = std::move(file); }

  MachineSpec read(const YAML::Node& root) {
    if (!root.IsMap()) fail(root, "expected a map with the keys of a machine, found " + describe(root));
    const Keys keys = map(root, "a machine",
                          {"name", "description", "gpu", "tiers", "resources", "links", "staging", "initial_tier",
                           "cpu", "issue_ahead", "copies_in_flight"});
    machine_.name = name(require(keys, "name"), "name");
    if (const auto node = get(keys, "description")) machine_.description = text(*node, "description");
    if (const auto node = get(keys, "gpu")) machine_.gpu = text(*node, "gpu");
    each(require(keys, "tiers"), "tiers", [&](const YAML::Node& node) { read_tier(node); });
    if (const auto node = get(keys, "resources")) {
      each(*node, "resources", [&](const YAML::Node& item) { read_resource(item); });
    }
    if (const auto node = get(keys, "links")) {
      each(*node, "links", [&](const YAML::Node& item) { read_link(item); });
    }
    if (const auto node = get(keys, "staging")) read_staging(*node);
    if (const auto node = get(keys, "initial_tier")) machine_.initial_tier = tier(*node, "initial_tier");
    if (const auto node = get(keys, "cpu")) read_cpu(*node);
    if (const auto node = get(keys, "issue_ahead")) machine_.issue_ahead = count(*node, "issue_ahead", 1, 1000);
    if (const auto node = get(keys, "copies_in_flight")) {
      machine_.copies_in_flight = count(*node, "copies_in_flight", 1, 1000);
    }
    std::sort(machine_.facts.begin(), machine_.facts.end(),
              [](const Fact& a, const Fact& b) { return a.path < b.path; });
    machine_.validate();
    return std::move(machine_);
  }

 private:
  struct Keys {
    YAML::Node node;
    std::string what;
  };

  [[noreturn]] void fail(const YAML::Node& node, const std::string& message) const {
    throw Error(machine_.file, line_of(node), message);
  }

  // Checks that the node is a map, knows only these keys and each once.
  Keys map(const YAML::Node& node, const std::string& what, std::initializer_list<const char*> valid) const {
    const std::vector<std::string> names(valid.begin(), valid.end());
    if (!node.IsMap()) fail(node, what + ": expected a map with keys of " + join(names) + ", found " + describe(node));
    std::vector<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) fail(entry.first, what + ": a key is " + describe(entry.first));
      const std::string& key = entry.first.Scalar();
      if (std::find(names.begin(), names.end(), key) == names.end()) {
        fail(entry.first, "unknown key '" + key + "' in " + what + "; valid keys are " + join(names));
      }
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) fail(entry.first, "key '" + key + "' stands twice");
      seen.push_back(key);
    }
    return {node, what};
  }

  static std::optional<YAML::Node> get(const Keys& keys, const std::string& key) {
    for (const auto& entry : keys.node) {
      if (entry.first.Scalar() == key) return entry.second;
    }
    return std::nullopt;
  }

  YAML::Node require(const Keys& keys, const std::string& key) const {
    if (const auto node = get(keys, key)) return *node;
    fail(keys.node, "key '" + key + "' is missing in " + keys.what);
  }

  void each(const YAML::Node& node, const std::string& what, const std::function<void(const YAML::Node&)>& read_one) {
    if (!node.IsSequence()) fail(node, what + ": expected a list, found " + describe(node));
    for (const YAML::Node& item : node) read_one(item);
  }

  std::string text(const YAML::Node& node, const std::string& path) const {
    if (!node.IsScalar()) fail(node, path + ": expected text, found " + describe(node));
    return node.Scalar();
  }

  std::string name(const YAML::Node& node, const std::string& path) const {
    std::string result = text(node, path);
    if (!is_name(result)) {
      fail(node, path + ": '" + result +
                     "' is no name; write up to 64 letters, digits, '_', '-' and '.', a letter or digit first");
    }
    return result;
  }

  // A figure is a plain value, or a map with `value` and where it comes from. Returns the value's node.
  YAML::Node figure(const YAML::Node& node, const std::string& path) {
    if (!node.IsMap()) {
      if (!node.IsScalar()) fail(node, path + ": expected a value, found " + describe(node));
      return node;
    }
    const Keys keys = map(node, path, {"value", "source", "retrieved", "confidence"});
    Fact fact{.path = path, .source = {}, .confidence = {}, .retrieved = {}};
    if (const auto source = get(keys, "source")) fact.source = text(*source, path + ".source");
    if (const auto retrieved = get(keys, "retrieved")) fact.retrieved = text(*retrieved, path + ".retrieved");
    const YAML::Node confidence = require(keys, "confidence");
    fact.confidence = text(confidence, path + ".confidence");
    if (fact.confidence != "published" && fact.confidence != "measured" && fact.confidence != "estimated") {
      fail(confidence, path + ".confidence: '" + fact.confidence + "'; valid are published, measured, estimated");
    }
    const YAML::Node value = require(keys, "value");
    if (!value.IsScalar()) fail(value, path + ".value: expected a value, found " + describe(value));
    machine_.facts.push_back(std::move(fact));
    return value;
  }

  // Parses with one of core/units.h and places its complaint.
  template <typename Parse>
  auto quantity(const YAML::Node& node, const std::string& path, Parse parse) {
    const YAML::Node value = figure(node, path);
    try {
      return parse(value.Scalar());
    } catch (const Error& error) {
      fail(value, path + ": " + error.what());
    }
  }

  Bytes bytes(const YAML::Node& node, const std::string& path) {
    return quantity(node, path, [](const std::string& t) { return parse_bytes(t); });
  }

  BytesPerSecond bandwidth(const YAML::Node& node, const std::string& path) {
    const BytesPerSecond result = quantity(node, path, [](const std::string& t) { return parse_bandwidth(t); });
    if (result == 0) fail(node, path + ": must be above 0");
    return result;
  }

  std::uint32_t count(const YAML::Node& node, const std::string& path, std::uint32_t minimum, std::uint32_t maximum) {
    const YAML::Node value = figure(node, path);
    const std::string& digits = value.Scalar();
    std::uint32_t result = 0;
    const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), result);
    if (error != std::errc() || rest != digits.data() + digits.size() || result < minimum || result > maximum) {
      fail(value, path + ": '" + digits + "' is not a whole number from " + std::to_string(minimum) + " to " +
                      std::to_string(maximum));
    }
    return result;
  }

  TierId tier(const YAML::Node& node, const std::string& path) const {
    const std::string wanted = text(node, path);
    std::vector<std::string> names;
    for (const Tier& candidate : machine_.tiers) {
      if (candidate.name == wanted) return static_cast<TierId>(names.size());
      names.push_back(candidate.name);
    }
    fail(node, path + ": there is no tier '" + wanted + "'; valid are " + join(names));
  }

  // Tiers and links are keys of the same objects in results.
  void claim_name(const YAML::Node& node, const std::string& name_to_claim) {
    for (const Tier& other : machine_.tiers) {
      if (other.name == name_to_claim) fail(node, "'" + name_to_claim + "' is the name of a tier already");
    }
    for (const Link& other : machine_.links) {
      if (other.name == name_to_claim) fail(node, "'" + name_to_claim + "' is the name of a link already");
    }
  }

  void read_tier(const YAML::Node& node) {
    const Keys keys = map(node, "a tier", {"name", "kind", "capacity", "reserved", "granularity", "directories"});
    Tier result;
    result.name = name(require(keys, "name"), "tiers.name");
    claim_name(require(keys, "name"), result.name);
    if (machine_.tiers.size() == max_tiers) fail(node, "more than " + std::to_string(max_tiers) + " tiers");
    const std::string path = "tiers." + result.name + ".";
    result.kind = kind(require(keys, "kind"), path + "kind");
    result.capacity = bytes(require(keys, "capacity"), path + "capacity");
    if (const auto reserved = get(keys, "reserved")) {
      const Bytes taken = bytes(*reserved, path + "reserved");
      if (taken >= result.capacity) fail(*reserved, path + "reserved: leaves nothing of the capacity");
      if (result.capacity != unlimited) result.capacity -= taken;
    }
    if (result.capacity == 0) fail(require(keys, "capacity"), path + "capacity: must be above 0");
    if (const auto granularity = get(keys, "granularity")) {
      result.granularity = bytes(*granularity, path + "granularity");
      if (!std::has_single_bit(result.granularity)) fail(*granularity, path + "granularity: must be a power of two");
    }
    if (const auto directories = get(keys, "directories")) {
      if (result.kind != TierKind::nvme) fail(*directories, path + "directories: only tiers of kind nvme have them");
      each(*directories, path + "directories", [&](const YAML::Node& item) {
        result.directories.push_back(text(item, path + "directories"));
        if (result.directories.back().empty()) fail(item, path + "directories: an empty path");
      });
    }
    machine_.tiers.push_back(std::move(result));
  }

  TierKind kind(const YAML::Node& node, const std::string& path) const {
    const std::string wanted = text(node, path);
    for (const TierKind candidate : {TierKind::gpu, TierKind::cpu, TierKind::nvme}) {
      if (to_string(candidate) == wanted) return candidate;
    }
    fail(node, path + ": unknown kind '" + wanted + "'; valid are gpu, cpu, nvme");
  }

  void read_resource(const YAML::Node& node) {
    const Keys keys = map(node, "a resource", {"name", "bandwidth"});
    Resource result;
    result.name = name(require(keys, "name"), "resources.name");
    for (const Resource& other : machine_.resources) {
      if (other.name == result.name) fail(node, "'" + result.name + "' is the name of a resource already");
    }
    if (machine_.resources.size() == 255) fail(node, "more than 255 resources");
    result.bandwidth = bandwidth(require(keys, "bandwidth"), "resources." + result.name + ".bandwidth");
    machine_.resources.push_back(std::move(result));
  }

  void read_link(const YAML::Node& node) {
    const Keys keys = map(node, "a link", {"name", "from", "to", "bandwidth", "latency", "uses"});
    Link result;
    result.name = name(require(keys, "name"), "links.name");
    claim_name(require(keys, "name"), result.name);
    if (machine_.links.size() == max_links) fail(node, "more than " + std::to_string(max_links) + " links");
    const std::string path = "links." + result.name + ".";
    result.from = tier(require(keys, "from"), path + "from");
    result.to = tier(require(keys, "to"), path + "to");
    if (result.from == result.to) fail(node, "link '" + result.name + "' joins a tier with itself");
    if (machine_.link_between(result.from, result.to) != no_link) {
      fail(node, "a link from " + machine_.tiers[result.from].name + " to " + machine_.tiers[result.to].name +
                     " is there already");
    }
    result.bandwidth = bandwidth(require(keys, "bandwidth"), path + "bandwidth");
    if (const auto latency = get(keys, "latency")) {
      result.latency_ns = quantity(*latency, path + "latency", [](const std::string& t) { return parse_duration(t); });
    }
    if (const auto uses = get(keys, "uses")) {
      each(*uses, path + "uses", [&](const YAML::Node& item) {
        const std::uint8_t used = resource(item, path + "uses");
        if (std::find(result.uses.begin(), result.uses.end(), used) != result.uses.end()) {
          fail(item, path + "uses: '" + item.Scalar() + "' stands twice");
        }
        result.uses.push_back(used);
      });
    }
    machine_.links.push_back(std::move(result));
  }

  std::uint8_t resource(const YAML::Node& node, const std::string& path) const {
    const std::string wanted = text(node, path);
    std::vector<std::string> names;
    for (const Resource& candidate : machine_.resources) {
      if (candidate.name == wanted) return static_cast<std::uint8_t>(names.size());
      names.push_back(candidate.name);
    }
    fail(node, path + ": there is no resource '" + wanted + "'; valid are " + join(names));
  }

  void read_staging(const YAML::Node& node) {
    const Keys keys = map(node, "staging", {"tier", "count", "bytes"});
    machine_.staging.tier = tier(require(keys, "tier"), "staging.tier");
    machine_.staging.count = count(require(keys, "count"), "staging.count", 1, 1'000'000);
    machine_.staging.bytes = bytes(require(keys, "bytes"), "staging.bytes");
    if (machine_.staging.bytes == 0) fail(node, "staging.bytes: must be above 0");
  }

  void read_cpu(const YAML::Node& node) {
    const Keys keys = map(node, "cpu", {"adam_parameters_per_second"});
    const auto rate = get(keys, "adam_parameters_per_second");
    if (!rate) return;
    const std::string path = "cpu.adam_parameters_per_second";
    const YAML::Node value = figure(*rate, path);
    const std::string& digits = value.Scalar();
    double result = 0;
    const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), result);
    if (error != std::errc() || rest != digits.data() + digits.size() || !std::isfinite(result) || result <= 0) {
      fail(value, path + ": '" + digits + "' is not a number above 0, such as 1.5e9");
    }
    machine_.cpu_adam_parameters_per_second = result;
  }

  MachineSpec machine_;
};

}  // namespace

MachineSpec parse_machine(std::string_view text, const std::string& file) {
  YAML::Node root;
  try {
    root = YAML::Load(std::string(text));
  } catch (const YAML::Exception& error) {
    // -1: the whole file.
    const int line = error.mark.line;
    throw Error(file, line < 0 ? 0 : static_cast<std::uint64_t>(line) + 1, "not valid YAML: " + error.msg);
  }
  return MachineReader(file).read(root);
}

}  // namespace tencache
