#include "studies/fit_system.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "configs/deepspeed_config.h"
#include "configs/yaml_layers.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "policies/registry.h"
#include "studies/deepspeed_memory.h"
#include "studies/fragment.h"
#include "studies/minimum.h"
#include "studies/parallel.h"
#include "traces/demand.h"
#include "traces/file/file_io.h"
#include "traces/generate/generate.h"
#include "traces/transform/allocations_of.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

std::optional<std::string> setting(const GenerateSettings& settings, const std::string& name) {
  const auto at = std::ranges::find(settings, name, &GenerateSettings::value_type::first);
  return at == settings.end() ? std::nullopt : std::optional(at->second);
}

void put(GenerateSettings& settings, const std::string& name, const std::string& text) {
  const auto at = std::ranges::find(settings, name, &GenerateSettings::value_type::first);
  at == settings.end() ? settings.emplace_back(name, text), void() : void(at->second = text);
}

Workload with(const Workload& workload, const GenerateSettings& settings) {
  Scenario scenario = workload.scenario;
  scenario.trace.generate = settings;
  scenario.trace.loaded.reset();
  scenario.trace.file.clear();
  scenario.machine.loaded = std::make_shared<const MachineSpec>(workload.machine);
  return load_workload(scenario);
}

void set_gpu(MachineSpec& machine, const std::function<Bytes(Bytes)>& change) {
  machine.tiers[0].capacity = change(machine.tiers[0].capacity);
  for (MachineSpec& rank : machine.other_ranks) rank.tiers[0].capacity = change(rank.tiers[0].capacity);
}

Bytes over(Bytes a, Bytes b) { return a > b ? a - b : 0; }

// What PyTorch's allocator reserves of the GPU beyond what is alive, on the first rank.
Bytes unused_reserve(const Trace& trace) {
  constexpr unsigned iterations = 2;
  const FragmentRun run =
      run_fragment(allocations_of({&trace}, {iterations, false}), fragment_allocator("default"), no_fragment_limit);
  return over(run.reserved_peak, run.requested_peak);
}

// The step of PyTorch's AdamW over lists of tensors (torch/optim/adamw.py: _multi_tensor_adamw), of one rank: weights,
// gradients and states are there, and the second moments' roots once more.
Bytes adamw_step_peak(const Trace& rank) {
  Bytes peak = 0;
  std::vector<bool> counted(rank.tensors.size());
  for (TensorId tensor = 0; tensor < rank.tensors.size(); ++tensor) {
    if (!rank.tensors[tensor].persistent) continue;
    peak += rank.tensors[tensor].bytes +
            (rank.tensors[tensor].role == Role::optimizer_state ? rank.tensors[tensor].bytes / 2 : 0);
    counted[tensor] = true;
  }
  for (const Op& op : rank.ops) {
    if (op.phase != Phase::optimizer) continue;
    for (const TensorId tensor : rank.reads(op)) {
      if (!counted[tensor] && rank.tensors[tensor].role == Role::gradient) peak += rank.tensors[tensor].bytes;
      counted[tensor] = true;
    }
  }
  return peak;
}

void take_resident(SystemVerdict& verdict, const Workload& workload, Bytes reserved) {
  Resident all = resident(*workload.trace, workload.machine);
  all.peak_bytes += reserved + unused_reserve(*workload.trace);
  verdict.tiers = {{workload.machine.tiers[0].name, all.peak_bytes, all.capacity_bytes}};
}

