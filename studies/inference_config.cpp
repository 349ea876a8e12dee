#include "studies/inference_config.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "policies/layers.h"
#include "policies/registry.h"
#include "policies/weight_homes.h"
#include "traces/transform/lower.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

using OrderedJson = nlohmann::ordered_json;

// "model.layers.3" of "model.layers.3.mlp.up_proj.weight", "model.norm" of "model.norm.weight".
std::string module_of(std::string_view weight) {
  const std::string_view layer = layer_of_module(weight);
  if (layer.size() < weight.size()) return std::string(layer);
  return std::string(weight.substr(0, weight.rfind('.')));
}

OrderedJson device_of(const MachineSpec& machine, TierId tier) {
  if (tier == 0) return 0;
  switch (machine.tiers[tier].kind) {
    case TierKind::cpu:
      return "cpu";
    case TierKind::nvme:
      return "disk";
    default:
      throw Error("--accelerate: a device map has one GPU, the CPU and the disk; tier '" + machine.tiers[tier].name +
                  "' is none of them");
  }
}

}  // namespace

WrittenConfig write_device_map(const std::string& policy, const std::map<std::string, std::string>& settings,
                               const Trace& trace, const MachineSpec& machine) {
  if (rank_count(trace) > 1) {
    throw Error("--accelerate: a device map of policy " + policy + " is of one GPU; the trace has several ranks");
  }
  const MadePolicy made = make_policy(policy, settings);
  const Program program = lower(trace, *made.policy, machine);
  const Trace& lowered = program.trace;
  const Layout layout = made.policy->layout(machine, &program);
  OrderedJson map = OrderedJson::object();
  std::size_t chunk = 0;
  std::vector<OrderedJson> devices(lowered.tensors.size());
  for (TensorId id = 0; id < lowered.tensors.size(); ++id) {
    const Tensor& tensor = lowered.tensors[id];
    const std::uint8_t start = layout.start.at(chunk);
    chunk += layout.chunk_bytes == 0 ? 1 : (tensor.bytes + layout.chunk_bytes - 1) / layout.chunk_bytes;
    if (tensor.role != Role::parameter || start == 0) continue;
    devices[id] = device_of(machine, static_cast<TierId>(std::countr_zero(start)));
    map[module_of(lowered.name(tensor))] = devices[id];
  }
  for (const Op& op : lowered.ops) {
    if (op.module == 0) continue;
    for (const TensorId id : lowered.reads(op)) {
      if (devices[id].is_null()) continue;
      const std::string module = module_of(std::string(lowered.module(op)) + ".weight");
      if (!map.contains(module)) map[module] = devices[id];
    }
  }
  return {map.dump(2) + "\n", {}};
}

WrittenConfig write_zero_inference_config(const std::map<std::string, std::string>& settings, const Trace& trace,
                                          const TrainingShape& shape) {
  const auto value = [&](const char* name, const char* standard) {
    const auto at = settings.find(name);
    return at == settings.end() ? std::string(standard) : at->second;
  };
  const std::string bucket = value("bucket", "auto");
  const Bytes bytes = bucket == "auto" ? largest_layer_weight(trace) : parse_bytes(bucket);
  const std::uint64_t elements = bytes / trace.header.element_bytes();
  const bool nvme = value("weights", "cpu") == "nvme";
  OrderedJson offload = {{"device", nvme ? "nvme" : "cpu"}};
  if (nvme) {
    Bytes largest = 0;
    for (const Tensor& tensor : trace.tensors) {
      if (tensor.role == Role::parameter) largest = std::max(largest, tensor.bytes);
    }
    offload["nvme_path"] = "/local_nvme";
    offload["buffer_count"] = 5;
    offload["buffer_size"] = largest / trace.header.element_bytes();
  }
  offload["pin_memory"] = !shape.pageable;
  OrderedJson document;
  if (shape.precision == "fp16" || shape.precision == "bf16") document[shape.precision] = {{"enabled", true}};
  document["train_micro_batch_size_per_gpu"] = std::max<std::uint64_t>(1, shape.micro_batch);
  document["zero_optimization"] = {{"stage", 3},
                                   {"offload_param", std::move(offload)},
                                   {"stage3_prefetch_bucket_size", elements},
                                   {"stage3_max_live_parameters", elements},
                                   {"stage3_max_reuse_distance", 0},
                                   {"stage3_param_persistence_threshold", 0}};
  if (nvme) {
    document["aio"] = {{"block_size", 1048576},
                       {"queue_depth", 8},
                       {"intra_op_parallelism", 1},
                       {"single_submit", false},
                       {"overlap_events", true}};
  }
  return {document.dump(2) + "\n", {}};
}

WrittenConfig write_flexgen_arguments(const std::map<std::string, std::string>& settings, std::uint64_t requests,
                                      std::uint64_t micro_batches) {
  if (settings.at("solve") == "lp") {
    throw Error("--flexgen: with solve=lp the shares are chosen in the run; give --set solve=given");
  }
  std::string text = "--percent";
  for (const char* what : {"weights", "cache", "hidden"}) {
    for (const char* tier : {"_gpu", "_cpu"}) text += " " + settings.at(std::string(what) + tier);
  }
  text += " --gpu-batch-size " + std::to_string(requests) + " --num-gpu-batches " + std::to_string(micro_batches);
  text += " --pin-weight " + std::string(settings.at("pin_weights") == "true" ? "1" : "0");
  return {text + "\n", {}};
}

WrittenConfig write_llama_cpp_arguments(const std::map<std::string, std::string>& settings) {
  std::string text = "-ngl " + settings.at("gpu_layers");
  if (settings.at("cpu_moe") != "0") text += " --n-cpu-moe " + settings.at("cpu_moe");
  if (settings.at("kv_offload") == "false") text += " --no-kv-offload";
  return {text + "\n", {}};
}

}  // namespace tencache
