// A picture of a GPU's memory while a program runs: which addresses are in use, and which are reserved and free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/caching_allocator.h"
#include "core/units.h"

namespace tencache {

// Of what a GPU's memory is at many times: rows are addresses, from low to high, of which only those count that were
// reserved at any time; columns are events.
struct AddressMap {
  enum class Cell : std::uint8_t { not_reserved, free, in_use };
  std::uint32_t columns = 0, rows = 0;
  Bytes bytes_per_row = 0;
  std::vector<Cell> cells;                // column by column
  std::vector<std::uint32_t> iterations;  // columns in which one begins
};

// Fills a map of the size that it has.
class AddressMapPainter {
 public:
  // Of so many events.
  AddressMapPainter(AddressMap& map, std::size_t events) : map_(map), events_(events) {}

  // Whether the memory after that event, counted from 0, is a column.
  bool wants(std::size_t event) const {
    return columns_.size() < map_.columns && event + 1 >= (columns_.size() + 1) * events_ / map_.columns;
  }
  void add(std::vector<BlockView> blocks) { columns_.push_back(std::move(blocks)); }
  void iteration(std::size_t event);
  // Once, last. Columns that were not reached are left out.
  void paint();

 private:
  struct Range {
    std::uint64_t address = 0;
    Bytes bytes = 0;
    Bytes compact = 0;  // of all ranges before it
  };
  void collect_ranges();
  void spread(const BlockView& block, std::vector<Bytes>& rows) const;

  AddressMap& map_;
  std::size_t events_;
  std::vector<std::vector<BlockView>> columns_;
  std::vector<Range> ranges_;
};

}  // namespace tencache
