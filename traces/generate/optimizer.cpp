#include "traces/generate/optimizer.h"

#include <algorithm>
#include <utility>

#include "traces/generate/stack.h"

namespace tencache::generator {
namespace {

// A state of the optimizer for one parameter.
struct State {
  const char* name;
  Bytes bytes;
};

// Quantised in blocks of 256 with one fp32 scale each, as bitsandbytes has it; small tensors stay in fp32.
Bytes adam8bit_bytes(Count elements) {
  constexpr Count block = 256, smallest = 4096;
  return elements < smallest ? 4 * elements : elements + 4 * ((elements + block - 1) / block);
}

// What the optimizer keeps for `elements` of a parameter of rows × columns, besides a master copy.
std::vector<State> states_of(Optimizer optimizer, Count rows, Count columns, Count elements) {
  const Count whole = std::max<Count>(1, rows * columns);
  const bool matrix = rows > 1 && columns > 1;
  // The part of a vector that belongs to these elements.
  const auto part = [&](Count length) { return std::max<Count>(1, length * elements / whole); };
  switch (optimizer) {
    case Optimizer::adamw:
    case Optimizer::lamb:
      return {{"exp_avg", 4 * elements}, {"exp_avg_sq", 4 * elements}};
    case Optimizer::sgd:
      return {{"momentum_buffer", 4 * elements}};
    case Optimizer::adafactor:
      if (!matrix) return {{"exp_avg_sq", 4 * elements}};
      return {{"exp_avg_sq_row", 4 * part(rows)}, {"exp_avg_sq_col", 4 * part(columns)}};
    case Optimizer::adam8bit:
      return {{"state1", adam8bit_bytes(elements)}, {"state2", adam8bit_bytes(elements)}};
    case Optimizer::apollo_mini:
      // Both moments of the gradient projected to rank 1, along the longer side.
      if (!matrix) return {{"exp_avg", 4 * elements}, {"exp_avg_sq", 4 * elements}};
      return {{"exp_avg", 4 * part(std::max(rows, columns))}, {"exp_avg_sq", 4 * part(std::max(rows, columns))}};
  }
  return {};
}

bool keeps_master_copy(const GenerateOptions& options) {
  if (stored_in_fp32(options.precision)) return false;
  return options.optimizer != Optimizer::adam8bit && options.optimizer != Optimizer::apollo_mini;
}

}  // namespace

void assign_groups(std::deque<Parameter>& parameters, Count sub_group, Count ranks) {
  std::int32_t group = 0;
  Count elements = 0;
  for (Parameter& parameter : parameters) {
    if (!parameter.trainable) continue;
    parameter.group = group;
    // Rounded up, so that all ranks cut at the same parameters.
    elements += (parameter.elements() + ranks - 1) / ranks;
    if (elements >= sub_group) ++group, elements = 0;
  }
}

OptimizerTensors::OptimizerTensors(Step& step, std::deque<Parameter>& parameters)
    : step_(step), parameters_(parameters) {
  const GenerateOptions& options = step.options;
  for (Parameter& parameter : parameters) {
    if (!parameter.trainable || parameter.shard_elements == 0) continue;
    Entry entry{&parameter, none, {}, none};
    if (keeps_master_copy(options)) {
      entry.master = step.persistent(parameter.name + ".master", 4 * parameter.shard_elements, Role::master_parameter);
    }
    for (const State& state :
         states_of(options.optimizer, parameter.rows, parameter.columns, parameter.shard_elements)) {
      entry.states.push_back(step.persistent(parameter.name + "." + state.name, state.bytes, Role::optimizer_state));
    }
    entries_.push_back(std::move(entry));
  }
}

void OptimizerTensors::emit(Collectives& collectives, bool gather_parameters) {
  step_.phase = Phase::optimizer;
  const TensorId coefficient = step_.options.clip != Clip::off ? emit_clip(collectives) : none;
  if (step_.options.optimizer == Optimizer::lamb) {
    emit_lamb(collectives, coefficient);
  } else {
    for (Entry& entry : entries_) emit_update(entry, coefficient);
  }
  if (gather_parameters) emit_gather(collectives);
}

void OptimizerTensors::emit_fused(std::span<Parameter* const> parameters) {
  if (step_.options.update != Update::fused) return;
  const Phase phase = std::exchange(step_.phase, Phase::optimizer);
  for (Entry& entry : entries_) {
    const bool wanted = std::find(parameters.begin(), parameters.end(), entry.parameter) != parameters.end();
    if (wanted) emit_update(entry, none);
  }
  step_.phase = phase;
}

void OptimizerTensors::emit_op(const Entry& entry, std::string_view name, Cost cost, std::span<const TensorId> reads,
                               std::span<const TensorId> writes) {
  const Parameter& parameter = *entry.parameter;
  const Bytes stored = std::min(step_.bytes(parameter.stored), parameter.shard_elements * step_.element_bytes());
  for (const TensorId id : reads) cost.bytes += id == parameter.stored ? stored : step_.bytes(id);
  for (const TensorId id : writes) cost.bytes += id == parameter.stored ? stored : step_.bytes(id);
  if (cost.kernel.kind == KernelKind::optimizer) {
    const StackKernels kernels(step_.options.stack, step_.options.precision);
    cost = kernels.update(cost.bytes, parameter.shard_elements, step_.options.optimizer);
  }
  // Under ZeRO-1 and -2 the rank updates its part of a parameter that it has as a whole: a slice, in place.
  std::vector<TensorId> all(reads.begin(), reads.end());
  const bool writes_parameter = std::find(writes.begin(), writes.end(), parameter.stored) != writes.end();
  if (entry.master != none && writes_parameter && stored < step_.bytes(parameter.stored)) {
    all.push_back(parameter.stored);
  }
  Op op = step_.kernel(name, step_.module(parameter.module), cost);
  op.group = parameter.group;
  op.placeable = true;
  op.reorderable = true;
  step_.op(op, all, writes);
}

void OptimizerTensors::emit_update(Entry& entry, TensorId coefficient) {
  if (std::exchange(entry.updated, true)) return;
  const Parameter& parameter = *entry.parameter;
  const TensorId gradient = parameter.gradient_shard != none ? parameter.gradient_shard : parameter.gradient;
  std::vector<TensorId> reads{gradient}, writes;
  if (coefficient != none) reads.push_back(coefficient);
  if (entry.master != none) {
    reads.push_back(entry.master);
    writes.push_back(entry.master);
  } else {
    reads.push_back(parameter.stored);
  }
  reads.insert(reads.end(), entry.states.begin(), entry.states.end());
  writes.insert(writes.end(), entry.states.begin(), entry.states.end());
  writes.push_back(parameter.stored);
  emit_op(entry, to_string(step_.options.optimizer), {.kernel = {.kind = KernelKind::optimizer}}, reads, writes);
}

// Apex' FusedLAMB (You et al. 2020): the norm of the weights; moments and, in the gradient's place, the direction; the
// direction's norm; then the weights move along it, as far as the ratio of the norms says. Ranks that share a parameter
// sum up the squares of their parts' norms, all of them at once.
void OptimizerTensors::emit_lamb(Collectives& collectives, TensorId coefficient) {
  const Cost reduction{.kernel = {.kind = KernelKind::reduction}}, pass{.kernel = {.kind = KernelKind::optimizer}};
  struct Norms {
    TensorId weight, update;
  };
  const auto gradient_of = [](const Entry& entry) {
    const Parameter& parameter = *entry.parameter;
    return parameter.gradient_shard != none ? parameter.gradient_shard : parameter.gradient;
  };
  const auto weights_of = [](const Entry& entry) {
    return entry.master != none ? entry.master : entry.parameter->stored;
  };
  const auto direct = [&](const Entry& entry) {
    const Module module = step_.module(entry.parameter->name);
    const Norms norms{step_.tensor(module, "weight_norm", 4, Role::workspace),
                      step_.tensor(module, "update_norm", 4, Role::workspace)};
    const TensorId gradient = gradient_of(entry), weights = weights_of(entry);
    emit_op(entry, "lamb_weight_norm", reduction, {&weights, 1}, {&norms.weight, 1});
    std::vector<TensorId> reads{gradient, weights}, writes{gradient};
    if (coefficient != none) reads.push_back(coefficient);
    reads.insert(reads.end(), entry.states.begin(), entry.states.end());
    writes.insert(writes.end(), entry.states.begin(), entry.states.end());
    emit_op(entry, "lamb_direction", pass, reads, writes);
    emit_op(entry, "lamb_update_norm", reduction, {&gradient, 1}, {&norms.update, 1});
    return norms;
  };
  const auto update = [&](const Entry& entry, const Norms& norms) {
    const std::vector<TensorId> reads{gradient_of(entry), weights_of(entry), norms.weight, norms.update};
    std::vector<TensorId> writes{weights_of(entry)};
    if (entry.master != none) writes.push_back(entry.parameter->stored);
    emit_op(entry, "lamb", pass, reads, writes);
  };
  const bool sharded = step_.options.zero >= 1 && step_.options.data_parallel > 1;
  if (!sharded && step_.options.tensor_parallel == 1) {
    for (const Entry& entry : entries_) update(entry, direct(entry));
    return;
  }
  std::vector<Norms> all;
  std::vector<TensorId> tensors;
  for (const Entry& entry : entries_) {
    all.push_back(direct(entry));
    tensors.insert(tensors.end(), {all.back().weight, all.back().update});
  }
  // As many on every rank, of which some have nothing of a parameter.
  const auto trained = std::count_if(parameters_.begin(), parameters_.end(),
                                     [](const Parameter& parameter) { return parameter.trainable; });
  const Bytes bytes = 8 * static_cast<Bytes>(trained);
  const Module module = step_.module("optimizer");
  if (sharded) collectives.all_reduce(Group::data, module, tensors, bytes);
  collectives.all_reduce(Group::tensor, module, tensors, bytes);
  for (std::size_t i = 0; i < entries_.size(); ++i) update(entries_[i], all[i]);
}

void OptimizerTensors::emit_norm(Entry& entry) {
  const Parameter& parameter = *entry.parameter;
  const TensorId gradient = parameter.gradient_shard != none ? parameter.gradient_shard : parameter.gradient;
  entry.norm = step_.tensor(step_.module(parameter.name), "grad_norm", 4, Role::workspace);
  Op op = step_.kernel("grad_norm", step_.module(parameter.module),
                       {.kernel = {.kind = KernelKind::reduction}, .bytes = step_.bytes(gradient) + 4});
  op.group = parameter.group;
  op.placeable = step_.phase == Phase::optimizer;
  step_.op(op, std::span<const TensorId>(&gradient, 1), std::span<const TensorId>(&entry.norm, 1));
}

void OptimizerTensors::emit_norms(std::span<Parameter* const> parameters) {
  if (step_.options.clip != Clip::early) return;
  for (Entry& entry : entries_) {
    const bool wanted = std::find(parameters.begin(), parameters.end(), entry.parameter) != parameters.end();
    if (wanted && entry.norm == none) emit_norm(entry);
  }
}

// The norm of each gradient, then the coefficient that all updates wait for.
TensorId OptimizerTensors::emit_clip(Collectives& collectives) {
  const Module module = step_.module("optimizer");
  std::vector<TensorId> norms;
  for (Entry& entry : entries_) {
    if (entry.norm == none) emit_norm(entry);
    norms.push_back(entry.norm);
  }
  const TensorId coefficient = step_.tensor(module, "clip_coefficient", 4, Role::workspace);
  Op op = step_.kernel("clip_coefficient", module, {.bytes = 4 * norms.size() + 4});
  op.placeable = true;
  step_.op(op, norms, std::span<const TensorId>(&coefficient, 1));
  collectives.all_reduce(Group::world, module, coefficient);
  return coefficient;
}

// The other ranks' parts of the parameters, a sub-group at a time.
void OptimizerTensors::emit_gather(Collectives& collectives) {
  const Module module = step_.module("optimizer");
  std::vector<TensorId> group;
  Bytes bytes = 0;
  const Parameter* previous = nullptr;
  const auto flush = [&] {
    if (!group.empty()) collectives.all_gather(Group::data, module, group, group, bytes);
    group.clear();
    bytes = 0;
  };
  for (const Parameter& parameter : parameters_) {
    if (!parameter.trainable) continue;
    if (previous != nullptr && previous->group != parameter.group) flush();
    group.push_back(parameter.stored);
    bytes += step_.bytes(parameter.stored);
    previous = &parameter;
  }
  flush();
}

}  // namespace tencache::generator