// Of the policy's run; `reserved`: GPU memory that the software takes beside it.
void take_policy(SystemVerdict& verdict, const Workload& workload, const std::string& policy,
                 const std::map<std::string, std::string>& settings, Bytes reserved, bool adapts) {
  MachineSpec machine = workload.machine;
  set_gpu(machine, [&](Bytes bytes) { return bytes == unlimited ? bytes : std::max<Bytes>(1, over(bytes, reserved)); });
  const RunLimits limits = limits_of(workload.scenario.iterations);
  const auto peaks = [&](const Outcome& outcome) {
    const std::size_t ranks = std::max<std::size_t>(1, outcome.ranks.size());
    for (std::size_t tier = 0; tier < workload.machine.tiers.size(); ++tier) {
      TierUse use{workload.machine.tiers[tier].name, 0, workload.machine.tiers[tier].capacity};
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const RunResult& result = outcome.ranks.empty() ? outcome.result : outcome.ranks[rank].result;
        use.peak_bytes = std::max(use.peak_bytes, result.peak_bytes[tier]);
      }
      if (tier == 0) use.peak_bytes += reserved;
      verdict.tiers.push_back(use);
    }
  };
  const Outcome outcome = try_policy(*workload.trace, machine, policy, settings, limits, Tried::early);
  if (outcome.result.fits) return peaks(outcome);
  verdict.reason = outcome.result.misfit;
  // What it takes shows where there is enough.
  set_gpu(machine, [](Bytes) { return unlimited; });
  if (const TierId cpu = machine.tier_of(Device::cpu); cpu != no_tier && !adapts) {
    machine.tiers[cpu].capacity = unlimited;
    for (MachineSpec& rank : machine.other_ranks) rank.tiers[cpu].capacity = unlimited;
  }
  const Outcome roomy = try_policy(*workload.trace, machine, policy, settings, limits, Tried::early);
  if (roomy.result.fits && !adapts) return peaks(roomy);
  const Bytes capacity = workload.machine.tiers[0].capacity;
  verdict.tiers = {{workload.machine.tiers[0].name, capacity + outcome.result.misfit_bytes, capacity}};
}

void need_training(const GenerateOptions& options, const std::string& system) {
  if (options.generation) throw Error("--with " + system + ": is for training; this is a text generation");
}
void need_generation(const GenerateOptions& options, const std::string& system) {
  if (!options.generation) throw Error("--with " + system + ": is for text generation; give --new-tokens and --prompt");
}

// ---- DeepSpeed.

// What Hugging Face's Trainer writes for "auto" (transformers/integrations/deepspeed.py).
void fill_auto(const DeepSpeedConfig& config, std::uint64_t hidden, std::uint64_t shards, SystemVerdict& verdict,
               GenerateSettings& settings, std::map<std::string, std::string>& options) {
  const auto& stages = config.document.at("zero_optimization");
  const auto is_auto = [&](const char* key) { return stages.contains(key) && stages[key] == "auto"; };
  const std::uint64_t square = hidden * hidden;
  bool filled = false;
  if (is_auto("reduce_bucket_size")) {
    put(settings, "reduce-bucket", std::to_string(square));
    options["reduce_bucket"] = std::to_string(square / shards);
    filled = true;
  }
  if (config.stage == 3 && is_auto("stage3_prefetch_bucket_size")) {
    options["prefetch_bucket"] = std::to_string(square * 9 / 10 / shards);
    filled = true;
  }
  if (config.stage == 3 && is_auto("stage3_param_persistence_threshold")) {
    options["persistence_threshold"] = std::to_string(10 * hidden / shards);
    filled = true;
  }
  if (filled) verdict.assumed.emplace_back("\"auto\" sizes are as Hugging Face's Trainer fills them, from the width");
}

std::optional<std::uint64_t> count_at(const nlohmann::ordered_json& stages, const char* key) {
  if (!stages.contains(key) || !stages[key].is_number()) return std::nullopt;
  return static_cast<std::uint64_t>(std::max(0.0, stages[key].get<double>()));
}

bool flag_at(const nlohmann::ordered_json& map, const char* key, bool standard) {
  return map.contains(key) && map[key].is_boolean() ? map[key].get<bool>() : standard;
}

