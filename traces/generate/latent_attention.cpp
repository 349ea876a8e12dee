#include "traces/generate/latent_attention.h"

#include <vector>

namespace tencache::generator {

TensorId LatentAttentionOps::forward(Layer& layer, const MicroBatch& micro, TensorId x) {
  const Count tokens = micro.tokens(), heads = rank_.heads, rope = model_.rope_dimension;
  const Module& module = layer.attention_module;
  LinearState linear_state;
  NormState norm_state;
  Inputs inputs;
  TensorId source = x;
  if (layer.latent.query_down) {
    source = linears_.linear(layer.latent.query_down, x, tokens, linear_state);
    source = norm(rank_, layer.latent.query_down_norm, source, tokens, norm_state);
  }
  inputs.query = linears_.linear(layer.query, source, tokens, linear_state);
  const TensorId joint = linears_.linear(layer.latent.down, x, tokens, linear_state);
  inputs.latent = norm(rank_, layer.latent.norm, joint, tokens, norm_state);
  TensorId query = inputs.query;
  if (rank_.kernels.eager()) query = step_.activation(module, "rotated_query", tokens * heads * model_.head_dimension);
  inputs.key_rope = step_.activation(module, "rotated_key", tokens * rope);
  step_.op("rotary", module, rank_.kernels.rotary(tokens * (heads + 1) * rope), {inputs.query, joint},
           {query, inputs.key_rope});
  inputs.query = query;
  if (micro.cache != nullptr) {
    cache_.write(module, micro, {.width = model_.key_value_rank + rope}, {inputs.latent, inputs.key_rope});
  }
  const bool decodes = micro.cache != nullptr && step_.phase == Phase::decode;
  const TensorId context = decodes ? attend_cache(layer, micro, inputs) : attend_prompt(layer, micro, inputs);
  const TensorId y = linears_.linear(layer.attention_output, context, tokens, linear_state);
  rank_.collectives.all_reduce(Group::tensor, module, y);
  return y;
}

TensorId LatentAttentionOps::attend_prompt(Layer& layer, const MicroBatch& micro, const Inputs& inputs) {
  const Module& module = layer.attention_module;
  const Count tokens = micro.tokens(), heads = rank_.heads, dimension = model_.head_dimension;
  const Count value = model_.value_dimension;
  LinearState state;
  const TensorId expanded = linears_.linear(layer.latent.up, inputs.latent, tokens, state);
  const TensorId key = step_.activation(module, "key", tokens * heads * dimension);
  const Bytes copied = tokens * heads * (plain() + dimension) * step_.element_bytes();
  step_.op("concatenate", module, {.kernel = {.kind = KernelKind::copy}, .bytes = copied}, {expanded, inputs.key_rope},
           {key});
  const TensorId context = step_.activation(module, "context", tokens * heads * value);
  // Its kernel's head is as wide as those of key and value on average. Causal: half of the scores.
  const Cost cost{
      .kernel = {.kind = KernelKind::attention,
                 .attention = step_.options.attention_kernel,
                 .causal = true,
                 .shape = {micro.sequences, heads, heads, micro.length, micro.length, (dimension + value) / 2}},
      .flops = tokens * micro.length * heads * (dimension + value)};
  step_.op("flash_attention", module, cost, {inputs.query, key, expanded}, {context});
  return context;
}

TensorId LatentAttentionOps::attend_cache(Layer& layer, const MicroBatch& micro, const Inputs& inputs) {
  const Module& module = layer.attention_module;
  const Count sequences = micro.sequences, heads = rank_.heads, rank = model_.key_value_rank;
  const Count width = rank + model_.rope_dimension, value = model_.value_dimension;
  const Bytes e = step_.element_bytes();
  const TensorId weight = linears_.weight_for(layer.latent.up);
  // The products with the two halves of the weight, each head by itself.
  const auto product = [&](Count in, Count out, Count of_weight) {
    Cost cost = matmul(heads, sequences, out, in, {in, out});
    const Count rows = plain() + value;
    cost.packed = linears_.packed_bytes(*layer.latent.up.weight) * of_weight / rows;
    cost.bytes = sequences * heads * (in + out) * e + step_.bytes(weight) * of_weight / rows;
    return cost;
  };
  const TensorId absorbed = step_.activation(module, "absorbed_query", sequences * heads * rank);
  step_.op("absorb_query", module, product(plain(), rank, plain()), {inputs.query, weight}, {absorbed});
  const Count tokens = micro.cache->tokens;
  const TensorId latent_context = step_.activation(module, "latent_context", sequences * heads * rank);
  const Cost cost{.kernel = {.kind = KernelKind::attention,
                             .attention = step_.options.attention_kernel,
                             .shape = {sequences, heads, 1, 1, tokens, width}},
                  .flops = 2 * sequences * tokens * heads * (width + rank),
                  .bytes = sequences * (tokens * width + heads * (width + rank)) * e};
  std::vector<TensorId> reads = cache_.read(module, micro, {.width = width});
  reads.insert(reads.end(), {absorbed, inputs.query});
  cache_.attend(module, cost, reads, latent_context);
  const TensorId context = step_.activation(module, "context", sequences * heads * value);
  step_.op("expand_values", module, product(rank, value, value), {latent_context, weight}, {context});
  return context;
}

}  // namespace tencache::generator
