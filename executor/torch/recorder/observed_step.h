// What the observer has seen of a step: tensors, ops, and the text that Python gets of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "executor/torch/recorder/op_schema.h"
#include "traces/import/pytorch/op_flops.h"
#include "traces/import/pytorch/op_kernel.h"

namespace tencache {

// ---- What an op that is observed moves and computes, by its arguments and results.

// Of the elements that a tensor, or each of a list, shows of its storage.
inline std::uint64_t viewed_bytes(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() && tensor.has_storage() ? static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size()
                                                    : 0;
  }
  std::uint64_t bytes = 0;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) bytes += viewed_bytes(c10::IValue(tensor));
  }
  return bytes;
}

// Of convolutions and their gradients before scaled_by_results. (The inputs are gone when an op ends.)
inline double flops_of_inputs(Arithmetic kind, c10::ArrayRef<const c10::IValue> inputs) {
  if (kind == Arithmetic::none) return 0;
  c10::SmallVector<c10::IntArrayRef, 4> shapes;
  for (const c10::IValue& input : inputs) {
    if (input.isTensor() && input.toTensor().defined()) shapes.push_back(input.toTensor().sizes());
  }
  return flops_of(kind, [&](std::size_t i) { return i < shapes.size() ? shapes[i] : c10::IntArrayRef(); });
}

// Without sizes where it has none that are numbers.
inline OpTensor op_tensor(const at::Tensor& tensor) {
  OpTensor shown;
  if (tensor.is_nested() || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return shown;
  shown.sizes = tensor.sizes().vec();
  if (tensor.layout() == c10::kStrided) shown.strides = tensor.strides().vec();
  shown.element_bytes = static_cast<unsigned>(tensor.element_size());
  return shown;
}

inline std::vector<OpTensor> op_tensors(c10::ArrayRef<const c10::IValue> inputs) {
  std::vector<OpTensor> tensors;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number()) tensors.push_back(op_tensor(tensor));
  };
  for (const c10::IValue& input : inputs) {
    if (input.isTensor()) add(input.toTensor());
    if (input.isTensorList()) {
      for (const at::Tensor& tensor : input.toTensorVector()) add(tensor);
    }
  }
  return tensors;
}

template <typename Values>
OpTensor first_tensor(const Values& values) {
  for (const c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) return op_tensor(value.toTensor());
  }
  return {};
}

inline OpKernel kernel_of_inputs(const OpSchema& schema, c10::ArrayRef<const c10::IValue> inputs) {
  const std::vector<OpTensor> tensors = op_tensors(inputs);
  OpKernel kernel = kernel_of(schema.base_name, tensors);
  if (schema.causal_position < inputs.size() && inputs[schema.causal_position].isBool()) {
    kernel.causal = kernel.numbers == 6 && inputs[schema.causal_position].toBool();
  }
  if (kernel.kind == "optimizer") {
    std::size_t lists = 0;
    std::vector<OpTensor> first;
    for (const c10::IValue& input : inputs) {
      if (!input.isTensorList() || input.toTensorVector().empty()) continue;
      if (lists++ > 0) continue;
      for (const at::Tensor& tensor : input.toTensorVector()) first.push_back(op_tensor(tensor));
    }
    kernel.launches = op_kernel::list_launches(lists, first);
  }
  return kernel;
}

inline double scaled_by_results(Arithmetic kind, double flops, const std::vector<c10::IValue>& results) {
  const auto made = [&](std::size_t at) {
    return at < results.size() && results[at].isTensor() && results[at].toTensor().defined();
  };
  if (kind == Arithmetic::convolution) return made(0) ? flops * static_cast<double>(results[0].toTensor().numel()) : 0;
  if (kind == Arithmetic::gradients) return flops * ((made(0) ? 1 : 0) + (made(1) ? 1 : 0));
  return flops;
}

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using Uses = c10::SmallVector<std::uint32_t, 4>;  // of Step::tensors

struct SeenTensor {
  const c10::StorageImpl* storage = nullptr;  // nullptr once its address is free to be used again
  WeakStorage alive;
  std::size_t bytes = 0;  // the most it had
  bool old = false;       // there before the op that used it first
};

struct SeenOp {
  const OpSchema* schema = nullptr;
  int module = -1;
  bool backward = false, optimizer = false;
  bool unfinished = false;  // another thread was at it when the step ended
  bool graph = false;       // part of one that autograd will go back through
  std::int64_t start_ns = 0, end_ns = 0;
  Arithmetic arithmetic = Arithmetic::none;
  double flops = 0;
  std::uint64_t bytes = 0, temporary_bytes = 0;
  OpKernel kernel;
  OpTensor input;    // the first
  bool sum = false;  // of two gradients of one tensor
  Uses reads, writes;
  void* start_event = nullptr;
  void* end_event = nullptr;
};

struct Region {  // compiled code, whose ops are not seen
  std::int64_t duration_ns = 0;
  std::uint64_t calls = 0;
};

struct Step {
  std::vector<SeenTensor> tensors;
  std::vector<SeenOp> ops;
  std::unordered_map<const c10::StorageImpl*, std::uint32_t> tensor_of;
  std::vector<std::uint32_t> young;  // made within the step, and not known to be dead
  std::vector<WeakStorage> held;     // known by address from before
  std::unordered_map<std::int64_t, int> module_of_sequence;
  std::map<std::string, Region> regions;
  std::int64_t begin_ns = 0, end_ns = 0;
  void* begin_event = nullptr;
  void* end_event = nullptr;
};

// As JSON, with times from the beginning of the step and without unfinished ops; _trace.py reads it.
std::string to_json(const Step& step);

}  // namespace tencache
