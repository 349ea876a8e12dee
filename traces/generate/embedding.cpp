#include "traces/generate/embedding.h"

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

}  // namespace tencache::generator
