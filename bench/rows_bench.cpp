// Caches of embedding rows: lookups a second on one core under each policy, with 1 % of the rows in slots, on ids of
// the reuse that Meta published (15 tables, batches of 4096 samples) and on 178 million rows that are all used alike
// (as many as Criteo 1 TB has; 26 tables, batches of 16,384). `read`: from the file, which sorts each batch once for
// all policies; `lookups` counts what was looked up, each policy's time is its own. `peak_GiB` is of the whole process.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <filesystem>
#include <string>

#include "sim/rows/row_file.h"
#include "sim/rows/row_generator.h"
#include "sim/rows/row_run.h"

namespace tencache {
namespace {

enum Ids : int { published, uniform };

const std::string& file_of(Ids ids) {
  static std::string files[2];
  if (!files[ids].empty()) return files[ids];
  files[ids] =
      (std::filesystem::temp_directory_path() / (ids == published ? "rows_2021.ids" : "rows_178M.ids")).string();
  RowGeneration request;
  if (ids == published) {
    for (int i = 0; i < 15; ++i) request.tables.push_back({std::to_string(i), 3'511'142, 512, 4});
    request.histogram = read_reuse_histogram(TENCACHE_SOURCE_DIR "/configs/rows/dlrm-2021.txt");
    request.samples = 4096;
    request.batches = 16;
    request.pooling = 16;
  } else {
    for (int i = 0; i < 26; ++i) request.tables.push_back({std::to_string(i), 178'000'000 / 26, 512, 4});
    request.zipf = 0;
    request.samples = 16'384;
    request.batches = 40;
  }
  generate_row_ids(request, files[ids]);
  return files[ids];
}

// One of them at a time in memory.
const RowIds& ids_of(Ids which) {
  static RowIds ids;
  static int loaded = -1;
  if (loaded != which) {
    ids = RowIds();
    ids = read_row_ids(file_of(which));
    loaded = which;
  }
  return ids;
}

void count(benchmark::State& state, std::uint64_t lookups) {
  state.counters["lookups"] = benchmark::Counter(static_cast<double>(lookups) * static_cast<double>(state.iterations()),
                                                 benchmark::Counter::kIsRate);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_GiB"] = static_cast<double>(usage.ru_maxrss) / (1024.0 * 1024.0);
}

void read(benchmark::State& state, Ids which) {
  const std::string& file = file_of(which);
  std::uint64_t lookups = 0;
  for (auto _ : state) lookups = read_row_ids(file).lookups();
  count(state, lookups);
}

void under(benchmark::State& state, Ids which, const char* policy) {
  const RowIds& ids = ids_of(which);
  RowCacheOptions options;
  options.slots = ids.rows() / 100;
  options.ahead = row_policy(policy).ahead;
  if (options.slots < enough_row_slots(row_policy(policy), ids, options.ahead)) {
    state.SkipWithError("needs more slots");
    return;
  }
  for (auto _ : state) benchmark::DoNotOptimize(run_rows(ids, row_policy(policy), options, {}));
  count(state, ids.lookups());
}

void with_all_policies(const char* name, Ids ids) {
  benchmark::RegisterBenchmark((std::string(name) + "/read").c_str(), read, ids)->Unit(benchmark::kMillisecond);
  for (const RowPolicy& policy : row_policies()) {
    benchmark::RegisterBenchmark((std::string(name) + "/" + policy.name).c_str(), under, ids, policy.name)
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace tencache

int main(int argc, char** argv) {
  tencache::with_all_policies("2021_1_percent", tencache::published);
  tencache::with_all_policies("uniform_178M", tencache::uniform);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  std::filesystem::remove(tencache::file_of(tencache::published));
  std::filesystem::remove(tencache::file_of(tencache::uniform));
}
