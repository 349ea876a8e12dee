#include "configs/deepspeed_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string_view>

#include "configs/deepspeed_keys.h"
#include "configs/lenient_json.h"
#include "configs/yaml_layers.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "core/text.h"
#include "core/units.h"
#include "policies/registry.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

using Json = nlohmann::ordered_json;
using namespace deepspeed;

// Names that DeepSpeed once had or also takes.
struct Alias {
  std::string_view section, key, now;
  bool deprecated;
};
constexpr std::array aliases{
    Alias{zero, "prefetch_bucket_size", "stage3_prefetch_bucket_size", false},
    Alias{zero, "max_live_parameters", "stage3_max_live_parameters", false},
    Alias{zero, "max_reuse_distance", "stage3_max_reuse_distance", false},
    Alias{zero, "param_persistence_threshold", "stage3_param_persistence_threshold", false},
    Alias{zero, "model_persistence_threshold", "stage3_model_persistence_threshold", false},
    Alias{zero, "gather_16bit_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save", false},
    Alias{zero, "stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save", true},
    Alias{"aio", "thread_count", "intra_op_parallelism", true},
};

std::vector<std::string> valid_keys(std::string_view section) {
  std::vector<std::string> keys = other_keys(section);
  for (const UsedKey& used : used_keys) {
    if (used.section == section) keys.emplace_back(used.key);
  }
  return keys;
}

bool is_valid(std::string_view section, const std::string& key) {
  return std::ranges::count(valid_keys(section), key) != 0;
}

// Levenshtein's distance.
std::size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

std::optional<std::string> nearest(std::string_view section, std::string key) {
  key = lower_case(key);
  std::ranges::replace(key, '-', '_');
  std::optional<std::string> best;
  std::size_t least = 1 + std::min<std::size_t>(3, key.size() / 4);
  for (const std::string& valid : valid_keys(section)) {
    if (const std::size_t distance = edits(key, valid); distance < least) {
      least = distance;
      best = valid;
    }
  }
  return best;
}

std::string named(std::string_view text) { return "'" + std::string(text) + "'"; }

class Reader {
 public:
  Reader(const std::string& file, std::uint64_t shards, bool any)
      : file_(file), shards_(std::max<std::uint64_t>(1, shards)), any_(any) {}

