#include "sim/rows/row_run.h"

namespace tencache {

Bytes row_map_bytes(const RowPolicy& policy, std::uint64_t rows, std::uint64_t slots) {
  return policy.map_bytes_per_row * rows + policy.map_bytes_per_slot * slots;
}

Bytes row_gpu_bytes(const RowPolicy& policy, std::uint64_t rows, std::uint64_t slots, Bytes row_bytes) {
  return row_map_bytes(policy, rows, slots) + slots * row_bytes;
}

RowRun run_rows(const RowIds& ids, const RowPolicy& policy, const RowCacheOptions& options, const RowRates& rates,
                const std::function<void(std::size_t, const RowPlan&, const RowCache&)>& watch) {
  const std::unique_ptr<RowCache> cache = make_row_cache(policy, ids, options);
  RowRun run;
  run.policy = &policy;
  run.options = options;
  run.options.slots = cache->slots();
  run.tables.resize(ids.tables().size());
  run.warm_rows = cache->warm().size();
  RowClock course(policy, options.ahead);
  RowStageTimes sums{};
  RowPlan plan;
  std::uint64_t missed_lookups = 0;
  for (std::size_t batch = 0; batch < ids.batches(); ++batch) {
    cache->plan(batch, plan);
    run.all.rows_in += plan.in.size();
    run.all.rows_out += plan.out.size();
    run.direct_rows += plan.direct.size();
    missed_lookups += plan.missed_lookups;
    RowBytes bytes;
    for (const RowMove& in : plan.in) {
      const std::size_t table = ids.table_of(in.row);
      ++run.tables[table].rows_in;
      bytes.in += ids.tables()[table].bytes();
    }
    for (const RowMove& out : plan.out) {
      const std::size_t table = ids.table_of(out.row);
      ++run.tables[table].rows_out;
      bytes.out += ids.tables()[table].bytes();
    }
    for (const Row row : plan.direct) {
      const std::size_t table = ids.table_of(row);
      ++run.tables[table].misses;
      bytes.direct += ids.tables()[table].row_bytes;
    }
    run.bytes_in += bytes.in;
    run.bytes_out += bytes.out;
    run.direct_bytes += bytes.direct;
    const RowStageTimes times = row_stage_times(policy, rates, bytes);
    for (std::size_t stage = 0; stage < row_stages; ++stage) sums[stage] += times[stage];
    course.add(times);
    if (watch) watch(batch, plan, *cache);
  }
  run.all.misses = run.all.rows_in + run.direct_rows;
  run.all.hits = ids.size() - run.all.misses;
  for (std::size_t table = 0; table < run.tables.size(); ++table) {
    RowTableCounts& counts = run.tables[table];
    counts.misses += counts.rows_in;
    counts.hits = ids.size_of(table) - counts.misses;
  }
  run.lookups = ids.lookups();
  run.lookup_hits = run.lookups - missed_lookups;
  run.map_bytes = row_map_bytes(policy, ids.rows(), cache->slots());
  run.gpu_bytes = row_gpu_bytes(policy, ids.rows(), cache->slots(), ids.widest_row());
  run.enough_slots = enough_row_slots(policy, ids, options.ahead);
  if (const auto batches = static_cast<Nanoseconds>(ids.batches()); batches > 0) {
    run.batch_ns = course.end_ns() / batches;
    for (std::size_t stage = 0; stage < row_stages; ++stage) run.stage_ns[stage] = sums[stage] / batches;
  }
  return run;
}

}  // namespace tencache