// The step's own peak: fp32 copies of the gradients beside weights, 16-bit gradients and states. PyTorch's AdamW, which
// DeepSpeed runs where its file names no optimizer, has the states' denominators once more.
Bytes step_peak(const ModelShape& model, std::uint64_t stage, std::uint64_t ranks, bool own_optimizer) {
  const std::uint64_t part = stage >= 1 && stage < 3 ? std::max<std::uint64_t>(1, ranks) : 1;
  const std::uint64_t updated = model.trained / part;
  return model.parameters * model.element_bytes + model.state_bytes + updated * (model.element_bytes + 4) +
         (own_optimizer ? 0 : updated * 4);
}

void judge_deepspeed(SystemVerdict& verdict, const std::string& file, const Workload& workload,
                     GenerateSettings settings) {
  const GenerateOptions asked = parse_generate_settings(settings);
  need_training(asked, "deepspeed");
  const std::uint64_t ranks = asked.data_parallel;
  DeepSpeedConfig config = read_any_deepspeed_config(file, ranks);
  if (config.stage == 3 && ranks > 1) config = read_any_deepspeed_config(file, ranks);
  for (const std::string& warning : config.warnings) verdict.assumed.push_back(warning);
  const auto& stages = config.document.at("zero_optimization");
  if (!config.precision.empty() && !setting(settings, "precision")) put(settings, "precision", config.precision);
  if (ranks > 1 && asked.zero == 0) put(settings, "zero", std::to_string(config.stage));
  put(settings, "communication", "deepspeed");
  if (const auto bucket = count_at(stages, "reduce_bucket_size")) {
    put(settings, "reduce-bucket", std::to_string(*bucket));
  } else if (config.stage >= 1) {
    put(settings, "reduce-bucket", "500000000");
  }
  if (const auto reuse = count_at(stages, "stage3_max_reuse_distance")) {
    put(settings, "max-reuse-distance", std::to_string(*reuse));
  }
  fill_auto(config, asked.model.hidden, ranks, verdict, settings, config.settings);
  const Workload own = with(workload, settings);
  const GenerateOptions options = parse_generate_settings(settings);
  const ModelShape model = model_shape(*own.trace);
  // On one GPU the generated step has no bucket; stages 1 and 2 have a second one with overlap_comm.
  const Bytes bucket = config.stage == 0 ? 0 : options.reduce_bucket.value_or(0) * model.element_bytes;
  const bool twice = config.stage < 3 && flag_at(stages, "overlap_comm", false);
  Bytes reserved = (ranks == 1 ? bucket : 0) + (twice ? bucket : 0);
  if (const Bytes copy = second_copy_bytes(config.second_copy_ranks, model); copy > 0) {
    reserved += copy;
    verdict.assumed.push_back("zero_hpz_partition_size " + std::to_string(config.second_copy_ranks) +
                              ": a second 16-bit copy, " + format_bytes(copy) + " a GPU");
  }
  const auto& devices = config.settings;
  if (config.policy.empty()) {
    take_resident(verdict, own, reserved);
    const bool own_optimizer = config.document.contains("optimizer");
    const Bytes step = step_peak(model, config.stage, ranks, own_optimizer) + bucket;
    verdict.tiers[0].peak_bytes = std::max(verdict.tiers[0].peak_bytes, step + unused_reserve(*own.trace));
    if (!own_optimizer && config.stage > 0)
      verdict.assumed.emplace_back("the file names no optimizer: PyTorch's AdamW, with temporary copies in its step");
    return;
  }
  std::map<std::string, std::string> policy_settings;
  for (const auto& [name, value] : devices) policy_settings.emplace(name, value);
  if (ranks == 1 && config.stage == 3) policy_settings["reduce_bucket"] = "0";  // it is counted already
  // The allocator's losses are of what comes and goes, which is the same with the states elsewhere.
  take_policy(verdict, own, config.policy, policy_settings, reserved + unused_reserve(*own.trace), false);
  const MadePolicy made = make_policy(config.policy, policy_settings);
  const TierId cpu = own.machine.tier_of(Device::cpu);
  if (const auto memory = deepspeed_memory(config.policy, made.options, model); memory && cpu != no_tier) {
    const bool pinned =
        stages.contains("offload_optimizer") && flag_at(stages["offload_optimizer"], "pin_memory", false);
    const std::string& name = own.machine.tiers[cpu].name;
    const auto at = std::ranges::find(verdict.tiers, name, &TierUse::tier);
    const Bytes bytes = memory->all(pinned);
    if (at == verdict.tiers.end()) {
      verdict.tiers.push_back({name, bytes, own.machine.tiers[cpu].capacity});
    } else {
      at->peak_bytes = std::max(at->peak_bytes, bytes);
    }
    if (pinned) verdict.assumed.emplace_back("pin_memory: page-locked pieces are rounded up to powers of two");
  }
}