  // The section is kept apart while keys come and go: references into an ordered map do not survive that.
  DeepSpeedConfig read(Json document) {
    if (!document.is_object()) fail("is no map of keys");
    put_right("", document);
    const std::string section(zero);
    Json stages = document.contains(section) ? document[section] : Json::object();
    document[section] = nullptr;
    move_misplaced(document, stages);
    for (const std::string_view offload : {param, optimizer}) erase_default(stages, std::string(offload));
    replace_deprecated(stages);
    put_right(zero, stages);
    for (const std::string_view offload : {param, optimizer}) {
      if (stages.contains(offload)) put_right(offload, stages[std::string(offload)]);
    }
    erase_default(document, "aio");
    if (document.contains("aio")) put_right("aio", document["aio"]);
    read_stage(stages);
    read_shape(document);
    if (const char* hpz = "zero_hpz_partition_size"; config_.stage == 3 && stages.contains(hpz)) {
      if (const auto ranks = count_of(hpz, stages[hpz]); ranks && *ranks > 1) config_.second_copy_ranks = *ranks;
    }
    document[section] = std::move(stages);
    say_unused(document);
    config_.document = std::move(document);
    return std::move(config_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw Error(file_, 0, what); }
  void warn(std::string text) { config_.warnings.push_back(std::move(text)); }

  // Renames what stands for a valid key; what stands for none goes.
  void put_right(std::string_view section, Json& map) {
    const std::string where = section.empty() ? "" : " in " + std::string(section);
    if (!map.is_object()) fail(named(section) + " is no map of keys");
    Json right = Json::object();
    std::vector<std::pair<std::string, Json>> doubtful;
    for (const auto& [key, value] : map.items()) {
      const auto alias = std::ranges::find_if(
          aliases, [&, &name = key](const Alias& a) { return a.section == section && a.key == name; });
      if (alias != aliases.end()) {
        if (alias->deprecated) warn(named(key) + where + " is deprecated: write " + named(alias->now));
        right[std::string(alias->now)] = value;
      } else if (is_valid(section, key) || is_deprecated(key) || belongs_elsewhere(section, key)) {
        right[key] = value;
      } else {
        doubtful.emplace_back(key, value);
      }
    }
    for (auto& [key, value] : doubtful) {
      const std::optional<std::string> near = nearest(section, key);
      if (near && !right.contains(*near)) {
        warn(named(key) + where + " is no key of DeepSpeed: taken as " + named(*near));
        right[*near] = std::move(value);
      } else {
        warn(named(key) + where + " is no key of DeepSpeed" +
             (near ? ", and " + named(*near) + " is there too" : std::string()) + ": left out");
      }
    }
    map = std::move(right);
  }

  static bool is_deprecated(const std::string& key) { return key.starts_with("cpu_offload"); }
  static bool belongs_elsewhere(std::string_view section, const std::string& key) {
    return (section.empty() && key != "device" && is_valid(zero, key)) || (section == zero && key == "aio") ||
           ((section == param || section == optimizer) && key.starts_with("stage3_") && is_valid(zero, key));
  }

  // Keys of zero_optimization beside it or too deep in it, and aio inside it.
  void move_misplaced(Json& document, Json& stages) {
    if (stages.is_boolean()) {
      warn("'zero_optimization' as a flag is deprecated: it stands for stage 1");
      stages = Json{{"stage", stages.get<bool>() ? 1 : 0}};
    }
    if (!stages.is_object()) fail("'zero_optimization' is no map of keys");
    const auto move = [&](Json& from, const std::string& key, Json& to, const std::string& where) {
      warn(named(key) + " belongs in " + where + ": taken as if it stood there");
      if (!to.contains(key)) to[key] = from[key];
      from.erase(key);
    };
    const auto misplaced = [](const Json& map, std::string_view section) {
      std::vector<std::string> keys;
      for (const auto& [key, value] : map.items()) {
        if (belongs_elsewhere(section, key) && key != "aio") keys.push_back(key);
      }
      return keys;
    };
    for (const std::string& key : misplaced(document, "")) move(document, key, stages, "zero_optimization");
    for (const std::string_view section : {param, optimizer}) {
      if (!stages.contains(section) || !stages[std::string(section)].is_object()) continue;
      Json map = stages[std::string(section)];
      for (const std::string& key : misplaced(map, section)) move(map, key, stages, "zero_optimization");
      stages[std::string(section)] = std::move(map);
    }
    if (stages.contains("aio")) move(stages, "aio", document, "the file itself");
  }

  void replace_deprecated(Json& stages) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : stages.items()) {
      if (is_deprecated(key)) keys.push_back(key);
    }
    for (const std::string& key : keys) {
      const Json value = stages[key];
      stages.erase(key);
      const bool on = flag_of(key, value).value_or(false);
      const bool pinned = key.find("pin") != std::string::npos, params = key.find("param") != std::string::npos;
      const std::string section(params ? param : optimizer);
      warn(named(key) + " is deprecated: write " + named(section) + ": " +
           (pinned ? "{\"pin_memory\": true}" : "{\"device\": \"cpu\"}"));
      if (on && !pinned && !stages.contains(section)) stages[section] = Json{{"device", "cpu"}};
      if (on && pinned && stages.contains(section) && stages[section].is_object()) stages[section]["pin_memory"] = true;
    }
  }

  // ---- Values. None: "auto" or null, which are the default.

  bool is_default(const std::string& key, const Json& value) {
    if (value.is_null()) return true;
    if (value != "auto") return false;
    warn(named(key) + " is \"auto\", which the Trainer fills in: taken as the default");
    return true;
  }

  void erase_default(Json& map, const std::string& section) {
    if (map.contains(section) && is_default(section, map[section])) map.erase(section);
  }

  std::optional<std::uint64_t> count_of(const std::string& key, const Json& value) {
    if (is_default(key, value)) return std::nullopt;
    double number = -1;
    if (value.is_number()) {
      number = value.get<double>();
    } else if (value.is_string()) {
      number = parse_number(value.get_ref<const std::string&>()).value_or(-1);
    }
    constexpr double product = 1000;  // 0.9 × hidden × hidden and the like
    if (number > product && number != std::floor(number)) {
      warn(named(key) + " is " + value.dump() + ", which DeepSpeed refuses by now: taken without its fraction");
      number = std::floor(number);
    }
    if (!(number >= 0) || number != std::floor(number)) {
      fail(named(key) + " is " + value.dump() + "; write a whole number such as 50000000 or 5e7");
    }
    // sys.maxsize and the like: more than any model has.
    return static_cast<std::uint64_t>(std::min(number, 0x1p53));
  }

  std::optional<bool> flag_of(const std::string& key, const Json& value) {
    if (is_default(key, value)) return std::nullopt;
    if (value.is_boolean()) return value.get<bool>();
    if (value == "true" || value == "True" || value == 1) return true;
    if (value == "false" || value == "False" || value == 0) return false;
    fail(named(key) + " is " + value.dump() + "; write true or false");
  }

  std::optional<std::string> device_of(const std::string& section, const Json& value) {
    if (is_default(section + ".device", value)) return std::nullopt;
    for (const char* device : {"none", "cpu", "nvme"}) {
      if (value == device) return device;
    }
    if (value.is_string()) {
      const std::string lower = lower_case(value.get<std::string>());
      if (lower == "none" || lower == "cpu" || lower == "nvme") {
        warn(section + ".device is " + value.dump() + ": taken as " + named(lower));
        return lower;
      }
    }
    fail(section + ".device is " + value.dump() + "; valid are none, cpu, nvme");
  }

  // ---- What they mean.

  static std::string policy_of_stage(std::uint32_t stage) {
    return policies_with([&](const Counterparts& counterparts) { return counterparts.zero_stage == stage; }).at(0);
  }

  void read_stage(Json& stages) {
    const std::uint64_t stage = stages.contains("stage") ? count_of("stage", stages["stage"]).value_or(0) : 0;
    const std::string states = device(stages, optimizer), params = device(stages, param);
    config_.stage = stage;
    if (any_ && states == "none" && (stage < 3 || params == "none")) return;
    if (stage == 3) {
      config_.policy = policy_of_stage(3);
      config_.settings["offload_param"] = params;
      if (states == "none") {
        warn("the optimizer is not offloaded, which " + config_.policy + " cannot: it is simulated on the CPU");
      } else {
        config_.settings["offload_optimizer"] = states;
      }
      for (const UsedKey& used : used_keys) read_key(used, stages);
      return;
    }
    if (states == "none") {
      fail("offloads nothing: zero_optimization needs stage 3, or offload_optimizer with stage 1 or 2");
    }
    if (stage != 1 && stage != 2) {
      fail("stage of zero_optimization is " + (stages.contains("stage") ? stages["stage"].dump() : "missing") +
           "; write 1, 2 or 3: without ZeRO nothing is offloaded");
    }
    config_.policy = policy_of_stage(2);
    if (states == "nvme") warn("stage 1 and 2 offload the optimizer to CPU memory: 'nvme' is taken as 'cpu'");
    if (params != "none") warn("'offload_param' needs stage 3: left out");
  }

  std::string device(Json& stages, std::string_view section) {
    const std::string name(section);
    if (!stages.contains(name) || !stages[name].contains("device")) return "none";
    return device_of(name, stages[name]["device"]).value_or("none");
  }

  void read_key(const UsedKey& used, Json& stages) {
    if (used.kind == Kind::device) return;
    const std::string section(used.section), key(used.key);
    if (used.section != zero && !stages.contains(section)) return;
    Json& map = used.section == zero ? stages : stages[section];
    if (!map.contains(key)) return;
    std::string& setting = config_.settings[std::string(used.option)];
    if (used.kind == Kind::flag) {
      if (const auto value = flag_of(key, map[key])) setting = *value ? "true" : "false";
    } else if (const auto value = count_of(key, map[key])) {
      setting = std::to_string(used.whole ? *value / shards_ : *value);
    }
    if (setting.empty()) config_.settings.erase(std::string(used.option));
  }

  void read_shape(Json& document) {
    for (const auto& [key, name] : {std::pair{"bf16", "bf16"}, {"bfloat16", "bf16"}, {"fp16", "fp16"}}) {
      if (!document.contains(key) || !document[key].is_object() || !document[key].contains("enabled")) continue;
      if (flag_of(std::string(key) + ".enabled", document[key]["enabled"]).value_or(false)) config_.precision = name;
    }
    const char* micro = "train_micro_batch_size_per_gpu";
    if (document.contains(micro)) config_.micro_batch = count_of(micro, document[micro]).value_or(0);
  }

  void say_unused(const Json& document) {
    std::string names;
    const auto add = [&](const std::string& key) { names += (names.empty() ? "" : ", ") + key; };
    for (const auto& [key, value] : document.items()) {
      const bool used = key == zero || key == "bf16" || key == "fp16" || key == "train_micro_batch_size_per_gpu";
      if (!used) add(key);
    }
    const Json& stages = document[std::string(zero)];
    const auto add_section = [&](std::string_view section, const Json& map) {
      for (const auto& [key, value] : map.items()) {
        const bool used = key == "stage" || key == param || key == optimizer || key == "nvme_path" ||
                          (section != zero && key == "device") ||
                          (key == "zero_hpz_partition_size" && config_.second_copy_ranks != 0) ||
                          // Only stage 3 is simulated by its keys: stages 1 and 2 ignore them, but for the bucket,
                          // which takes memory and no time.
                          (config_.stage == 3 && std::ranges::any_of(used_keys, [&, &name = key](const UsedKey& k) {
                             return k.section == section && k.key == name;
                           }));
        if (!used) add(section == zero ? key : std::string(section) + "." + key);
      }
    };
    add_section(zero, stages);
    for (const std::string_view section : {param, optimizer}) {
      if (stages.contains(section)) add_section(section, stages[std::string(section)]);
    }
    if (!names.empty()) warn("what is simulated does not depend on " + names);
  }

  const std::string& file_;
  std::uint64_t shards_;
  bool any_;
  DeepSpeedConfig config_;
};

