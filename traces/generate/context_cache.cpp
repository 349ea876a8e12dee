#include "traces/generate/context_cache.h"

#include <algorithm>
#include <cstddef>

#include "traces/generate/draws.h"

namespace tencache::generator {
namespace {

constexpr std::uint64_t seed = 1;

Count up(Count a, Count b) { return (a + b - 1) / b; }

}  // namespace

std::vector<ContextCache::Piece> ContextCache::seen() const {
  std::vector<Piece> list;
  for (const std::uint32_t piece : chosen) list.push_back(pieces[piece]);
  list.insert(list.end(), pieces.begin() + static_cast<std::ptrdiff_t>(begin),
              pieces.begin() + static_cast<std::ptrdiff_t>(end));
  return list;
}

ContextPlan::ContextPlan(const GenerateOptions& options)
    : tokens_(options.sequence_lengths.front()),
      chunk_(options.context.tokens),
      piece_(options.context.pages == 0 ? options.context.tokens : std::min(page_tokens, options.context.tokens)),
      budget_(options.context.pages),
      chunks_(up(tokens_, chunk_)) {}

void ContextPlan::enter(Count layer, Count chunk, ContextCache& cache) const {
  cache.begin = before(chunk) / piece_;
  cache.end = cache.begin + up(length_of(chunk), piece_);
  std::vector<std::uint8_t> chosen(cache.begin, budget_ == 0 || cache.begin <= budget_ ? 1 : 0);
  if (budget_ != 0 && cache.begin > budget_) {
    std::uint64_t state = seed_of(seed, layer, chunk);
    std::vector<Count> last_of(cache.begin, 0);  // the page of queries, counted from 1, that has chosen it last
    for (Count page = 1; page <= cache.end - cache.begin; ++page) {
      for (Count drawn = 0; drawn < budget_;) {
        const Count piece = below(state, cache.begin);
        if (last_of[piece] == page) continue;
        last_of[piece] = page;
        chosen[piece] = 1;
        ++drawn;
      }
    }
  }
  cache.chosen.clear();
  for (std::uint32_t piece = 0; piece < chosen.size(); ++piece) {
    if (chosen[piece] != 0) cache.chosen.push_back(piece);
  }
}

double ContextPlan::uses(Count layers) const {
  // Keys and values in three forward passes and a backward pass, which reads and writes gradients as well.
  constexpr double each = 6;
  double pieces = 0;
  for (Count chunk = 0; chunk < chunks_; ++chunk) {
    const Count past = before(chunk) / piece_, own = up(length_of(chunk), piece_);
    pieces += static_cast<double>(own + (budget_ == 0 ? past : std::min(past, budget_ * own)));
  }
  return each * pieces * static_cast<double>(layers);
}

}  // namespace tencache::generator
