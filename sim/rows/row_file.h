// Files of ids, NAME.ids or NAME.ids.zst: one line of JSON, then words of 32 bits, little-endian.
//
//   {"row_ids": 1, "batches": 2, "tables": [{"name": "user", "rows": 1000, "row_bytes": 512, "optimizer_bytes": 4}]}
//   for each batch, for each table: how many ids follow, then the ids, each from 0 to the table's rows - 1
//
// Readers recognise gzip and zstd by content. docs/rows.md shows how NumPy writes such a file.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sim/rows/row_ids.h"
#include "traces/file/file_io.h"

namespace tencache {

// Throws Error that says which batch and table. `progress`, if there is one, is called now and then with the share read
// so far (of compressed bytes).
RowIds read_row_ids(const std::string& path, const std::function<void(double share)>& progress = {});

// The same calls give the same bytes. Throws Error; without commit() no file appears.
class RowIdWriter {
 public:
  RowIdWriter(const std::string& path, const std::vector<RowTable>& tables, std::uint64_t batches);
  // The next table of a batch, in order.
  void add(std::span<const std::uint32_t> ids);
  // Once, after as many batches as were announced.
  void commit();

 private:
  AtomicFile file_;
  std::uint64_t missing_;  // tables of batches
};

}  // namespace tencache
