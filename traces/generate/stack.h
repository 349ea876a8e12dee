// Inside the generator: the kernels that a software stack launches between the products, and the memory they move.
//
//   eager     PyTorch as most users run it: Hugging Face's modules, a kernel for each operation. The counts are those
//             that recordings of such steps show (docs/workloads.md).
//   compiled  torch.compile: Inductor joins neighbouring elementwise kernels and norms.
//   fused     hand-written kernels: Apex, Megatron-LM, flash-attn, Liger.
//
// Bytes are read and written ones together. `elements` are those of the block's input.
#pragma once

#include "traces/generate/generate.h"
#include "traces/generate/step.h"

namespace tencache::generator {

class StackKernels {
 public:
  StackKernels(Stack stack, Precision precision)
      : stack_(stack), element_(bytes_of(precision)), casts_(!stored_in_fp32(precision)) {}

  bool eager() const { return stack_ == Stack::eager; }
  Bytes element_bytes() const { return element_; }

  // A norm over the last dimension; `root_mean_square`: RMSNorm, which eager PyTorch composes in fp32.
  Cost norm(bool root_mean_square, Count elements) const;
  // With the sum of the gradient that by-passes it, if `residual`.
  Cost norm_backward(bool root_mean_square, bool residual, Count elements) const;
  // A composed RMSNorm keeps for its backward pass its input in fp32 and its result before the weight.
  bool composes_norm(bool root_mean_square) const { return root_mean_square && eager(); }
  bool casts() const { return casts_; }

  Cost activation(Activation activation, Count elements) const;
  Cost activation_backward(Activation activation, Count elements) const;
  // Tensors of the activation's size that it keeps beside its input.
  int kept_by(Activation activation) const;
  // silu(gate) · up: one op for each where `eager`, else one for both.
  Cost gate(Count elements) const;
  Cost gate_backward(Count elements) const;
  // The same of gpt-oss, which clamps both: gate · sigmoid(α · gate) · (up + 1), seven ops where `eager`.
  Cost clamped_gate(Count elements) const;

  // sum = residual + dropout(x) (+ extra); `terms` are added up.
  Cost residual(int terms, bool dropout, Count elements) const;
  Cost dropout(Count elements) const;
  Cost dropout_backward(Count elements) const;
  // Of two contributions to a gradient.
  Cost add(Count elements) const {
    return {.kernel = {.kind = KernelKind::elementwise}, .bytes = 3 * elements * element_};
  }

  // Of materialised scores: scaled, masked, normalised; eager PyTorch does one after the other.
  // `in_fp32`: 16-bit scores are cast to fp32 and the result back, as kernels of their own.
  Cost softmax(Count scores, bool in_fp32 = false) const;
  Cost softmax_backward(Count scores, bool in_fp32 = false) const;

  Cost rotary(Count elements) const;
  Cost rotary_backward(Count elements) const;
  // The gradients of query, key and value put side by side, where they are views of one product.
  Cost concatenate(Count elements) const {
    return {.kernel = {.kind = KernelKind::copy}, .bytes = 2 * elements * element_};
  }
  bool concatenates() const { return stack_ != Stack::fused; }
  // Over the rows of a gradient of so many elements.
  Cost bias_gradient(Count elements, Bytes result) const;
  // In the epilogue of the weight's product (cuBLASLt's BGRADB, as Apex and Transformer Engine use it).
  bool joins_bias_gradient() const { return stack_ == Stack::fused; }
  // Cross entropy that makes the gradient of the logits in their place.
  Cost chunked_loss(LossKind kind, Count scores, bool backward) const;

  // An update of adamw reads and writes `bytes` at least.
  Cost update(Bytes bytes, Count elements, Optimizer optimizer) const;

 private:
  Cost cost(KernelKind kind, std::uint32_t launches, Bytes bytes) const {
    return {.kernel = {.kind = kind, .launches = launches}, .bytes = bytes};
  }
  Stack stack_;
  Bytes element_;
  bool casts_;  // between the model's precision and fp32
};

}  // namespace tencache::generator
