#include "traces/generate/attention.h"

#include <algorithm>
#include <array>
#include <string>

#include "traces/generate/context_cache.h"

namespace tencache::generator {

Bytes KvCacheOps::token_bytes(const Step& step, Count width) {
  const Packing* const packing = step.options.generation ? step.options.generation->cache_packing : nullptr;
  return packing == nullptr ? width * step.element_bytes() : packing->bytes(1, width, step.element_bytes());
}

void KvCacheOps::write(const Module& module, const MicroBatch& micro, CacheShape shape,
                       std::initializer_list<TensorId> sources) {
  KvCache& cache = *micro.cache;
  // What no later token sees is not kept.
  const Count kept = shape.seen(micro.length);
  if (cache.pieces.empty()) cache.room = micro.length - kept;
  cache.tokens += micro.length;
  std::vector<TensorId> reads(sources);
  if (cache.tokens > cache.room) {
    const Count missing = cache.tokens - cache.room;
    const Count more = (missing + micro.piece_tokens - 1) / micro.piece_tokens * micro.piece_tokens;
    cache.room += more;
    // A window's tokens take the places of those before it.
    const Bytes bytes = micro.sequences * shape.seen(more) * token_bytes(step_, shape.width);
    const std::string name = "kv." + std::to_string(cache.pieces.size());
    cache.pieces.push_back({step_.tensor(module, name, bytes, Role::kv_cache), cache.room});
  } else {
    reads.push_back(cache.pieces.back().tensor);
  }
  const Bytes moved = micro.sequences * kept * (shape.width * step_.element_bytes() + token_bytes(step_, shape.width));
  op("kv_write", module, {.kernel = {.kind = KernelKind::copy}, .bytes = moved}, reads,
     std::span<const TensorId>(&cache.pieces.back().tensor, 1));
}

void KvCacheOps::write_pieces(const Module& module, const MicroBatch& micro, CacheShape shape, TensorId x,
                              std::span<const TensorId> weights, const std::function<Cost(Count tokens)>& cost) {
  KvCache& cache = *micro.cache;
  const Bytes input = step_.bytes(x) / micro.length;  // of a token of each sequence
  struct Part {
    TensorId x = none;
    Count tokens = 0;
  };
  std::vector<Part> parts;
  std::vector<TensorId> inputs;
  for (Count begin = 0; begin < micro.length; begin += micro.piece_tokens) {
    const Count tokens = std::min(micro.piece_tokens, micro.length - begin);
    const std::string name = "input." + std::to_string(parts.size());
    parts.push_back({step_.tensor(module, name, tokens * input, Role::kv_cache), tokens});
    inputs.push_back(parts.back().x);
  }
  step_.op("cut_input", module, {.kernel = {.kind = KernelKind::copy}}, std::span<const TensorId>(&x, 1), inputs);
  for (const Part& part : parts) {
    cache.tokens += part.tokens;
    cache.room = cache.tokens;
    const std::string name = "kv." + std::to_string(cache.pieces.size());
    const Bytes bytes = micro.sequences * part.tokens * token_bytes(step_, shape.width);
    cache.pieces.push_back({step_.tensor(module, name, bytes, Role::kv_cache), cache.tokens, step_.next_op()});
    std::vector<TensorId> reads = {part.x};
    reads.insert(reads.end(), weights.begin(), weights.end());
    step_.op("kv_project", module, cost(part.tokens), reads, std::span<const TensorId>(&cache.pieces.back().tensor, 1));
  }
}

void KvCacheOps::choose(const Module& module, const MicroBatch& micro) {
  for (const KvCache::Piece& piece : micro.cache->pieces) {
    if (piece.maker == none) continue;
    RecomputeChoice choice{.module = module.id,
                           .micro_batch = static_cast<std::uint32_t>(micro.index),
                           .before = step_.next_op(),
                           .again = {}};
    choice.again[static_cast<std::size_t>(RecomputeLevel::block)] = {piece.maker};
    step_.choose(std::move(choice));
  }
}

std::vector<TensorId> KvCacheOps::read(const Module& module, const MicroBatch& micro, CacheShape shape) {
  const KvCache& cache = *micro.cache;
  const Count first = cache.tokens - shape.seen(cache.tokens);
  std::vector<TensorId> pieces;
  for (const KvCache::Piece& piece : cache.pieces) {
    if (piece.end > first) pieces.push_back(piece.tensor);
  }
  const Bytes dense = shape.width * step_.element_bytes(), kept = token_bytes(step_, shape.width);
  if (kept == dense) return pieces;
  const Count tokens = micro.sequences * shape.seen(cache.tokens);
  const TensorId expanded = step_.tensor(module, "kv.dequantized", tokens * dense, Role::workspace);
  op("kv_dequantize", module, {.bytes = tokens * (kept + dense)}, pieces, std::span<const TensorId>(&expanded, 1));
  return {expanded};
}

void KvCacheOps::attend(const Module& module, const Cost& cost, std::span<const TensorId> reads, TensorId context) {
  op("decode_attention", module, cost, reads, std::span<const TensorId>(&context, 1));
}

void KvCacheOps::op(std::string_view name, const Module& module, Cost cost, std::span<const TensorId> reads,
                    std::span<const TensorId> writes) {
  const bool placeable = step_.placeable;
  if (step_.phase == Phase::decode) {
    cost.device = step_.options.generation->attention;
    step_.placeable = step_.options.generation->placeable != Placeable::none;
  }
  step_.op(name, module, cost, reads, writes);
  step_.placeable = placeable;
}

TensorId LatentAttentionOps::forward(Layer& layer, const MicroBatch& micro, TensorId x, LatentAttentionState& state) {
  const Count tokens = micro.tokens(), heads = rank_.heads, rope = model_.rope_dimension;
  const Module& module = layer.attention_module;
  TensorId source = x;
  if (layer.latent.query_down) {
    source = linears_.linear(layer.latent.query_down, x, tokens, state.query_down);
    source = norm(rank_, layer.latent.query_down_norm, source, tokens, state.query_down_norm);
  }
  const TensorId query = linears_.linear(layer.query, source, tokens, state.query);
  const TensorId joint = linears_.linear(layer.latent.down, x, tokens, state.down);
  state.latent = norm(rank_, layer.latent.norm, joint, tokens, state.norm);
  state.q = query;
  if (rank_.kernels.eager() || linears_.pass().keeps_products()) {
    state.q = step_.activation(module, "rotated_query", tokens * heads * model_.head_dimension);
  }
  state.key_rope = step_.activation(module, "rotated_key", tokens * rope);
  step_.op("rotary", module, rank_.kernels.rotary(tokens * (heads + 1) * rope), {query, joint},
           {state.q, state.key_rope});
  if (micro.cache != nullptr) {
    cache_.write(module, micro, {.width = model_.key_value_rank + rope}, {state.latent, state.key_rope});
  }
  if (micro.cache != nullptr && step_.phase == Phase::decode) {
    state.context = attend_cache(layer, micro, state);
  } else {
    attend_prompt(layer, micro, state);
  }
  const TensorId y = linears_.linear(layer.attention_output, state.context, tokens, state.output);
  if (!linears_.taken()) rank_.collectives.all_reduce(Group::tensor, module, y);
  return y;
}

// Its kernel's head is as wide as those of key and value on average. Causal: half of the scores. Backward five products
// instead of two.
Cost LatentAttentionOps::flash(KernelKind kind, const MicroBatch& micro) const {
  const Count heads = rank_.heads, widths = model_.head_dimension + model_.value_dimension;
  const Count product = micro.tokens() * micro.length * heads * widths;
  return {.kernel = {.kind = kind,
                     .attention = step_.options.attention_kernel,
                     .causal = true,
                     .shape = {micro.sequences, heads, heads, micro.length, micro.length, widths / 2}},
          .flops = kind == KernelKind::attention ? product : 5 * product / 2};
}

void LatentAttentionOps::attend_prompt(Layer& layer, const MicroBatch& micro, LatentAttentionState& state) {
  const Module& module = layer.attention_module;
  const Count tokens = micro.tokens(), heads = rank_.heads, dimension = model_.head_dimension;
  state.expanded = linears_.linear(layer.latent.up, state.latent, tokens, state.up);
  state.key = step_.activation(module, "key", tokens * heads * dimension);
  const Bytes copied = tokens * heads * (plain() + dimension) * step_.element_bytes();
  step_.op("concatenate", module, {.kernel = {.kind = KernelKind::copy}, .bytes = copied},
           {state.expanded, state.key_rope}, {state.key});
  LayerPass& pass = linears_.pass();
  if (pass.keeps() && pass.again()) {
    state.context = pass.take();
    state.log_sum_exp = pass.take();
    return;
  }
  state.context = step_.activation(module, "context", tokens * heads * model_.value_dimension);
  if (!step_.options.forward_only)
    state.log_sum_exp = step_.tensor(module, "log_sum_exp", tokens * heads * 4, Role::activation);
  step_.op("flash_attention", module, flash(KernelKind::attention, micro), {state.q, state.key, state.expanded},
           {state.context, state.log_sum_exp});
  if (!pass.keeps()) return;
  pass.keep(state.context);
  pass.keep(state.log_sum_exp);
}

void LatentAttentionOps::backward(Layer& layer, const MicroBatch& micro, const LatentAttentionState& state, TensorId dy,
                                  TensorId* dx) {
  const Module& module = layer.attention_module;
  const Count tokens = micro.tokens(), heads = rank_.heads, dimension = model_.head_dimension;
  const Count rope = model_.rope_dimension, value = model_.value_dimension, rank = model_.key_value_rank;
  TensorId d_context = none, d_latent = none, d_source = none;
  linears_.linear_backward(layer.attention_output, state.output, dy, tokens, &d_context);
  const TensorId dq = step_.gradient(module, "query_grad", tokens * heads * dimension);
  const TensorId d_key = step_.gradient(module, "key_grad", tokens * heads * dimension);
  const TensorId d_value = step_.gradient(module, "value_grad", tokens * heads * value);
  step_.op("flash_attention_backward", module, flash(KernelKind::attention_backward, micro),
           {d_context, state.q, state.key, state.expanded, state.context, state.log_sum_exp}, {dq, d_key, d_value});
  // The rotated part of the key is that of all heads: its gradient is their sum.
  const TensorId d_expanded = step_.gradient(module, "expanded_grad", tokens * heads * (plain() + value));
  const TensorId d_key_rope = step_.gradient(module, "rotated_key_grad", tokens * rope);
  step_.op("concatenate_backward", module, {.kernel = {.kind = KernelKind::copy}}, {d_key, d_value},
           {d_expanded, d_key_rope});
  linears_.linear_backward(layer.latent.up, state.up, d_expanded, tokens, &d_latent);
  d_latent = norm_backward(rank_, layer.latent.norm, state.norm, d_latent, none, tokens, true);
  const TensorId d_joint = step_.gradient(module, "joint_grad", tokens * (rank + rope));
  step_.op("rotary_backward", module, kernels_.rotary_backward(tokens * (heads + 1) * rope), {dq, d_key_rope, d_latent},
           {dq, d_joint});
  linears_.linear_backward(layer.latent.down, state.down, d_joint, tokens, dx);
  if (layer.latent.query_down) {
    linears_.linear_backward(layer.query, state.query, dq, tokens, &d_source);
    d_source = norm_backward(rank_, layer.latent.query_down_norm, state.query_down_norm, d_source, none, tokens, true);
    linears_.linear_backward(layer.latent.query_down, state.query_down, d_source, tokens, dx);
  } else {
    linears_.linear_backward(layer.query, state.query, dq, tokens, dx);
  }
  if (dx != nullptr) rank_.collectives.all_reduce(Group::tensor, module, *dx);
}

TensorId LatentAttentionOps::attend_cache(Layer& layer, const MicroBatch& micro, const LatentAttentionState& state) {
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
  step_.op("absorb_query", module, product(plain(), rank, plain()), {state.q, weight}, {absorbed});
  const Count tokens = micro.cache->tokens;
  const TensorId latent_context = step_.activation(module, "latent_context", sequences * heads * rank);
  const Cost cost{.kernel = {.kind = KernelKind::attention,
                             .attention = step_.options.attention_kernel,
                             .shape = {sequences, heads, 1, 1, tokens, width}},
                  .flops = 2 * sequences * tokens * heads * (width + rank),
                  .bytes = sequences * (tokens * width + heads * (width + rank)) * e};
  std::vector<TensorId> reads = cache_.read(module, micro, {.width = width});
  reads.insert(reads.end(), {absorbed, state.q});
  cache_.attend(module, cost, reads, latent_context);
  const TensorId context = step_.activation(module, "context", sequences * heads * value);
  step_.op("expand_values", module, product(rank, value, value), {latent_context, weight}, {context});
  return context;
}

TensorId AttentionOps::forward(Layer& layer, const MicroBatch& micro, TensorId x, AttentionState& state) {
  const Count tokens = micro.tokens();
  if (micro.cache != nullptr && step_.phase == Phase::prefill && step_.options.recompute == Recompute::choose) {
    attend_in_pieces(layer, micro, x, state);
    return linears_.linear(layer.attention_output, state.core.context, tokens, state.output);
  }
  if (layer.query_key_value) {
    state.q = state.k = state.v = linears_.linear(layer.query_key_value, x, tokens, state.query_key_value);
  } else {
    state.q = linears_.linear(layer.query, x, tokens, state.query);
    state.k = linears_.linear(layer.key, x, tokens, state.key);
    state.v = linears_.linear(layer.value, x, tokens, state.value);
  }
  if (layer.query_norm) {
    state.q = norm(rank_, layer.query_norm, state.q, tokens * rank_.heads, state.query_norm);
    state.k = norm(rank_, layer.key_norm, state.k, tokens * rank_.key_value_heads, state.key_norm);
  }
  if (rank_.rotary) rotate(layer.attention_module, tokens, state);
  const bool decodes = micro.cache != nullptr && step_.phase == Phase::decode;
  if (micro.cache != nullptr) cache_.write(layer.attention_module, micro, cache_shape(layer), {state.k, state.v});
  if (micro.context != nullptr) append_context(layer, micro, state);
  if (decodes) {
    state.core.context = attend_cache(layer, micro, state.q);
  } else {
    core_forward(layer, micro, state, state.core);
  }
  const TensorId y = linears_.linear(layer.attention_output, state.core.context, tokens, state.output);
  if (!linears_.taken()) rank_.collectives.all_reduce(Group::tensor, layer.attention_module, y);
  return y;
}

void AttentionOps::attend_in_pieces(Layer& layer, const MicroBatch& micro, TensorId x, AttentionState& state) {
  const Module& module = layer.attention_module;
  const CacheShape shape = cache_shape(layer);
  const Count tokens = micro.tokens(), queries = tokens * rank_.heads * model_.head_dimension;
  state.q = linears_.linear(layer.query, x, tokens, state.query);
  if (rank_.rotary) step_.op("rotary", module, kernels_.rotary(queries), {state.q}, {state.q});
  std::vector<TensorId> weights;
  for (Linear* const linear : {&layer.key, &layer.value}) {
    weights.push_back(linears_.weight_for(*linear));
    if (linear->bias != nullptr) weights.push_back(linear->bias->value);
  }
  cache_.write_pieces(module, micro, shape, x, weights, [&](Count piece) {
    const Count width = shape.width / 2;
    return matmul(2, micro.sequences * piece, width, layer.key.in, {layer.key.in, width});
  });
  state.core.context = step_.activation(module, "context", queries);
  std::vector<TensorId> reads = {state.q};
  for (const KvCache::Piece& piece : micro.cache->pieces) reads.push_back(piece.tensor);
  step_.op("flash_attention", module, flash(KernelKind::attention, micro, layer.window), reads,
           std::span<const TensorId>(&state.core.context, 1));
}

// Composed of ops that each write a new tensor, or in place, unless that would change what is kept to begin with.
void AttentionOps::rotate(const Module& module, Count tokens, AttentionState& state) {
  const Count queries = tokens * rank_.heads * model_.head_dimension;
  const Count keys = tokens * rank_.key_value_heads * model_.head_dimension;
  TensorId q = state.q, k = state.k;
  if (kernels_.eager() || linears_.pass().keeps_products()) {
    q = step_.activation(module, "rotated_query", queries);
    k = step_.activation(module, "rotated_key", keys);
  }
  step_.op("rotary", module, kernels_.rotary(queries + keys), {state.q, state.k}, {q, k});
  state.q = q;
  state.k = k;
}

// The fused kernel's work; a causal one skips the half above the diagonal, and what lies before the window.
Cost AttentionOps::flash(KernelKind kind, const MicroBatch& micro, Count window) const {
  const bool windowed = window != 0 && micro.length > window;
  const Count before = windowed ? micro.length - window : 0;
  const Count scores = micro.sequences * (micro.length * micro.length - before * before) * rank_.heads;
  const Count product = 2 * scores * model_.head_dimension * (rank_.causal ? 1 : 2);
  // Backward five products instead of two: the scores are computed again.
  return {.kernel = {.kind = kind,
                     .attention = step_.options.attention_kernel,
                     .causal = rank_.causal && !windowed,
                     .shape = {micro.sequences, rank_.heads, rank_.key_value_heads, micro.length,
                               windowed ? window : micro.length, model_.head_dimension}},
          .flops = kind == KernelKind::attention ? product : 5 * product / 2};
}

// A piece is made, with a gradient of zeros, when its chunk passes for the first time.
void AttentionOps::append_context(const Layer& layer, const MicroBatch& micro, const AttentionState& qkv) {
  ContextCache& cache = *micro.context;
  const Module& module = layer.attention_module;
  const Bytes token = 2 * rank_.key_value_heads * model_.head_dimension * step_.element_bytes();
  std::vector<TensorId> values, gradients;
  for (Count piece = cache.begin; piece < cache.end; ++piece) {
    if (piece == cache.pieces.size()) {
      const Count tokens = std::min(micro.piece_tokens, micro.length - (piece - cache.begin) * micro.piece_tokens);
      const Bytes bytes = micro.sequences * tokens * token;
      const std::string number = std::to_string(piece);
      cache.pieces.push_back({step_.tensor(module, "kv." + number, bytes, Role::kv_cache),
                              step_.tensor(module, "kv_grad." + number, bytes, Role::gradient)});
      gradients.push_back(cache.pieces.back().gradient);
    }
    values.push_back(cache.pieces[piece].kv);
  }
  const Bytes bytes = micro.tokens() * token;
  std::vector<TensorId> sources = {qkv.k};
  if (qkv.v != qkv.k) sources.push_back(qkv.v);
  step_.op("kv_append", module, {.kernel = {.kind = KernelKind::copy}, .bytes = 2 * bytes}, sources, values);
  if (gradients.empty()) return;
  step_.op("kv_grad_clear", module, {.kernel = {.kind = KernelKind::elementwise}, .bytes = bytes}, {}, gradients);
}

void AttentionOps::add_past(Cost& cost, KernelKind kind, const MicroBatch& micro, Count past) const {
  if (past == 0) return;
  cost.kernel.causal = false;
  cost.kernel.shape[4] = past + micro.length / 2;
  const Count seen = micro.sequences * micro.length * past * rank_.heads * model_.head_dimension;
  cost.flops += (kind == KernelKind::attention ? 4 : 10) * seen;
}

// The chunk's own tokens are causal, all before it are seen by each of them.
Cost AttentionOps::over_context(KernelKind kind, const MicroBatch& micro) const {
  const ContextCache& cache = *micro.context;
  // A page of queries sees no more than its own draws.
  const Count budget = step_.options.context.pages;
  const Count past = budget == 0 ? micro.before : std::min(micro.before, budget * micro.piece_tokens);
  Cost cost = flash(kind, micro, 0);
  add_past(cost, kind, micro, past);
  cost.bytes = 0;
  for (const ContextCache::Piece& piece : cache.seen()) {
    cost.bytes += step_.bytes(piece.kv) * (kind == KernelKind::attention ? 1 : 3);
  }
  cost.bytes += 4 * micro.tokens() * rank_.heads * model_.head_dimension * step_.element_bytes();
  return cost;
}

TensorId AttentionOps::attend_cache(Layer& layer, const MicroBatch& micro, TensorId q) {
  const Module& module = layer.attention_module;
  const CacheShape shape = cache_shape(layer);
  const Count dimension = model_.head_dimension, seen = shape.seen(micro.cache->tokens);
  const Count keys = micro.sequences * seen;
  const TensorId context = step_.activation(module, "context", micro.sequences * rank_.heads * dimension);
  const Cost cost{
      .kernel = {.kind = KernelKind::attention,
                 .attention = step_.options.attention_kernel,
                 .shape = {micro.sequences, rank_.heads, rank_.key_value_heads, 1, seen, dimension}},
      .flops = 4 * keys * rank_.heads * dimension,
      .bytes = 2 * (keys * rank_.key_value_heads + micro.sequences * rank_.heads) * dimension * step_.element_bytes()};
  cache_.choose(module, micro);
  std::vector<TensorId> reads = cache_.read(module, micro, shape);
  reads.push_back(q);
  if (layer.sinks != nullptr) reads.push_back(layer.sinks->value);
  cache_.attend(module, cost, reads, context);
  return context;
}

void AttentionOps::core_forward(Layer& layer, const MicroBatch& micro, const AttentionState& qkv,
                                CoreAttentionState& state) {
  const Module& module = layer.attention_module;
  const Count dimension = model_.head_dimension;
  const Count scores = micro.tokens() * micro.length * rank_.heads;
  const Count sequences = micro.sequences * rank_.heads, length = micro.length;
  const bool flash = step_.options.attention == AttentionKind::flash;
  if (flash && linears_.pass().keeps() && linears_.pass().again()) {
    state.context = linears_.pass().take();
    state.log_sum_exp = linears_.pass().take();
    return;
  }
  state.context = step_.activation(module, "context", micro.tokens() * rank_.heads * dimension);
  if (flash) {
    if (!step_.options.forward_only)
      state.log_sum_exp = step_.tensor(module, "log_sum_exp", micro.tokens() * rank_.heads * 4, Role::activation);
    if (micro.context != nullptr) {
      std::vector<TensorId> reads = {qkv.q};
      for (const ContextCache::Piece& piece : micro.context->seen()) reads.push_back(piece.kv);
      step_.op("context_attention", module, over_context(KernelKind::attention, micro), reads,
               std::array{state.context, state.log_sum_exp});
      return;
    }
    Cost cost = this->flash(KernelKind::attention, micro, layer.window);
    const bool begins = micro.cache == nullptr || micro.cache->tokens == micro.length;
    if (!begins) add_past(cost, KernelKind::attention, micro, micro.cache->tokens - micro.length);
    step_.op("flash_attention", module, cost,
             {qkv.q, qkv.k, qkv.v, begins ? TensorId{none} : micro.cache->pieces.front().tensor,
              layer.sinks != nullptr ? layer.sinks->value : none},
             {state.context, state.log_sum_exp});
    if (linears_.pass().keeps()) {
      linears_.pass().keep(state.context);
      linears_.pass().keep(state.log_sum_exp);
    }
    return;
  }
  const TensorId raw = step_.activation(module, "scores", scores);
  step_.op("attention_scores", module, matmul(sequences, length, length, dimension, {dimension, length}),
           {qkv.q, qkv.k}, {raw});
  state.dropped = step_.activation(module, "weights", scores);
  state.weights = fp32_softmax() ? step_.tensor(module, "weights_fp32", 4 * scores, Role::activation) : state.dropped;
  step_.op("softmax", module, kernels_.softmax(scores, fp32_softmax()),
           {raw, layer.sinks != nullptr ? layer.sinks->value : none}, {state.weights, state.dropped});
  if (rank_.attention_dropout) {
    const TensorId before = state.dropped;
    state.mask = step_.tensor(module, "weights_dropout_mask", scores, Role::activation);
    state.dropped = step_.activation(module, "weights_dropout", scores);
    step_.op("dropout", module, kernels_.dropout(scores), {before}, {state.dropped, state.mask});
  }
  step_.op("attention_values", module, matmul(sequences, length, dimension, length, {length, dimension}),
           {state.dropped, qkv.v}, {state.context});
}

void AttentionOps::core_backward(Layer& layer, const MicroBatch& micro, const AttentionState& state, TensorId d_context,
                                 TensorId dq, TensorId dk, TensorId dv) {
  const Module& module = layer.attention_module;
  const Count scores = micro.tokens() * micro.length * rank_.heads;
  const Count sequences = micro.sequences * rank_.heads, length = micro.length, dimension = model_.head_dimension;
  if (micro.context != nullptr) {
    std::vector<TensorId> reads = {d_context, state.q, state.core.context, state.core.log_sum_exp}, writes = {dq, dk};
    if (dv != dk) writes.push_back(dv);
    const std::vector<ContextCache::Piece> seen = micro.context->seen();
    for (const ContextCache::Piece& piece : seen) reads.insert(reads.end(), {piece.kv, piece.gradient});
    // Its own, to which later chunks have added, go on as those of keys and values.
    for (std::size_t i = 0; i < micro.context->chosen.size(); ++i) writes.push_back(seen[i].gradient);
    step_.op("context_attention_backward", module, over_context(KernelKind::attention_backward, micro), reads, writes);
    return;
  }
  if (step_.options.attention == AttentionKind::flash) {
    step_.op("flash_attention_backward", module, flash(KernelKind::attention_backward, micro, layer.window),
             {d_context, state.q, state.k, state.v, state.core.context, state.core.log_sum_exp}, {dq, dk, dv});
    return;
  }
  CoreAttentionState core = state.core;
  if (step_.options.recompute == Recompute::selective) {
    core = {};
    core_forward(layer, micro, state, core);
  }
  TensorId d_weights = step_.gradient(module, "weights_grad", scores);
  // Two products each; of the same work, so that one shape stands for both.
  step_.op("attention_values_backward", module, matmul(2 * sequences, length, length, dimension, {dimension, length}),
           {d_context, core.dropped, state.v}, {d_weights, dv});
  if (rank_.attention_dropout) {
    const TensorId before = step_.gradient(module, "weights_dropout_grad", scores);
    step_.op("dropout_backward", module, kernels_.dropout(scores), {d_weights, core.mask}, {before});
    d_weights = before;
  }
  const TensorId d_scores = step_.gradient(module, "scores_grad", scores);
  step_.op("softmax_backward", module, kernels_.softmax_backward(scores, fp32_softmax()), {d_weights, core.weights},
           {d_scores});
  // With one tensor for query, key and value, their gradients are one as well, whose last third is there already.
  step_.op("attention_scores_backward", module, matmul(2 * sequences, length, dimension, length, {length, dimension}),
           {d_scores, state.q, state.k, dq == dv ? dv : TensorId{none}}, {dq, dk});
}

void AttentionOps::backward(Layer& layer, const MicroBatch& micro, AttentionState& state, TensorId dy, TensorId* dx) {
  const Count tokens = micro.tokens(), dimension = model_.head_dimension;
  TensorId d_context = none;
  linears_.linear_backward(layer.attention_output, state.output, dy, tokens, &d_context);
  const Module& module = layer.attention_module;
  TensorId dq = none, dk = none, dv = none;
  if (layer.query_key_value) {
    dq = dk = dv = step_.gradient(module, "query_key_value_grad", tokens * layer.query_key_value.out);
  } else {
    dq = step_.gradient(module, "query_grad", tokens * rank_.heads * dimension);
    dk = step_.gradient(module, "key_grad", tokens * rank_.key_value_heads * dimension);
    dv = step_.gradient(module, "value_grad", tokens * rank_.key_value_heads * dimension);
  }
  core_backward(layer, micro, state, d_context, dq, dk, dv);
  if (layer.query_key_value && kernels_.concatenates()) {
    const TensorId parts = dq;
    dq = dk = dv = step_.gradient(module, "query_key_value_joined_grad", tokens * layer.query_key_value.out);
    step_.op("concatenate", module, kernels_.concatenate(tokens * layer.query_key_value.out), {parts}, {dq});
  }
  if (rank_.rotary) {
    const Count rotated = tokens * (rank_.heads + rank_.key_value_heads) * dimension;
    step_.op("rotary_backward", module, kernels_.rotary_backward(rotated), {dq, dk}, {dq, dk});
  }
  if (layer.query_norm) {
    dq = norm_backward(rank_, layer.query_norm, state.query_norm, dq, none, tokens * rank_.heads, true);
    dk = norm_backward(rank_, layer.key_norm, state.key_norm, dk, none, tokens * rank_.key_value_heads, true);
  }
  if (layer.query_key_value) {
    linears_.linear_backward(layer.query_key_value, state.query_key_value, dq, tokens, dx);
  } else {
    linears_.linear_backward(layer.value, state.value, dv, tokens, dx);
    linears_.linear_backward(layer.key, state.key, dk, tokens, dx);
    linears_.linear_backward(layer.query, state.query, dq, tokens, dx);
  }
  if (dx != nullptr) rank_.collectives.all_reduce(Group::tensor, module, *dx);
}

}  // namespace tencache::generator
