// Embedding caches: files of ids, the generator, and published figures that follow from rules and sizes alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "core/error.h"
#include "sim/rows/row_file.h"
#include "sim/rows/row_generator.h"
#include "sim/rows/row_run.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Rows : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  static std::string words(const std::vector<std::uint32_t>& values) {
    return {reinterpret_cast<const char*>(values.data()), 4 * values.size()};
  }
  RowIds read(const std::string& header, const std::vector<std::uint32_t>& values, std::size_t cut = 0) {
    std::string bytes = header + "\n" + words(values);
    bytes.resize(bytes.size() - cut);
    write_file(path("a.ids"), bytes);
    return read_row_ids(path("a.ids"));
  }
  std::string error_of(const std::string& header, const std::vector<std::uint32_t>& values, std::size_t cut = 0) {
    try {
      read(header, values, cut);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }
  static std::string error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

 private:
  std::string folder_ = testing::TempDir() + "rows_exact_test_" + std::to_string(::getpid());
};

constexpr const char* two_tables =
    R"({"row_ids": 1, "batches": 2, "tables": [{"name": "user", "rows": 10, "row_bytes": 8, "optimizer_bytes": 4},
 {"rows": 5, "row_bytes": 16}]})";
std::string header() {
  std::string line = two_tables;
  line.erase(line.find('\n'), 1);
  return line;
}

TEST_F(Rows, AFileIsReadBatchByBatch) {
  const RowIds ids = read(header(), {3, 7, 2, 7, 1, 4, 0, 2, 0, 0});
  ASSERT_EQ(ids.batches(), 2u);
  EXPECT_THAT(ids.batch(0), ElementsAre(2, 7, 14));
  EXPECT_THAT(ids.counts(0), ElementsAre(1, 2, 1));
  EXPECT_THAT(ids.batch(1), ElementsAre(10));
  EXPECT_THAT(ids.counts(1), ElementsAre(2));
  EXPECT_EQ(ids.rows(), 15u);
  EXPECT_EQ(ids.lookups(), 6u);
  EXPECT_EQ(ids.tables()[1].name, "2");
  EXPECT_EQ(ids.bytes_of(9), 12u);
  EXPECT_EQ(ids.bytes_of(10), 16u);
  EXPECT_THAT(ids.next_uses(), ElementsAre(RowIds::never, RowIds::never, RowIds::never, RowIds::never));
  EXPECT_EQ(ids.largest_union(2, false), 4u);
}

