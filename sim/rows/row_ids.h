// Which rows of embedding tables a program looks up, batch by batch: what caches of rows are asked for.
//
// Rows are numbered through all tables, one after the other. The order of lookups within a batch changes nothing that
// is simulated, so a batch keeps each row once, with its count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/units.h"

namespace tencache {

using Row = std::uint32_t;
inline constexpr Row most_rows = 0xffff'fffe;  // of all tables together
inline constexpr std::size_t most_row_tables = 65'535;
inline constexpr Bytes most_row_bytes = Bytes{1} << 30;

struct RowTable {
  std::string name;
  std::uint64_t rows = 0;
  Bytes row_bytes = 0, optimizer_bytes = 0;  // per row; the optimizer's move with theirs

  Bytes bytes() const { return row_bytes + optimizer_bytes; }
  bool operator==(const RowTable&) const = default;
};

// Throws Error, placed at `file`, for tables without rows or bytes, and for more than there may be.
void check_row_tables(const std::vector<RowTable>& tables, const std::string& file);

class RowIds {
 public:
  RowIds() = default;
  // Tables that check_row_tables() accepts.
  RowIds(std::string file, std::vector<RowTable> tables);

  const std::string& file() const { return file_; }  // for messages
  const std::vector<RowTable>& tables() const { return tables_; }
  Row rows() const { return first_rows_.back(); }
  Row first_row(std::size_t table) const { return first_rows_[table]; }
  std::size_t table_of(Row row) const {
    std::size_t table = table_of_block_[row >> block_shift_];
    while (row >= first_rows_[table + 1]) ++table;
    return table;
  }
  Bytes bytes_of(Row row) const { return tables_[table_of(row)].bytes(); }
  Bytes widest_row() const;

  // Adds a batch of lookups, in any order; they are left sorted.
  void add_batch(std::vector<Row>& lookups);

  // Drops what earlier batches have; they are not asked for again. For ids that come while they are used.
  void forget_before(std::size_t batch);

  std::size_t batches() const { return forgotten_ + ends_.size() - 1; }
  std::uint64_t lookups() const { return lookups_; }
  std::uint64_t size() const { return rows_.size(); }  // different rows of each batch, all batches together
  std::uint64_t size_of(std::size_t table) const;      // of one table
  // Different rows in ascending order, and how often each is looked up.
  std::span<const Row> batch(std::size_t index) const { return part(rows_, index, index + 1); }
  std::span<const std::uint32_t> counts(std::size_t index) const { return part(counts_, index, index + 1); }
  std::uint64_t begin_of(std::size_t batch) const {
    return ends_[batch - forgotten_];
  }  // index of its first row among all

  // Different rows of batches [first, last), with the sums of their counts, and the counts in the first batch of each.
  struct United {
    std::vector<Row> rows;
    std::vector<std::uint32_t> counts, first_counts;
  };
  void unite(std::size_t first, std::size_t last, United& united) const;
  // The most different rows that `window` successive batches have. `apart`: windows do not overlap.
  std::uint64_t largest_union(std::size_t window, bool apart) const;
  // For each row of each batch, in order: the next batch that has it, or `never`.
  static constexpr std::uint32_t never = 0xffff'ffff;
  std::vector<std::uint32_t> next_uses() const;

 private:
  template <typename T>
  std::span<const T> part(const std::vector<T>& all, std::size_t first, std::size_t last) const {
    return std::span(all).subspan(begin_of(first), begin_of(last) - begin_of(first));
  }

  std::string file_;
  std::vector<RowTable> tables_;
  std::vector<Row> first_rows_ = {0};  // of each table, and the number of all
  std::vector<std::uint16_t> table_of_block_;
  unsigned block_shift_ = 0;
  std::vector<Row> rows_;
  std::vector<std::uint32_t> counts_;
  std::vector<std::uint64_t> ends_ = {0};
  std::size_t forgotten_ = 0;  // batches
  std::uint64_t lookups_ = 0;
  std::vector<Row> scratch_;
};

}  // namespace tencache
