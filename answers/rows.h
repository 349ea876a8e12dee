// `tencache rows` as an answer: what caches of embedding rows hit, move, occupy and take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "answers/described.h"
#include "answers/document.h"
#include "studies/rows.h"

namespace tencache {

BOOST_DESCRIBE_ENUM(RowStage, fixed, gather, link_in, link_out, scatter, direct, train)

TENCACHE_ANSWER(RowTableCounts, hits, misses, rows_in, rows_out)

struct RowsFigures {
  std::string policy;
  std::uint64_t slots = 0;
  double slot_share = 0;
  std::uint64_t ahead = 0;
  std::optional<std::string> refused;         // why it cannot run; all counts are 0 then
  std::optional<std::uint64_t> enough_slots;  // with which it always runs on these ids; null: any will do
  std::uint64_t hits = 0, misses = 0;         // different rows of each batch
  double hit_rate = 0, lookup_hit_rate = 0;   // of different rows; of lookups
  std::uint64_t rows_in = 0, rows_out = 0, direct_rows = 0, warm_rows = 0;
  Bytes bytes_in = 0, bytes_out = 0, direct_bytes = 0;
  Bytes gpu_bytes = 0, map_bytes = 0;  // the maps are part of the former
  Nanoseconds batch_ns = 0;
  Named<Nanoseconds> stages_ns;
};
TENCACHE_ANSWER(RowsFigures, policy, slots, slot_share, ahead, refused, enough_slots, hits, misses, hit_rate,
                lookup_hit_rate, rows_in, rows_out, direct_rows, warm_rows, bytes_in, bytes_out, direct_bytes,
                gpu_bytes, map_bytes, batch_ns, stages_ns)

// On this computer: transfers, without the policy's own time (planning) and training.
struct RowsLiveAnswer {
  bool identical = false;  // to a table without a cache
  std::uint64_t rows_in = 0, rows_out = 0, direct_rows = 0;
  Nanoseconds predicted_batch_ns = 0, measured_batch_ns = 0, planning_ns = 0;
  Named<Nanoseconds> predicted_stages_ns, measured_stages_ns;
};
TENCACHE_ANSWER(RowsLiveAnswer, identical, rows_in, rows_out, direct_rows, predicted_batch_ns, measured_batch_ns,
                planning_ns, predicted_stages_ns, measured_stages_ns)

struct RowsRunAnswer : RowsFigures {
  Absent<RowsLiveAnswer> live;
  std::vector<RowTableCounts> tables;  // in the order of the file's
};
BOOST_DESCRIBE_STRUCT(RowsRunAnswer, (RowsFigures), (live, tables))

struct RowsTableAnswer {
  std::string name;
  std::uint64_t rows = 0;
  Bytes row_bytes = 0, optimizer_bytes = 0;
};
TENCACHE_ANSWER(RowsTableAnswer, name, rows, row_bytes, optimizer_bytes)

// Its own figures are those of the first run.
struct RowsAnswer : RowsFigures {
  std::string ids;
  std::uint64_t batches = 0, lookups = 0, different_rows = 0, rows = 0;
  Bytes table_bytes = 0;
  std::vector<RowsTableAnswer> row_tables;
  std::vector<RowsRunAnswer> runs;
  std::vector<std::string> notes;
  Json manifest;
};
BOOST_DESCRIBE_STRUCT(RowsAnswer, (RowsFigures),
                      (ids, batches, lookups, different_rows, rows, table_bytes, row_tables, runs, notes, manifest))

RowsAnswer rows_answer(const RowIds& ids, const std::vector<RowsTrial>& trials, const RowRates& rates);
DocumentTable rows_table(const RowsAnswer& answer);  // a row a run
LineChart rows_chart(const RowsAnswer& answer);      // misses against slots, a line a policy
Document document_of(const RowsAnswer& answer);

// `tencache rows generate`.
struct RowsFileAnswer {
  std::string ids, sha256;
  std::uint64_t batches = 0, lookups_per_batch = 0, rows = 0;
  std::vector<RowsTableAnswer> row_tables;
};
TENCACHE_ANSWER(RowsFileAnswer, ids, sha256, batches, lookups_per_batch, rows, row_tables)
Document document_of(const RowsFileAnswer& answer);

}  // namespace tencache
