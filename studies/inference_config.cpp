#include "studies/inference_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "configs/generate_settings.h"
#include "core/error.h"
#include "core/reveal.h"
#include "core/schedule.h"
#include "core/units.h"
#include "policies/block_slots.h"
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

// Where a tensor starts, a bit for each tier.
using TensorStart = std::pair<TensorId, std::uint8_t>;

// Of all tensors of which the layout says it; in pieces, of the first one.
std::vector<TensorStart> starts_of(const Trace& trace, const Layout& layout) {
  std::vector<TensorStart> starts;
  std::size_t chunk = 0;
  for (TensorId id = 0; id < trace.tensors.size(); ++id) {
    const std::uint8_t start = layout.start.at(chunk);
    const Bytes bytes = trace.tensors[id].bytes;
    chunk += layout.chunk_bytes == 0 ? 1 : (bytes + layout.chunk_bytes - 1) / layout.chunk_bytes;
    if (start != 0) starts.emplace_back(id, start);
  }
  return starts;
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
  std::vector<OrderedJson> devices(lowered.tensors.size());
  for (const auto& [id, start] : starts_of(lowered, layout)) {
    const Tensor& tensor = lowered.tensors[id];
    if (tensor.role != Role::parameter) continue;
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

WrittenConfig write_llama_cpp_arguments(const std::string& policy, const std::map<std::string, std::string>& settings,
                                        const Trace& trace, const MachineSpec& machine) {
  const MadePolicy made = make_policy(policy, settings);
  const Program program = lower(trace, *made.policy, machine);
  const std::vector<TensorStart> starts = starts_of(program.trace, made.policy->layout(machine, &program));
  std::vector<std::uint8_t> there(program.trace.tensors.size(), 1);
  for (const auto& [id, start] : starts) there[id] = start & 1u;
  std::size_t layers = 0, placed = 0, moved_experts = 0, moved_ffn = 0;
  bool head_on_gpu = true;
  for (const BlockLayer& layer : BlockSlots(program.trace, Schedule(program.trace)).layers) {
    const auto all_there = [&](auto begin, auto end) {
      return std::all_of(begin, end, [&](TensorId id) { return there[id] != 0; });
    };
    const auto begin = layer.weights.begin(), end = layer.weights.end(), ffn = begin + layer.attention_end;
    if (ffn == end) {  // in no layer: token embeddings begin the program, and a tied head has its own copy
      head_on_gpu = all_there(begin, end);
      continue;
    }
    ++layers;
    if (!all_there(begin, ffn)) continue;
    ++placed;
    const bool dense =
        std::none_of(begin, end, [&](TensorId id) { return program.trace.tensors[id].role == Role::expert; });
    if (!all_there(ffn, end)) ++(dense ? moved_ffn : moved_experts);
  }
  const std::size_t below = layers - placed;
  std::string text = "-ngl " + std::to_string(placed + (below == 0 && head_on_gpu ? 1 : 0));
  if (moved_experts != 0) text += " --n-cpu-moe " + std::to_string(below + moved_experts);
  if (moved_ffn != 0) text += " --n-cpu-ffn " + std::to_string(below + moved_ffn);
  if (settings.at("kv_offload") == "false") text += " --no-kv-offload";
  std::string remark = std::to_string(placed) + " of " + std::to_string(layers) + " layers are placed on the GPU";
  if (moved_experts != 0) remark += ", the experts of " + std::to_string(below + moved_experts) + " in CPU memory";
  if (moved_ffn != 0) remark += ", the feed-forward blocks of " + std::to_string(below + moved_ffn) + " in CPU memory";
  if (below == 0) remark += head_on_gpu ? ", and the output" : ", the output is not";
  return {text + "\n", {remark}};
}

namespace {

double offloaded_gib(const std::string& offload) {
  return offload == "none" ? 0 : static_cast<double>(parse_bytes(offload)) / static_cast<double>(GiB);
}

std::string group_arguments(const std::map<std::string, std::string>& settings) {
  const std::string& size = settings.at("group_size");
  const std::string& wanted = settings.at("num_in_group");
  const std::string& in_group = std::stoull(wanted) < std::stoull(size) ? wanted : size;  // more than all are all
  return "--offload-group-size " + size + " --offload-num-in-group " + in_group + " --offload-prefetch-step " +
         settings.at("prefetch_step");
}

}  // namespace

WrittenConfig write_vllm_arguments(const std::map<std::string, std::string>& settings) {
  if (const auto offload = settings.find("cpu_offload"); offload != settings.end()) {
    if (settings.at("copied") == "true") {
      throw Error("--vllm: vLLM reads weights in CPU memory in place, copied=true is SGLang's way; give --sglang");
    }
    return {fmt::format("--cpu-offload-gb {:.6g}\n", offloaded_gib(offload->second)),
            {"--cpu-offload-gb counts in GiB, of each GPU"}};
  }
  return {"--offload-backend prefetch " + group_arguments(settings) +
              (settings.at("experts") == "true" ? " --offload-params experts\n" : "\n"),
          {}};
}

WrittenConfig write_sglang_arguments(const std::map<std::string, std::string>& settings) {
  if (const auto offload = settings.find("cpu_offload"); offload != settings.end()) {
    if (settings.at("copied") != "true") {
      throw Error("--sglang: SGLang copies offloaded weights before each layer; give --set copied=true");
    }
    const double gib = offloaded_gib(offload->second);
    WrittenConfig written{fmt::format("--cpu-offload-gb {:.0f}\n", std::ceil(gib)),
                          {"--cpu-offload-gb counts in GiB, of each GPU"}};
    if (gib != std::ceil(gib)) {
      written.remarks.push_back(fmt::format("SGLang takes whole GiB: more than the best, {:.6g}", gib));
    }
    return written;
  }
  if (settings.at("experts") != "true") {
    throw Error("--sglang: SGLang's offloader by groups moves experts alone; give --set experts=true");
  }
  return {group_arguments(settings) + " --offload-mode cpu\n",
          {"SGLang offloads by groups only models that say how, DeepSeek-V2, V3 and what is built on them"}};
}

std::string no_experts(const std::string& model) {
  return "--ktransformers: '" + model +
         "' has no experts, which KTransformers computes on the CPU; take another policy";
}

WrittenConfig write_ktransformers_arguments(const std::string& policy,
                                            const std::map<std::string, std::string>& settings, const Trace& trace,
                                            const MachineSpec& machine) {
  if (rank_count(trace) > 1) throw Error("--ktransformers: is of one GPU; the trace has several ranks");
  const MadePolicy made = make_policy(policy, settings);
  const Program program = lower(trace, *made.policy, machine);
  const Experts experts(program.trace);
  if (experts.layers() == 0) throw Error(no_experts(trace.header.model));
  std::vector<std::uint8_t> on_gpu(program.trace.tensors.size(), 0);
  for (const auto& [id, start] : starts_of(program.trace, made.policy->layout(machine, &program))) {
    on_gpu[id] = start & 1u;
  }
  std::size_t all = 0, placed = 0;
  for (std::uint32_t layer = 0; layer < experts.layers(); ++layer) {
    all += experts.count_in(layer);
    for (std::size_t i = 0; i < experts.count_in(layer); ++i) {
      placed += std::ranges::all_of(experts.weights_in(layer, i), [&](TensorId id) { return on_gpu[id] != 0; });
    }
  }
  WrittenConfig written;
  // A number is of each layer; of a share KTransformers takes as many whole experts as there are in it.
  if (placed % experts.layers() == 0) {
    written.text = fmt::format("--kt-num-gpu-experts {}", placed / experts.layers());
  } else {
    constexpr double digits = 1e6;
    const double share = static_cast<double>(placed) / static_cast<double>(all);
    written.text = fmt::format("--kt-gpu-experts-ratio {:.6f}", std::ceil(share * digits) / digits);
  }
  const std::string& placement = settings.at("placement");
  const bool dynamic = placement == "dynamic";
  written.text += " --kt-expert-placement-strategy " + (dynamic ? "uniform" : placement);
  if (dynamic) {
    std::uint64_t prompt = unlimited;  // the shortest
    if (const GenerateSettings* const made_with = generate_settings_of(trace.header)) {
      for (const std::uint64_t length : parse_generate_settings(*made_with).sequence_lengths) {
        prompt = std::min(prompt, length);
      }
    }
    written.text += " --kt-enable-dynamic-expert-update --kt-gpu-prefill-token-threshold " +
                    std::to_string(prompt == unlimited ? 1 : prompt);
    written.remarks.emplace_back(
        "experts are placed anew only for prompts of at least that many tokens, which the GPU "
        "then computes alone, layer by layer");
  }
  if (placement == "random") written.remarks.emplace_back("KTransformers draws other experts, with a seed of its own");
  written.text += "\n";
  written.remarks.push_back(
      fmt::format("{} of {} experts in {} layers are placed on the GPU", placed, all, experts.layers()));
  written.remarks.emplace_back(
      "add --kt-weight-path and --kt-method, of the experts' files, --kt-cpuinfer, the number of "
      "cores, and --kt-threadpool-count, of NUMA nodes");
  return written;
}

}  // namespace tencache
