#include "traces/generate/linear.h"

namespace tencache::generator {

bool LinearOps::stops_early() const {
  const Recompute kind = step_.options.recompute;
  return pass_.again() && (kind == Recompute::block_early_stop || kind == Recompute::ops) && !rank_.hidden_dropout &&
         (rank_.model.norm_first || rank_.model.parallel_block);
}

// Into a workspace, before every use.
TensorId LinearOps::readable(const Parameter& parameter, const std::string& label, const Module& module) {
  if (parameter.packing == nullptr || !parameter.packing->expanded) return parameter.value;
  const TensorId expanded =
      step_.tensor(module, label + ".dequantized", parameter.elements() * step_.element_bytes(), Role::workspace);
  step_.op(label + "_dequantize", module, {}, {parameter.value}, {expanded});
  return expanded;
}

bool LinearOps::computes_in_fp8(const Linear& linear, Count tokens) const {
  constexpr Count multiple = 16;
  return step_.options.precision == Precision::fp8 && linear.weight->layer >= 0 && linear.in % multiple == 0 &&
         linear.out % multiple == 0 && tokens % multiple == 0;
}

TensorId LinearOps::cast_to_fp8(const Linear& linear, std::string_view operand, TensorId source) {
  const std::string name = std::string(operand) + "_to_fp8";
  const TensorId copy = step_.tensor(linear.module, linear.label + "." + std::string(operand) + "_fp8",
                                     step_.bytes(source) / step_.element_bytes(), Role::workspace);
  step_.op(linear.label + "_" + name, linear.module, {}, {source}, {copy});
  return copy;
}

TensorId LinearOps::input_in_fp8(const Linear& linear, TensorId input) {
  if (kernels_.eager() || cast_of_ != input) {
    cast_ = cast_to_fp8(linear, "input", input);
    cast_of_ = input;
  }
  return cast_;
}

TensorId LinearOps::linear(Linear& linear, TensorId x, Count tokens, LinearState& state, bool last) {
  state.input = x;
  const bool stops = last && stops_early(), adapted = linear.lora_a != nullptr;
  if (stops && !adapted) return none;
  const bool keeps = pass_.keeps_product();
  taken_ = keeps && pass_.again();
  TensorId y = none;
  if (taken_) {
    y = pass_.take();
  } else {
    TensorId weight = weight_for(linear), input = x;
    Cost cost = matmul(1, tokens, linear.out, linear.in, {linear.in, linear.out});
    cost.kernel.fp8 = computes_in_fp8(linear, tokens);
    cost.packed = packed_bytes(*linear.weight);
    if (cost.kernel.fp8) {
      input = input_in_fp8(linear, x);
      weight = cast_to_fp8(linear, "weight", weight);
    }
    y = step_.activation(linear.module, linear.label, tokens * linear.out);
    step_.op(linear.label, linear.module, cost, {input, weight, linear.bias ? linear.bias->value : none}, {y});
    if (keeps) pass_.keep(y);
  }
  if (!adapted) return y;
  const Count rank = step_.options.lora_rank;
  const bool keeps_hidden = pass_.keeps_product();
  if (keeps_hidden && pass_.again()) {
    state.lora_hidden = pass_.take();
  } else {
    state.lora_hidden = step_.activation(linear.module, linear.label + ".lora", tokens * rank);
    step_.op(linear.label + "_lora_a", linear.module, matmul(1, tokens, rank, linear.in, {linear.in, rank}),
             {x, linear.lora_a->value}, {state.lora_hidden});
    if (keeps_hidden) pass_.keep(state.lora_hidden);
  }
  if (stops) return none;
  // Two products later: kept exactly if the first one, to which this one adds, was.
  if (pass_.keeps_product() && pass_.again()) return y;
  step_.op(linear.label + "_lora_b", linear.module, matmul(1, tokens, linear.out, rank, {rank, linear.out}),
           {state.lora_hidden, linear.lora_b->value, y}, {y});
  return y;
}

void LinearOps::linear_backward(Linear& linear, const LinearState& state, TensorId dy, Count tokens, TensorId* dx,
                                bool parts) {
  const Module& module = linear.module;
  // Eager PyTorch computes what is added to a gradient by itself, and adds it; others let the product accumulate.
  // `beside`: the bias' gradient where this product's kernel sums it up, too.
  const auto product = [&](std::string_view suffix, const Cost& cost, std::initializer_list<TensorId> reads,
                           TensorId result, bool accumulates, Step::GradientUse beside = {}) {
    const std::string name = linear.label + std::string(suffix);
    if (!accumulates) {
      step_.op(name, module, cost, reads, {result, beside.tensor});
    } else if (kernels_.eager() || parts) {
      const TensorId part = step_.tensor(module, name + ".part", step_.bytes(result), Role::gradient);
      step_.op(name, module, cost, reads, {part});
      step_.op("add", module, {.bytes = 3 * step_.bytes(result)}, {result, part}, {result});
    } else {
      std::vector<TensorId> all(reads);
      all.push_back(result);
      std::vector<TensorId> results{result};
      if (beside.read != none) all.push_back(beside.read);
      if (beside.tensor != none) results.push_back(beside.tensor);
      step_.op(name, module, cost, std::span<const TensorId>(all), std::span<const TensorId>(results));
    }
  };
  // From the gradient of what is `k` wide.
  const auto input_gradient = [&](std::string_view suffix, TensorId upstream, TensorId weight, Count k, bool fp8) {
    const bool accumulates = *dx != none;
    Cost cost = matmul(1, tokens, linear.in, k, {k, linear.in});
    cost.kernel.fp8 = fp8;
    if (fp8) {
      upstream = cast_to_fp8(linear, "output_grad", upstream);
      weight = cast_to_fp8(linear, "weight", weight);
    }
    if (!accumulates) *dx = step_.gradient(module, linear.label + ".input_grad", tokens * linear.in);
    product(suffix, cost, {upstream, weight}, *dx, accumulates);
  };
  const auto weight_gradient = [&](std::string_view suffix, Parameter& weight, TensorId input, TensorId upstream,
                                   Count rows, Count columns, bool fp8, Step::GradientUse beside = {}) {
    Cost cost = matmul(1, rows, columns, tokens, {rows, columns});
    cost.kernel.fp8 = fp8;
    if (fp8) {
      input = input_in_fp8(linear, input);
      upstream = cast_to_fp8(linear, "output_grad", upstream);
    }
    const Step::GradientUse dw = step_.gradient_of(weight);
    if (parts && dw.read == none) step_.op("clear", module, {.bytes = step_.bytes(dw.tensor)}, {}, {dw.tensor});
    product(suffix, cost, {input, upstream}, dw.tensor, parts || dw.read != none, beside);
  };
  if (linear.lora_a != nullptr) {
    const Count rank = step_.options.lora_rank;
    weight_gradient("_lora_b_backward_weight", *linear.lora_b, state.lora_hidden, dy, linear.out, rank, false);
    const TensorId d_hidden = step_.gradient(module, linear.label + ".lora_grad", tokens * rank);
    step_.op(linear.label + "_lora_b_backward_input", module, matmul(1, tokens, rank, linear.out, {linear.out, rank}),
             {dy, linear.lora_b->value}, {d_hidden});
    weight_gradient("_lora_a_backward_weight", *linear.lora_a, state.input, d_hidden, rank, linear.in, false);
    if (dx != nullptr) input_gradient("_lora_a_backward_input", d_hidden, linear.lora_a->value, rank, false);
  }
  const bool fp8 = computes_in_fp8(linear, tokens);
  const auto bias_gradient = [&] {
    const Step::GradientUse db = step_.gradient_of(*linear.bias);
    const Cost cost = kernels_.bias_gradient(tokens * linear.out, step_.bytes(db.tensor));
    step_.op(linear.label + "_backward_bias", module, cost, {dy, db.read}, {db.tensor});
  };
  if (linear.weight->trainable) {
    const bool joined = linear.bias != nullptr && kernels_.joins_bias_gradient() && !parts;
    weight_gradient("_backward_weight", *linear.weight, state.input, dy, linear.out, linear.in, fp8,
                    joined ? step_.gradient_of(*linear.bias) : Step::GradientUse{});
    if (linear.bias != nullptr && !joined) bias_gradient();
  } else if (linear.bias != nullptr && linear.bias->trainable) {
    bias_gradient();
  }
  if (dx != nullptr) input_gradient("_backward_input", dy, weight_for(linear), linear.out, fp8);
}

}  // namespace tencache::generator
