#include "studies/address_map.h"

#include <algorithm>

namespace tencache {

void AddressMapPainter::iteration(std::size_t event) {
  map_.iterations.push_back(static_cast<std::uint32_t>(event * map_.columns / std::max<std::size_t>(1, events_)));
}

void AddressMapPainter::paint() {
  collect_ranges();
  const Bytes total = ranges_.empty() ? 0 : ranges_.back().compact + ranges_.back().bytes;
  map_.bytes_per_row = std::max<Bytes>(1, (total + map_.rows - 1) / map_.rows);
  map_.columns = static_cast<std::uint32_t>(columns_.size());
  map_.cells.assign(std::size_t{map_.columns} * map_.rows, AddressMap::Cell::not_reserved);
  std::vector<Bytes> in_use(map_.rows), free(map_.rows);
  for (std::size_t column = 0; column < columns_.size(); ++column) {
    std::ranges::fill(in_use, 0);
    std::ranges::fill(free, 0);
    for (const BlockView& block : columns_[column]) spread(block, block.handed_out ? in_use : free);
    for (std::uint32_t row = 0; row < map_.rows; ++row) {
      if (in_use[row] + free[row] == 0) continue;
      map_.cells[column * map_.rows + row] =
          in_use[row] >= free[row] ? AddressMap::Cell::in_use : AddressMap::Cell::free;
    }
  }
}

// The addresses that were reserved at any of the times.
void AddressMapPainter::collect_ranges() {
  std::vector<Range> all;
  for (const std::vector<BlockView>& column : columns_) {
    for (const BlockView& block : column) all.push_back({block.address, block.bytes});
  }
  std::ranges::sort(all, {}, &Range::address);
  for (const Range& range : all) {
    if (!ranges_.empty() && range.address <= ranges_.back().address + ranges_.back().bytes) {
      Bytes& length = ranges_.back().bytes;
      length = std::max<Bytes>(length, range.address + range.bytes - ranges_.back().address);
    } else {
      ranges_.push_back(range);
    }
  }
  Bytes before = 0;
  for (Range& range : ranges_) {
    range.compact = before;
    before += range.bytes;
  }
}

void AddressMapPainter::spread(const BlockView& block, std::vector<Bytes>& rows) const {
  const auto after = std::ranges::upper_bound(ranges_, block.address, {}, &Range::address);
  const Range& range = *(after - 1);
  Bytes at = range.compact + (block.address - range.address);
  const Bytes end = at + block.bytes;
  while (at < end) {
    const std::size_t row = at / map_.bytes_per_row;
    const Bytes next = std::min<Bytes>(end, (row + 1) * map_.bytes_per_row);
    rows[row] += next - at;
    at = next;
  }
}

}  // namespace tencache
