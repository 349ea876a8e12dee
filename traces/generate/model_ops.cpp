#include "traces/generate/model_ops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace tencache::generator {

TensorId EmbeddingOps::forward(EmbeddingBlock& embedding, const MicroBatch& micro, TensorId ids,
                               EmbeddingState& state) {
  state.ids = ids;
  const Module& module = embedding.module;
  const Count tokens = micro.tokens(), hidden = rank_.model.hidden, e = step_.element_bytes();
  TensorId x = none;
  if (embedding.patches) {
    // A convolution whose stride is its width: a product with one row a patch; the class token is put in front.
    const Count patches = tokens - micro.sequences;
    const TensorId projected = linears_.linear(embedding.patches, ids, patches, state.patches);
    x = step_.activation(module, "embedding", tokens * hidden);
    step_.op("embed", module, {}, {projected, embedding.class_token->value, embedding.positions->value}, {x});
  } else {
    const Count width = embedding.tokens->columns;
    x = step_.activation(module, "embedding", tokens * width);
    // Only the rows of these tokens are read, not the table.
    const TensorId table = linears_.readable(*embedding.tokens, "embed_tokens", module);
    const Bytes row = step_.bytes(table) / embedding.tokens->rows;
    step_.op("embed_tokens", module, {.kernel = {.kind = KernelKind::gather}, .bytes = tokens * (row + width * e + 8)},
             {table, ids}, {x});
    rank_.collectives.all_reduce(Group::tensor, module, x);
    if (embedding.projection) x = linears_.linear(embedding.projection, x, tokens, state.projection);
    for (Parameter* table : {embedding.positions, embedding.token_types}) {
      if (table == nullptr) continue;
      const bool positions = table == embedding.positions;
      step_.op(positions ? "embed_positions" : "embed_token_types", module,
               {.bytes = tokens * 2 * hidden * e + (positions ? micro.length : table->rows) * hidden * e},
               {table->value, x}, {x});
    }
  }
  if (embedding.norm) x = norm(rank_, embedding.norm, x, tokens, state.norm);
  if (!rank_.hidden_dropout) return x;
  state.mask = step_.tensor(module, "dropout_mask", tokens * hidden, Role::activation);
  const TensorId dropped = step_.activation(module, "dropout", tokens * hidden);
  step_.op("dropout", module, kernels_.dropout(tokens * hidden), {x}, {dropped, state.mask});
  return dropped;
}

