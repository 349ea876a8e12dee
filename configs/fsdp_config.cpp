#include "configs/fsdp_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "core/error.h"
#include "core/text.h"
#include "policies/registry.h"

namespace tencache {
namespace {

using Json = nlohmann::ordered_json;

FsdpSettings fsdp_of(const std::string& policy, const Settings& resolved, const TrainingShape& shape,
                     const LayerShape& layers) {
  const Counterparts counterparts = counterparts_of(policy);
  if (counterparts.fsdp != nullptr) return counterparts.fsdp(resolved, shape.shards, layers);
  const std::vector<std::string> names =
      policies_with([](const Counterparts& others) { return others.fsdp != nullptr; });
  throw Error("policy '" + policy + "' has no counterpart in FSDP; " + join(names) + " have");
}

std::string python_dtype(const std::string& precision) {
  if (precision == "bf16") return "bfloat16";
  return precision == "fp16" ? "float16" : "float32";
}

void say_version_1(const FsdpSettings& fsdp, std::vector<std::string>& remarks) {
  if (fsdp.prefetched > 1) {
    remarks.push_back("FSDP1 prefetches one layer at most; fully_shard as many as it is told");
  }
}

std::string yaml_text(const YAML::Emitter& emitter) { return std::string(emitter.c_str()) + "\n"; }

void emit_common(YAML::Emitter& yaml, const char* type, const TrainingShape& shape, bool precision = true) {
  const bool low = shape.precision == "bf16" || shape.precision == "fp16";
  yaml << YAML::BeginMap << YAML::Key << "compute_environment" << YAML::Value << "LOCAL_MACHINE" << YAML::Key
       << "distributed_type" << YAML::Value << type;
  if (precision) yaml << YAML::Key << "mixed_precision" << YAML::Value << (low ? shape.precision : "no");
  yaml << YAML::Key << "num_machines" << YAML::Value << 1 << YAML::Key << "num_processes" << YAML::Value << shape.ranks;
}

WrittenConfig accelerate_with_deepspeed(std::uint32_t stage, const DeepSpeedDevices& devices,
                                        const TrainingShape& shape, const std::string& deepspeed_file) {
  WrittenConfig written;
  YAML::Emitter yaml;
  // Accelerate refuses mixed_precision beside deepspeed_config_file, which says it.
  emit_common(yaml, "DEEPSPEED", shape, deepspeed_file.empty());
  yaml << YAML::Key << "deepspeed_config" << YAML::Value << YAML::BeginMap;
  const auto add = [&yaml](const std::string& key, const auto& value) {
    yaml << YAML::Key << key << YAML::Value << value;
  };
  if (!deepspeed_file.empty()) {
    add("deepspeed_config_file", deepspeed_file);
  } else {
    add("zero_stage", stage);
    add("gradient_accumulation_steps", shape.accumulation);
    const auto add_device = [&](const std::string& section, const std::string& device) {
      add(section + "_device", device);
      if (device == "nvme") add(section + "_nvme_path", "/local_nvme");
    };
    add_device("offload_optimizer", devices.optimizer);
    if (stage == 3) add_device("offload_param", devices.parameters);
    written.remarks.push_back(
        "Accelerate's own keys name devices only: write --deepspeed F too, and bucket and buffer sizes count");
  }
  if (stage == 3) add("zero3_init_flag", true);
  yaml << YAML::EndMap << YAML::EndMap;
  written.text = yaml_text(yaml);
  return written;
}

}  // namespace

LayerShape layer_shape(const Trace& trace) {
  LayerShape shape;
  std::map<std::string, std::uint64_t, std::less<>> layers;
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.role != Role::parameter || !tensor.persistent) continue;
    const std::uint64_t elements = tensor.bytes / trace.header.element_bytes();
    shape.all += elements;
    const std::string_view name = trace.name(tensor);
    const std::size_t digit = name.find_first_of("0123456789");
    if (digit == std::string_view::npos) continue;
    const std::size_t end = std::min(name.find_first_not_of("0123456789", digit), name.size());
    if (end == name.size()) continue;
    layers[std::string(name.substr(0, end))] += elements;
  }
  for (const auto& [name, elements] : layers) shape.layer = std::max(shape.layer, elements);
  return shape;
}

WrittenConfig write_fsdp_config(const std::string& policy, const Settings& resolved, const TrainingShape& shape,
                                const LayerShape& layers) {
  FsdpSettings fsdp = fsdp_of(policy, resolved, shape, layers);
  const std::string dtype = python_dtype(shape.precision);
  const Json mixed = {{"param_dtype", dtype}, {"reduce_dtype", dtype}};
  say_version_1(fsdp, fsdp.remarks);
  Json version_1 = {{"sharding_strategy", fsdp.reshard ? "FULL_SHARD" : "SHARD_GRAD_OP"},
                    {"cpu_offload", {{"offload_params", fsdp.offload}}},
                    {"backward_prefetch", fsdp.prefetched > 0 ? Json("BACKWARD_PRE") : Json(nullptr)},
                    {"forward_prefetch", fsdp.prefetched > 0},
                    {"limit_all_gathers", true},
                    {"mixed_precision", mixed}};
  Json version_2 = {
      {"reshard_after_forward", fsdp.reshard},
      {"offload_policy", fsdp.offload ? Json{{"class", "CPUOffloadPolicy"}, {"pin_memory", true}} : Json(nullptr)},
      {"mp_policy", mixed},
      {"forward_prefetch_modules", fsdp.prefetched},
      {"backward_prefetch_modules", fsdp.prefetched}};
  const Json document = {{"FullyShardedDataParallel", std::move(version_1)}, {"fully_shard", std::move(version_2)}};
  return {document.dump(2) + "\n", std::move(fsdp.remarks)};
}

WrittenConfig write_accelerate_config(const std::string& policy, const Settings& resolved, const TrainingShape& shape,
                                      const LayerShape& layers, const std::string& deepspeed_file) {
  if (const Counterparts counterparts = counterparts_of(policy); counterparts.zero_stage != 0) {
    return accelerate_with_deepspeed(counterparts.zero_stage, counterparts.deepspeed(resolved), shape, deepspeed_file);
  }
  FsdpSettings fsdp = fsdp_of(policy, resolved, shape, layers);
  say_version_1(fsdp, fsdp.remarks);
  YAML::Emitter yaml;
  emit_common(yaml, "FSDP", shape);
  yaml << YAML::Key << "fsdp_config" << YAML::Value << YAML::BeginMap;
  const auto add = [&yaml](const char* key, const auto& value) { yaml << YAML::Key << key << YAML::Value << value; };
  add("fsdp_version", 1);
  add("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP");
  add("fsdp_sharding_strategy", fsdp.reshard ? "FULL_SHARD" : "SHARD_GRAD_OP");
  add("fsdp_offload_params", fsdp.offload);
  add("fsdp_backward_prefetch", fsdp.prefetched > 0 ? "BACKWARD_PRE" : "NO_PREFETCH");
  add("fsdp_forward_prefetch", fsdp.prefetched > 0);
  add("fsdp_use_orig_params", true);
  yaml << YAML::EndMap << YAML::EndMap;
  return {yaml_text(yaml), std::move(fsdp.remarks)};
}

}  // namespace tencache
