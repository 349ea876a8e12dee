#include "studies/recompute_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/recompute.h"
#include "core/text.h"
#include "policies/planning/choose_levels.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

constexpr std::uint64_t most_simulations = 100;  // to choose by

// Only what PyTorch's checkpointing can do: all of a layer, or nothing.
Trace with_blocks_only(Trace trace) {
  for (RecomputeChoice& choice : trace.choices) {
    for (const RecomputeLevel level : {RecomputeLevel::elementwise, RecomputeLevel::attention}) {
      choice.again[static_cast<std::size_t>(level)].clear();
    }
  }
  return trace;
}

// Of the first micro-batch.
std::vector<std::string> modules_in_order(const RecomputePlan& plan) {
  std::vector<std::string> modules;
  for (const PlannedLayer& layer : plan.layers) {
    if (layer.micro_batch == plan.layers.front().micro_batch) modules.push_back(layer.module);
  }
  return modules;
}

// Numbers of the layers that all micro-batches recompute; none: micro-batches differ.
std::optional<std::vector<std::size_t>> recomputed_layers(const RecomputePlan& plan) {
  const std::vector<std::string> modules = modules_in_order(plan);
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    std::size_t calls = 0, recomputed = 0;
    for (const PlannedLayer& layer : plan.layers) {
      if (layer.module != modules[i]) continue;
      ++calls;
      recomputed += layer.level == RecomputeLevel::block ? 1 : 0;
    }
    if (recomputed != 0 && recomputed != calls) return std::nullopt;
    if (recomputed != 0) numbers.push_back(i);
  }
  return numbers;
}

}  // namespace

std::size_t RecomputePlan::recomputed() const {
  return static_cast<std::size_t>(std::ranges::count(layers, RecomputeLevel::block, &PlannedLayer::level));
}

std::string model_sha256(const Trace& trace) {
  std::set<std::string, std::less<>> layers;
  for (const RecomputeChoice& choice : trace.choices) layers.emplace(trace.names[choice.module]);
  const auto in_layer = [&](std::string_view name) {
    for (std::size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
      if (layers.contains(name.substr(0, dot))) return true;
    }
    return false;
  };
  std::map<std::string, Bytes> parameters;
  Bytes unit = 0;  // how often it goes into each does not depend on the precision
  for (const Tensor& tensor : trace.tensors) {
    if ((tensor.role != Role::parameter && tensor.role != Role::expert) || !in_layer(trace.name(tensor))) continue;
    parameters.emplace(trace.name(tensor), tensor.bytes);
    unit = std::gcd(unit, tensor.bytes);
  }
  std::string text;
  for (const std::string& layer : layers) text += layer + "\n";
  for (const auto& [name, bytes] : parameters) text += fmt::format("{} {}\n", name, bytes / unit);
  return sha256_hex(text);
}

RecomputePlan choose_plan(const Workload& workload, const std::string& policy,
                          const std::map<std::string, std::string>& settings) {
  if (workload.trace->choices.empty()) throw Error("no plan of recomputation: " + why_no_choices(*workload.trace));
  const Trace trace = with_blocks_only(*workload.trace);
  const auto run = [&](const Trace& program) {
    try {
      const Outcome outcome =
          simulate_policy(program, workload.machine, policy, settings, limits_of(workload.scenario.iterations));
      if (!outcome.result.fits) return PlannedRun{.reason = outcome.result.misfit};
      return PlannedRun{.fits = true,
                        .reason = {},
                        .seconds = outcome.result.iteration_seconds(),
                        .gpu_peak_bytes = outcome.result.peak_bytes[0]};
    } catch (const Error& error) {
      return PlannedRun{.reason = error.what()};
    }
  };
  const auto at = [&](RecomputeLevel level) { return run(with_levels(trace, all_at(trace, level))); };
  const auto takes = [&](const Trace& program, Nanoseconds) {
    const PlannedRun found = run(program);
    return ProgramRun{.iteration_ns = found.fits ? static_cast<Nanoseconds>(found.seconds * 1e9) : longest_clock_ns,
                      .work = 1};
  };
  const ChosenLevels chosen = choose_levels(trace, takes, most_simulations);
  RecomputePlan plan{.model = trace.header.model,
                     .model_sha256 = model_sha256(trace),
                     .policy = policy,
                     .machine = machine_title(workload),
                     .predicted = {.plan = run(with_levels(trace, chosen.levels)),
                                   .keep = at(RecomputeLevel::keep),
                                   .block = at(RecomputeLevel::block)},
                     .layers = {}};
  std::vector<std::size_t> order(trace.choices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return trace.choices[i].again.back(); });
  for (const std::size_t i : order) {
    const RecomputeChoice& choice = trace.choices[i];
    plan.micro_batches = std::max(plan.micro_batches, choice.micro_batch + 1);
    plan.layers.push_back({std::string(trace.names[choice.module]), choice.micro_batch, chosen.levels[i]});
  }
  return plan;
}

std::vector<std::string> settings_of_systems(const RecomputePlan& plan) {
  const std::optional<std::vector<std::size_t>> layers = recomputed_layers(plan);
  const std::size_t count = modules_in_order(plan).size();
  const std::string none = "other systems have no setting of this form: use tencache.checkpoint() in Python";
  if (!layers) return {none};
  if (layers->empty()) return {"nothing is recomputed: leave gradient checkpointing off"};
  if (layers->size() == count) {
    return {"Hugging Face's Trainer and axolotl: gradient_checkpointing: true",
            "torchtune: enable_activation_checkpointing: True",
            "Megatron-LM: --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"};
  }
  if (layers->back() + 1 == layers->size()) {
    return {fmt::format("Megatron-LM: --recompute-granularity full --recompute-method block --recompute-num-layers {}",
                        layers->size())};
  }
  const std::size_t every = layers->front() + 1;
  bool regular = layers->size() == count / every;
  for (std::size_t i = 0; i < layers->size(); ++i) regular = regular && (*layers)[i] + 1 == (i + 1) * every;
  if (regular)
    return {fmt::format("torchtune: apply_selective_activation_checkpointing(model, \"selective\", {})", every)};
  return {none};
}

}  // namespace tencache
