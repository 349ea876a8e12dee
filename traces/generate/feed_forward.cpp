#include "traces/generate/feed_forward.h"

namespace tencache::generator {

TensorId FeedForwardOps::forward(FeedForward& block, TensorId x, Count tokens, FeedForwardState& state, bool last) {
  state.tokens = tokens;
  const Module& module = block.up.module;
  const Count elements = tokens * (block.joined ? block.up.out / 2 : block.up.out);
  TensorId inner = none;
  if (block.gate) {
    state.gate_out = linears_.linear(block.gate, x, tokens, state.gate);
    state.up_out = linears_.linear(block.up, x, tokens, state.up);
    inner = step_.activation(module, "product", elements);
    if (kernels_.eager()) {
      state.activated = step_.activation(module, "activated", elements);
      step_.op("silu", module, kernels_.activation(Activation::silu, elements), {state.gate_out}, {state.activated});
      step_.op("multiply", module, kernels_.gate(elements), {state.activated, state.up_out}, {inner});
    } else {
      step_.op("swiglu", module, kernels_.gate(elements), {state.gate_out, state.up_out}, {inner});
    }
  } else if (block.joined) {
    state.up_out = linears_.linear(block.up, x, tokens, state.up);
    inner = step_.activation(module, "product", elements);
    step_.op("clamped_swiglu", module, kernels_.clamped_gate(elements), {state.up_out}, {inner});
  } else {
    state.up_out = linears_.linear(block.up, x, tokens, state.up);
    inner = step_.activation(module, "activated", elements);
    state.kept.clear();
    for (int i = 0; !step_.options.forward_only && i < kernels_.kept_by(model_.activation); ++i) {
      state.kept.push_back(step_.activation(module, "activation_kept", elements));
    }
    std::vector<TensorId> writes{inner};
    writes.insert(writes.end(), state.kept.begin(), state.kept.end());
    step_.op(to_string(model_.activation), module, kernels_.activation(model_.activation, elements),
             std::span<const TensorId>(&state.up_out, 1), std::span<const TensorId>(writes));
    state.activated = inner;
  }
  return linears_.linear(block.down, inner, tokens, state.down, last);
}

void FeedForwardOps::backward(FeedForward& block, const FeedForwardState& state, TensorId dy, TensorId* dx) {
  const Module& module = block.up.module;
  const Count tokens = state.tokens, elements = tokens * block.up.out;
  TensorId d_inner = none;
  linears_.linear_backward(block.down, state.down, dy, tokens, &d_inner);
  if (block.gate) {
    const TensorId d_up = step_.gradient(module, "up_grad", elements);
    const TensorId d_gate = step_.gradient(module, "gate_grad", elements);
    if (kernels_.eager()) {
      const TensorId d_activated = step_.gradient(module, "activated_grad", elements);
      step_.op("multiply_backward", module, kernels_.gate_backward(elements), {d_inner, state.activated, state.up_out},
               {d_activated, d_up});
      step_.op("silu_backward", module, kernels_.activation_backward(Activation::silu, elements),
               {d_activated, state.gate_out}, {d_gate});
    } else {
      step_.op("swiglu_backward", module, kernels_.gate_backward(elements), {d_inner, state.gate_out, state.up_out},
               {d_gate, d_up});
    }
    linears_.linear_backward(block.up, state.up, d_up, tokens, dx);
    linears_.linear_backward(block.gate, state.gate, d_gate, tokens, dx);
  } else {
    // ReLU needs its result only, which the next layer keeps anyway; the others their input.
    const bool relu = model_.activation == Activation::relu;
    const TensorId d_up = step_.gradient(module, "up_grad", elements);
    std::vector<TensorId> reads{d_inner, relu ? state.activated : state.up_out};
    reads.insert(reads.end(), state.kept.begin(), state.kept.end());
    step_.op(to_string(model_.activation) + "_backward", module,
             kernels_.activation_backward(model_.activation, elements), std::span<const TensorId>(reads),
             std::span<const TensorId>(&d_up, 1));
    linears_.linear_backward(block.up, state.up, d_up, tokens, dx);
  }
}

// Every token goes to experts_per_token experts, all of which get equally many.
Count FeedForwardOps::expert_capacity(Count tokens) const {
  return (tokens * model_.experts_per_token + model_.experts - 1) / model_.experts;
}

TensorId FeedForwardOps::experts_forward(Layer& layer, const MicroBatch& micro, TensorId x, ExpertsState& state) {
  const Module& module = layer.feed_forward_module;
  const Count tokens = micro.tokens(), count = model_.experts, hidden = model_.hidden;
  const bool routed = !micro.expert_tokens.empty();
  const auto tokens_of = [&](Count expert) { return routed ? micro.expert_tokens[expert] : expert_capacity(tokens); };
  const TensorId logits = linears_.linear(layer.router, x, tokens, state.router);
  state.weights = step_.activation(module, "router_weights", tokens * count);
  step_.op("softmax_top_k", module, {.kernel = {.kind = KernelKind::norm}}, {logits}, {state.weights});
  const OpIndex decision = step_.last_op();
  std::vector<TensorId> inputs;
  for (Count i = 0; i < count; ++i) {
    if (tokens_of(i) == 0) continue;
    inputs.push_back(step_.activation(layer.experts[i].up.module, "input", tokens_of(i) * hidden));
  }
  const TensorId sources[] = {x, state.weights};
  step_.op("permute", module, {.kernel = {.kind = KernelKind::gather}}, std::span<const TensorId>(sources),
           std::span<const TensorId>(inputs));
  // They start even if the GPU has none of the experts.
  const bool grouped = routed && step_.options.generation->grouped_experts;
  if (grouped) {
    Op start = step_.kernel("grouped_experts", module, {.kernel = {.kind = KernelKind::elementwise}, .bytes = 1});
    start.duration_ns = 2 * step_.model().start_ns({.kind = KernelKind::matmul}) +
                        step_.model().start_ns({.kind = KernelKind::elementwise});
    step_.op(start, {}, {});
  }
  step_.grouped = grouped;
  if (routed) step_.begin_revealed(decision);
  state.outputs.clear();
  state.experts.resize(count);
  for (Count i = 0; i < count; ++i) {
    if (tokens_of(i) == 0) continue;
    // Their results are needed for the gradients of their weights in the sum, which itself is not.
    const TensorId input = inputs[state.outputs.size()];
    state.outputs.push_back(forward(layer.experts[i], input, tokens_of(i), state.experts[i], false));
  }
  if (routed) step_.end_revealed();
  step_.grouped = false;
  const bool stops = linears_.stops_early();
  // Before the sum, so that it runs while the CPU computes experts.
  const bool shares = static_cast<bool>(layer.feed_forward.up);
  const TensorId shared = shares ? forward(layer.feed_forward, x, tokens, state.shared, true) : none;
  TensorId combined = none;
  if (!stops) {
    combined = step_.activation(module, "combined", tokens * hidden);
    std::vector<TensorId> parts = state.outputs;
    parts.push_back(state.weights);
    step_.op("combine", module, {.kernel = {.kind = KernelKind::gather}}, std::span<const TensorId>(parts),
             std::span<const TensorId>(&combined, 1));
  }
  if (shares && !stops) step_.op("add_shared", module, kernels_.add(tokens * hidden), {combined, shared}, {combined});
  return combined;
}

void FeedForwardOps::experts_backward(Layer& layer, const ExpertsState& state, TensorId dy, Count tokens,
                                      TensorId* dx) {
  const Module& module = layer.feed_forward_module;
  const Count count = model_.experts, capacity = expert_capacity(tokens), hidden = model_.hidden;
  if (layer.feed_forward.up) backward(layer.feed_forward, state.shared, dy, dx);
  std::vector<TensorId> reads = state.outputs, writes;
  reads.insert(reads.end(), {state.weights, dy});
  for (Count i = 0; i < count; ++i) {
    writes.push_back(step_.gradient(layer.experts[i].down.module, "output_grad", capacity * hidden));
  }
  const std::vector<TensorId> d_outputs = writes;
  const TensorId d_weights = step_.gradient(module, "router_weights_grad", tokens * count);
  writes.push_back(d_weights);
  step_.op("combine_backward", module, {.kernel = {.kind = KernelKind::gather}}, std::span<const TensorId>(reads),
           std::span<const TensorId>(writes));
  reads.assign(1, state.weights);
  for (Count i = count; i-- > 0;) {
    TensorId d_input = none;
    backward(layer.experts[i], state.experts[i], d_outputs[i], &d_input);
    reads.push_back(d_input);
  }
  if (*dx == none) {
    *dx = step_.gradient(module, "input_grad", tokens * hidden);
  } else {
    reads.push_back(*dx);
  }
  writes.assign(1, *dx);
  step_.op("permute_backward", module, {.kernel = {.kind = KernelKind::gather}}, std::span<const TensorId>(reads),
           std::span<const TensorId>(writes));
  rank_.collectives.all_reduce(Group::tensor, module, *dx);
  const TensorId d_logits = step_.gradient(module, "router_logits_grad", tokens * count);
  step_.op("softmax_top_k_backward", module, {.kernel = {.kind = KernelKind::norm}}, {d_weights, state.weights},
           {d_logits});
  linears_.linear_backward(layer.router, state.router, d_logits, tokens, dx);
}

}  // namespace tencache::generator
