#include "executor/rows/live_run.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "sim/rows/row_run.h"

namespace tencache {
namespace {

constexpr std::size_t trial_batches = 6, most_trial_rows = 32'768;

std::unique_ptr<RowStore> make_store(const RowIds& ids, const std::vector<Row>& used, const std::string& folder) {
  return folder.empty() ? make_memory_store(ids, used) : make_file_store(ids, used, folder);
}

// Reads a row's bytes and changes them, as a step of training does; the digest is of what was read.
std::uint64_t train(std::byte* row, Bytes bytes, Row number, std::uint32_t count) {
  std::uint64_t digest = 0;
  for (Bytes i = 0; i < bytes; i += 8) {
    std::uint64_t word = 0;
    const std::size_t size = std::min<Bytes>(8, bytes - i);
    std::memcpy(&word, row + i, size);
    digest = digest * 31 + word;
    word = word * 5 + count + number + i;
    std::memcpy(row + i, &word, size);
  }
  return digest;
}

// Also those that lie in the arena at first.
std::vector<Row> used_rows(const RowIds& ids, const std::vector<RowMove>& warm) {
  std::vector<bool> used(ids.rows());
  for (const RowMove& one : warm) used[one.row] = true;
  for (std::size_t batch = 0; batch < ids.batches(); ++batch) {
    for (const Row row : ids.batch(batch)) used[row] = true;
  }
  std::vector<Row> rows;
  for (Row row = 0; row < ids.rows(); ++row) {
    if (used[row]) rows.push_back(row);
  }
  return rows;
}

// Bytes per second of each stage where all of an arena's rows are replaced, batch after batch, by the code that is
// predicted. The table's rows are as they were afterwards.
RowRates measure(const RowIds& ids, const std::vector<Row>& used, RowStore& store, RowThreads& threads,
                 const LiveRows::Clock& clock) {
  RowIds trial(ids.file(), ids.tables());
  const std::size_t rows = std::clamp<std::size_t>(used.size() / trial_batches, 1, most_trial_rows);
  std::vector<Row> lookups;
  Bytes bytes = 0;
  for (std::size_t batch = 0; batch < trial_batches; ++batch) {
    lookups.clear();
    for (std::size_t i = batch * rows; i < (batch + 1) * rows && i < used.size(); ++i) {
      // Far apart, so that neighbours in memory do not come together.
      lookups.push_back(used[(i * 7919) % used.size()]);
    }
    trial.add_batch(lookups);
  }
  RowCacheOptions options;
  options.slots = static_cast<std::uint32_t>(rows);
  options.warm_up = 0;
  LiveRows live(trial, row_policy("cached-embedding"), options, store, threads, clock);
  RowStageTimes first{};
  Bytes bytes_out = 0;
  for (std::size_t batch = 0; batch < trial_batches; ++batch) {
    live.begin(batch);
    live.end();
    if (batch == 0) first = live.stage_ns();  // buffers are touched for the first time
    if (batch == 0) continue;
    for (const RowMove& in : live.plan().in) bytes += trial.bytes_of(in.row);
    for (const RowMove& out : live.plan().out) bytes_out += trial.bytes_of(out.row);
  }
  live.flush();
  const auto rate = [&](RowStage stage, Bytes moved) {
    const auto at = static_cast<std::size_t>(stage);
    const double seconds = to_seconds(std::max<Nanoseconds>(live.stage_ns()[at] - first[at], 1));
    return std::max<BytesPerSecond>(1, static_cast<BytesPerSecond>(static_cast<double>(moved) / seconds));
  };
  RowRates rates;
  rates.gather = rate(RowStage::gather, bytes);
  rates.link_in = rate(RowStage::link_in, bytes);
  rates.link_out = rates.link_out_pageable = rate(RowStage::link_out, bytes_out);
  rates.scatter = rate(RowStage::scatter, bytes_out);
  return rates;
}

Nanoseconds nanoseconds_of(Bytes bytes, BytesPerSecond rate) {
  return static_cast<Nanoseconds>(static_cast<double>(bytes) / static_cast<double>(rate) * 1e9);
}

}  // namespace

LiveRowsRun run_live_rows(const RowIds& ids, const LiveRowsRequest& request) {
  LiveRowsRun result;
  RowThreads threads(request.threads);
  const std::vector<Row> used = used_rows(ids, make_row_cache(*request.policy, ids, request.options)->warm());
  const std::unique_ptr<RowStore> cached = make_store(ids, used, request.folder);
  const std::unique_ptr<RowStore> plain = make_store(ids, used, request.folder);
  std::vector<std::byte> content(ids.widest_row()), other(content.size());
  for (const Row row : used) {  // nothing is touched for the first time while it is timed
    for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(row * 7 + i);
    cached->write(row, content.data());
    plain->write(row, content.data());
  }

  const auto batches = static_cast<Nanoseconds>(std::max<std::size_t>(ids.batches(), 1));
  const RowRates rates = measure(ids, used, *cached, threads, request.clock);
  const RowRun predicted = run_rows(ids, *request.policy, request.options, rates);
  const auto predict = [&](RowStage stage, Nanoseconds time) {
    result.predicted_ns[static_cast<std::size_t>(stage)] = time / batches;
    result.predicted_batch_ns += time / batches;
  };
  predict(RowStage::gather, nanoseconds_of(predicted.bytes_in, rates.gather));
  predict(RowStage::link_in, nanoseconds_of(predicted.bytes_in, rates.link_in));
  predict(RowStage::link_out, nanoseconds_of(predicted.bytes_out, rates.link_out));
  predict(RowStage::scatter, nanoseconds_of(predicted.bytes_out, rates.scatter));
  predict(RowStage::direct,
          nanoseconds_of(predicted.direct_bytes, rates.gather) + nanoseconds_of(predicted.direct_bytes, rates.scatter));

  LiveRows live(ids, *request.policy, request.options, *cached, threads, request.clock);
  result.slots = live.slots();
  for (std::size_t batch = 0; batch < ids.batches(); ++batch) {
    live.begin(batch);
    result.rows_in += live.plan().in.size();
    result.rows_out += live.plan().out.size();
    result.direct_rows += live.plan().direct.size();
    const auto rows = ids.batch(batch);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Bytes bytes = ids.bytes_of(rows[i]);
      plain->read(rows[i], content.data());
      const std::uint64_t expected = train(content.data(), bytes, rows[i], ids.counts(batch)[i]);
      plain->write(rows[i], content.data());
      if (train(live.address(rows[i]), bytes, rows[i], ids.counts(batch)[i]) != expected) result.identical = false;
    }
    live.end();
  }
  live.flush();
  for (const Row row : used) {
    const Bytes bytes = ids.bytes_of(row);
    cached->read(row, content.data());
    plain->read(row, other.data());
    if (!std::equal(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(bytes), other.begin())) {
      result.identical = false;
    }
  }
  for (std::size_t stage = 0; stage < row_stages; ++stage) {
    result.measured_ns[stage] = live.stage_ns()[stage] / batches;
    if (stage != static_cast<std::size_t>(RowStage::fixed)) result.measured_batch_ns += result.measured_ns[stage];
  }
  return result;
}

}  // namespace tencache
