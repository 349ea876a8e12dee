// A set of small numbers that is asked for neighbours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tencache {

// Numbers below a bound, as bits, and above them a bit for each word that is not empty, and so on up to one word:
// every call takes O(log64 bound), and allocates nothing.
class IndexSet {
 public:
  explicit IndexSet(std::size_t bound = 0);

  bool empty() const { return words_.front() == 0; }
  void insert(std::size_t index);
  void erase(std::size_t index);
  // The least that is not below the index; the greatest that is below it. Any index up to the bound.
  std::optional<std::size_t> at_or_after(std::size_t index) const { return empty() ? std::nullopt : next(index); }
  std::optional<std::size_t> before(std::size_t index) const { return empty() ? std::nullopt : previous(index); }

 private:
  static constexpr std::size_t word_bits = 64;

  std::optional<std::size_t> next(std::size_t index) const;
  std::optional<std::size_t> previous(std::size_t index) const;

  std::vector<std::size_t> levels_;   // where each begins: of the numbers, of their words, ..., of one word
  std::vector<std::uint64_t> words_;  // the highest level first
};

}  // namespace tencache
