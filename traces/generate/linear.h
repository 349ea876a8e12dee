// Inside the generator: linear layers, forward and backward, and what a layer's forward pass keeps of their results.
#pragma once

#include <vector>

#include "traces/generate/blocks.h"
#include "traces/generate/context.h"

namespace tencache::generator {

struct LinearState {
  TensorId input = none, lora_hidden = none;
};

// The forward pass of a layer that runs at the moment. Under Recompute::ops and ::attention it keeps some results, and
// takes them where it runs again for the backward pass, which asks in the same order.
class LayerPass {
 public:
  // `kept`: null except under Recompute::ops and ::attention. `products`: of these are some kept, too.
  void begin(std::vector<TensorId>* kept, bool products, bool again) { *this = {kept, products, again}; }
  void end() { *this = {}; }

  bool again() const { return again_; }
  bool keeps() const { return kept_ != nullptr; }
  bool keeps_products() const { return keeps() && with_products_; }
  // Every second product is kept, from the first on.
  bool keeps_product() { return keeps_products() && products_++ % 2 == 0; }
  void keep(TensorId result) { kept_->push_back(result); }
  TensorId take() { return (*kept_)[next_++]; }

  LayerPass() = default;

 private:
  LayerPass(std::vector<TensorId>* kept, bool products, bool again)
      : kept_(kept), with_products_(products), again_(again) {}

  std::vector<TensorId>* kept_ = nullptr;
  std::size_t next_ = 0;
  Count products_ = 0;
  bool with_products_ = false;
  bool again_ = false;
};

class LinearOps {
 public:
  explicit LinearOps(const RankContext& rank) : rank_(rank), step_(rank.step), kernels_(rank.kernels) {}

  LayerPass& pass() { return pass_; }
  // A layer's forward or backward pass begins: it casts its inputs itself.
  void forget_casts() { cast_of_ = none; }
  // Whether the forward pass that runs again ends before the layer's last product. The product's input is the last
  // tensor that the backward pass needs, unless a dropout mask or a norm comes behind it.
  bool stops_early() const;

  // What a product of the layer reads.
  TensorId weight_for(Linear& linear) { return readable(*linear.weight, linear.label, linear.module); }
  // The parameter, or a copy that an op makes of it where it is stored in a format that kernels do not read.
  TensorId readable(const Parameter& parameter, const std::string& label, const Module& module);
  // Of a weight that kernels read packed; else 0.
  Bytes packed_bytes(const Parameter& parameter) const {
    return parameter.packing != nullptr && !parameter.packing->expanded ? step_.bytes(parameter.value) : 0;
  }
  // `last`: the layer's last product, which need not run if the pass stops early; then returns none.
  TensorId linear(Linear& linear, TensorId x, Count tokens, LinearState& state, bool last = false);
  // Whether the last linear layer's result was kept, with the sum over tensor-parallel ranks.
  bool taken() const { return taken_; }
  // Adds to *dx in place, or makes it; dx null: not wanted. `parts`: the weight's gradient is made piece by piece.
  void linear_backward(Linear& linear, const LinearState& state, TensorId dy, Count tokens, TensorId* dx,
                       bool parts = false);

 private:
  // Precision::fp8: whether the layer's products are in fp8. Those of the blocks are, if all their dimensions are
  // multiples of 16, which torch._scaled_mm demands. Adapters are in bf16.
  bool computes_in_fp8(const Linear& linear, Count tokens) const;
  // A copy in fp8, for one product; `operand`: "weight". One kernel, because the scale is known before (delayed
  // scaling).
  TensorId cast_to_fp8(const Linear& linear, std::string_view operand, TensorId source);
  // The same of an input. Layers one after the other that read the same input share it, unless the stack is eager.
  TensorId input_in_fp8(const Linear& linear, TensorId input);

  const RankContext& rank_;
  Step& step_;
  const StackKernels& kernels_;
  LayerPass pass_;
  TensorId cast_of_ = none;  // the last input that was cast to fp8 in this pass of the layer
  TensorId cast_ = none;     // and its copy
  bool taken_ = false;
};

// What the ops of the blocks are made with; all of it outlives them.
class BlockOps {
 public:
  BlockOps(const RankContext& rank, LinearOps& linears)
      : rank_(rank), step_(rank.step), model_(rank.model), kernels_(rank.kernels), linears_(linears) {}

 protected:
  const RankContext& rank_;
  Step& step_;
  const ModelDescription& model_;
  const StackKernels& kernels_;
  LinearOps& linears_;
};

}  // namespace tencache::generator
