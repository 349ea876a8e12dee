// What an op that is observed moves and computes, by its arguments and results.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

#include "op_flops.h"

namespace tencache {

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

inline double scaled_by_results(Arithmetic kind, double flops, const std::vector<c10::IValue>& results) {
  const auto made = [&](std::size_t at) {
    return at < results.size() && results[at].isTensor() && results[at].toTensor().defined();
  };
  if (kind == Arithmetic::convolution) return made(0) ? flops * static_cast<double>(results[0].toTensor().numel()) : 0;
  if (kind == Arithmetic::gradients) return flops * ((made(0) ? 1 : 0) + (made(1) ? 1 : 0));
  return flops;
}

}  // namespace tencache
