#include "studies/kv_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "configs/generate_settings.h"
#include "configs/model_yaml.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "studies/parallel.h"
#include "studies/workload.h"

namespace tencache {
namespace {

constexpr ByKvTier<const char*> size_options = {"--gpu-cache", "--cpu-cache", "--ssd-cache"};

// The prefill of one prompt, with the kernels of inference engines.
Trace prefill_trace(const ModelDescription& model, const std::string& gpu, std::uint64_t tokens) {
  return generate_trace(
      {{"gpu", gpu}, {"stack", "fused"}, {"new-tokens", "1"}, {"prompt", std::to_string(tokens)}, {"kv-page", "whole"}},
      &model);
}

PrefillCost prefill_cost(const ModelDescription& model, const std::string& gpu, std::uint64_t longest) {
  std::vector<double> seconds;
  for (std::uint64_t tokens = 1;; tokens *= 2) {
    double sum = 0;
    for (const Op& op : prefill_trace(model, gpu, tokens).ops) sum += to_seconds(op.duration_ns + op.gap_before_ns);
    seconds.push_back(sum);
    if (tokens >= longest) return PrefillCost(std::move(seconds));
  }
}

Bytes kv_bytes(const ModelDescription& model, const std::string& gpu, std::uint64_t tokens) {
  Bytes sum = 0;
  for (const Tensor& tensor : prefill_trace(model, gpu, tokens).tensors) {
    if (tensor.role == Role::kv_cache) sum += tensor.bytes;
  }
  return sum;
}

// Of the slowest link between; 0: there is no way.
BytesPerSecond bandwidth_between(const MachineSpec& machine, TierId from, TierId to) {
  BytesPerSecond slowest = 0;
  for (const LinkId link : machine.path_between(from, to)) {
    const BytesPerSecond bandwidth = machine.links[link].bandwidth;
    slowest = slowest == 0 ? bandwidth : std::min(slowest, bandwidth);
  }
  return slowest;
}

ByKvTier<BytesPerSecond> bandwidths_of(const MachineSpec& machine) {
  ByKvTier<BytesPerSecond> found{};
  const TierId cpu = machine.tier_of(Device::cpu);
  if (cpu != no_tier) found[1] = bandwidth_between(machine, cpu, 0);
  const auto nvme = std::ranges::find(machine.tiers, TierKind::nvme, &Tier::kind);
  if (nvme == machine.tiers.end()) return found;
  const auto ssd = static_cast<TierId>(nvme - machine.tiers.begin());
  found[2] = bandwidth_between(machine, ssd, 0);
  if (found[2] == 0 && cpu != no_tier) {
    found[2] = std::min(found[1], bandwidth_between(machine, ssd, cpu));
  }
  return found;
}

double seconds_of(Bytes bytes, BytesPerSecond bandwidth) {
  return bandwidth == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(bandwidth);
}

std::uint64_t endless_hits(const BlockTrace& trace) { return trace.blocks().size() - trace.different_blocks(); }

}  // namespace

std::uint64_t parse_kv_size(const std::string& text, const std::string& option, const BlockTrace& trace,
                            Bytes block_bytes) {
  if (text == "unlimited") return trace.different_blocks();
  if (text.ends_with('%')) {
    const auto share = parse_number<double>(text.substr(0, text.size() - 1));
    if (!share || !(*share > 0 && *share <= 100)) {
      throw Error(option + ": '" + text + "' is no share of the different blocks such as 10%");
    }
    return std::max<std::uint64_t>(1, std::llround(static_cast<double>(trace.different_blocks()) * *share / 100));
  }
  Bytes bytes = 0;
  try {
    bytes = parse_capacity(text);
  } catch (const Error& error) {
    throw Error(option + ": " + error.what() + "; or a share of the different blocks such as 10%");
  }
  if (bytes < block_bytes) {
    throw Error(fmt::format("{}: {} is less than one block, {}: give more", option, text, format_bytes(block_bytes)));
  }
  return std::min<std::uint64_t>(bytes / block_bytes, trace.different_blocks());
}

KvStudy study_kv_cache(const BlockTrace& trace, const KvRequest& request) {
  if (request.warm_up >= trace.requests()) {
    throw Error(fmt::format("--warm-up {}: the trace has {} requests, so that none is left to count", request.warm_up,
                            trace.requests()));
  }
  ModelDescription model = read_model(request.model);
  const MachineSpec machine = load_machine(request.machine);
  if (machine.gpu.empty()) {
    throw Error("machine '" + machine.name + "' names no GPU of `tencache gpus`, so prefill has no time: name another");
  }
  KvStudy study;
  study.model = model.name;
  study.gpu = machine.gpu;
  study.machine = machine.name;
  study.model_longest = std::exchange(model.max_sequence, 0);
  study.bandwidth = bandwidths_of(machine);
  study.block_bytes =
      kv_bytes(model, machine.gpu, 2 * trace.block_tokens()) - kv_bytes(model, machine.gpu, trace.block_tokens());
  if (study.block_bytes == 0) throw Error("model '" + model.name + "' keeps no keys and values: name another");

  KvCosts costs;
  costs.prefill = prefill_cost(model, machine.gpu, trace.longest_input());
  std::vector<ByKvTier<std::uint64_t>> sizes = {{}};
  for (std::size_t tier = 0; tier < kv_tiers; ++tier) {
    if (request.sizes[tier].empty()) continue;
    if (tier > 0 && study.bandwidth[tier] == 0) {
      throw Error(fmt::format("{}: machine '{}' has no {} with a way to its GPU: name another machine",
                              size_options[tier], machine.name, tier == 1 ? "CPU memory" : "SSD"));
    }
    costs.block_seconds[tier] = seconds_of(study.block_bytes, study.bandwidth[tier]);
    const std::vector<ByKvTier<std::uint64_t>> before = std::move(sizes);
    sizes.clear();
    for (ByKvTier<std::uint64_t> one : before) {
      for (const std::string& text : request.sizes[tier]) {
        one[tier] = parse_kv_size(text, size_options[tier], trace, study.block_bytes);
        sizes.push_back(one);
      }
    }
  }
  for (std::uint64_t tokens = trace.block_tokens(); tokens <= trace.longest_input(); tokens *= 4) {
    KvBreakEven& at = study.break_even.emplace_back();
    at.tokens = tokens;
    at.compute_seconds = costs.prefill.seconds(tokens);
    const Bytes bytes = study.block_bytes * (tokens / trace.block_tokens());
    for (std::size_t tier = 1; tier < kv_tiers; ++tier)
      at.fetch_seconds[tier] = seconds_of(bytes, study.bandwidth[tier]);
    at.bandwidth = static_cast<double>(bytes) / at.compute_seconds;
  }
  study.endless_hits = endless_hits(trace);
  study.runs.resize(request.policies.size() * sizes.size());
  on_all_cores(study.runs.size(), [&](std::size_t i) {
    study.runs[i] =
        run_kv_cache(trace, *request.policies[i / sizes.size()], sizes[i % sizes.size()], request.warm_up, costs);
  });
  return study;
}

}  // namespace tencache