void EmbeddingOps::backward(EmbeddingBlock& embedding, const MicroBatch& micro, const EmbeddingState& state,
                            TensorId dy) {
  const Module& module = embedding.module;
  const Count tokens = micro.tokens(), hidden = rank_.model.hidden, e = step_.element_bytes();
  TensorId dx = dropout_backward(rank_, module, dy, state.mask, tokens * hidden);
  if (embedding.norm) dx = norm_backward(rank_, embedding.norm, state.norm, dx, none, tokens, true);
  if (embedding.patches) {
    const Step::GradientUse d_class = step_.gradient_of(*embedding.class_token);
    const Step::GradientUse d_positions = step_.gradient_of(*embedding.positions);
    step_.op("embed_backward", module, {}, {dx, d_class.read, d_positions.read}, {d_class.tensor, d_positions.tensor});
    linears_.linear_backward(embedding.patches, state.patches, dx, tokens - micro.sequences, nullptr);
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
    linears_.linear_backward(embedding.projection, state.projection, dx, tokens, &narrow);
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

Count HeadOps::rows_of(const MicroBatch& micro) const {
  if (step_.options.generation) return micro.sequences;
  if (step_.options.head != Head::language_model) return rank_.causal ? micro.tokens() : micro.sequences;
  const double share = step_.options.predicted_tokens;
  return std::max<Count>(1, static_cast<Count>(std::llround(share * static_cast<double>(micro.tokens()))));
}

TensorId HeadOps::forward(ModelHead& head, const MicroBatch& micro, TensorId x, TensorId labels, HeadState& state) {
  state.labels = labels;
  const Count tokens = micro.tokens(), rows = rows_of(micro);
  const bool language_model = step_.options.head == Head::language_model;
  if (head.final_norm) x = norm(rank_, head.final_norm, x, tokens, state.final_norm);
  if (head.projection) x = linears_.linear(head.projection, x, tokens, state.projection);
  if (language_model && rows < tokens) {
    const TensorId predicted = step_.activation(head.module, "predicted", rows * rank_.model.hidden);
    step_.op("gather", head.module, moved(rows, rank_.model.hidden), {x, labels}, {predicted});
    x = predicted;
  }
  if (head.transform) {
    x = linears_.linear(head.transform, x, rows, state.transform);
    state.transform_out = x;
    const TensorId activated = step_.activation(head.transform.module, "activated", rows * head.transform.out);
    step_.op(language_model ? "gelu" : "tanh", head.transform.module, {}, {x}, {activated});
    if (!language_model) state.transform_out = activated;  // tanh needs its result only
    x = activated;
    if (head.transform_norm) x = norm(rank_, head.transform_norm, x, rows, state.transform_norm);
  }
  if (step_.options.loss == LossKind::fused_linear) {
    fused_linear(head, rows, x, state);
    return none;
  }
  const TensorId logits = linears_.linear(head.output, x, rows, state.output);
  if (!step_.options.loss) return logits;
  const Phase phase = step_.phase;
  step_.phase = Phase::loss;
  // Decoders classify by the last token, the others' scores are not looked at.
  cross_entropy(head, language_model ? rows : micro.sequences, logits, state);
  step_.phase = phase;
  return logits;
}

// Rows of a piece as Liger has them: so many that its logits take about as much as the input of all rows, rounded up to
// a power of two. The gradient takes the logits' place.
void HeadOps::fused_linear(ModelHead& head, Count rows, TensorId x, HeadState& state) {
  const Linear& linear = head.output;
  const Count in = linear.in, out = linear.out, pieces = (out + in - 1) / in;
  const Count most = std::bit_ceil((rows + pieces - 1) / pieces);
  const Bytes e = step_.element_bytes();
  const bool trains = !step_.options.forward_only;
  const Phase phase = step_.phase;
  step_.phase = Phase::loss;
  const TensorId loss = step_.tensor(head.module, "loss", 4, Role::activation);
  const TensorId dx = trains ? step_.gradient(head.module, linear.label + ".input_grad", rows * in) : TensorId{none};
  for (Count begin = 0; begin < rows; begin += most) {
    const Count piece = std::min(most, rows - begin);
    const auto before = [&](TensorId whole) { return begin == 0 ? TensorId{none} : whole; };
    const TensorId logits = step_.tensor(head.module, linear.label, piece * out * e, Role::workspace);
    Cost product = matmul(1, piece, out, in, {in, out});
    product.bytes = (piece * (in + out) + in * out) * e;
    step_.op(linear.label, linear.module, product, {x, linear.weight->value, linear.bias ? linear.bias->value : none},
             {logits});
    Cost entropy = kernels_.chunked_loss(LossKind::fused, piece * out, false);
    if (trains) entropy.bytes += kernels_.chunked_loss(LossKind::fused, piece * out, true).bytes;
    step_.op("cross_entropy", head.module, entropy, {logits, state.labels, before(loss)},
             {trains ? logits : TensorId{none}, loss});
    if (!trains) continue;
    product.kernel = matmul(1, piece, in, out, {in, out}).kernel;
    step_.op(linear.label + "_backward_input", linear.module, product, {logits, linear.weight->value, before(dx)},
             {dx});
    if (linear.weight->trainable) {
      const Step::GradientUse dw = step_.gradient_of(*linear.weight);
      product.kernel = matmul(1, out, in, piece, {in, out}).kernel;
      product.bytes += dw.read == none ? 0 : step_.bytes(dw.tensor);
      step_.op(linear.label + "_backward_weight", linear.module, product, {x, logits, dw.read}, {dw.tensor});
    }
    if (linear.bias != nullptr && linear.bias->trainable) {
      const Step::GradientUse db = step_.gradient_of(*linear.bias);
      step_.op(linear.label + "_backward_bias", linear.module,
               kernels_.bias_gradient(piece * out, step_.bytes(db.tensor)), {logits, db.read}, {db.tensor});
    }
  }
  state.input_gradient = dx;
  step_.phase = phase;
}

// What the loss keeps: full the logarithms of all probabilities (decoders in fp32, BERT in the model's precision), the
// others the logits and a number a row.
void HeadOps::cross_entropy(ModelHead& head, Count rows, TensorId logits, HeadState& state) {
  const Bytes e = kernels_.element_bytes();
  const Count scores = rows * head.output.out;
  const LossKind kind = *step_.options.loss;
  const TensorId loss = step_.tensor(head.module, "loss", 4, Role::activation);
  TensorId sums = none;
  if (step_.options.head == Head::language_model && head.output.weight->split) {
    // Each rank has its part of the vocabulary: the largest score, the sum and the label's score go around.
    sums = step_.tensor(head.module, "vocabulary_sums", 3 * 4 * rows, Role::workspace);
    step_.op("vocabulary_sums", head.module, {}, {logits, state.labels}, {sums});
    rank_.collectives.all_reduce(Group::tensor, head.module, sums);
  }
  if (kind == LossKind::chunked || kind == LossKind::fused) {
    state.scores = logits;
    state.log_sum_exp = step_.tensor(head.module, "log_sum_exp", 4 * rows, Role::activation);
    TensorId chunk = none;
    if (kind == LossKind::chunked)
      chunk = step_.tensor(head.module, "logits_chunk", loss_chunk(scores), Role::workspace);
    step_.op("cross_entropy", head.module, kernels_.chunked_loss(kind, scores, false), {logits, state.labels, sums},
             {state.log_sum_exp, loss, chunk});
    return;
  }
  const bool casts = kernels_.casts() && rank_.causal;
  const Bytes number = casts ? 4 : e;
  state.scores = step_.tensor(head.module, "log_probabilities", scores * number, Role::activation);
  TensorId read = logits;
  if (casts) {
    read = step_.tensor(head.module, "logits_fp32", 4 * scores, Role::activation);
    step_.op("logits_to_fp32", head.module, {.kernel = {.kind = KernelKind::elementwise}, .bytes = scores * (e + 4)},
             {logits}, {read});
  }
  if (kind == LossKind::shifted) {
    // modeling_llama.py: logits[..., :-1, :].contiguous(). The logits themselves are the caller's from here on.
    state.returned = read;
    read = step_.tensor(head.module, "shifted_logits", scores * number, Role::activation);
    step_.op("shift_logits", head.module, {.kernel = {.kind = KernelKind::copy}, .bytes = scores * 2 * number},
             {state.returned}, {read});
  }
  // Rows too long for a multiprocessor's memory, which PyTorch's kernel reads more than once.
  step_.op("cross_entropy", head.module, {.kernel = {.kind = KernelKind::norm}, .bytes = scores * 2 * number},
           {read, state.labels, sums}, {state.scores, loss});
}

TensorId HeadOps::cross_entropy_backward(ModelHead& head, Count rows, const HeadState& state) {
  const Bytes e = kernels_.element_bytes();
  const Count scores = rows * head.output.out;
  const LossKind kind = *step_.options.loss;
  if (kind == LossKind::chunked || kind == LossKind::fused) {
    TensorId chunk = none;
    if (kind == LossKind::chunked)
      chunk = step_.tensor(head.module, "logits_chunk", loss_chunk(scores), Role::workspace);
    step_.op("cross_entropy_backward", head.module, kernels_.chunked_loss(kind, scores, true),
             {state.scores, state.labels, state.log_sum_exp}, {state.scores, chunk});
    return state.scores;
  }
  const bool casts = kernels_.casts() && rank_.causal;
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
  if (kind == LossKind::shifted) {
    // Cleared, then copied; `returned` is read by nobody, but the caller still has it.
    const TensorId d_shifted = d_logits;
    d_logits = step_.tensor(head.module, "unshifted_logits_grad", number * scores, Role::gradient);
    step_.op("shift_logits_backward", head.module,
             {.kernel = {.kind = KernelKind::copy, .launches = 2}, .bytes = scores * 3 * number},
             {d_shifted, state.returned}, {d_logits});
  }
  if (casts) {
    const TensorId d_full = d_logits;
    d_logits = step_.gradient(head.module, "logits_grad", scores);
    step_.op("logits_grad_cast", head.module, {.kernel = {.kind = KernelKind::elementwise}, .bytes = scores * (e + 4)},
             {d_full}, {d_logits});
  }
  return d_logits;
}

TensorId HeadOps::backward(ModelHead& head, const MicroBatch& micro, const HeadState& state) {
  const Count tokens = micro.tokens(), rows = rows_of(micro);
  const bool language_model = step_.options.head == Head::language_model;
  TensorId dx = state.input_gradient;
  if (dx == none) {
    const TensorId d_logits = cross_entropy_backward(head, rows, state);
    linears_.linear_backward(head.output, state.output, d_logits, rows, &dx, *step_.options.loss == LossKind::chunked);
  }
  if (head.output.weight->split) rank_.collectives.all_reduce(Group::tensor, head.module, dx);
  if (head.transform) {
    if (head.transform_norm) dx = norm_backward(rank_, head.transform_norm, state.transform_norm, dx, none, rows, true);
    const TensorId d_transform = step_.gradient(head.transform.module, "activated_grad", rows * head.transform.out);
    step_.op(language_model ? "gelu_backward" : "tanh_backward", head.transform.module, {}, {dx, state.transform_out},
             {d_transform});
    dx = none;
    linears_.linear_backward(head.transform, state.transform, d_transform, rows, &dx);
  }
  if (rows < tokens) {
    // The other tokens' gradients are zero.
    const TensorId all = step_.gradient(head.module, "input_grad", tokens * rank_.model.hidden);
    step_.op("scatter", head.module, moved(tokens, rank_.model.hidden), {dx}, {all});
    dx = all;
  }
  if (head.projection) {
    TensorId wide = none;
    linears_.linear_backward(head.projection, state.projection, dx, tokens, &wide);
    dx = wide;
  }
  if (head.final_norm) dx = norm_backward(rank_, head.final_norm, state.final_norm, dx, none, tokens, true);
  return dx;
}

bool LayerOps::recomputes(const Layer& layer) const {
  const Recompute kind = rank_.step.options.recompute;
  if (kind == Recompute::none || kind == Recompute::selective || is_choice(kind)) return false;
  // Spread evenly: where the number of layers so far goes up by one. 0.5: the second, the fourth, ...
  constexpr double rounding = 1e-9;
  const auto so_far = [&](std::int64_t layers) {
    return std::floor(static_cast<double>(layers) * rank_.step.options.recompute_share + rounding);
  };
  const std::int64_t index = layer.parameters.front()->layer;
  return so_far(index + 1) > so_far(index);
}

TensorId LayerOps::forward(Layer& layer, const MicroBatch& micro, TensorId x, LayerState& state) {
  begin_pass(recomputes(layer) ? &state.kept : nullptr, false);
  state.first = rank_.step.next_op();
  const TensorId y = run_forward(layer, micro, x, state);
  state.end = rank_.step.next_op();
  state.output = y;
  linears_.pass().end();
  return y;
}

void LayerOps::begin_pass(std::vector<TensorId>* kept, bool again) {
  const bool products = rank_.step.options.recompute == Recompute::ops;
  linears_.pass().begin(products || rank_.step.options.recompute == Recompute::attention ? kept : nullptr, products,
                        again);
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
  begin_pass(&kept, true);
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
    return layer.latent.down ? latent_attention_.forward(layer, micro, input, state.latent_attention)
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
  if (is_choice(rank_.step.options.recompute)) {
    rank_.step.passes.push_back({.module = layer.module.id,
                                 .micro_batch = static_cast<std::uint32_t>(micro.index),
                                 .first = state.first,
                                 .end = state.end,
                                 .before = rank_.step.next_op()});
  }
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
  const auto attention_backward = [&](TensorId d_out, TensorId* dx) {
    if (layer.latent.down) {
      latent_attention_.backward(layer, micro, state.latent_attention, d_out, dx);
    } else {
      attention_.backward(layer, micro, state.attention, d_out, dx);
    }
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
    attention_backward(d_sum, wanted ? &d_normed : nullptr);
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
    attention_backward(d_attended, wanted ? &d_normed : nullptr);
    return norm_backward(rank_, layer.attention_norm, state.attention_norm, d_normed, d_middle, tokens, input_gradient);
  }
  // Norms behind: the gradient of a sum is also that of its residual, to which the block's own is added in place.
  TensorId d_sum = norm_backward(rank_, layer.feed_forward_norm, state.feed_forward_norm, dy, none, tokens, true);
  const TensorId d_out = dropout_backward(rank_, layer.feed_forward_module, d_sum, state.feed_forward_mask, elements);
  feed_forward_backward(d_out, &d_sum);
  TensorId d_first = norm_backward(rank_, layer.attention_norm, state.attention_norm, d_sum, none, tokens, true);
  const TensorId d_attended = dropout_backward(rank_, layer.attention_module, d_first, state.attention_mask, elements);
  attention_backward(d_attended, input_gradient ? &d_first : nullptr);
  return input_gradient ? d_first : TensorId{none};
}

}  // namespace tencache::generator
