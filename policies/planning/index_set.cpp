#include "policies/planning/index_set.h"

#include <bit>
#include <numeric>

namespace tencache {

IndexSet::IndexSet(std::size_t bound) {
  std::vector<std::size_t> sizes;
  do {
    bound = bound / word_bits + 1;  // `bound` itself has a word, too: it may be asked for
    sizes.push_back(bound);
  } while (bound > 1);
  std::size_t begin = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  words_.assign(begin, 0);
  for (const std::size_t size : sizes) levels_.push_back(begin -= size);
}

void IndexSet::insert(std::size_t index) {
  for (const std::size_t begin : levels_) {
    std::uint64_t& word = words_[begin + index / word_bits];
    const bool known = word != 0;  // to the levels above
    word |= std::uint64_t{1} << (index % word_bits);
    if (known) return;
    index /= word_bits;
  }
}

void IndexSet::erase(std::size_t index) {
  for (const std::size_t begin : levels_) {
    std::uint64_t& word = words_[begin + index / word_bits];
    word &= ~(std::uint64_t{1} << (index % word_bits));
    if (word != 0) return;
    index /= word_bits;
  }
}

// Up to the level where a word has a neighbour, then down again on its near side.
std::optional<std::size_t> IndexSet::next(std::size_t index) const {
  for (std::size_t level = 0; level < levels_.size(); ++level) {
    std::uint64_t from = ~std::uint64_t{0} << (index % word_bits);
    if (level > 0) from &= from - 1;  // the words after that one
    index /= word_bits;
    std::uint64_t word = words_[levels_[level] + index] & from;
    if (word == 0) continue;
    for (;; word = words_[levels_[--level] + index]) {
      index = index * word_bits + static_cast<std::size_t>(std::countr_zero(word));
      if (level == 0) return index;
    }
  }
  return std::nullopt;
}

std::optional<std::size_t> IndexSet::previous(std::size_t index) const {
  for (std::size_t level = 0; level < levels_.size(); ++level) {
    const std::uint64_t below = (std::uint64_t{1} << (index % word_bits)) - 1;
    index /= word_bits;
    std::uint64_t word = words_[levels_[level] + index] & below;
    if (word == 0) continue;
    for (;; word = words_[levels_[--level] + index]) {
      index = index * word_bits + word_bits - 1 - static_cast<std::size_t>(std::countl_zero(word));
      if (level == 0) return index;
    }
  }
  return std::nullopt;
}

}  // namespace tencache
