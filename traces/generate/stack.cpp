#include "traces/generate/stack.h"

namespace tencache::generator {
namespace {
constexpr Bytes full = 4;  // an fp32 number
}

Cost StackKernels::norm(bool root_mean_square, Count elements) const {
  const Bytes e = element_;
  if (root_mean_square && eager()) {
    // Square, mean and scale in fp32; between casts; times the weight. What works on a number a row moves nothing.
    const Bytes scaled = 5 * full, casts = casts_ ? 2 * (full + e) : 0, weighted = 2 * e;
    return cost(KernelKind::elementwise, casts_ ? 8 : 6, elements * (scaled + casts + weighted));
  }
  return cost(KernelKind::norm, 1, elements * 2 * e);
}

Cost StackKernels::norm_backward(bool root_mean_square, bool residual, Count elements) const {
  const Bytes e = element_;
  if (root_mean_square && eager()) {
    // The weight's gradient and what goes on, then square, mean and scale backwards in fp32, between casts.
    const Bytes weighted = 6 * e, scaled = 17 * full, casts = casts_ ? 2 * (full + e) : 0;
    return cost(KernelKind::elementwise, (casts_ ? 16u : 14u) + (residual ? 1 : 0),
                elements * (weighted + scaled + casts + (residual ? 3 * e : 0)));
  }
  // The gradient of the input, and the sums for weight and bias over all rows, in two steps.
  const bool joined = !eager();
  const Bytes sum = residual ? (joined ? 1 : 3) : 0;
  return cost(joined ? KernelKind::norm : KernelKind::norm_backward, residual && !joined ? 4 : 3,
              elements * (5 + sum) * e);
}

Cost StackKernels::activation(Activation activation, Count elements) const {
  const Bytes e = element_;
  if (eager() && activation == Activation::gelu_composed) return cost(KernelKind::elementwise, 8, elements * 18 * e);
  if (eager() && activation == Activation::gelu_bloom) return cost(KernelKind::elementwise, 9, elements * 21 * e);
  return cost(KernelKind::elementwise, 1, elements * 2 * e);
}

Cost StackKernels::activation_backward(Activation activation, Count elements) const {
  const Bytes e = element_;
  if (eager() && activation == Activation::gelu_composed) return cost(KernelKind::elementwise, 11, elements * 28 * e);
  if (eager() && activation == Activation::gelu_bloom) return cost(KernelKind::elementwise, 18, elements * 44 * e);
  return cost(KernelKind::elementwise, 1, elements * 3 * e);
}

int StackKernels::kept_by(Activation activation) const {
  return eager() && activation == Activation::gelu_composed ? 3 : 0;
}

Cost StackKernels::gate(Count elements) const { return cost(KernelKind::elementwise, 1, elements * 3 * element_); }

Cost StackKernels::clamped_gate(Count elements) const {
  return eager() ? cost(KernelKind::elementwise, 7, elements * 16 * element_) : gate(elements);
}

Cost StackKernels::gate_backward(Count elements) const {
  // Eager: the two factors' gradients; else with that of the activation.
  return cost(KernelKind::elementwise, eager() ? 2 : 1, elements * (eager() ? 6 : 5) * element_);
}

Cost StackKernels::residual(int terms, bool dropout, Count elements) const {
  const Bytes e = element_;
  const auto sums = static_cast<Bytes>(terms - 1);
  if (eager()) {
    return cost(KernelKind::elementwise, static_cast<std::uint32_t>(sums) + (dropout ? 1 : 0),
                elements * (3 * e * sums + (dropout ? 2 * e + 1 : 0)));
  }
  return cost(KernelKind::elementwise, 1, elements * (e * (sums + 2) + (dropout ? 1 : 0)));
}

Cost StackKernels::dropout(Count elements) const {
  return cost(KernelKind::elementwise, 1, elements * (2 * element_ + 1));
}

Cost StackKernels::dropout_backward(Count elements) const { return dropout(elements); }

Cost StackKernels::softmax(Count scores, bool in_fp32) const {
  if (in_fp32) return cost(KernelKind::elementwise, 4, scores * (7 * element_ + 2 * full));
  return eager() ? cost(KernelKind::elementwise, 3, scores * 7 * element_)
                 : cost(KernelKind::norm, 1, scores * 2 * element_);
}

Cost StackKernels::softmax_backward(Count scores, bool in_fp32) const {
  if (in_fp32) return cost(KernelKind::elementwise, 4, scores * (4 * element_ + 5 * full));
  return eager() ? cost(KernelKind::elementwise, 2, scores * 5 * element_)
                 : cost(KernelKind::norm, 1, scores * 3 * element_);
}

Cost StackKernels::bias_gradient(Count elements, Bytes result) const {
  return cost(KernelKind::reduction, 1, elements * element_ + result);
}

Cost StackKernels::chunked_loss(LossKind kind, Count scores, bool backward) const {
  const Bytes e = element_;
  if (kind == LossKind::fused) return cost(KernelKind::norm, 1, scores * e * (backward ? 2 : 1));
  // Eight chunks, each cast to fp32; eager PyTorch writes what compiled code keeps in registers.
  const Bytes eager_bytes = backward ? 20 + e : 12 + e, compiled_bytes = backward ? 2 * e : e;
  return cost(KernelKind::elementwise, eager() ? 32 : 8, scores * (eager() ? eager_bytes : compiled_bytes));
}

Cost StackKernels::rotary(Count elements) const {
  // Twice times a table, half of it negated and put side by side, a sum; for query and key.
  return eager() ? cost(KernelKind::copy, 10, elements * 10 * element_)
                 : cost(KernelKind::copy, 2, elements * 2 * element_);
}

Cost StackKernels::rotary_backward(Count elements) const {
  // The same backwards, with cleared tensors for the halves, and into the layout that the products want.
  return eager() ? cost(KernelKind::copy, 20, elements * 17 * element_)
                 : cost(KernelKind::copy, 2, elements * 2 * element_);
}

Cost StackKernels::update(Bytes bytes, Count elements, Optimizer optimizer) const {
  // PyTorch's foreach AdamW: eight passes over lists of tensors, 80 bytes of fp32 where one kernel moves 28.
  if (eager() && optimizer == Optimizer::adamw) return cost(KernelKind::optimizer, 8, bytes + elements * 13 * full);
  return cost(KernelKind::optimizer, 1, bytes);
}

}  // namespace tencache::generator
