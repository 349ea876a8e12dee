#include "traces/generate/step.h"

#include <algorithm>

namespace tencache::generator {
namespace {

void collect(std::initializer_list<TensorId> from, std::vector<TensorId>& to) {
  to.clear();
  for (const TensorId id : from) {
    if (id != none && std::find(to.begin(), to.end(), id) == to.end()) to.push_back(id);
  }
}

}  // namespace

TensorId Step::tensor(const Module& module, std::string_view suffix, Bytes bytes, Role role) {
  name_.assign(module.name).append(1, '.').append(suffix);
  return trace_.add_tensor(name_, bytes, role, false);
}

Step::GradientUse Step::gradient_of(Parameter& parameter) {
  if (parameter.gradient != none) return {parameter.gradient, parameter.gradient};
  name_.assign(parameter.name).append(".grad");
  parameter.gradient =
      trace_.add_tensor(name_, parameter.elements() * gradient_element_, Role::gradient, keep_gradients_);
  return {parameter.gradient, none};
}

Op Step::kernel(std::string_view name, const Module& module, const Cost& cost) {
  Op op;
  op.name = trace_.names.intern(name);
  op.module = module.id;
  op.kernel = trace_.kernels.intern(cost.kernel);
  op.duration_source = DurationSource::modelled;
  op.flops = cost.flops;
  op.bytes = cost.bytes;
  op.device = cost.device;
  if (op.device == Device::cpu) return op;
  if (cost.kernel.kind != KernelKind::matmul) {
    op.duration_ns = model_.duration_ns(cost.kernel, cost.flops, cost.bytes);
    return started(op, cost);
  }
  // By far the dearest to find out; every layer has the same.
  const auto [known, added] = matmul_ns_.try_emplace({op.kernel, cost.packed}, 0);
  if (added) known->second = model_.duration_ns(cost.kernel, cost.flops, cost.bytes, cost.packed);
  op.duration_ns = known->second;
  return started(op, cost);
}

Op Step::started(Op op, const Cost& cost) const {
  if (grouped) op.duration_ns = std::max<Nanoseconds>(1, op.duration_ns - model_.start_ns(cost.kernel));
  return op;
}

void Step::op(std::string_view name, const Module& module, Cost cost, std::initializer_list<TensorId> reads,
              std::initializer_list<TensorId> writes) {
  collect(reads, reads_);
  collect(writes, writes_);
  op(name, module, cost, std::span<const TensorId>(reads_), std::span<const TensorId>(writes_));
}

void Step::op(std::string_view name, const Module& module, Cost cost, std::span<const TensorId> reads,
              std::span<const TensorId> writes) {
  if (cost.bytes == 0) {
    for (const TensorId id : reads) cost.bytes += bytes(id);
    for (const TensorId id : writes) cost.bytes += bytes(id);
  }
  Op made = kernel(name, module, cost);
  made.placeable = placeable && made.device == Device::gpu;
  op(made, reads, writes);
}

void Step::op(Op op, std::span<const TensorId> reads, std::span<const TensorId> writes) {
  op.phase = phase;
  op.rank = rank_;
  op.detail = detail_;
  trace_.add_op(op, reads, writes);
}

}  // namespace tencache::generator
