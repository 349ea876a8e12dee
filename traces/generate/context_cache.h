// Inside the generator: keys and values of a context that is trained chunk by chunk, so that activations of one chunk
// are alive at a time (OOMB, arXiv 2602.02108).
//
// Pass 1 goes forward through all chunks and only leaves keys and values, beside gradients of them that are zero. Pass
// 2 goes through the chunks in reverse: forward again, then backward, which adds to the gradients of all earlier keys
// and values and takes those of its own, to which all later chunks have added.
//
// Sparse attention: each page of queries attends to at most so many earlier pages of keys. Which ones depends on data:
// here a draw, the same in all passes of a layer. What a chunk reads is the union over its pages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "traces/generate/step.h"

namespace tencache::generator {

struct ContextCache {
  struct Piece {
    TensorId kv = none, gradient = none;
  };
  std::vector<Piece> pieces;          // a chunk each, or a page where attention is sparse
  std::vector<std::uint32_t> chosen;  // of the pieces before the present chunk, ascending
  Count begin = 0, end = 0;           // pieces of the present chunk

  // What the present chunk attends to: chosen pieces, then its own.
  std::vector<Piece> seen() const;
};

// How a sequence is cut.
class ContextPlan {
 public:
  static constexpr Count page_tokens = 128;

  explicit ContextPlan(const GenerateOptions& options);

  Count chunks() const { return chunks_; }
  Count length_of(Count chunk) const { return std::min(chunk_, tokens_ - chunk * chunk_); }
  Count before(Count chunk) const { return chunk * chunk_; }
  Count piece_tokens() const { return piece_; }
  // Moves a layer's cache to the chunk. Sequences of draws are the layer's own.
  void enter(Count layer, Count chunk, ContextCache& cache) const;
  // How often ops of so many layers read or write keys, values or gradients of them, at most. O(chunks).
  double uses(Count layers) const;

 private:
  Count tokens_, chunk_, piece_, budget_, chunks_;
};

}  // namespace tencache::generator