// ---- Accelerate's YAML.

Json json_of_scalar(const YAML::Node& node) {
  std::uint64_t whole = 0;
  double number = 0;
  bool truth = false;
  if (node.Tag() == "!") return node.Scalar();  // in quotes
  if (YAML::convert<std::uint64_t>::decode(node, whole)) return whole;
  if (YAML::convert<bool>::decode(node, truth)) return truth;
  if (YAML::convert<double>::decode(node, number) && std::isfinite(number)) return number;
  return node.Scalar();
}

// A section of DeepSpeed's settings, or an error that says what the file is instead.
YAML::Node plugin_of(const YAML::Node& root, const std::string& file) {
  const YAML::Node plugin = root.IsMap() ? root["deepspeed_config"] : YAML::Node();
  if (plugin && plugin.IsMap() && plugin.size() > 0) return plugin;
  const YAML::Node fsdp = root.IsMap() ? root["fsdp_config"] : YAML::Node();
  if (fsdp && fsdp.IsMap() && fsdp.size() > 0) {
    throw Error(file, line_of(fsdp),
                "configures FSDP, not DeepSpeed: `tencache fit --with fsdp=" + file +
                    "` judges it, and `tencache tune --fsdp` writes one, of policy " +
                    join(policies_with([](const Counterparts& others) { return others.fsdp != nullptr; })));
  }
  throw Error(file, 0, "has no section deepspeed_config, as Accelerate's YAML has");
}