// ---- The others.

// Training with PyTorch's own optimizer and data parallelism.
void take_pytorch(SystemVerdict& verdict, const Workload& workload) {
  const GenerateOptions options = parse_generate_settings(workload.scenario.trace.generate);
  const Trace rank = split_ranks(*workload.trace).front();
  // Buckets have all gradients again, unless gradient_as_bucket_view (torch/nn/parallel/distributed.py).
  const bool buckets = options.data_parallel > 1 && options.zero == 0;
  const ModelShape model = model_shape(*workload.trace);
  const Bytes reserved = buckets ? model.trained * model.element_bytes : 0;
  if (buckets) verdict.assumed.emplace_back("DistributedDataParallel's buckets: all gradients once more");
  take_resident(verdict, workload, reserved);
  if (options.optimizer != Optimizer::adamw || options.update != Update::after) return;
  verdict.assumed.emplace_back(
      "PyTorch's AdamW over lists of tensors: its step has one moment once more (fused=True does not)");
  TierUse& gpu = verdict.tiers[0];
  gpu.peak_bytes = std::max(gpu.peak_bytes, adamw_step_peak(rank) + reserved);
}

void judge_fsdp(SystemVerdict& verdict, const std::string& file, const Workload& workload, GenerateSettings settings) {
  const GenerateOptions asked = parse_generate_settings(settings);
  need_training(asked, "fsdp");
  bool offload = false, reshard = true;
  if (!file.empty()) {
    const YAML::Node root = load_yaml(read_file(file, 16 * MiB), file);
    const YAML::Node plugin = root.IsMap() && root["fsdp_config"] ? root["fsdp_config"] : root;
    if (!plugin.IsMap()) throw Error(file, 0, "has no section fsdp_config, as Accelerate's YAML has");
    const YAML::Node deepspeed = root["deepspeed_config"];
    if (root["zero_optimization"] || (deepspeed && deepspeed.IsMap() && deepspeed.size() > 0)) {
      throw Error(file, 0, "configures DeepSpeed, not FSDP: give it as --with deepspeed=" + file);
    }
    const auto is = [&](const char* key, bool standard) {
      return plugin[key] && plugin[key].IsScalar() ? plugin[key].Scalar() == "true" || plugin[key].Scalar() == "True"
                                                   : standard;
    };
    offload = is("fsdp_offload_params", false);
    reshard = is("fsdp_reshard_after_forward", true);
    if (plugin["fsdp_sharding_strategy"] && plugin["fsdp_sharding_strategy"].IsScalar()) {
      const std::string strategy = plugin["fsdp_sharding_strategy"].Scalar();
      reshard = strategy == "FULL_SHARD" || strategy == "1" || strategy == "HYBRID_SHARD";
    }
    const YAML::Node precision = root["mixed_precision"];
    const std::string named = precision && precision.IsScalar() ? precision.Scalar() : "";
    if ((named == "bf16" || named == "fp16") && !setting(settings, "precision")) put(settings, "precision", named);
  }
  if (asked.data_parallel > 1) {
    put(settings, "zero", "3");
    // Gathered once and kept is what DeepSpeed's reuse distance does without a limit.
    put(settings, "communication", reshard ? "fsdp" : "deepspeed");
    if (!reshard) {
      put(settings, "max-reuse-distance", "9000000000000000");
      put(settings, "reduce-bucket", "0");
    }
  }
  const Workload own = with(workload, settings);
  if (!offload) return take_pytorch(verdict, own);
  verdict.assumed.emplace_back(
      "fsdp_offload_params: parameters, gradients and optimizer are on the CPU, which updates");
  take_policy(verdict, own, "zero-infinity",
              {{"max_reuse_distance", "0"}, {"persistence_threshold", "0"}, {"reduce_bucket", "0"}},
              unused_reserve(*own.trace), false);
}

