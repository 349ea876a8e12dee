#include "traces/generate/kv_cache.h"

#include <algorithm>
#include <string>

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

}  // namespace tencache::generator
