#include "traces/generate/layers.h"

#include <cmath>
#include <utility>

namespace tencache::generator {

bool LayerOps::recomputes(const Layer& layer) const {
  const Recompute kind = rank_.step.options.recompute;
  if (kind == Recompute::none || kind == Recompute::selective) return false;
  // Spread evenly: where the number of layers so far goes up by one. 0.5: the second, the fourth, ...
  constexpr double rounding = 1e-9;
  const auto so_far = [&](std::int64_t layers) {
    return std::floor(static_cast<double>(layers) * rank_.step.options.recompute_share + rounding);
  };
  const std::int64_t index = layer.parameters.front()->layer;
  return so_far(index + 1) > so_far(index);
}

TensorId LayerOps::forward(Layer& layer, const MicroBatch& micro, TensorId x, LayerState& state) {
  const bool keeps = rank_.step.options.recompute == Recompute::ops && recomputes(layer);
  linears_.pass().begin(keeps ? &state.kept : nullptr, false);
  const TensorId y = run_forward(layer, micro, x, state);
  state.output = y;
  linears_.pass().end();
  return y;
}

void LayerOps::recompute(Layer& layer, const MicroBatch& micro, LayerState& state) {
  TensorId input = state.input;
  if (rank_.step.options.recompute == Recompute::reversible) {
    const Count elements = micro.tokens() * rank_.model.hidden;
    const TensorId output = rebuilt_ != none ? rebuilt_ : state.output;
    input = rebuilt_ = rank_.step.activation(layer.module, "rebuilt_input", elements);
    rank_.step.op("rebuild_input", layer.module, {}, {output}, {input});
  }
  std::vector<TensorId> kept = std::move(state.kept);
  state = {};
  linears_.pass().begin(rank_.step.options.recompute == Recompute::ops ? &kept : nullptr, true);
  run_forward(layer, micro, input, state);
  linears_.pass().end();
}

TensorId LayerOps::run_forward(Layer& layer, const MicroBatch& micro, TensorId x, LayerState& state) {
  linears_.forget_casts();
  state.input = x;
  const Count tokens = micro.tokens();
  const auto feed_forward = [&](TensorId input) {
    const TensorId y = layer.router
                           ? feed_forward_.experts_forward(layer, micro, input, state.experts)
                           : feed_forward_.forward(layer.feed_forward, input, tokens, state.feed_forward, true);
    if (y != none && (layer.router || !linears_.taken()))
      rank_.collectives.all_reduce(Group::tensor, layer.feed_forward_module, y);
    return y;
  };
  const auto attend = [&](TensorId input) {
    return layer.latent.down ? latent_attention_.forward(layer, micro, input)
                             : attention_.forward(layer, micro, input, state.attention);
  };
  const Module& attention_module = layer.attention_module;
  const Module& feed_forward_module = layer.feed_forward_module;
  if (rank_.model.parallel_block) {
    const TensorId normed = norm(rank_, layer.attention_norm, x, tokens, state.attention_norm);
    const TensorId second =
        layer.feed_forward_norm ? norm(rank_, layer.feed_forward_norm, x, tokens, state.feed_forward_norm) : normed;
    const TensorId attended = attend(normed);
    const TensorId expanded = feed_forward(second);
    if (expanded == none) return none;
    return dropout_add(rank_, layer.module, "block", attended, x, expanded, tokens, state.feed_forward_mask);
  }
  if (rank_.model.norm_first) {
    const TensorId normed = norm(rank_, layer.attention_norm, x, tokens, state.attention_norm);
    const TensorId attended = attend(normed);
    const TensorId middle =
        dropout_add(rank_, attention_module, "attention", attended, x, none, tokens, state.attention_mask);
    const TensorId second = norm(rank_, layer.feed_forward_norm, middle, tokens, state.feed_forward_norm);
    const TensorId out = feed_forward(second);
    if (out == none) return none;
    return dropout_add(rank_, feed_forward_module, "feed_forward", out, middle, none, tokens, state.feed_forward_mask);
  }
  const TensorId attended = attend(x);
  const TensorId first =
      dropout_add(rank_, attention_module, "attention", attended, x, none, tokens, state.attention_mask);
  const TensorId middle = norm(rank_, layer.attention_norm, first, tokens, state.attention_norm);
  const TensorId out = feed_forward(middle);
  const TensorId sum =
      dropout_add(rank_, feed_forward_module, "feed_forward", out, middle, none, tokens, state.feed_forward_mask);
  return norm(rank_, layer.feed_forward_norm, sum, tokens, state.feed_forward_norm);
}

TensorId LayerOps::backward(Layer& layer, const MicroBatch& micro, LayerState& state, TensorId dy,
                            bool input_gradient) {
  if (recomputes(layer)) recompute(layer, micro, state);
  linears_.forget_casts();
  const Count tokens = micro.tokens(), elements = tokens * rank_.model.hidden;
  // Attention and feed-forward behind one norm (Falcon-7B) add up their gradients; the sum goes around once.
  const bool shared_norm = !layer.feed_forward_norm;
  const auto feed_forward_backward = [&](TensorId d_out, TensorId* dx) {
    if (layer.router) {
      feed_forward_.experts_backward(layer, state.experts, d_out, tokens, dx);
      return;
    }
    feed_forward_.backward(layer.feed_forward, state.feed_forward, d_out, dx);
    if (!shared_norm) rank_.collectives.all_reduce(Group::tensor, layer.feed_forward_module, *dx);
  };
  if (rank_.model.parallel_block) {
    const TensorId d_sum = dropout_backward(rank_, layer.module, dy, state.feed_forward_mask, elements);
    TensorId d_second = none;
    feed_forward_backward(d_sum, &d_second);
    TensorId residual = dy;
    TensorId d_normed = none;
    if (!shared_norm) {
      residual = norm_backward(rank_, layer.feed_forward_norm, state.feed_forward_norm, d_second, dy, tokens, true);
    } else {
      d_normed = d_second;
    }
    const bool wanted = input_gradient || layer.attention_norm.is_trained();
    attention_.backward(layer, micro, state.attention, d_sum, wanted ? &d_normed : nullptr);
    return norm_backward(rank_, layer.attention_norm, state.attention_norm, d_normed, residual, tokens, input_gradient);
  }
  if (rank_.model.norm_first) {
    const TensorId d_out = dropout_backward(rank_, layer.feed_forward_module, dy, state.feed_forward_mask, elements);
    TensorId d_second = none;
    feed_forward_backward(d_out, &d_second);
    const TensorId d_middle =
        norm_backward(rank_, layer.feed_forward_norm, state.feed_forward_norm, d_second, dy, tokens, true);
    const TensorId d_attended =
        dropout_backward(rank_, layer.attention_module, d_middle, state.attention_mask, elements);
    TensorId d_normed = none;
    const bool wanted = input_gradient || layer.attention_norm.is_trained();
    attention_.backward(layer, micro, state.attention, d_attended, wanted ? &d_normed : nullptr);
    return norm_backward(rank_, layer.attention_norm, state.attention_norm, d_normed, d_middle, tokens, input_gradient);
  }
  // Norms behind: the gradient of a sum is also that of its residual, to which the block's own is added in place.
  TensorId d_sum = norm_backward(rank_, layer.feed_forward_norm, state.feed_forward_norm, dy, none, tokens, true);
  const TensorId d_out = dropout_backward(rank_, layer.feed_forward_module, d_sum, state.feed_forward_mask, elements);
  feed_forward_backward(d_out, &d_sum);
  TensorId d_first = norm_backward(rank_, layer.attention_norm, state.attention_norm, d_sum, none, tokens, true);
  const TensorId d_attended = dropout_backward(rank_, layer.attention_module, d_first, state.attention_mask, elements);
  attention_.backward(layer, micro, state.attention, d_attended, input_gradient ? &d_first : nullptr);
  return input_gradient ? d_first : TensorId{none};
}

}  // namespace tencache::generator