void judge_accelerate(SystemVerdict& verdict, const std::string& file, const Workload& workload,
                      const GenerateSettings& settings) {
  if (!file.empty()) {
    const YAML::Node root = load_yaml(read_file(file, 16 * MiB), file);
    const bool map = root.IsMap();
    if (map && root["num_machines"] && root["num_machines"].IsScalar() && root["num_machines"].Scalar() != "1")
      verdict.assumed.push_back("num_machines " + root["num_machines"].Scalar() + ": several hosts are not modelled");
    if (map && root["deepspeed_config"] && root["deepspeed_config"].IsMap() && root["deepspeed_config"].size() > 0)
      return judge_deepspeed(verdict, file, workload, settings);
    if (map && root["fsdp_config"] && root["fsdp_config"].IsMap() && root["fsdp_config"].size() > 0)
      return judge_fsdp(verdict, file, workload, settings);
  }
  const GenerateOptions options = parse_generate_settings(settings);
  if (options.generation) return take_policy(verdict, workload, "accelerate", {}, 0, true);
  verdict.assumed.emplace_back(
      "Accelerate by itself offloads nothing in training: give its YAML with DeepSpeed or FSDP");
  take_pytorch(verdict, workload);
}

void judge_llama_cpp(SystemVerdict& verdict, const Workload& workload, GenerateSettings settings) {
  need_generation(parse_generate_settings(settings), "llama.cpp");
  put(settings, "placeable", "all");
  put(settings, "order", "row");
  take_policy(verdict, with(workload, settings), "llama-cpp", {}, 0, true);
}

void judge_vllm(SystemVerdict& verdict, const Workload& workload, const GenerateSettings& settings) {
  need_generation(parse_generate_settings(settings), "vllm");
  take_resident(verdict, workload, 0);
  TierUse& gpu = verdict.tiers[0];
  constexpr Bytes percent = 90;
  gpu.capacity_bytes = gpu.capacity_bytes / 100 * percent;
  verdict.assumed.emplace_back(
      "gpu_memory_utilization 0.9, weights and the requests' KV cache within it, nothing offloaded");
}

void judge_torchtune(SystemVerdict& verdict, const Workload& workload, GenerateSettings settings) {
  const GenerateOptions asked = parse_generate_settings(settings);
  need_training(asked, "torchtune");
  if (!setting(settings, "loss")) put(settings, "loss", "chunked");
  if (!setting(settings, "master")) put(settings, "master", "off");
  if (asked.data_parallel > 1) {
    put(settings, "zero", "3");
    put(settings, "communication", "fsdp");
  }
  verdict.assumed.emplace_back("pure 16-bit training, the loss in chunks, as its recipes have it");
  take_resident(verdict, with(workload, settings), 0);
}

// ---- Changes.

struct CandidateChange {
  std::string flag;
  GenerateSettings settings;
  std::string policy;            // empty: nothing is offloaded
  std::optional<Workload> made;  // where it was generated already
};

