#include "sim/rows/row_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"

namespace tencache {
namespace {

constexpr unsigned most_blocks_log2 = 16;

// Least significant digits first; `most`: no row is larger.
void sort_rows(std::vector<Row>& rows, std::vector<Row>& other, Row most) {
  constexpr unsigned bits = 11;
  constexpr std::size_t worth_it = 4096;
  if (rows.size() < worth_it) {
    std::ranges::sort(rows);
    return;
  }
  other.resize(rows.size());
  for (unsigned shift = 0; shift < 32 && (most >> shift) != 0; shift += bits) {
    std::array<std::size_t, (1u << bits)> begin{};
    const auto digit = [shift](Row row) { return (row >> shift) & ((1u << bits) - 1); };
    for (const Row row : rows) ++begin[digit(row)];
    std::size_t sum = 0;
    for (std::size_t& count : begin) sum += std::exchange(count, sum);
    for (const Row row : rows) other[begin[digit(row)]++] = row;
    rows.swap(other);
  }
}

}  // namespace

void check_row_tables(const std::vector<RowTable>& tables, const std::string& file) {
  if (tables.empty()) throw Error(file, 0, "has no table; name at least one with its rows");
  if (tables.size() > most_row_tables) {
    throw Error(file, 0, fmt::format("has {} tables; {} are possible", tables.size(), most_row_tables));
  }
  std::uint64_t rows = 0;
  for (const RowTable& table : tables) {
    if (table.rows == 0 || table.rows > most_rows - rows) {
      throw Error(file, 0,
                  fmt::format("table '{}' has {} rows after {} of others; each has at least one, and all together {} "
                              "at most: leave tables out",
                              table.name, table.rows, rows, most_rows));
    }
    rows += table.rows;
    if (table.row_bytes == 0 || table.row_bytes > most_row_bytes || table.optimizer_bytes > most_row_bytes) {
      throw Error(file, 0,
                  fmt::format("table '{}': row_bytes is from 1 to {}, optimizer_bytes at most as much", table.name,
                              most_row_bytes));
    }
  }
}

RowIds::RowIds(std::string file, std::vector<RowTable> tables) : file_(std::move(file)), tables_(std::move(tables)) {
  for (const RowTable& table : tables_) first_rows_.push_back(first_rows_.back() + static_cast<Row>(table.rows));
  while ((rows() >> block_shift_) >= (1u << most_blocks_log2)) ++block_shift_;
  for (std::uint64_t row = 0; row < rows(); row += std::uint64_t{1} << block_shift_) {
    std::size_t table = table_of_block_.empty() ? 0 : table_of_block_.back();
    while (row >= first_rows_[table + 1]) ++table;
    table_of_block_.push_back(static_cast<std::uint16_t>(table));
  }
}

std::uint64_t RowIds::size_of(std::size_t table) const {
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < batches(); ++i) {
    const auto rows = batch(i);
    const auto begin = std::ranges::lower_bound(rows, first_rows_[table]);
    size += static_cast<std::uint64_t>(std::lower_bound(begin, rows.end(), first_rows_[table + 1]) - begin);
  }
  return size;
}

Bytes RowIds::widest_row() const {
  return std::ranges::max_element(tables_, {}, [](const RowTable& table) { return table.bytes(); })->bytes();
}

void RowIds::add_batch(std::vector<Row>& lookups) {
  sort_rows(lookups, scratch_, rows());
  for (std::size_t i = 0; i < lookups.size();) {
    std::size_t end = i + 1;
    while (end < lookups.size() && lookups[end] == lookups[i]) ++end;
    rows_.push_back(lookups[i]);
    counts_.push_back(static_cast<std::uint32_t>(end - i));
    i = end;
  }
  ends_.push_back(rows_.size());
  lookups_ += lookups.size();
}

void RowIds::forget_before(std::size_t batch) {
  const auto kept = static_cast<std::ptrdiff_t>(begin_of(batch));
  rows_.erase(rows_.begin(), rows_.begin() + kept);
  counts_.erase(counts_.begin(), counts_.begin() + kept);
  ends_.erase(ends_.begin(), ends_.begin() + static_cast<std::ptrdiff_t>(batch - forgotten_));
  for (std::uint64_t& end : ends_) end -= static_cast<std::uint64_t>(kept);
  forgotten_ = batch;
}

void RowIds::unite(std::size_t first, std::size_t last, United& united) const {
  const auto rows = part(rows_, first, last);
  const auto counts = part(counts_, first, last);
  std::vector<std::pair<Row, std::uint32_t>> all;  // and where its count is
  for (std::size_t i = 0; i < rows.size(); ++i) all.emplace_back(rows[i], static_cast<std::uint32_t>(i));
  std::ranges::sort(all);
  united.rows.clear();
  united.counts.clear();
  united.first_counts.clear();
  for (const auto& [row, at] : all) {
    if (united.rows.empty() || united.rows.back() != row) {
      united.rows.push_back(row);
      united.counts.push_back(0);
      united.first_counts.push_back(counts[at]);
    }
    united.counts.back() += counts[at];
  }
}

std::uint64_t RowIds::largest_union(std::size_t window, bool apart) const {
  std::uint64_t largest = 0, present = 0;
  if (window == 1) {
    for (std::size_t i = 0; i < batches(); ++i) largest = std::max<std::uint64_t>(largest, batch(i).size());
    return largest;
  }
  std::vector<std::uint32_t> last(rows(), never);  // batch that had the row
  for (std::size_t i = 0; i < batches(); ++i) {
    if (apart) {
      if (i % window == 0) present = 0;
      const std::size_t begin = i - i % window;
      for (const Row row : batch(i)) {
        if (last[row] == never || last[row] < begin) ++present;
        last[row] = static_cast<std::uint32_t>(i);
      }
    } else {
      for (const Row row : batch(i)) {
        if (last[row] == never || i - last[row] >= window + 1) ++present;
        last[row] = static_cast<std::uint32_t>(i);
      }
      if (i >= window) {
        for (const Row row : batch(i - window)) present -= last[row] == i - window;
      }
    }
    largest = std::max(largest, present);
  }
  return largest;
}

std::vector<std::uint32_t> RowIds::next_uses() const {
  std::vector<std::uint32_t> next(size()), soonest(rows(), never);
  for (std::size_t i = batches(); i-- > 0;) {
    for (std::uint64_t at = ends_[i]; at < ends_[i + 1]; ++at) {
      next[at] = std::exchange(soonest[rows_[at]], static_cast<std::uint32_t>(i));
    }
  }
  return next;
}

}  // namespace tencache
