// Caches of rows against the naive ones of naive_rows.h, on seeded random ids through their files.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "core/error.h"
#include "executor/rows/live_run.h"
#include "sim/rows/row_file.h"
#include "sim/rows/row_run.h"
#include "tests/differential/naive_rows.h"

namespace tencache {
namespace {

struct Case {
  std::vector<RowTable> tables;
  std::vector<std::vector<Row>> batches;  // numbered through all tables
  RowCacheOptions options;
};

Case random_case(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  Case made;
  Row rows = 0;
  for (std::uint64_t i = 0, count = 1 + below(3); i < count; ++i) {
    made.tables.push_back({std::to_string(i), 1 + below(seed % 3 == 0 ? 400 : 60), 4 + below(64), below(2) * 4});
    rows += static_cast<Row>(made.tables.back().rows);
  }
  made.options.slots = static_cast<std::uint32_t>(1 + below(rows));
  made.options.ahead = static_cast<std::uint32_t>(below(4));
  made.options.warm_up = static_cast<double>(below(11)) / 10;
  const std::uint64_t most = 1 + below(seed % 2 == 0 ? 8 : made.options.slots);
  for (std::uint64_t i = 0, count = 1 + below(40); i < count; ++i) {
    std::vector<Row>& batch = made.batches.emplace_back();
    for (std::uint64_t n = below(most + 1); n > 0; --n) {
      batch.push_back(static_cast<Row>(below(2) == 0 ? below(rows) : below(1 + rows / 8)));
    }
  }
  return made;
}

RowIds through_a_file(const Case& one) {
  const std::string path = testing::TempDir() + "rows_test_" + std::to_string(::getpid()) + ".ids.zst";
  RowIdWriter writer(path, one.tables, one.batches.size());
  for (const std::vector<Row>& batch : one.batches) {
    std::uint64_t first = 0;
    for (const RowTable& table : one.tables) {
      std::vector<std::uint32_t> ids;
      for (const Row row : batch) {
        if (row >= first && row < first + table.rows) ids.push_back(static_cast<std::uint32_t>(row - first));
      }
      writer.add(ids);
      first += table.rows;
    }
  }
  writer.commit();
  RowIds ids = read_row_ids(path);
  std::filesystem::remove(path);
  return ids;
}

TEST(RowsReference, EqualsTheNaiveOneUnderEachPolicy) {
  std::map<std::string, int> served, refused;
  for (std::uint64_t seed = 0; seed < 240; ++seed) {
    const Case one = random_case(seed);
    const RowIds ids = through_a_file(one);
    for (const RowPolicy& policy : row_policies()) {
      SCOPED_TRACE(testing::Message() << policy.name << ", seed " << seed);
      NaiveRows naive;
      const bool serves = run_naive_rows(policy.kind, one.batches, ids.rows(), one.options, naive);
      std::vector<std::int64_t> slots(naive.slots.size(), -1);
      const auto look = [&](std::size_t, const RowPlan&, const RowCache& cache) {
        std::ranges::fill(slots, -1);
        ASSERT_EQ(cache.slots(), slots.size());
        for (Row row = 0; row < ids.rows(); ++row) {
          if (cache.slot_of(row) != no_slot) slots[cache.slot_of(row)] = row;
        }
      };
      if (!serves) {
        EXPECT_THROW(run_rows(ids, policy, one.options, {}, look), Error);
        EXPECT_GT(enough_row_slots(policy, ids, one.options.ahead), one.options.slots);
        ++refused[policy.name];
        continue;
      }
      const RowRun run = run_rows(ids, policy, one.options, {}, look);
      EXPECT_EQ(run.all.misses, naive.misses);
      EXPECT_EQ(run.all.hits + run.all.misses, ids.size());
      EXPECT_EQ(run.all.rows_in, naive.rows_in);
      EXPECT_EQ(run.all.rows_out, naive.rows_out);
      EXPECT_EQ(run.direct_rows, naive.direct);
      EXPECT_EQ(run.lookups - run.lookup_hits, naive.missed_lookups);
      EXPECT_EQ(slots, naive.slots);
      if (policy.kind != RowPolicyKind::belady) {  // on real memory, every fourth in a file
        Nanoseconds now = 0;
        const LiveRowsRun live = run_live_rows(ids, {.policy = &policy,
                                                     .options = one.options,
                                                     .folder = seed % 4 == 0 ? testing::TempDir() : "",
                                                     .threads = 1 + static_cast<unsigned>(seed % 3),
                                                     .clock = [&now] { return ++now; }});
        EXPECT_TRUE(live.identical);
        EXPECT_EQ(live.slots, slots.size());
        EXPECT_EQ(live.rows_in, naive.rows_in);
        EXPECT_EQ(live.rows_out, naive.rows_out);
        EXPECT_EQ(live.direct_rows, naive.direct);
      }
      ++served[policy.name];
      if (HasFailure()) return;
    }
  }
  for (const RowPolicy& policy : row_policies()) EXPECT_GE(served[policy.name], 100) << policy.name;
  EXPECT_GT(refused["cached-embedding"], 10);
  EXPECT_GT(refused["scratchpipe"], 10);
}

// No cache of so many slots misses less, whatever it looks ahead to; a warm start is left out.
TEST(RowsReference, BeladyIsABound) {
  for (std::uint64_t seed = 1000; seed < 1080; ++seed) {
    Case one = random_case(seed);
    one.options.warm_up = 0;
    const RowIds ids = through_a_file(one);
    for (const RowPolicy& policy : row_policies()) {
      try {
        const RowRun run = run_rows(ids, policy, one.options, {});
        RowCacheOptions same = one.options;
        same.slots = run.options.slots;
        EXPECT_LE(run_rows(ids, row_policy("belady"), same, {}).all.misses, run.all.misses) << policy.name << seed;
      } catch (const Error&) {  // not enough slots
      }
    }
  }
}

}  // namespace
}  // namespace tencache
