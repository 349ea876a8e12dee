#include "traces/generate/optimizer.h"

#include <algorithm>
#include <utility>

#include "traces/generate/optimizer_states.h"
#include "traces/generate/stack.h"

namespace tencache::generator {

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
  const OptimizerStates states(step.options);
  for (Parameter& parameter : parameters) {
    if (!parameter.trainable || parameter.shard_elements == 0) continue;
    Entry entry{&parameter, none, {}, none};
    const ParameterKind kind = OptimizerStates::kind_of(parameter.name, parameter.rows, parameter.columns);
    const bool whole = parameter.shard_elements == parameter.elements();
    if (whole && states.low_rank(kind)) entry.rank = states.rank(std::min(parameter.rows, parameter.columns));
    if (states.keeps_master()) {
      entry.master = step.persistent(parameter.name + ".master", 4 * parameter.shard_elements, Role::master_parameter);
    }
    for (const OptimizerState& state :
         states.of(parameter.name, parameter.rows, parameter.columns, parameter.shard_elements)) {
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
  if (entry.rank > 0) return emit_low_rank(entry, gradient, coefficient);
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

// The gradient times the projector; moments of the product. GaLore (Zhao et al. 2024, algorithm 2) projects their
// direction back; APOLLO (Zhu et al. 2024) scales the gradient itself, each channel by the ratio of the two norms. How
// GaLore finds its projector (an SVD every few hundred steps) is no part of a steady iteration.
void OptimizerTensors::emit_low_rank(const Entry& entry, TensorId gradient, TensorId coefficient) {
  const Parameter& parameter = *entry.parameter;
  const Module module = step_.module(parameter.name);
  const Count shorter = std::min(parameter.rows, parameter.columns),
              longer = std::max(parameter.rows, parameter.columns);
  const Bytes element = step_.element_bytes();
  const TensorId projector = entry.states.front();
  const TensorId low = step_.tensor(module, "low_rank_grad", longer * entry.rank * element, Role::workspace);
  const auto emit = [&](std::string_view name, Cost cost, std::vector<TensorId> reads, std::vector<TensorId> writes) {
    emit_op(entry, name, cost, reads, writes);
  };
  const Cost pass{.kernel = {.kind = KernelKind::optimizer}};
  const TensorId weights = entry.master != none ? entry.master : parameter.stored;
  std::vector<TensorId> written{weights};
  if (entry.master != none) written.push_back(parameter.stored);
  emit("project", matmul(1, longer, entry.rank, shorter, {entry.rank, shorter}), {gradient, projector}, {low});
  std::vector<TensorId> reads{low}, writes(entry.states.begin() + 1, entry.states.end());
  reads.insert(reads.end(), writes.begin(), writes.end());
  if (coefficient != none) reads.push_back(coefficient);
  const Optimizer optimizer = step_.options.optimizer;
  if (optimizer == Optimizer::apollo || optimizer == Optimizer::apollo_mini) {
    reads.insert(reads.end(), {gradient, weights});
    writes.insert(writes.end(), written.begin(), written.end());
    emit(to_string(optimizer), pass, std::move(reads), std::move(writes));
    return;
  }
  writes.push_back(low);
  emit(to_string(optimizer), pass, std::move(reads), std::move(writes));
  const TensorId update = step_.tensor(module, "update", parameter.elements() * element, Role::workspace);
  emit("project_back", matmul(1, longer, shorter, entry.rank, {entry.rank, shorter}), {low, projector}, {update});
  emit("apply", pass, {update, weights}, written);
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
