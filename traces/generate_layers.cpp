#include "traces/generate_layers.h"

#include <cmath>

#include "core/check.h"

namespace tencache::generator {

LayerOps::LayerOps(Step& step, Collectives& collectives, const ModelDescription& model)
    : step_(step),
      collectives_(collectives),
      model_(model),
      kernels_(step.options.stack, step.options.precision),
      local_heads_(model.heads / step.options.tensor_parallel),
      local_key_value_heads_(std::max<Count>(1, model.key_value_heads / step.options.tensor_parallel)) {
  const ModelFamily family = model.family;
  Dropout dropout = step.options.dropout;
  if (dropout == Dropout::family) {
    const bool all = family == ModelFamily::gpt2 || family == ModelFamily::bert;
    dropout = all ? Dropout::all : family == ModelFamily::opt ? Dropout::hidden : Dropout::none;
  }
  if (step.options.forward_only) dropout = Dropout::none;
  hidden_dropout_ = dropout != Dropout::none;
  attention_dropout_ = dropout == Dropout::all;
  causal_ = family != ModelFamily::bert && family != ModelFamily::vit;
  rotary_ = family == ModelFamily::llama || family == ModelFamily::mixtral || family == ModelFamily::falcon;
}

// ---- Linear layers. -------------------------------------------------------------------------------------------------

// A quantised weight is expanded into a workspace before every product.
TensorId LayerOps::weight_for(Linear& linear) {
  if (!linear.weight->quantised) return linear.weight->value;
  const TensorId expanded = step_.tensor(linear.module, linear.label + ".dequantized",
                                         linear.weight->elements() * step_.element_bytes(), Role::workspace);
  step_.op(linear.label + "_dequantize", linear.module, {}, {linear.weight->value}, {expanded});
  return expanded;
}

bool LayerOps::computes_in_fp8(const Linear& linear, Count tokens) const {
  constexpr Count multiple = 16;
  return step_.options.precision == Precision::fp8 && linear.weight->layer >= 0 && linear.in % multiple == 0 &&
         linear.out % multiple == 0 && tokens % multiple == 0;
}

TensorId LayerOps::cast_to_fp8(const Linear& linear, std::string_view operand, TensorId source) {
  const std::string name = std::string(operand) + "_to_fp8";
  const TensorId copy = step_.tensor(linear.module, linear.label + "." + std::string(operand) + "_fp8",
                                     step_.bytes(source) / step_.element_bytes(), Role::workspace);
  step_.op(linear.label + "_" + name, linear.module, {}, {source}, {copy});
  return copy;
}

TensorId LayerOps::input_in_fp8(const Linear& linear, TensorId input) {
  if (kernels_.eager() || cast_of_ != input) {
    cast_ = cast_to_fp8(linear, "input", input);
    cast_of_ = input;
  }
  return cast_;
}

TensorId LayerOps::linear(Linear& linear, TensorId x, Count tokens, LinearState& state, bool last) {
  state.input = x;
  const bool stops = last && stops_early(), adapted = linear.lora_a != nullptr;
  if (stops && !adapted) return none;
  const bool keeps = keeps_product();
  taken_ = keeps && again_;
  TensorId y = none;
  if (taken_) {
    y = take_kept();
  } else {
    TensorId weight = weight_for(linear), input = x;
    Cost cost = matmul(1, tokens, linear.out, linear.in, {linear.in, linear.out});
    cost.kernel.fp8 = computes_in_fp8(linear, tokens);
    if (cost.kernel.fp8) {
      input = input_in_fp8(linear, x);
      weight = cast_to_fp8(linear, "weight", weight);
    }
    y = step_.activation(linear.module, linear.label, tokens * linear.out);
    step_.op(linear.label, linear.module, cost, {input, weight, linear.bias ? linear.bias->value : none}, {y});
    if (keeps) keep(y);
  }
  if (!adapted) return y;
  const Count rank = step_.options.lora_rank;
  const bool keeps_hidden = keeps_product();
  if (keeps_hidden && again_) {
    state.lora_hidden = take_kept();
  } else {
    state.lora_hidden = step_.activation(linear.module, linear.label + ".lora", tokens * rank);
    step_.op(linear.label + "_lora_a", linear.module, matmul(1, tokens, rank, linear.in, {linear.in, rank}),
             {x, linear.lora_a->value}, {state.lora_hidden});
    if (keeps_hidden) keep(state.lora_hidden);
  }
  if (stops) return none;
  // Two products later: kept exactly if the first one, to which this one adds, was.
  if (keeps_product() && again_) return y;
  step_.op(linear.label + "_lora_b", linear.module, matmul(1, tokens, linear.out, rank, {rank, linear.out}),
           {state.lora_hidden, linear.lora_b->value, y}, {y});
  return y;
}

void LayerOps::linear_backward(Linear& linear, const LinearState& state, TensorId dy, Count tokens, TensorId* dx,
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
  if (linear.weight->trainable) {
    const bool joined = linear.bias != nullptr && kernels_.joins_bias_gradient() && !parts;
    weight_gradient("_backward_weight", *linear.weight, state.input, dy, linear.out, linear.in, fp8,
                    joined ? step_.gradient_of(*linear.bias) : Step::GradientUse{});
    if (linear.bias != nullptr && !joined) {
      const Step::GradientUse db = step_.gradient_of(*linear.bias);
      const Cost cost = kernels_.bias_gradient(tokens * linear.out, step_.bytes(db.tensor));
      step_.op(linear.label + "_backward_bias", module, cost, {dy, db.read}, {db.tensor});
    }
  }
  if (dx != nullptr) input_gradient("_backward_input", dy, weight_for(linear), linear.out, fp8);
}

// ---- Normalisation, dropout and residuals. --------------------------------------------------------------------------
// The statistics of a normalisation (a mean and a deviation a token) are left out, as in the literature's closed form.

TensorId LayerOps::norm(Norm& norm, TensorId x, Count rows, NormState& state) {
  const bool root_mean_square = norm.bias == nullptr;
  const Count elements = rows * norm.weight->elements();
  state.input = x;
  const TensorId y = step_.activation(norm.module, "output", elements);
  TensorId in_fp32 = none;
  if (kernels_.composes_norm(root_mean_square) && !step_.options.forward_only) {
    if (kernels_.casts()) {
      state.input = in_fp32 = step_.tensor(norm.module, "input_fp32", 4 * elements, Role::activation);
    }
    state.normalised = step_.activation(norm.module, "normalised", elements);
  }
  step_.op("norm", norm.module, kernels_.norm(root_mean_square, elements),
           {x, norm.weight->value, norm.bias ? norm.bias->value : none}, {y, in_fp32, state.normalised});
  return y;
}

// The gradient of the norm's input, plus `residual`, the gradient that by-passes it (none: nothing does).
TensorId LayerOps::norm_backward(Norm& norm, const NormState& state, TensorId dy, TensorId residual, Count rows,
                                 bool input_gradient) {
  Step::GradientUse dw, db;
  if (norm.weight->trainable) dw = step_.gradient_of(*norm.weight);
  if (norm.bias && norm.bias->trainable) db = step_.gradient_of(*norm.bias);
  if (!input_gradient && dw.tensor == none) return none;
  const Count elements = rows * norm.weight->elements();
  const TensorId dx = input_gradient ? step_.gradient(norm.module, "input_grad", elements) : TensorId{none};
  step_.op("norm_backward", norm.module, kernels_.norm_backward(norm.bias == nullptr, residual != none, elements),
           {dy, state.input, state.normalised, norm.weight->value, residual, dw.read, db.read},
           {dx, dw.tensor, db.tensor});
  return dx;
}

// residual + dropout(out) (+ extra, where attention and feed-forward are parallel), as one kernel.
TensorId LayerOps::dropout_add(const Module& module, std::string_view label, TensorId out, TensorId residual,
                               TensorId extra, Count tokens, TensorId& mask) {
  const Count elements = tokens * model_.hidden;
  if (hidden_dropout_) mask = step_.tensor(module, std::string(label) + ".dropout_mask", elements, Role::activation);
  const TensorId sum = step_.activation(module, std::string(label) + ".residual", elements);
  step_.op(hidden_dropout_ ? "dropout_add" : "add", module,
           kernels_.residual(extra == none ? 2 : 3, hidden_dropout_, elements), {out, residual, extra}, {sum, mask});
  return sum;
}

TensorId LayerOps::dropout_backward(const Module& module, TensorId dy, TensorId mask, Count elements) {
  if (mask == none) return dy;
  const TensorId dx = step_.gradient(module, "dropout.input_grad", elements);
  step_.op("dropout_backward", module, kernels_.dropout(elements), {dy, mask}, {dx});
  return dx;
}

// ---- A layer. -------------------------------------------------------------------------------------------------------

bool LayerOps::recomputes(const Layer& layer) const {
  const Recompute kind = step_.options.recompute;
  if (kind == Recompute::none || kind == Recompute::selective) return false;
  // Spread evenly: where the number of layers so far goes up by one. 0.5: the second, the fourth, ...
  constexpr double rounding = 1e-9;
  const auto so_far = [&](std::int64_t layers) {
    return std::floor(static_cast<double>(layers) * step_.options.recompute_share + rounding);
  };
  const std::int64_t index = layer.parameters.front()->layer;
  return so_far(index + 1) > so_far(index);
}

TensorId LayerOps::layer(Layer& layer, const MicroBatch& micro, TensorId x, LayerState& state) {
  if (step_.options.recompute == Recompute::ops && recomputes(layer)) {
    kept_ = &state.kept;
    products_ = 0;
  }
  const TensorId y = layer_forward(layer, micro, x, state);
  kept_ = nullptr;
  return y;
}

// The forward pass again; `state` is that of the first one and becomes that of the second one.
void LayerOps::recompute(Layer& layer, const MicroBatch& micro, LayerState& state) {
  const TensorId input = state.input;
  std::vector<TensorId> kept = std::move(state.kept);
  state = {};
  kept_ = step_.options.recompute == Recompute::ops ? &kept : nullptr;
  products_ = next_kept_ = 0;
  again_ = true;
  layer_forward(layer, micro, input, state);
  again_ = false;
  kept_ = nullptr;
}

// Returns none where it stops early.
TensorId LayerOps::layer_forward(Layer& layer, const MicroBatch& micro, TensorId x, LayerState& state) {
  cast_of_ = none;
  state.input = x;
  const Count tokens = micro.tokens();
  const auto feed_forward = [&](TensorId input) {
    const TensorId y = layer.router ? experts(layer, input, tokens, state.experts)
                                    : this->feed_forward(layer.feed_forward, input, tokens, state.feed_forward, true);
    if (y != none && !taken_) collectives_.all_reduce(Group::tensor, layer.feed_forward_module, y);
    return y;
  };
  const Module& attention_module = layer.attention_module;
  const Module& feed_forward_module = layer.feed_forward_module;
  if (model_.parallel_block) {
    const TensorId normed = norm(layer.attention_norm, x, tokens, state.attention_norm);
    const TensorId second =
        layer.feed_forward_norm ? norm(layer.feed_forward_norm, x, tokens, state.feed_forward_norm) : normed;
    const TensorId attended = attention(layer, micro, normed, state.attention);
    const TensorId expanded = feed_forward(second);
    if (expanded == none) return none;
    return dropout_add(layer.module, "block", attended, x, expanded, tokens, state.feed_forward_mask);
  }
  if (model_.norm_first) {
    const TensorId normed = norm(layer.attention_norm, x, tokens, state.attention_norm);
    const TensorId attended = attention(layer, micro, normed, state.attention);
    const TensorId middle = dropout_add(attention_module, "attention", attended, x, none, tokens, state.attention_mask);
    const TensorId second = norm(layer.feed_forward_norm, middle, tokens, state.feed_forward_norm);
    const TensorId out = feed_forward(second);
    if (out == none) return none;
    return dropout_add(feed_forward_module, "feed_forward", out, middle, none, tokens, state.feed_forward_mask);
  }
  const TensorId attended = attention(layer, micro, x, state.attention);
  const TensorId first = dropout_add(attention_module, "attention", attended, x, none, tokens, state.attention_mask);
  const TensorId middle = norm(layer.attention_norm, first, tokens, state.attention_norm);
  const TensorId out = feed_forward(middle);
  const TensorId sum =
      dropout_add(feed_forward_module, "feed_forward", out, middle, none, tokens, state.feed_forward_mask);
  return norm(layer.feed_forward_norm, sum, tokens, state.feed_forward_norm);
}

TensorId LayerOps::layer_backward(Layer& layer, const MicroBatch& micro, LayerState& state, TensorId dy,
                                  bool input_gradient) {
  if (recomputes(layer)) recompute(layer, micro, state);
  cast_of_ = none;
  const Count tokens = micro.tokens(), elements = tokens * model_.hidden;
  // Attention and feed-forward behind one norm (Falcon-7B) add up their gradients; the sum goes around once.
  const bool shared_norm = !layer.feed_forward_norm;
  const auto feed_forward_backward = [&](TensorId d_out, TensorId* dx) {
    if (layer.router) {
      experts_backward(layer, state.experts, d_out, tokens, dx);
      return;
    }
    this->feed_forward_backward(layer.feed_forward, state.feed_forward, d_out, dx);
    if (!shared_norm) collectives_.all_reduce(Group::tensor, layer.feed_forward_module, *dx);
  };
  if (model_.parallel_block) {
    const TensorId d_sum = dropout_backward(layer.module, dy, state.feed_forward_mask, elements);
    TensorId d_second = none;
    feed_forward_backward(d_sum, &d_second);
    TensorId residual = dy;
    TensorId d_normed = none;
    if (!shared_norm) {
      residual = norm_backward(layer.feed_forward_norm, state.feed_forward_norm, d_second, dy, tokens, true);
    } else {
      d_normed = d_second;
    }
    const bool wanted = input_gradient || layer.attention_norm.weight->trainable;
    attention_backward(layer, micro, state.attention, d_sum, wanted ? &d_normed : nullptr);
    return norm_backward(layer.attention_norm, state.attention_norm, d_normed, residual, tokens, input_gradient);
  }
  if (model_.norm_first) {
    const TensorId d_out = dropout_backward(layer.feed_forward_module, dy, state.feed_forward_mask, elements);
    TensorId d_second = none;
    feed_forward_backward(d_out, &d_second);
    const TensorId d_middle =
        norm_backward(layer.feed_forward_norm, state.feed_forward_norm, d_second, dy, tokens, true);
    const TensorId d_attended = dropout_backward(layer.attention_module, d_middle, state.attention_mask, elements);
    TensorId d_normed = none;
    const bool wanted = input_gradient || layer.attention_norm.weight->trainable;
    attention_backward(layer, micro, state.attention, d_attended, wanted ? &d_normed : nullptr);
    return norm_backward(layer.attention_norm, state.attention_norm, d_normed, d_middle, tokens, input_gradient);
  }
  // Norms behind: the gradient of a sum is also that of its residual, to which the block's own is added in place.
  TensorId d_sum = norm_backward(layer.feed_forward_norm, state.feed_forward_norm, dy, none, tokens, true);
  const TensorId d_out = dropout_backward(layer.feed_forward_module, d_sum, state.feed_forward_mask, elements);
  feed_forward_backward(d_out, &d_sum);
  TensorId d_first = norm_backward(layer.attention_norm, state.attention_norm, d_sum, none, tokens, true);
  const TensorId d_attended = dropout_backward(layer.attention_module, d_first, state.attention_mask, elements);
  attention_backward(layer, micro, state.attention, d_attended, input_gradient ? &d_first : nullptr);
  return input_gradient ? d_first : TensorId{none};
}

// ---- Embedding. -----------------------------------------------------------------------------------------------------

TensorId LayerOps::embed(Embedding& embedding, const MicroBatch& micro, TensorId ids, EmbeddingState& state) {
  state.ids = ids;
  const Module& module = embedding.module;
  const Count tokens = micro.tokens(), hidden = model_.hidden, e = step_.element_bytes();
  TensorId x = none;
  if (embedding.patches) {
    // A convolution whose stride is its width: a product with one row a patch; the class token is put in front.
    const Count patches = tokens - micro.sequences;
    const TensorId projected = linear(embedding.patches, ids, patches, state.patches);
    x = step_.activation(module, "embedding", tokens * hidden);
    step_.op("embed", module, {}, {projected, embedding.class_token->value, embedding.positions->value}, {x});
  } else {
    const Count width = embedding.tokens->columns;
    x = step_.activation(module, "embedding", tokens * width);
    // Only the rows of these tokens are read, not the table.
    step_.op("embed_tokens", module, {.kernel = {.kind = KernelKind::gather}, .bytes = tokens * (2 * width * e + 8)},
             {embedding.tokens->value, ids}, {x});
    collectives_.all_reduce(Group::tensor, module, x);
    if (embedding.projection) x = linear(embedding.projection, x, tokens, state.projection);
    for (Parameter* table : {embedding.positions, embedding.token_types}) {
      if (table == nullptr) continue;
      const bool positions = table == embedding.positions;
      step_.op(positions ? "embed_positions" : "embed_token_types", module,
               {.bytes = tokens * 2 * hidden * e + (positions ? micro.length : table->rows) * hidden * e},
               {table->value, x}, {x});
    }
  }
  if (embedding.norm) x = norm(embedding.norm, x, tokens, state.norm);
  if (!hidden_dropout_) return x;
  state.mask = step_.tensor(module, "dropout_mask", tokens * hidden, Role::activation);
  const TensorId dropped = step_.activation(module, "dropout", tokens * hidden);
  step_.op("dropout", module, kernels_.dropout(tokens * hidden), {x}, {dropped, state.mask});
  return dropped;
}

void LayerOps::embed_backward(Embedding& embedding, const MicroBatch& micro, const EmbeddingState& state, TensorId dy) {
  const Module& module = embedding.module;
  const Count tokens = micro.tokens(), hidden = model_.hidden, e = step_.element_bytes();
  TensorId dx = dropout_backward(module, dy, state.mask, tokens * hidden);
  if (embedding.norm) dx = norm_backward(embedding.norm, state.norm, dx, none, tokens, true);
  if (embedding.patches) {
    const Step::GradientUse d_class = step_.gradient_of(*embedding.class_token);
    const Step::GradientUse d_positions = step_.gradient_of(*embedding.positions);
    step_.op("embed_backward", module, {}, {dx, d_class.read, d_positions.read}, {d_class.tensor, d_positions.tensor});
    linear_backward(embedding.patches, state.patches, dx, tokens - micro.sequences, nullptr);
    return;
  }
  for (Parameter* table : {embedding.token_types, embedding.positions}) {
    if (table == nullptr) continue;
    const Step::GradientUse use = step_.gradient_of(*table);
    step_.op(table == embedding.positions ? "embed_positions_backward" : "embed_token_types_backward", module, {},
             {dx, use.read}, {use.tensor});
  }
  if (embedding.projection) {
    TensorId narrow = none;
    linear_backward(embedding.projection, state.projection, dx, tokens, &narrow);
    dx = narrow;
  }
  // A new gradient is cleared as a whole, then the rows of these tokens are added. Eager PyTorch always makes a new
  // one, and adds it to that of a head with the same weight.
  const Step::GradientUse use = step_.gradient_of(*embedding.tokens);
  if (kernels_.eager() && use.read != none) {
    const Count table = embedding.tokens->elements();
    const Bytes number = step_.gradient_element_bytes();
    const TensorId fresh = step_.tensor(module, "tokens_grad", table * number, Role::gradient);
    step_.op("embed_tokens_clear", module, {.kernel = {.kind = KernelKind::elementwise}, .bytes = table * number}, {},
             {fresh});
    step_.op("embed_tokens_backward", module,
             {.kernel = {.kind = KernelKind::gather},
              .bytes = tokens * embedding.tokens->columns * (e + 2 * number) + 8 * tokens},
             {dx, state.ids, fresh}, {fresh});
    // The sum is a third tensor: autograd adds nothing into a view, as the gradient of a head is.
    const TensorId sum = step_.tensor(module, "tokens_grad_sum", table * number, Role::workspace);
    step_.op("embed_tokens_add", module, {.kernel = {.kind = KernelKind::elementwise}, .bytes = 3 * table * number},
             {fresh, use.read}, {use.tensor, sum});
    return;
  }
  const Bytes rows = tokens * embedding.tokens->columns * (e + 2 * step_.gradient_element_bytes()) + 8 * tokens;
  step_.op("embed_tokens_backward", module,
           {.kernel = {.kind = KernelKind::gather}, .bytes = rows + (use.read == none ? step_.bytes(use.tensor) : 0)},
           {dx, state.ids, use.read}, {use.tensor});
}

// ---- Head and loss. -------------------------------------------------------------------------------------------------

// Rows that the head computes: every token, those that are predicted, or one of a sequence (the class token, or what
// BERT's pooler takes).
Count LayerOps::head_rows(const MicroBatch& micro) const {
  if (step_.options.head != Head::language_model) return causal_ ? micro.tokens() : micro.sequences;
  const double share = step_.options.predicted_tokens;
  return std::max<Count>(1, static_cast<Count>(std::llround(share * static_cast<double>(micro.tokens()))));
}

void LayerOps::head(ModelHead& head, const MicroBatch& micro, TensorId x, TensorId labels, HeadState& state) {
  state.labels = labels;
  const Count tokens = micro.tokens(), rows = head_rows(micro);
  const bool language_model = step_.options.head == Head::language_model;
  if (head.final_norm) x = norm(head.final_norm, x, tokens, state.final_norm);
  if (head.projection) x = linear(head.projection, x, tokens, state.projection);
  if (language_model && rows < tokens) {
    const TensorId predicted = step_.activation(head.module, "predicted", rows * model_.hidden);
    step_.op("gather", head.module, rows_of(rows, model_.hidden), {x, labels}, {predicted});
    x = predicted;
  }
  if (head.transform) {
    x = linear(head.transform, x, rows, state.transform);
    state.transform_out = x;
    const TensorId activated = step_.activation(head.transform.module, "activated", rows * head.transform.out);
    step_.op(language_model ? "gelu" : "tanh", head.transform.module, {}, {x}, {activated});
    if (!language_model) state.transform_out = activated;  // tanh needs its result only
    x = activated;
    if (head.transform_norm) x = norm(head.transform_norm, x, rows, state.transform_norm);
  }
  const TensorId logits = linear(head.output, x, rows, state.output);
  if (!step_.options.loss) return;
  const Phase phase = step_.phase;
  step_.phase = Phase::loss;
  // Decoders classify by the last token, the others' scores are not looked at.
  cross_entropy(head, language_model ? rows : micro.sequences, logits, state);
  step_.phase = phase;
}

// What the loss keeps: full the logarithms of all probabilities (decoders in fp32, BERT in the model's precision), the
// others the logits and a number a row.
void LayerOps::cross_entropy(ModelHead& head, Count rows, TensorId logits, HeadState& state) {
  const Bytes e = kernels_.element_bytes();
  const Count scores = rows * head.output.out;
  const LossKind kind = *step_.options.loss;
  const TensorId loss = step_.tensor(head.module, "loss", 4, Role::activation);
  TensorId sums = none;
  if (step_.options.head == Head::language_model && head.output.weight->split) {
    // Each rank has its part of the vocabulary: the largest score, the sum and the label's score go around.
    sums = step_.tensor(head.module, "vocabulary_sums", 3 * 4 * rows, Role::workspace);
    step_.op("vocabulary_sums", head.module, {}, {logits, state.labels}, {sums});
    collectives_.all_reduce(Group::tensor, head.module, sums);
  }
  if (kind != LossKind::full) {
    state.scores = logits;
    state.log_sum_exp = step_.tensor(head.module, "log_sum_exp", 4 * rows, Role::activation);
    TensorId chunk = none;
    if (kind == LossKind::chunked)
      chunk = step_.tensor(head.module, "logits_chunk", loss_chunk(scores), Role::workspace);
    step_.op("cross_entropy", head.module, kernels_.chunked_loss(kind, scores, false), {logits, state.labels, sums},
             {state.log_sum_exp, loss, chunk});
    return;
  }
  const bool casts = kernels_.casts() && causal_;
  const Bytes number = casts ? 4 : e;
  state.scores = step_.tensor(head.module, "log_probabilities", scores * number, Role::activation);
  TensorId read = logits;
  if (casts) {
    read = step_.tensor(head.module, "logits_fp32", 4 * scores, Role::activation);
    step_.op("logits_to_fp32", head.module, {.kernel = {.kind = KernelKind::elementwise}, .bytes = scores * (e + 4)},
             {logits}, {read});
  }
  // Rows too long for a multiprocessor's memory, which PyTorch's kernel reads more than once.
  step_.op("cross_entropy", head.module, {.kernel = {.kind = KernelKind::norm}, .bytes = scores * 2 * number},
           {read, state.labels, sums}, {state.scores, loss});
}

TensorId LayerOps::cross_entropy_backward(ModelHead& head, Count rows, const HeadState& state) {
  const Bytes e = kernels_.element_bytes();
  const Count scores = rows * head.output.out;
  const LossKind kind = *step_.options.loss;
  if (kind != LossKind::full) {
    TensorId chunk = none;
    if (kind == LossKind::chunked)
      chunk = step_.tensor(head.module, "logits_chunk", loss_chunk(scores), Role::workspace);
    step_.op("cross_entropy_backward", head.module, kernels_.chunked_loss(kind, scores, true),
             {state.scores, state.labels, state.log_sum_exp}, {state.scores, chunk});
    return state.scores;
  }
  const bool casts = kernels_.casts() && causal_;
  const Bytes number = casts ? 4 : e;
  // Cleared, then a number a row.
  const TensorId d_scores = step_.tensor(head.module, "log_probabilities_grad", number * scores, Role::gradient);
  step_.op("nll_loss_backward", head.module,
           {.kernel = {.kind = KernelKind::elementwise, .launches = 2}, .bytes = scores * number}, {state.labels},
           {d_scores});
  TensorId d_logits =
      step_.tensor(head.module, casts ? "logits_grad_fp32" : "logits_grad", number * scores, Role::gradient);
  step_.op("cross_entropy_backward", head.module, {.kernel = {.kind = KernelKind::norm}, .bytes = scores * 3 * number},
           {d_scores, state.scores}, {d_logits});
  if (casts) {
    const TensorId d_full = d_logits;
    d_logits = step_.gradient(head.module, "logits_grad", scores);
    step_.op("logits_grad_cast", head.module, {.kernel = {.kind = KernelKind::elementwise}, .bytes = scores * (e + 4)},
             {d_full}, {d_logits});
  }
  return d_logits;
}

TensorId LayerOps::head_backward(ModelHead& head, const MicroBatch& micro, const HeadState& state) {
  const Count tokens = micro.tokens(), rows = head_rows(micro);
  const bool language_model = step_.options.head == Head::language_model;
  const TensorId d_logits = cross_entropy_backward(head, rows, state);
  TensorId dx = none;
  linear_backward(head.output, state.output, d_logits, rows, &dx, *step_.options.loss == LossKind::chunked);
  if (head.output.weight->split) collectives_.all_reduce(Group::tensor, head.module, dx);
  if (head.transform) {
    if (head.transform_norm) dx = norm_backward(head.transform_norm, state.transform_norm, dx, none, rows, true);
    const TensorId d_transform = step_.gradient(head.transform.module, "activated_grad", rows * head.transform.out);
    step_.op(language_model ? "gelu_backward" : "tanh_backward", head.transform.module, {}, {dx, state.transform_out},
             {d_transform});
    dx = none;
    linear_backward(head.transform, state.transform, d_transform, rows, &dx);
  }
  if (rows < tokens) {
    // The other tokens' gradients are zero.
    const TensorId all = step_.gradient(head.module, "input_grad", tokens * model_.hidden);
    step_.op("scatter", head.module, rows_of(tokens, model_.hidden), {dx}, {all});
    dx = all;
  }
  if (head.projection) {
    TensorId wide = none;
    linear_backward(head.projection, state.projection, dx, tokens, &wide);
    dx = wide;
  }
  if (head.final_norm) dx = norm_backward(head.final_norm, state.final_norm, dx, none, tokens, true);
  return dx;
}

}  // namespace tencache::generator