double tokens_of(const GenerateOptions& options) {
  if (options.generation) return static_cast<double>(options.batch * options.generation->new_tokens);
  double length = 0;
  for (const std::uint64_t each : options.sequence_lengths) length += static_cast<double>(each);
  return static_cast<double>(options.batch) * length /
         static_cast<double>(std::max<std::size_t>(1, options.sequence_lengths.size()));
}

// Of one axis: the first of the halvings that fits, or the last.
void add_halvings(const Workload& workload, const GenerateSettings& settings, const std::string& name,
                  std::uint64_t value, std::uint64_t least, const std::function<std::string(std::uint64_t)>& text,
                  std::vector<CandidateChange>& candidates) {
  std::vector<CandidateChange> halvings;
  while (value / 2 >= least && value % 2 == 0) {
    value /= 2;
    halvings.push_back({"--" + name + " " + text(value), settings, "", {}});
    put(halvings.back().settings, name, text(value));
  }
  if (halvings.empty()) return;
  const auto fits = [&](CandidateChange& halving) {
    halving.made = with(workload, halving.settings);
    const bool is_resident = resident(*halving.made->trace, halving.made->machine).fits;
    if (!is_resident && &halving != &halvings.back()) halving.made.reset();  // its trace is large
    return is_resident;
  };
  // Half of what fits does, so a few of them tell.
  const auto first = std::ranges::partition_point(halvings, [&](CandidateChange& halving) { return !fits(halving); });
  candidates.push_back(std::move(first == halvings.end() ? halvings.back() : *first));
}

// Whether the policy's own software has the CPU memory that it takes at its start, whatever a simulation moves to
// storage.
bool software_fits(const Workload& workload, const std::string& policy) {
  const auto memory = deepspeed_memory(policy, make_policy(policy).options, model_shape(*workload.trace));
  const TierId cpu = workload.machine.tier_of(Device::cpu);
  return !memory || cpu == no_tier || memory->all(false) <= workload.machine.tiers[cpu].capacity;
}

std::vector<CandidateChange> candidates_of(const Workload& workload, const GenerateSettings& settings,
                                           const GenerateOptions& options) {
  std::vector<CandidateChange> candidates;
  const auto add = [&](const GenerateSettings& changes, const std::string& policy = "") {
    CandidateChange candidate{policy.empty() ? "" : "-p " + policy, settings, policy, {}};
    for (const auto& [name, text] : changes) {
      if (name == "attention" || name == "recompute" || !setting(settings, name) || setting(settings, name) != text) {
        candidate.flag += (candidate.flag.empty() ? "--" : " --") + name + " " + text;
        put(candidate.settings, name, text);
      }
    }
    if (candidate.settings == settings) candidate.made = workload;
    candidates.push_back(std::move(candidate));
  };
  if (options.generation) {
    const std::uint64_t micro = options.micro_batches;
    add_halvings(
        workload, settings, "block", options.batch / micro, 1,
        [&](std::uint64_t n) { return std::to_string(n) + "x" + std::to_string(micro); }, candidates);
    if (options.sequence_lengths.size() == 1 && setting(settings, "prompt"))
      add_halvings(
          workload, settings, "prompt", options.sequence_lengths[0], 128,
          [](std::uint64_t n) { return std::to_string(n); }, candidates);
    if (options.weights == nullptr) {
      for (const char* format : {"fp8", "awq"}) add({{"weights", format}});
    }
    add({}, "accelerate");
    add({{"placeable", "all"}}, "llama-cpp");
    return candidates;
  }
  const std::uint64_t parts = options.micro_batches * options.data_parallel;
  const bool plain = options.recompute == Recompute::none;
  if (options.batch % parts == 0 && !options.forward_only)
    add_halvings(
        workload, settings, "batch", options.batch, parts, [](std::uint64_t n) { return std::to_string(n); },
        candidates);
  if (options.sequence_lengths.size() == 1 && setting(settings, "seq"))
    add_halvings(
        workload, settings, "seq", options.sequence_lengths[0], 128, [](std::uint64_t n) { return std::to_string(n); },
        candidates);
  if (options.forward_only) return candidates;
  if (options.attention == AttentionKind::materialised) add({{"attention", "flash"}});
  if (plain) add({{"recompute", "block"}});
  GenerateSettings again = plain ? GenerateSettings{{"recompute", "block"}} : GenerateSettings();
  const auto with_recompute = [&](GenerateSettings changes) {
    changes.insert(changes.end(), again.begin(), again.end());
    return changes;
  };
  if (options.lora_rank == 0 && options.weights == nullptr && facts_of(options.model.family).trained) {
    if (options.optimizer == Optimizer::adamw) add(with_recompute({{"optimizer", "adam8bit"}}));
    add(with_recompute({{"lora-rank", "16"}}));
    add(with_recompute({{"lora-rank", "16"}, {"weights", "nf4"}}));
  } else if (options.weights == nullptr) {
    add(with_recompute({{"weights", "nf4"}}));
  }
  add({}, "zero-offload");
  add({}, "zero-infinity");
  if (plain) {
    add(again, "zero-offload");
    add(again, "zero-infinity");
  }
  return candidates;
}

}  // namespace