TEST_F(Rows, MistakesOfAFileAreNamedWithTheirPlace) {
  EXPECT_THAT(error_of(header(), {1, 10, 0}),
              HasSubstr("a.ids: batch 1, table 'user': id 10 is beyond the table's 10 rows: raise \"rows\""));
  EXPECT_THAT(error_of(header(), {1, 9, 1, 4, 0, 1, 5}), HasSubstr("batch 2, table '2': id 5 is beyond the table's 5"));
  EXPECT_THAT(error_of(header(), {1, 9, 1}), HasSubstr("batch 1, table '2': the file ends here"));
  EXPECT_THAT(error_of(header(), {1, 9, 1, 4}, 1), HasSubstr("batch 1, table '2': the file ends here"));
  EXPECT_THAT(error_of(header(), {0, 0, 0, 0, 0}), HasSubstr("something follows the 2 batches"));
  EXPECT_THAT(error_of(header(), {0xffff'ffff}), HasSubstr("batch 1, table 'user': 4294967295 ids"));
  EXPECT_THAT(error_of("PK", {}), HasSubstr("is no file of ids"));
  EXPECT_THAT(error_of("{\"op\": 1}", {}), HasSubstr("no object with \"row_ids\""));
  EXPECT_THAT(error_of(R"({"row_ids": 2})", {}), HasSubstr("version"));
  EXPECT_THAT(error_of(R"({"row_ids": 1, "batches": 1, "tables": []})", {}), HasSubstr("has no table"));
  EXPECT_THAT(error_of(R"({"row_ids": 1, "batches": 1, "tables": [{"rows": 4, "row_bytes": 0}]})", {}),
              HasSubstr("row_bytes is from 1"));
  EXPECT_THAT(error_of(R"({"row_ids": 1, "batches": 1, "tables": [{"rows": 4294967295, "row_bytes": 1}]})", {}),
              HasSubstr("\"rows\" is missing, or no whole number up to 4294967294"));
  EXPECT_THAT(error_of(R"({"row_ids": 1, "tables": [{"rows": 4, "row_bytes": 1}]})", {}), HasSubstr("\"batches\""));
  write_file(path("b.ids.zst"), header() + "\n" + words(std::vector<std::uint32_t>(4)));
  std::string bytes;
  {
    std::ifstream file(path("b.ids.zst"), std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  write_file(path("c.ids"), bytes.substr(0, bytes.size() - 3));
  EXPECT_THAT(error_of([&] { read_row_ids(path("c.ids")); }), HasSubstr("cut short"));
}

std::string histogram_file(const char* name) {
  return std::string(TENCACHE_SOURCE_DIR) + "/configs/rows/" + name + ".txt";
}

TEST_F(Rows, ThePublishedHistogramComesBackFromItsGenerator) {
  const ReuseHistogram histogram = read_reuse_histogram(histogram_file("dlrm-2021"));
  EXPECT_EQ(histogram.samples, 65'536u);
  EXPECT_EQ(histogram.lookups, 887'017'990u);
  EXPECT_EQ(histogram.classes.size(), 17u);
  RowGeneration request;
  request.tables = {{"one", 300'000, 512, 4}};
  request.pooling = 16;
  request.samples = 4096;
  request.batches = 16;  // a period
  request.histogram = histogram;
  generate_row_ids(request, path("a.ids.zst"));
  const RowIds ids = read_row_ids(path("a.ids.zst"));
  EXPECT_EQ(ids.lookups(), 16u * 65'536);
  std::map<Row, std::uint64_t> uses;
  for (std::size_t batch = 0; batch < ids.batches(); ++batch) {
    for (std::size_t i = 0; i < ids.batch(batch).size(); ++i) uses[ids.batch(batch)[i]] += ids.counts(batch)[i];
  }
  EXPECT_NEAR(static_cast<double>(ids.lookups()) / static_cast<double>(uses.size()), 6.9, 0.05);  // "Avg col size"
  for (const ReuseHistogram::Class& one : histogram.classes) {
    double rows = 0, lookups = 0;
    for (const auto& [row, count] : uses) {
      const auto times = static_cast<double>(count);
      if (times <= one.least || times > one.most) continue;
      rows += 1 / static_cast<double>(uses.size());
      lookups += times / static_cast<double>(ids.lookups());
    }
    // Shares are printed with three digits; rows of the few largest classes are whole ones.
    EXPECT_NEAR(rows, one.rows, 0.002) << one.least;
    EXPECT_NEAR(lookups, one.lookups, one.least < 8192 ? 0.003 : 0.05) << one.least;
  }
  request.seed = 2;
  generate_row_ids(request, path("b.ids.zst"));
  EXPECT_NE(sha256_of_file(path("a.ids.zst")), sha256_of_file(path("b.ids.zst")));
  request.seed = 1;
  generate_row_ids(request, path("b.ids.zst"));
  EXPECT_EQ(sha256_of_file(path("a.ids.zst")), sha256_of_file(path("b.ids.zst")));
  request.tables[0].rows = 100'000;
  EXPECT_THAT(error_of([&] { generate_row_ids(request, path("b.ids.zst")); }),
              HasSubstr("table 'one' has 100000 rows"));
}

// The share of rank k is k^-s over their sum, here 1 + 1/2 + … + 1/1000 = 7.485.
TEST_F(Rows, ZipfDrawsRanksWithTheirShares) {
  RowGeneration request;
  request.tables = {{"one", 1000, 4, 0}};
  request.batches = 1;
  request.samples = 200'000;
  request.zipf = 1;
  generate_row_ids(request, path("a.ids"));
  const RowIds ids = read_row_ids(path("a.ids"));
  std::vector<std::uint32_t> counts(ids.counts(0).begin(), ids.counts(0).end());
  std::ranges::sort(counts, std::greater());
  for (const std::size_t rank : {1u, 2u, 3u, 10u}) {
    EXPECT_NEAR(counts[rank - 1], 200'000 / 7.485 / static_cast<double>(rank), 600) << rank;
  }
  request.zipf = 0;
  generate_row_ids(request, path("a.ids"));
  EXPECT_LT(std::ranges::max(read_row_ids(path("a.ids")).counts(0)), 300u);
}

TEST_F(Rows, HistogramsThatAreDamagedAreRefused) {
  const std::string whole = read_file(histogram_file("dlrm-2021"));
  EXPECT_THAT(error_of([&] { parse_reuse_histogram(whole.substr(0, 700), "h.txt"); }), HasSubstr("cut short"));
  EXPECT_THAT(error_of([&] { parse_reuse_histogram("", "h.txt"); }), HasSubstr("h.txt: has no reuse histogram"));
}

// Log of CachedEmbedding: 52,667,139 rows, 1 %, 0.7 of the slots warm: 49,753,568 rows in and 49,595,567 out.
TEST_F(Rows, RowsInLessRowsOutAreTheSlotsThatWarmUpLeaves) {
  const std::uint64_t rows = 52'667'139;
  RowIds ids("log", {{"all", rows, 512, 0}});
  std::vector<Row> lookups;
  for (Row first = 0; first < 4'000'000; first += 400'000) {  // more rows than slots, all once
    lookups.clear();
    for (Row i = 0; i < 400'000; ++i) lookups.push_back(10'000'000 + first + i);
    ids.add_batch(lookups);
  }
  const auto slots = static_cast<std::uint32_t>(rows / 100);
  const RowRun run = run_rows(ids, row_policy("cached-embedding"), {.slots = slots, .ahead = 1}, {});
  EXPECT_EQ(run.options.slots, 526'671u);
  EXPECT_EQ(run.all.rows_in, 4'000'000u);
  EXPECT_EQ(run.all.rows_in - run.all.rows_out, 158'001u);
  // The log's GPU memory: 1.06 GiB, some 0.01 of it dense weights.
  EXPECT_NEAR(static_cast<double>(run.gpu_bytes) / GiB, 1.05, 0.05 * 1.05);
}

// The log of 15 tables of that data set, batch 4096, 1 %: looking 8 batches ahead fails, their union has 1,595,074
// rows.
TEST_F(Rows, ALookAheadOfEightFailsOnThePublishedReuse) {
  RowGeneration request;
  for (int i = 0; i < 15; ++i) request.tables.push_back({std::to_string(i), i < 9 ? 3'511'143u : 3'511'142u, 512, 0});
  request.samples = 4096;
  request.batches = 8;
  request.pooling = 16;  // 887,017,990 lookups of 856 tables and 65,536 samples
  request.histogram = read_reuse_histogram(histogram_file("dlrm-2021"));
  generate_row_ids(request, path("a.ids"));
  const RowIds ids = read_row_ids(path("a.ids"));
  EXPECT_EQ(ids.rows(), 52'667'139u);
  EXPECT_NEAR(static_cast<double>(ids.largest_union(8, true)), 1'595'074, 0.05 * 1'595'074);
  EXPECT_THAT(
      error_of([&] { run_rows(ids, row_policy("cached-embedding"), {.slots = 526'671, .ahead = 8}, {}); }),
      testing::AllOf(HasSubstr("a.ids: batches 1 to 8 need 1"), HasSubstr("more than 526671 slots: raise --slots")));
  EXPECT_GT(run_rows(ids, row_policy("cached-embedding"), {.slots = 526'671, .ahead = 1}, {}).all.hits, 0u);
}

// README of CachedEmbedding: Criteo 1 TB, 91.1 GB of rows of 128 floats, 1 % on the GPU: 3.75 GB, of which 2.65 GiB are
// maps of 16 bytes per row. Of FBGEMM's LRU at 1 % more-systems has 1.54 GiB.
TEST_F(Rows, MemoryOfCriteoIsMostlyMaps) {
  const std::uint64_t rows = 91'100'000'000 / 512, slots = rows / 100;
  const RowPolicy& policy = row_policy("cached-embedding");
  EXPECT_NEAR(static_cast<double>(row_gpu_bytes(policy, rows, slots, 512)), 3.75e9, 0.05 * 3.75e9);
  EXPECT_NEAR(static_cast<double>(row_map_bytes(policy, rows, 0)) / GiB, 2.65, 0.01);
  EXPECT_NEAR(static_cast<double>(row_gpu_bytes(row_policy("uvm-lru"), rows, slots, 512)) / GiB, 1.54, 0.01);
}

// Two batches through each stage, 1 s a stage by its rate: a pipeline of five stages, all full, ends one second a batch
// later each time; without one they add up.
TEST(RowTimes, APipelineTakesItsSlowestStage) {
  const RowRates rates{.gather = 100,
                       .scatter = 100,
                       .link_in = 100,
                       .link_out = 100,
                       .link_out_pageable = 50,
                       .fixed_ns = second_ns,
                       .train_ns = second_ns};
  const RowBytes bytes{.in = 100, .out = 100, .direct = 0};
  const auto end_after = [&](const char* name, std::uint32_t ahead, int batches) {
    RowClock clock(row_policy(name), ahead);
    for (int i = 0; i < batches; ++i) clock.add(row_stage_times(row_policy(name), rates, bytes));
    return clock.end_ns() / second_ns;
  };
  EXPECT_EQ(end_after("scratchpipe", 2, 1), 5);  // both directions of the link at once
  EXPECT_EQ(end_after("scratchpipe", 2, 10), 14);
  EXPECT_EQ(end_after("cached-embedding", 1, 2), 2 * 7);  // out at half the rate: fixed, 1 + 1 in, 2 + 1 out, train
  EXPECT_EQ(end_after("uvm-lru", 0, 2), 2 * 4);           // no gather, no scatter
  EXPECT_EQ(end_after("uvm-lru", 1, 2), 3 * 2 + 1);       // fills while the batch before trains
  const RowStageTimes direct = row_stage_times(row_policy("uvm-lfu"), rates, {.in = 0, .out = 0, .direct = 100});
  EXPECT_EQ(direct[static_cast<std::size_t>(RowStage::direct)],
            2 * second_ns);  // read, and written in the backward pass
}

// Enough slots for all: each row comes in once.
TEST(RowRuns, EnoughSlotsMissOnlyWhatIsNew) {
  RowIds ids("ids", {{"a", 50, 4, 0}});
  std::vector<Row> lookups = {1, 2, 3};
  ids.add_batch(lookups);
  lookups = {2, 3, 4, 4};
  ids.add_batch(lookups);
  lookups = {1, 9};
  ids.add_batch(lookups);
  for (const RowPolicy& policy : row_policies()) {
    const RowRun run = run_rows(ids, policy, {.slots = 3200, .ahead = 3, .warm_up = 0}, {});
    EXPECT_EQ(run.all.misses, 5u) << policy.name;
    EXPECT_EQ(run.all.rows_out, 0u) << policy.name;
    EXPECT_EQ(run.all.hits, 3u) << policy.name;
    EXPECT_EQ(run.tables[0].misses, 5u) << policy.name;
  }
  EXPECT_THAT(
      [&] {
        try {
          run_rows(ids, row_policy("scratchpipe"), {.slots = 3, .ahead = 2}, {});
        } catch (const Error& error) {
          return std::string(error.what());
        }
        return std::string();
      }(),
      HasSubstr("ids: batches 1 to 3 need 5 different rows at once, more than 3 slots"));
}

}  // namespace
}  // namespace tencache