Json document_of_accelerate(const std::string& text, const std::string& file, std::vector<std::string>& warnings) {
  const YAML::Node root = load_yaml(text, file);
  const YAML::Node plugin = plugin_of(root, file);
  const YAML::Node machines = root["num_machines"];
  if (machines && machines.IsScalar() && machines.Scalar() != "1") {
    warnings.push_back("'num_machines' is " + machines.Scalar() + ": several hosts are not modelled, one is simulated");
  }
  if (plugin["deepspeed_config_file"]) {
    const std::filesystem::path path = plugin["deepspeed_config_file"].Scalar();
    const std::string other = (path.is_absolute() ? path : std::filesystem::path(file).parent_path() / path).string();
    return parse_lenient_json(read_file(other), other);
  }
  Json document = Json::object(), stages = Json::object();
  std::vector<std::string> without_effect;
  for (const auto& entry : plugin) {
    const std::string key = entry.first.Scalar();
    if (!entry.second.IsScalar() || entry.second.Scalar() == "none") continue;
    const Json value = json_of_scalar(entry.second);
    if (key == "zero_stage") {
      stages["stage"] = value;
    } else if (key == "zero3_save_16bit_model") {
      stages["stage3_gather_16bit_weights_on_model_save"] = value;
    } else if (key == "gradient_accumulation_steps" || key == "gradient_clipping" ||
               key == "zero_force_ds_cpu_optimizer") {
      document[key] = value;
    } else {
      bool taken = false;
      for (const std::string_view section : {param, optimizer}) {
        for (const char* part : {"device", "nvme_path"}) {
          if (key != std::string(section) + "_" + part) continue;
          stages[std::string(section)][part] = value;
          taken = true;
        }
      }
      if (!taken) without_effect.push_back(key);
    }
  }
  if (!without_effect.empty()) {
    warnings.push_back("what is simulated does not depend on " + join(without_effect) +
                       ", which only Accelerate reads");
  }
  document[std::string(zero)] = std::move(stages);
  if (root["mixed_precision"] && root["mixed_precision"].IsScalar()) {
    const std::string precision = root["mixed_precision"].Scalar();
    if (precision == "bf16" || precision == "fp16") document[precision] = Json{{"enabled", true}};
  }
  return document;
}

}  // namespace

namespace {

constexpr Bytes maximum_bytes = 16 * MiB;

DeepSpeedConfig parse(const std::string& text, const std::string& file, std::uint64_t shards, bool any) {
  const bool yaml = file.ends_with(".yaml") || file.ends_with(".yml");
  std::vector<std::string> warnings;
  Json document = yaml ? document_of_accelerate(text, file, warnings) : parse_lenient_json(text, file);
  DeepSpeedConfig config = Reader(file, shards, any).read(std::move(document));
  config.warnings.insert(config.warnings.begin(), warnings.begin(), warnings.end());
  return config;
}

}  // namespace

DeepSpeedConfig parse_deepspeed_config(const std::string& text, const std::string& file, std::uint64_t shards) {
  return parse(text, file, shards, false);
}

DeepSpeedConfig read_deepspeed_config(const std::string& file, std::uint64_t shards) {
  return parse(read_file(file, maximum_bytes), file, shards, false);
}

DeepSpeedConfig read_any_deepspeed_config(const std::string& file, std::uint64_t shards) {
  return parse(read_file(file, maximum_bytes), file, shards, true);
}

}  // namespace tencache