Resident resident(const Trace& trace, const MachineSpec& machine) {
  Resident worst;
  std::size_t rank = 0;
  for (const Demand& demand : demands_of(trace, machine.tiers.front().granularity)) {
    const Bytes capacity = machine.of_rank(std::min(rank++, machine.rank_count() - 1)).tiers.front().capacity;
    const Resident one{demand.peak.bytes <= capacity, demand.peak.bytes, capacity, over(demand.peak.bytes, capacity)};
    if (rank == 1 || one.missing_bytes > worst.missing_bytes ||
        (one.missing_bytes == worst.missing_bytes && one.peak_bytes > worst.peak_bytes)) {
      worst = one;
    }
  }
  return worst;
}

bool says_what_fits(const std::string& policy) {
  constexpr std::array no{"ideal", "on-demand", "lru", "fifo", "lfu", "belady", "deepum"};
  return std::ranges::find(no, policy) == no.end();
}

std::string spread_over_gpus(Scenario& scenario, const std::string& with) {
  const std::string system = with.substr(0, with.find('='));
  const bool launches = system == "deepspeed" || system == "fsdp" || (system == "accelerate" && system != with);
  GenerateSettings& settings = scenario.trace.generate;
  if (!launches || settings.empty()) return "";
  for (const char* divided : {"data-parallel", "tensor-parallel", "pipeline-parallel", "new-tokens"}) {
    if (setting(settings, divided)) return "";
  }
  const std::size_t gpus = load_machine(scenario.machine).rank_count();
  if (gpus == 1) return "";
  const std::string count = std::to_string(gpus);
  if (const auto batch = setting(settings, "batch")) {
    const std::optional<std::uint64_t> sequences = parse_number<std::uint64_t>(*batch);
    if (sequences && *sequences % gpus != 0) {
      throw Error("--batch " + *batch + ": is over all ranks, and " + system + " runs on all " + count +
                  " GPUs; give a multiple of " + count + ", or --data-parallel 1 for one GPU");
    }
  }
  put(settings, "data-parallel", count);
  if (!setting(settings, "zero")) {
    const std::string file = with.substr(std::min(with.size(), system.size() + 1));
    const bool reads = system == "deepspeed" && !file.empty();
    const std::uint64_t stage = reads ? read_any_deepspeed_config(file, gpus).stage : system == "fsdp" ? 3 : 0;
    if (stage > 0) put(settings, "zero", std::to_string(stage));
  }
  return system + " runs on all " + count + " GPUs (--data-parallel 1: on one)";
}

