// Caches of embedding rows once more, obvious and slow: each rule of rows/row_cache.h as it is written there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "sim/rows/row_cache.h"

namespace tencache {

struct NaiveRows {
  std::uint64_t misses = 0, rows_in = 0, rows_out = 0, direct = 0, missed_lookups = 0;
  std::vector<std::int64_t> slots;  // row in each; -1: none
};

// `batches`: lookups, in any order. The batch that needs too much has no counts: false.
inline bool run_naive_rows(RowPolicyKind kind, const std::vector<std::vector<Row>>& batches, Row rows,
                           const RowCacheOptions& options, NaiveRows& naive) {
  using Kind = RowPolicyKind;
  const bool uvm = kind == Kind::uvm_lru || kind == Kind::uvm_lfu, lfu = kind == Kind::uvm_lfu;
  const bool window = kind == Kind::cached_embedding || kind == Kind::cached_embedding_dataset;
  const auto last = static_cast<std::int64_t>(batches.size());
  const std::uint32_t sets = uvm ? (options.slots + 31) / 32 : 1, slots = uvm ? sets * 32 : options.slots;
  naive.slots.assign(slots, -1);
  std::vector<std::int64_t> since_in(slots, 0), used(slots, -1);  // of slots: lookups, last batch
  std::map<Row, std::int64_t> ever, total;
  for (const auto& batch : batches) {
    for (const Row row : batch) ++total[row];
  }
  const auto rank = [&](Row row) { return std::make_tuple(-total[row], row); };
  const auto next_use = [&](Row row, std::int64_t after) {
    std::int64_t at = after + 1;
    while (at < last && std::ranges::count(batches[static_cast<std::size_t>(at)], row) == 0) ++at;
    return at;
  };
  const auto count_in = [&](std::int64_t from, std::int64_t to) {
    std::map<Row, std::int64_t> counts;
    for (std::int64_t b = std::max<std::int64_t>(from, 0); b < std::min(to, last); ++b) {
      for (const Row row : batches[static_cast<std::size_t>(b)]) ++counts[row];
    }
    return counts;
  };
  const auto find = [&](Row row) { return std::ranges::find(naive.slots, std::int64_t{row}) - naive.slots.begin(); };
  if (window) {
    std::vector<Row> order(rows);
    for (Row row = 0; row < rows; ++row) order[row] = row;
    if (kind == Kind::cached_embedding_dataset) std::ranges::sort(order, {}, rank);
    const auto warm = static_cast<std::size_t>(std::ceil(slots * options.warm_up));
    for (std::size_t i = 0; i < std::min<std::size_t>(rows, warm); ++i) naive.slots[i] = order[i];
  }
  const std::int64_t step = window ? std::max(options.ahead, 1u) : 1;
  for (std::int64_t b = 0; b < last; b += step) {
    const auto needed = count_in(b, b + step);
    const auto locked = kind == Kind::scratchpipe ? count_in(b - scratchpipe_behind, b + options.ahead + 1) : needed;
    std::vector<Row> missing;
    for (const auto& [row, count] : needed) {
      ever[row] += count;
      const auto slot = static_cast<std::size_t>(find(row));
      if (slot < slots) {
        since_in[slot] += count;
        used[slot] = b;
        continue;
      }
      missing.push_back(row);
      for (std::int64_t at = b, seen = 0; at < b + step && seen == 0; ++at) {
        naive.missed_lookups += static_cast<std::uint64_t>(seen = count_in(at, at + 1)[row]);
      }
    }
    naive.misses += missing.size();
    if (window && needed.size() > slots) return false;
    if (lfu) std::ranges::stable_sort(missing, {}, [&](Row row) { return -ever[row]; });
    std::set<Row> stay_out, leave;
    if (kind == Kind::belady) {  // the furthest next use goes; of equal ones what is missing, then the lowest slot
      std::set<std::tuple<std::int64_t, bool, std::int64_t, Row>> all;
      for (const Row row : missing) all.emplace(-next_use(row, b), false, row, row);
      for (std::size_t i = 0; i < slots && naive.slots[i] >= 0; ++i) {
        const auto row = static_cast<Row>(naive.slots[i]);
        all.emplace(-next_use(row, b), true, i, row);
      }
      for (; all.size() > slots; all.erase(all.begin())) {
        (std::get<1>(*all.begin()) ? leave : stay_out).insert(std::get<3>(*all.begin()));
      }
    }
    for (const Row row : missing) {
      std::uint64_t hash = row;
      hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccd;
      hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53;
      const std::size_t begin = uvm ? (hash ^ (hash >> 33)) % sets * 32 : 0, end = uvm ? begin + 32 : slots;
      std::size_t best = slots;
      std::tuple<std::int64_t, std::int64_t> best_key;
      for (std::size_t slot = begin; slot < end; ++slot) {
        const auto there = static_cast<Row>(naive.slots[slot]);
        std::tuple<std::int64_t, std::int64_t> key = {-1'000'000'000, 0};  // an empty one
        if (naive.slots[slot] >= 0) {
          if (uvm && used[slot] >= b - options.ahead) continue;
          if (kind == Kind::belady ? leave.count(there) == 0 : !uvm && locked.count(there) > 0) continue;
          key = {used[slot], 0};
          if (kind == Kind::cached_embedding) key = {since_in[slot], 0};
          if (kind == Kind::cached_embedding_dataset) key = {total[there], -std::int64_t{there}};
          if (kind == Kind::belady) key = {-next_use(there, b), 0};
          if (lfu) key = {ever[there], 0};
        }
        if (best == slots || key < best_key) best = slot, best_key = key;
      }
      const bool is_free = best < slots && naive.slots[best] < 0;
      if (stay_out.count(row) > 0 || (uvm && best == slots) || (lfu && !is_free && std::get<0>(best_key) > ever[row])) {
        ++naive.direct;
        continue;
      }
      if (best == slots) return false;
      naive.rows_out += !is_free;
      ++naive.rows_in;
      naive.slots[best] = row;
      since_in[best] = needed.at(row);
      used[best] = b;
    }
  }
  return true;
}

}  // namespace tencache
