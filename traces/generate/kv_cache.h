// Inside the generator: the KV cache of a micro-batch in one layer, which grows piece by piece.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "traces/generate/blocks.h"
#include "traces/generate/context.h"

namespace tencache::generator {

// Of a layer that sees only the last `window` tokens (0: all), which the cache keeps; `width`: values of a token on this
// rank. The micro-batch has a cache.
struct CacheShape {
  Count width = 0, window = 0;

  // Tokens that one more token sees.
  Count seen(Count tokens) const { return window != 0 && tokens > window ? window : tokens; }
};

class KvCacheOps {
 public:
  explicit KvCacheOps(const RankContext& rank) : step_(rank.step) {}

  // Of a token's values, as they are kept.
  static Bytes token_bytes(const Step& step, Count width);

  // Adds the micro-batch's tokens, which `sources` have.
  void write(const Module& module, const MicroBatch& micro, CacheShape shape, std::initializer_list<TensorId> sources);
  // What a kernel reads to attend to all tokens that the last one sees: the pieces, or what an op expands them to.
  std::vector<TensorId> read(const Module& module, const MicroBatch& micro, CacheShape shape);

  // The kernel that does, and writes `context`.
  void attend(const Module& module, const Cost& cost, std::span<const TensorId> reads, TensorId context);

 private:
  // Of new tokens it runs where the generation has that, and policies may place it.
  void op(std::string_view name, const Module& module, Cost cost, std::span<const TensorId> reads,
          std::span<const TensorId> writes);

  Step& step_;
};

}  // namespace tencache::generator
