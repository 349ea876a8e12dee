// A cache of rows on this computer: a table is trained through an arena, and again without a cache, and both are the
// same to the last byte. What the transfers take is predicted before and measured.
#pragma once

#include <functional>
#include <string>

#include "executor/rows/live_rows.h"

namespace tencache {

struct LiveRowsRequest {
  const RowPolicy* policy = nullptr;
  RowCacheOptions options;
  std::string folder;  // of a file with the tables; empty: they are in memory
  unsigned threads = 2;
  LiveRows::Clock clock;  // required
};

struct LiveRowsRun {
  std::uint64_t slots = 0, rows_in = 0, rows_out = 0, direct_rows = 0;
  // Every row that was read, batch by batch, and every table afterwards equal those of the run without a cache.
  bool identical = true;
  // Means per batch, without training. Stages are those that a cache on this computer has under each policy: also rows
  // of uvm-… are gathered and scattered by the CPU, one stage after the other. `fixed`, the policy's own time, is not
  // predicted.
  RowStageTimes predicted_ns{}, measured_ns{};
  Nanoseconds predicted_batch_ns = 0, measured_batch_ns = 0;  // sums of the stages but `fixed`
};

// Measures the rates of each stage on rows of the first batches, predicts the run from them, and runs it. A file's rows
// go through the page cache. Throws Error as run_rows() and LiveRows do.
LiveRowsRun run_live_rows(const RowIds& ids, const LiveRowsRequest& request);

}  // namespace tencache
