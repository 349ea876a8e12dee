#include "traces/generate_layers.h"

#include "core/check.h"

namespace tencache::generator {

LayerOps::LayerOps(Step& step, Collectives& collectives, const ModelDescription& model)
    : step_(step),
      collectives_(collectives),
      model_(model),
      local_heads_(model.heads / step.options.tensor_parallel),
      local_key_value_heads_(std::max<Count>(1, model.key_value_heads / step.options.tensor_parallel)) {
  const ModelFamily family = model.family;
  Dropout dropout = step.options.dropout;
  if (dropout == Dropout::family) {
    const bool all = family == ModelFamily::gpt2 || family == ModelFamily::bert;
    dropout = all ? Dropout::all : family == ModelFamily::opt ? Dropout::hidden : Dropout::none;
  }
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

TensorId LayerOps::linear(Linear& linear, TensorId x, Count tokens, LinearState& state) {
  state.input = x;
  const TensorId weight = weight_for(linear);
  const TensorId y = step_.activation(linear.module, linear.label, tokens * linear.out);
  step_.op(linear.label, linear.module, {KernelKind::matmul, 2 * tokens * linear.in * linear.out},
           {x, weight, linear.bias ? linear.bias->value : none}, {y});
  if (linear.lora_a == nullptr) return y;
  const Count rank = step_.options.lora_rank;
  state.lora_hidden = step_.activation(linear.module, linear.label + ".lora", tokens * rank);
  step_.op(linear.label + "_lora_a", linear.module, {KernelKind::matmul, 2 * tokens * linear.in * rank},
           {x, linear.lora_a->value}, {state.lora_hidden});
  step_.op(linear.label + "_lora_b", linear.module, {KernelKind::matmul, 2 * tokens * rank * linear.out},
           {state.lora_hidden, linear.lora_b->value, y}, {y});
  return y;
}

void LayerOps::linear_backward(Linear& linear, const LinearState& state, TensorId dy, Count tokens, TensorId* dx) {
  const Module& module = linear.module;
  const auto input_gradient = [&](std::string_view suffix, TensorId upstream, TensorId weight, Count flops) {
    const TensorId before = *dx;
    if (*dx == none) *dx = step_.gradient(module, linear.label + ".input_grad", tokens * linear.in);
    step_.op(linear.label + std::string(suffix), module, {KernelKind::matmul, flops}, {upstream, weight, before},
             {*dx});
  };
  const auto weight_gradient = [&](std::string_view suffix, Parameter& weight, Parameter* bias, TensorId input,
                                   TensorId upstream, Count flops) {
    const Step::GradientUse dw = step_.gradient_of(weight);
    const Step::GradientUse db = bias ? step_.gradient_of(*bias) : Step::GradientUse{};
    step_.op(linear.label + std::string(suffix), module, {KernelKind::matmul, flops},
             {input, upstream, dw.read, db.read}, {dw.tensor, db.tensor});
  };
  const Count product = 2 * tokens * linear.in * linear.out;
  if (linear.lora_a != nullptr) {
    const Count rank = step_.options.lora_rank;
    const Count wide = 2 * tokens * rank * linear.out, narrow = 2 * tokens * rank * linear.in;
    weight_gradient("_lora_b_backward_weight", *linear.lora_b, nullptr, state.lora_hidden, dy, wide);
    const TensorId d_hidden = step_.gradient(module, linear.label + ".lora_grad", tokens * rank);
    step_.op(linear.label + "_lora_b_backward_input", module, {KernelKind::matmul, wide}, {dy, linear.lora_b->value},
             {d_hidden});
    weight_gradient("_lora_a_backward_weight", *linear.lora_a, nullptr, state.input, d_hidden, narrow);
    if (dx != nullptr) input_gradient("_lora_a_backward_input", d_hidden, linear.lora_a->value, narrow);
  }
  if (linear.weight->trainable) {
    weight_gradient("_backward_weight", *linear.weight, linear.bias, state.input, dy, product);
  }
  if (dx != nullptr) input_gradient("_backward_input", dy, weight_for(linear), product);
}

// ---- Normalisation, dropout and residuals. --------------------------------------------------------------------------
// The statistics of a normalisation (a mean and a deviation a token) are left out, as in the literature's closed form.

TensorId LayerOps::norm(Norm& norm, TensorId x, Count rows, NormState& state) {
  state.input = x;
  const TensorId y = step_.activation(norm.module, "output", rows * norm.weight->elements());
  step_.op("norm", norm.module, {}, {x, norm.weight->value, norm.bias ? norm.bias->value : none}, {y});
  return y;
}

// The gradient of the norm's input, plus `residual`, the gradient that by-passes it (none: nothing does).
TensorId LayerOps::norm_backward(Norm& norm, const NormState& state, TensorId dy, TensorId residual, Count rows,
                                 bool input_gradient) {
  Step::GradientUse dw, db;
  if (norm.weight->trainable) dw = step_.gradient_of(*norm.weight);
  if (norm.bias && norm.bias->trainable) db = step_.gradient_of(*norm.bias);
  if (!input_gradient && dw.tensor == none) return none;
  const TensorId dx =
      input_gradient ? step_.gradient(norm.module, "input_grad", rows * norm.weight->elements()) : TensorId{none};
  step_.op("norm_backward", norm.module, {}, {dy, state.input, norm.weight->value, residual, dw.read, db.read},
           {dx, dw.tensor, db.tensor});
  return dx;
}

// residual + dropout(out) (+ extra, where attention and feed-forward are parallel), as one kernel.
TensorId LayerOps::dropout_add(const Module& module, std::string_view label, TensorId out, TensorId residual,
                               TensorId extra, Count tokens, TensorId& mask) {
  const Count elements = tokens * model_.hidden;
  if (hidden_dropout_) mask = step_.tensor(module, std::string(label) + ".dropout_mask", elements, Role::activation);
  const TensorId sum = step_.activation(module, std::string(label) + ".residual", elements);
  step_.op(hidden_dropout_ ? "dropout_add" : "add", module, {}, {out, residual, extra}, {sum, mask});
  return sum;
}

TensorId LayerOps::dropout_backward(const Module& module, TensorId dy, TensorId mask, Count elements) {
  if (mask == none) return dy;
  const TensorId dx = step_.gradient(module, "dropout.input_grad", elements);
  step_.op("dropout_backward", module, {}, {dy, mask}, {dx});
  return dx;
}

// ---- A layer. -------------------------------------------------------------------------------------------------------

TensorId LayerOps::layer(Layer& layer, const MicroBatch& micro, TensorId x, LayerState& state) {
  state.input = x;
  const Count tokens = micro.tokens();
  const auto feed_forward = [&](TensorId input) {
    const TensorId y = layer.router ? experts(layer, input, tokens, state.experts)
                                    : this->feed_forward(layer.feed_forward, input, tokens, state.feed_forward);
    collectives_.all_reduce(Group::tensor, layer.feed_forward_module, y);
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
    return dropout_add(layer.module, "block", attended, x, expanded, tokens, state.feed_forward_mask);
  }
  if (model_.norm_first) {
    const TensorId normed = norm(layer.attention_norm, x, tokens, state.attention_norm);
    const TensorId attended = attention(layer, micro, normed, state.attention);
    const TensorId middle = dropout_add(attention_module, "attention", attended, x, none, tokens, state.attention_mask);
    const TensorId second = norm(layer.feed_forward_norm, middle, tokens, state.feed_forward_norm);
    const TensorId out = feed_forward(second);
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
  if (step_.options.recompute == Recompute::block) {
    const TensorId input = state.input;
    state = {};
    this->layer(layer, micro, input, state);
  }
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
    step_.op("embed_tokens", module, {.bytes = tokens * (2 * width * e + 8)}, {embedding.tokens->value, ids}, {x});
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
  step_.op("dropout", module, {}, {x}, {dropped, state.mask});
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
  // A new gradient is cleared as a whole, then the rows of these tokens are added.
  const Step::GradientUse use = step_.gradient_of(*embedding.tokens);
  const Bytes rows = tokens * embedding.tokens->columns * (e + 2 * step_.gradient_element_bytes()) + 8 * tokens;
  step_.op("embed_tokens_backward", module, {.bytes = rows + (use.read == none ? step_.bytes(use.tensor) : 0)},
           {dx, state.ids, use.read}, {use.tensor});
}

// ---- Head and loss. -------------------------------------------------------------------------------------------------

void LayerOps::head(ModelHead& head, const MicroBatch& micro, TensorId x, TensorId labels, HeadState& state) {
  state.labels = labels;
  const Count tokens = micro.tokens();
  const bool language_model = step_.options.head == Head::language_model;
  const bool first_token = !language_model && !causal_;  // the class token, or what BERT's pooler takes
  const Count rows = first_token ? micro.sequences : tokens;
  if (head.final_norm) x = norm(head.final_norm, x, tokens, state.final_norm);
  if (head.projection) x = linear(head.projection, x, tokens, state.projection);
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
  const Phase phase = step_.phase;
  step_.phase = Phase::loss;
  // In fp32: what the loss keeps. Decoders classify by the last token, the others' scores are not looked at.
  const Count scored = language_model ? rows : micro.sequences;
  state.log_probabilities =
      step_.tensor(head.module, "log_probabilities", scored * head.output.out * 4, Role::activation);
  const TensorId loss = step_.tensor(head.module, "loss", 4, Role::activation);
  if (language_model && head.output.weight->split) {
    // Each rank has its part of the vocabulary: the largest score, the sum and the label's score go around.
    const TensorId sums = step_.tensor(head.module, "vocabulary_sums", 3 * 4 * scored, Role::workspace);
    step_.op("vocabulary_sums", head.module, {}, {logits, labels}, {sums});
    collectives_.all_reduce(Group::tensor, head.module, sums);
    step_.op("cross_entropy", head.module, {}, {logits, labels, sums}, {state.log_probabilities, loss});
  } else {
    step_.op("cross_entropy", head.module, {}, {logits, labels}, {state.log_probabilities, loss});
  }
  step_.phase = phase;
}

TensorId LayerOps::head_backward(ModelHead& head, const MicroBatch& micro, const HeadState& state) {
  const Count tokens = micro.tokens();
  const bool language_model = step_.options.head == Head::language_model;
  const bool first_token = !language_model && !causal_;
  const Count rows = first_token ? micro.sequences : tokens;
  const TensorId d_logits = step_.gradient(head.module, "logits_grad", rows * head.output.out);
  step_.op("cross_entropy_backward", head.module, {}, {state.log_probabilities, state.labels}, {d_logits});
  TensorId dx = none;
  linear_backward(head.output, state.output, d_logits, rows, &dx);
  if (head.output.weight->split) collectives_.all_reduce(Group::tensor, head.module, dx);
  if (head.transform) {
    if (head.transform_norm) dx = norm_backward(head.transform_norm, state.transform_norm, dx, none, rows, true);
    const TensorId d_transform = step_.gradient(head.transform.module, "activated_grad", rows * head.transform.out);
    step_.op(language_model ? "gelu_backward" : "tanh_backward", head.transform.module, {}, {dx, state.transform_out},
             {d_transform});
    dx = none;
    linear_backward(head.transform, state.transform, d_transform, rows, &dx);
  }
  if (head.projection) {
    TensorId wide = none;
    linear_backward(head.projection, state.projection, dx, tokens, &wide);
    dx = wide;
  }
  if (first_token) {
    // The other tokens' gradients are zero.
    const TensorId all = step_.gradient(head.module, "input_grad", tokens * model_.hidden);
    step_.op("scatter", head.module, {}, {dx}, {all});
    dx = all;
  }
  if (head.final_norm) dx = norm_backward(head.final_norm, state.final_norm, dx, none, tokens, true);
  return dx;
}

}  // namespace tencache::generator
