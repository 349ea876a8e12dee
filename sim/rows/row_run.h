// A cache of rows through all batches: what it hits, what it moves, what it takes of the GPU's memory, and how long a
// batch takes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sim/rows/row_cache.h"
#include "sim/rows/row_times.h"

namespace tencache {

struct RowTableCounts {
  // Different rows of each batch: misses were not on the GPU when its transfers were planned (with a look-ahead that is
  // earlier, and a row that several batches wait for misses once); they came in, or were read over the bus.
  std::uint64_t hits = 0, misses = 0;
  std::uint64_t rows_in = 0, rows_out = 0;
};

struct RowRun {
  const RowPolicy* policy = nullptr;
  RowCacheOptions options;  // with the slots that it really has
  RowTableCounts all;
  std::uint64_t lookups = 0, lookup_hits = 0;  // each lookup counted
  std::uint64_t direct_rows = 0;               // misses that were read over the bus instead
  std::uint64_t warm_rows = 0;                 // there before the first batch; not in rows_in
  Bytes bytes_in = 0, bytes_out = 0, direct_bytes = 0;
  Bytes map_bytes = 0, gpu_bytes = 0;  // index maps; they and the slots
  std::uint64_t enough_slots = 0;      // with which it never fails on these ids; 0: any number will do
  Nanoseconds batch_ns = 0;            // mean
  RowStageTimes stage_ns{};            // mean of each stage, also of those that overlap
  std::vector<RowTableCounts> tables;
};

// Bytes of the policy's maps, and with so many slots of `row_bytes` each.
Bytes row_map_bytes(const RowPolicy& policy, std::uint64_t rows, std::uint64_t slots);
Bytes row_gpu_bytes(const RowPolicy& policy, std::uint64_t rows, std::uint64_t slots, Bytes row_bytes);

// Throws Error where the policy needs more slots. `watch`, if there is one, sees each batch with the cache after its
// plan.
RowRun run_rows(const RowIds& ids, const RowPolicy& policy, const RowCacheOptions& options, const RowRates& rates,
                const std::function<void(std::size_t batch, const RowPlan& plan, const RowCache& cache)>& watch = {});

}  // namespace tencache
