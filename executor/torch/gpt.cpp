#include "executor/torch/gpt.h"

#include <cmath>
#include <limits>

#include "executor/torch/random_state.h"

namespace tencache {
namespace {

// Runs a block and keeps its input only. Backward runs it again, on the random numbers of the first time, and then its
// backward pass, which adds to the gradients of its parameters.
struct RecomputedBlock : torch::autograd::Function<RecomputedBlock> {
  struct Segment : torch::CustomClassHolder {
    Segment(BlockImpl* of, const RandomState& state) : block(of), random(state) {}
    BlockImpl* block;
    RandomState random;
  };

  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& hidden,
                               const torch::Tensor& mask, BlockImpl* block) {
    context->save_for_backward({hidden, mask});
    context->saved_data["segment"] =
        c10::IValue::make_capsule(c10::make_intrusive<Segment>(block, RandomState::capture()));
    return block->forward(hidden, mask);  // without a graph: a Function's forward has none
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto capsule = context->saved_data["segment"].toCapsule();
    const auto& segment = static_cast<const Segment&>(*capsule);
    const torch::Tensor hidden = saved[0].detach().requires_grad_();
    const RandomState after = RandomState::capture();
    torch::Tensor output;
    {
      const torch::AutoGradMode with_graph(true);
      segment.random.restore();
      output = segment.block->forward(hidden, saved[1]);
      after.restore();
    }
    output.backward(gradients[0]);
    return {hidden.grad(), torch::Tensor(), torch::Tensor()};
  }
};

}  // namespace

BlockImpl::BlockImpl(const TrainingConfig& config) : heads_(config.heads) {
  const std::int64_t width = config.width;
  norm1_ = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  query_key_value_ = register_module("query_key_value", torch::nn::Linear(width, 3 * width));
  projection_ = register_module("projection", torch::nn::Linear(width, width));
  norm2_ = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  expand_ = register_module("expand", torch::nn::Linear(width, 4 * width));
  contract_ = register_module("contract", torch::nn::Linear(4 * width, width));
  dropout_ = register_module("dropout", torch::nn::Dropout(config.dropout));
}

torch::Tensor BlockImpl::attention(const torch::Tensor& hidden, const torch::Tensor& mask) {
  const std::int64_t batch = hidden.size(0), sequence = hidden.size(1), width = hidden.size(2);
  const std::int64_t head_width = width / heads_;
  // Each of query, key and value: batch × heads × sequence × head_width.
  const auto parts =
      query_key_value_(hidden).view({batch, sequence, 3, heads_, head_width}).permute({2, 0, 3, 1, 4}).unbind(0);
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_width));
  torch::Tensor scores = torch::matmul(parts[0] * scale, parts[1].transpose(-2, -1));
  scores = scores.masked_fill_(mask, -std::numeric_limits<float>::infinity());
  const torch::Tensor weights = dropout_(torch::softmax(scores, -1));
  const torch::Tensor mixed = torch::matmul(weights, parts[2]);
  return projection_(mixed.transpose(1, 2).reshape({batch, sequence, width}));
}

torch::Tensor BlockImpl::forward(const torch::Tensor& hidden, const torch::Tensor& mask) {
  const torch::Tensor attended = hidden + dropout_(attention(norm1_(hidden), mask));
  return attended + dropout_(contract_(torch::gelu(expand_(norm2_(attended)))));
}

GptImpl::GptImpl(const TrainingConfig& config) : tied_head_(config.tied_head), recompute_(config.recompute) {
  const auto embedding = [&](std::int64_t count) {
    torch::nn::Embedding result(count, config.width);
    torch::NoGradGuard no_gradient;
    result->weight.normal_(0.0, 0.02);
    return result;
  };
  tokens_ = register_module("tokens", embedding(config.vocabulary));
  positions_ = register_module("positions", embedding(config.context));
  dropout_ = register_module("dropout", torch::nn::Dropout(config.dropout));
  for (std::int64_t i = 0; i < config.layers; ++i) {
    blocks_.push_back(register_module("block_" + std::to_string(i), Block(config)));
  }
  norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})));
  if (!tied_head_) {
    head_ = register_module("head",
                            torch::nn::Linear(torch::nn::LinearOptions(config.width, config.vocabulary).bias(false)));
  }
  mask_ = register_buffer("mask", torch::ones({config.context, config.context}, torch::kBool).triu(1));
  position_ids_ = register_buffer("position_ids", torch::arange(config.context));
  if (config.precision == TrainingPrecision::bf16) {
    // The weights are drawn as for fp32 and then rounded. Module::to would take the integers along.
    for (torch::Tensor& parameter : parameters()) parameter.set_data(parameter.detach().to(torch::kBFloat16));
  }
}

torch::Tensor GptImpl::loss(const torch::Tensor& tokens, const torch::Tensor& targets) {
  backward_module_.clear();
  announce("embedding", true);
  torch::Tensor hidden = dropout_(tokens_(tokens) + positions_(position_ids_));
  announce("embedding", false);
  watch(hidden, "embedding");
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const std::string module = "block." + std::to_string(i);
    announce(module, true);
    hidden = recompute_ == Recompute::block ? RecomputedBlock::apply(hidden, mask_, blocks_[i].get())
                                            : blocks_[i](hidden, mask_);
    announce(module, false);
    watch(hidden, module);
  }
  announce("head", true);
  hidden = norm_(hidden);
  const torch::Tensor logits = tied_head_ ? torch::matmul(hidden, tokens_->weight.t()) : head_(hidden);
  const torch::Tensor result =
      torch::nn::functional::cross_entropy(logits.flatten(0, -2).to(torch::kFloat32), targets.flatten());
  announce("head", false);
  watch(result, "head");
  return result;
}

void GptImpl::finish_backward() { enter_backward(""); }

void GptImpl::announce(const std::string& module, bool begins) {
  if (listener_) listener_(module, begins);
}

void GptImpl::enter_backward(const std::string& module) {
  if (!backward_module_.empty()) announce(backward_module_, false);
  backward_module_ = module;
  if (!module.empty()) announce(module, true);
}

void GptImpl::watch(const torch::Tensor& boundary, const std::string& module) {
  if (!listener_) return;
  boundary.register_hook([this, module](const torch::Tensor&) { enter_backward(module); });
}

}  // namespace tencache
