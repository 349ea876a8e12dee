#include <charconv>

#include "configs/deepspeed_config.h"
#include "configs/deepspeed_keys.h"
#include "core/error.h"
#include "core/text.h"
#include "policies/registry.h"

namespace tencache {
namespace {

using Json = nlohmann::ordered_json;
using Settings = std::map<std::string, std::string>;
using namespace deepspeed;

constexpr const char* default_nvme_path = "/local_nvme";

Json count_json(const std::string& text) {
  double number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return static_cast<std::uint64_t>(number);
}

// Where nothing says what pageable memory costs, pinning is the base's choice, if there is room for it; else it is
// asked for, and the answer is true.
bool write_pinning(const Settings& resolved, const TrainingShape& shape, const std::string& name, Json& offload,
                   std::vector<std::string>& remarks) {
  if (!shape.why_not_pinned.empty()) {
    offload["pin_memory"] = false;
  } else if (shape.pageable) {
    offload["pin_memory"] = resolved.at("pin_memory") == "true";
  } else if (!offload.contains("pin_memory")) {
    offload["pin_memory"] = true;
    return true;
  } else if (offload["pin_memory"] == false) {
    remarks.push_back(name + ".pin_memory is false, as it was; the machine has pinned memory only, which is faster");
  }
  return false;
}

void write_keys(const Settings& resolved, const TrainingShape& shape, Json& stages, std::vector<std::string>& remarks) {
  const auto is_nvme = [&](std::string_view section) { return resolved.at(std::string(section)) == "nvme"; };
  std::string pinned;  // sections, whatever the settings say
  for (const std::string_view section : {param, optimizer}) {
    const std::string name(section);
    const std::string& device = resolved.at(name);
    if (device == "none") {
      stages.erase(name);
      continue;
    }
    stages[name]["device"] = device;
    if (device == "nvme" && !stages[name].contains("nvme_path")) stages[name]["nvme_path"] = default_nvme_path;
    if (write_pinning(resolved, shape, name, stages[name], remarks)) pinned += (pinned.empty() ? "" : " and ") + name;
  }
  if (!pinned.empty() && resolved.at("pin_memory") == "false") {
    remarks.push_back("pin_memory of " + pinned +
                      " is written as true: the machine file does not say what memory that is not pinned costs");
  }
  for (const UsedKey& used : used_keys) {
    const std::string section(used.section), key(used.key), value = resolved.at(std::string(used.option));
    // What only NVMe needs is left out elsewhere.
    if (used.kind == Kind::device || key == "pin_memory") continue;
    if (used.section != zero && !is_nvme(used.section)) {
      if (stages.contains(section)) stages[section].erase(key);
      continue;
    }
    Json& map = used.section == zero ? stages : stages[section];
    if (used.kind == Kind::flag) {
      map[key] = value == "true";
    } else {
      map[key] = used.whole ? Json(count_json(value).get<std::uint64_t>() * shape.shards) : count_json(value);
    }
  }
}

// A batch that the base says stays. "auto" is none that differs.
void write_batch(const TrainingShape& shape, Json& document, std::vector<std::string>& remarks) {
  const std::string micro = "train_micro_batch_size_per_gpu", accumulation = "gradient_accumulation_steps",
                    whole = "train_batch_size";
  if (!document.contains(micro) && !document.contains(whole)) {
    if (shape.micro_batch == 0) {
      remarks.push_back("the trace does not say its batch: add " + micro);
      return;
    }
    document[micro] = shape.micro_batch;
    if (!document.contains(accumulation)) document[accumulation] = shape.accumulation;
  }
  const auto compare = [&](const std::string& key, std::uint64_t traced) {
    if (traced == 0 || !document.contains(key) || !document[key].is_number()) return;
    if (document[key].get<double>() == static_cast<double>(traced)) return;
    remarks.push_back(key + " stays " + document[key].dump() + "; the trace has " + std::to_string(traced));
  };
  compare(micro, shape.micro_batch);
  compare(accumulation, shape.accumulation);
  // Depends on the ranks: where the others are there, they say it.
  if (!document.contains(micro)) compare(whole, shape.micro_batch * shape.accumulation * shape.data_parallel);
}

void write_shape(const TrainingShape& shape, Json& document, std::vector<std::string>& remarks) {
  const std::string& precision = shape.precision;
  // "auto" is the Trainer's, which is told the precision elsewhere.
  for (const char* key : {"bf16", "bfloat16", "fp16"}) {
    const Json& section = document.contains(key) ? document[key] : Json();
    if (!section.is_object() || section.value("enabled", Json()) != "auto") continue;
    if (!precision.empty() && precision != key) {
      remarks.push_back(std::string(key) + ".enabled stays \"auto\"; the trace is of " + precision);
    }
    return write_batch(shape, document, remarks);
  }
  if (precision == "bf16" || precision == "fp16" || precision == "fp32" || precision == "tf32") {
    for (const char* other : {"bf16", "bfloat16", "fp16"}) {
      if (precision != other) document.erase(other);
    }
  }
  if (precision == "bf16" || precision == "fp16") {
    if (!document.contains(precision)) document[precision] = Json::object();
    document[precision]["enabled"] = true;
  }
  write_batch(shape, document, remarks);
}

}  // namespace

WrittenConfig write_deepspeed_config(const std::string& policy, const Settings& resolved, const TrainingShape& shape,
                                     const Json& base) {
  const Counterparts counterparts = counterparts_of(policy);
  if (counterparts.zero_stage == 0) {
    const std::vector<std::string> names =
        policies_with([](const Counterparts& others) { return others.zero_stage != 0; });
    throw Error("policy '" + policy + "' is none that DeepSpeed has; it has " + join(names));
  }
  const DeepSpeedDevices devices = counterparts.deepspeed(resolved);
  WrittenConfig written;
  Json document = base.is_object() ? base : Json::object();
  write_shape(shape, document, written.remarks);
  Json& stages = document[std::string(zero)];
  if (!stages.is_object()) stages = Json::object();
  stages["stage"] = counterparts.zero_stage;
  if (counterparts.zero_stage == 3) {
    write_keys(resolved, shape, stages, written.remarks);
    const bool nvme = devices.parameters == "nvme" || devices.optimizer == "nvme";
    if (nvme && !document.contains("aio")) {
      document["aio"] = {{"block_size", 1048576},
                         {"queue_depth", 8},
                         {"intra_op_parallelism", 1},
                         {"single_submit", false},
                         {"overlap_events", true}};
      written.remarks.push_back(
          "aio holds DeepSpeed's defaults: the model takes NVMe as fast as the machine file says");
    }
    if (nvme) written.remarks.push_back("set nvme_path to the file system of the NVMe");
  } else {
    if (!stages.contains(optimizer)) stages[std::string(optimizer)] = {{"pin_memory", true}};
    if (!shape.why_not_pinned.empty()) stages[std::string(optimizer)]["pin_memory"] = false;
    stages[std::string(optimizer)]["device"] = devices.optimizer;
  }
  written.remarks.insert(written.remarks.end(), devices.remarks.begin(), devices.remarks.end());
  if (!shape.why_not_pinned.empty()) written.remarks.push_back("pin_memory is false: " + shape.why_not_pinned);
  written.text = document.dump(2) + "\n";
  return written;
}

}  // namespace tencache
