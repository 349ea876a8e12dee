#include "traces/generate/kv_cache.h"

#include <algorithm>
#include <string>

namespace tencache::generator {

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
    const Bytes bytes = micro.sequences * shape.seen(more) * shape.width * step_.element_bytes();
    const std::string name = "kv." + std::to_string(cache.pieces.size());
    cache.pieces.push_back({step_.tensor(module, name, bytes, Role::kv_cache), cache.room});
  } else {
    reads.push_back(cache.pieces.back().tensor);
  }
  const Bytes moved = 2 * micro.sequences * kept * shape.width * step_.element_bytes();
  op("kv_write", module, {.kernel = {.kind = KernelKind::copy}, .bytes = moved}, reads,
     std::span<const TensorId>(&cache.pieces.back().tensor, 1));
}

std::vector<TensorId> KvCacheOps::read(const Module&, const MicroBatch& micro, CacheShape shape) {
  const KvCache& cache = *micro.cache;
  const Count first = cache.tokens - shape.seen(cache.tokens);
  std::vector<TensorId> pieces;
  for (const KvCache::Piece& piece : cache.pieces) {
    if (piece.end > first) pieces.push_back(piece.tensor);
  }
  return pieces;
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
