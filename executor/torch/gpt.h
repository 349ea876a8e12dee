// A decoder-only transformer (GPT): bytes as tokens, learned positions, pre-norm blocks, causal attention, GELU. Its
// weights and activations are of the configuration's precision, the loss is fp32.
//
// Plain LibTorch code that knows nothing of paging. It announces where its modules begin and end, in forward and in
// backward, to whoever listens; without a listener it is an ordinary module.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "executor/training_config.h"

namespace tencache {

// Called with a module's name when it begins and when it ends: "embedding", "block.0", …, "head", in the order of
// forward and in the reverse order in backward. Calls are properly paired and never nested.
using ModuleListener = std::function<void(const std::string& module, bool begins)>;

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const TrainingConfig& config);
  // `hidden` is batch × sequence × width, `mask` true where a position must not look.
  torch::Tensor forward(const torch::Tensor& hidden, const torch::Tensor& mask);

 private:
  torch::Tensor attention(const torch::Tensor& hidden, const torch::Tensor& mask);

  std::int64_t heads_;
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Linear query_key_value_{nullptr}, projection_{nullptr}, expand_{nullptr}, contract_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(Block);

class GptImpl : public torch::nn::Module {
 public:
  // Draws the weights from LibTorch's generator; seed it before.
  explicit GptImpl(const TrainingConfig& config);

  // The mean cross-entropy of the targets. Both are batch × context, int64. Backward modules are announced while the
  // caller runs loss.backward(); `finish_backward` ends the last one.
  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& targets);
  void finish_backward();

  void set_listener(ModuleListener listener) { listener_ = std::move(listener); }

 private:
  void announce(const std::string& module, bool begins);
  void enter_backward(const std::string& module);
  // In backward, when the gradient of `boundary` is there, what follows it ends and `module` begins.
  void watch(const torch::Tensor& boundary, const std::string& module);

  bool tied_head_;
  Recompute recompute_;
  torch::nn::Embedding tokens_{nullptr}, positions_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
  std::vector<Block> blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
  torch::Tensor mask_, position_ids_;
  ModuleListener listener_;
  std::string backward_module_;  // that runs now; empty: none
};
TORCH_MODULE(Gpt);

}  // namespace tencache