SystemVerdict judge_system(const std::string& with, const Workload& workload) {
  const std::size_t equals = with.find('=');
  const std::string name = with.substr(0, equals), file = equals == with.npos ? "" : with.substr(equals + 1);
  const GenerateSettings settings = workload.scenario.trace.generate;
  SystemVerdict verdict;
  verdict.system = name;
  const auto need_model = [&] {
    if (settings.empty())
      throw Error("--with " + name + ": needs --model, as that software decides how the step is run");
  };
  const auto no_file = [&] {
    if (!file.empty()) throw Error("--with " + name + ": takes no file");
    need_model();
  };
  if (name == "deepspeed") {
    need_model();
    if (file.empty()) throw Error("--with deepspeed: name its file, as --with deepspeed=ds.json");
    judge_deepspeed(verdict, file, workload, settings);
  } else if (name == "accelerate") {
    need_model();
    judge_accelerate(verdict, file, workload, settings);
  } else if (name == "fsdp") {
    need_model();
    judge_fsdp(verdict, file, workload, settings);
  } else if (name == "llama.cpp") {
    no_file();
    judge_llama_cpp(verdict, workload, settings);
  } else if (name == "vllm") {
    no_file();
    judge_vllm(verdict, workload, settings);
  } else if (name == "torchtune") {
    no_file();
    judge_torchtune(verdict, workload, settings);
  } else {
    throw Error("--with " + name +
                ": its rules are not known; there are deepspeed=FILE, accelerate[=FILE], "
                "fsdp[=FILE], llama.cpp, vllm, torchtune");
  }
  const TierUse* decides = &verdict.tiers.front();
  for (const TierUse& use : verdict.tiers) {
    if (over(use.peak_bytes, use.capacity_bytes) > over(decides->peak_bytes, decides->capacity_bytes)) decides = &use;
  }
  verdict.tier = decides->tier;
  verdict.peak_bytes = decides->peak_bytes;
  verdict.missing_bytes = over(decides->peak_bytes, decides->capacity_bytes);
  verdict.fits = verdict.missing_bytes == 0 && !verdict.reason;
  if (verdict.fits) return verdict;
  if (!verdict.reason) {
    verdict.reason =
        verdict.tier + ": " + format_bytes(verdict.peak_bytes) + " of " + format_bytes(decides->capacity_bytes);
  }
  return verdict;
}

std::vector<FitChange> changes_that_help(const Workload& workload) {
  const GenerateSettings& settings = workload.scenario.trace.generate;
  if (settings.empty()) return {};
  const GenerateOptions options = parse_generate_settings(settings);
  const std::vector<CandidateChange> candidates = candidates_of(workload, settings, options);
  const RunLimits limits = limits_of(0);
  const auto seconds_of = [&](const Workload& of, const std::string& policy, const GenerateSettings& with) {
    const Outcome outcome = try_policy(*of.trace, of.machine, policy, {}, limits, Tried::early);
    if (!outcome.result.fits) return 0.0;
    return outcome.result.iteration_seconds() / tokens_of(parse_generate_settings(with));
  };
  const double asked = seconds_of(workload, "ideal", settings);
  std::vector<FitChange> changes(candidates.size());
  on_all_cores(candidates.size(), [&](std::size_t i) {
    const CandidateChange& candidate = candidates[i];
    changes[i].flag = candidate.flag;
    try {
      const Workload changed = candidate.made ? *candidate.made : with(workload, candidate.settings);
      const bool alone = candidate.policy.empty();
      if (alone && !resident(*changed.trace, changed.machine).fits) return;
      const double seconds = seconds_of(changed, alone ? "ideal" : candidate.policy, candidate.settings);
      changes[i].fits = seconds > 0 && (alone || software_fits(changed, candidate.policy));
      if (seconds > 0 && asked > 0) changes[i].slowdown = seconds / asked;
    } catch (const Error&) {  // settings that do not go together help nobody
    }
  });
  std::ranges::stable_sort(
      changes, {}, [](const FitChange& change) { return std::pair(!change.fits, change.slowdown.value_or(0)); });
  return changes;
}

}  // namespace tencache
