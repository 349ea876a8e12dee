// `tencache sweep` as a program: interrupted and resumed, in shards, under mpirun.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "core/error.h"
#include "studies/sweep/sweep_results.h"
#include "tests/cli_fixture.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class SweepCommand : public CommandLine {
 protected:
  void SetUp() override {
    CommandLine::SetUp();
    write("grid.yaml", grid);
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }

  std::string sweep_csv_of(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"sweep", "grid.yaml", "--csv", "out.csv"};
    words.insert(words.end(), more.begin(), more.end());
    const Answer answer = run(words);
    EXPECT_EQ(answer.code, 0) << answer.err;
    return content(path("out.csv"));
  }

  // Starts the words in the test's folder, its output thrown away.
  pid_t start(const std::vector<std::string>& words) const {
    const pid_t child = fork();
    if (child != 0) return child;
    if (chdir((folder_ / "work").c_str()) != 0) _exit(127);
    const int nowhere = open("/dev/null", O_RDWR);
    for (const int stream : {0, 1, 2}) dup2(nowhere, stream);
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    execvp(arguments.front(), arguments.data());
    _exit(127);
  }
  static int wait_for(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }
  // While the file is being made it has none.
  std::size_t rows_in(const std::string& file) const {
    try {
      return std::filesystem::exists(path(file)) ? read_sweep(path(file)).rows.size() : 0;
    } catch (const Error&) {
      return 0;
    }
  }

  // 8 workloads × 4 machines × 4 policies.
  static constexpr const char* grid =
      "name: grid\n"
      "workloads:\n"
      "  - generate: {model: [gpt2, bert-base-uncased], batch: [1, 2, 4, 8], seq: 128, precision: fp16}\n"
      "machines: [g4dn.xlarge, g5.xlarge, {name: p3.2xlarge, gpu_memory: [1GiB, 4GiB]}]\n"
      "policies: [on-demand, lru, zero-offload, 10cache]\n";
  static constexpr std::size_t grid_rows = 128;
};

TEST_F(SweepCommand, RowsAreTheSameOnAnyNumberOfThreads) {
  const std::string one = sweep_csv_of({"--threads", "1"});
  EXPECT_EQ(static_cast<std::size_t>(std::count(one.begin(), one.end(), '\n')), 1 + grid_rows);
  EXPECT_EQ(one, sweep_csv_of({"--threads", "4"}));
}

// A row of the sweep is what `replay` says of the same.
TEST_F(SweepCommand, ARowIsWhatReplaySays) {
  write("one.yaml",
        "name: one\nworkloads: [small.trace.jsonl]\nmachines: [{name: small-host, gpu_memory: 20MiB}]\n"
        "policies: [{name: lru, options: {chunk: [1MiB, 4MiB]}}, ideal]\n");
  const auto rows = run({"sweep", "one.yaml", "--json"}).json()["rows"];
  ASSERT_EQ(rows.size(), 3u);
  for (const char* chunk : {"1MiB", "4MiB"}) {
    const auto result = run({"replay", "small.trace.jsonl", "-m", "small-host", "--gpu-memory", "20MiB", "-p", "lru",
                             "--set", std::string("chunk=") + chunk, "--json"})
                            .json();
    const auto& row = rows[chunk[0] == '1' ? 0 : 1];
    for (const char* key : {"fits", "iteration_seconds", "first_iteration_seconds", "ideal_seconds", "bound_seconds",
                            "bound_term", "slowdown", "tokens_per_second"}) {
      EXPECT_EQ(row[key], result[key]) << chunk << " " << key;
    }
    EXPECT_EQ(row["options"], result["manifest"]["options"]);
  }
}

TEST_F(SweepCommand, WhatDoesNotFitIsARow) {
  write("none.yaml",
        "name: none\nworkloads: [small.trace.jsonl]\nmachines: [{name: small-host, gpu_memory: 1MiB}]\n"
        "policies: [lru]\n");
  const Answer answer = run({"sweep", "none.yaml", "--json"});
  EXPECT_EQ(answer.code, 1);
  EXPECT_EQ(answer.json()["rows"][0]["fits"], false);
  EXPECT_THAT(answer.json()["rows"][0]["reason"].get<std::string>(), HasSubstr("out of memory"));
}

TEST_F(SweepCommand, FiltersAndLimits) {
  const auto count = [&](const std::string& more) {
    write("filtered.yaml", grid + more);
    return run({"sweep", "filtered.yaml", "--json"}).json()["rows"].size();
  };
  EXPECT_EQ(count("exclude: [{machine: p3.*, policy: [lru, zero-*]}]\n"), 128u - 32);
  EXPECT_EQ(count("only: [{model: gpt2, batch: 8}, {batch: 1}]\n"), 16u + 32);
  EXPECT_EQ(count("only: [{gpu: v100-16g, gpu_memory: 4GiB}]\n"), 32u);
  EXPECT_EQ(count("limits: {usd_per_hour: 1.5}\n"), 64u);
  write("filtered.yaml", std::string(grid) + "limits: {combinations: 100}\n");
  expect_bad_usage({"sweep", "filtered.yaml"}, HasSubstr("more than 100 combinations"));
  write("filtered.yaml", std::string(grid) + "only: [{machine: nothing}]\n");
  expect_bad_usage({"sweep", "filtered.yaml"},
                   AllOf(HasSubstr("filtered.yaml:6: only: machine 'nothing' matches nothing; there is g4dn.xlarge, "
                                   "g5.xlarge, p3.2xlarge")));
  write("filtered.yaml", std::string(grid) + "exclude: [{policy: \"*\"}]\n");
  expect_bad_usage({"sweep", "filtered.yaml"}, HasSubstr("leave no combination"));
}

// A pattern that matches nothing beside others that do, and a filter of which no combination has all, are said; what
// limits leave out may be named.
TEST_F(SweepCommand, WarnsOfFiltersThatDoNothing) {
  const auto said = [&](const std::string& more) {
    write("filtered.yaml", grid + more);
    const Answer answer = run({"sweep", "filtered.yaml"});
    EXPECT_EQ(answer.code, 0);
    return answer.err;
  };
  EXPECT_THAT(said("exclude: [{machine: [p3.*, p9.*]}]\n"),
              HasSubstr("filtered.yaml:6: exclude: machine 'p9.*' matches nothing; there is g4dn.xlarge"));
  EXPECT_THAT(said("exclude:\n  - {batch: 1}\n  - {machine: g5.xlarge, gpu_memory: 1GiB}\n"),
              HasSubstr("filtered.yaml:8: exclude: no combination matches all keys of this filter"));
  EXPECT_EQ(said("limits: {usd_per_hour: 1.5}\nexclude: [{machine: [p3.2xlarge, g5.xlarge]}]\n"), "");
}

TEST_F(SweepCommand, SaysWhatIsWrongAndWhere) {
  const auto wrong = [&](const std::string& from, const std::string& to, const char* message) {
    std::string text = grid;
    text.replace(text.find(from), from.size(), to);
    write("wrong.yaml", text);
    expect_bad_usage({"sweep", "wrong.yaml"}, AllOf(HasSubstr("wrong.yaml:"), HasSubstr(message)));
  };
  wrong("machines:", "machine:", "valid keys are name");
  wrong("batch:", "bach:", "unknown key 'bach' in generate");
  wrong("p3.2xlarge", "p99*", "no machine is called 'p99*'");
  wrong("1GiB", "1GB/s", "gpu_memory");
  wrong("10cache", "11cache", "unknown policy '11cache'; the nearest is 10cache");
  wrong("10cache]", "{name: 10cache, options: {nothing: 1}}]", "nothing");
  wrong("seq: 128", "seq: machine", "the machine does not say it");
  // What no trace can be generated with is no row that does not fit, wherever it stands.
  wrong("precision: fp16", "precision: fp61", "precision: unknown 'fp61'; valid are fp16, bf16, fp32");
  wrong("[1, 2, 4, 8]", "[1, none]", "'none' is not a whole number from 1");
  wrong("[1, 2, 4, 8]", "[1, 0]", "batch");
  wrong("seq: 128", "seq: 128, micro-batches: 4", "micro-batches");
  wrong("gpt2,", "gpt3,", "gpt3");
  wrong("seq: 128", "seq: 128, gpu: h9000", "h9000");
  wrong("precision: fp16", "precision: bf16, gpu: t4", "does not compute in bf16");
  wrong("name: p3.2xlarge, gpu_memory: [1GiB, 4GiB]", "name: p3.2xlarge, limits: [h2d=fast]", "fast");
  wrong("name: p3.2xlarge, gpu_memory: [1GiB, 4GiB]", "name: p3.2xlarge, limits: [up=3GB/s]", "valid");
  write("wrong.yaml",
        "name: wrong\nworkloads:\n  - generate:\n      model: gpt2\n      batch: 1\n      seq: 128\n      zero: 7\n"
        "machines: g5.xlarge\npolicies: lru\n");
  expect_bad_usage({"sweep", "wrong.yaml"}, HasSubstr("wrong.yaml:7: workload 'gpt2, batch 1': --zero"));
  const auto wrong_workload = [&](const std::string& workload, const char* message) {
    write("wrong.yaml", "name: wrong\nworkloads:\n  - " + workload + "\nmachines: g5.xlarge\npolicies: lru\n");
    expect_bad_usage({"sweep", "wrong.yaml"}, HasSubstr(message));
  };
  wrong_workload("{generate: {model: gpt2, batch: 1}, assume_gpu: a100-80g}",
                 "wrong.yaml:3: assume_gpu: a generated trace is of the GPU");
  wrong_workload("{trace: small.trace.jsonl, assume_gpu: a9000}", "wrong.yaml:3: assume_gpu: unknown GPU 'a9000'");
  wrong_workload("{trace: small.trace.jsonl, assume_gpu: t4, rescale: false}", "nothing is assumed");
  wrong_workload("{trace: absent.trace.jsonl}", "wrong.yaml:3: workload 'absent'");
  write("broken.trace.jsonl", "{\"format\": 1\n");
  wrong_workload("{trace: broken.trace.jsonl}", "broken.trace.jsonl:1");
  write("wrong.yaml", std::string(grid) + "exclude: [{colour: red}]\n");
  expect_bad_usage({"sweep", "wrong.yaml"}, HasSubstr("unknown key 'colour' in a filter"));
  expect_bad_usage({"sweep", "nothing"}, HasSubstr("unknown sweep 'nothing'"));
  expect_bad_usage({"sweep"}, HasSubstr("a sweep file is missing"));
  expect_bad_usage({"sweep", "grid.yaml", "--threads", "0"}, HasSubstr("--threads"));
  write("wrong.yaml", std::string(grid) + "cost: {interruptions_per_hour: -1}\n");
  expect_bad_usage({"sweep", "wrong.yaml"}, HasSubstr("'-1' is not a number, 0 or above"));
  expect_bad_usage({"sweep", "grid.yaml", "--shard", "3/2"}, HasSubstr("from 1/n to n/n"));
  expect_bad_usage({"sweep", "grid.yaml", "--price", "g6.xlarge=1"},
                   HasSubstr("no machine here is called 'g6.xlarge'"));
}

// Killed at random moments and started again, until it is done: the same rows, none of them simulated twice.
TEST_F(SweepCommand, ResumesAfterBeingKilled) {
  const std::string whole = sweep_csv_of({});
  std::mt19937 random_number(7);
  std::size_t kills = 0, last = 0;
  for (int attempt = 0; attempt < 40 && last < grid_rows; ++attempt) {
    const pid_t child = start({program, "sweep", "grid.yaml", "-o", "killed.sqlite", "--threads", "1"});
    usleep(static_cast<useconds_t>(20000 + random_number() % 100000));
    kill(child, SIGKILL);
    const int status = wait_for(child);
    kills += WIFSIGNALED(status) ? 1 : 0;
    const std::size_t now = rows_in("killed.sqlite");
    EXPECT_GE(now, last) << "rows were lost";
    last = now;
  }
  EXPECT_GT(kills, 0u);
  EXPECT_EQ(sweep_csv_of({"-o", "killed.sqlite"}), whole);
  const Answer again = run({"sweep", "grid.yaml", "-o", "killed.sqlite"});
  EXPECT_THAT(again.err, HasSubstr("128 of 128 combinations are in killed.sqlite already"));
}

// What is there is believed, not simulated again: a changed figure stays.
TEST_F(SweepCommand, RepeatsNothing) {
  sweep_csv_of({"-o", "r.sqlite"});
  {
    SweepStore store(path("r.sqlite"));
    std::vector<SweepRow> rows = store.rows();
    store.remove({rows[5].key});
    rows[3].first_iteration_seconds = 42;
    store.add({rows[3]});
  }
  const Answer answer = run({"sweep", "grid.yaml", "-o", "r.sqlite"});
  EXPECT_THAT(answer.err, HasSubstr("127 of 128 combinations are in r.sqlite already"));
  const SweepResults results = read_sweep(path("r.sqlite"));
  EXPECT_EQ(results.rows.size(), 128u);
  EXPECT_EQ(results.rows[3].first_iteration_seconds, 42);
}

TEST_F(SweepCommand, DoesNotMixSweeps) {
  sweep_csv_of({"-o", "r.sqlite"});
  write("other.yaml", "name: other\nworkloads: [small.trace.jsonl]\nmachines: [small-host]\npolicies: [lru]\n");
  expect_bad_usage({"sweep", "other.yaml", "-o", "r.sqlite"}, HasSubstr("rows of another sweep"));
  EXPECT_EQ(rows_in("r.sqlite"), grid_rows);
}

// Rows of another build are neither kept nor dropped without a word.
TEST_F(SweepCommand, DoesNotMixBuilds) {
  sweep_csv_of({"-o", "r.sqlite"});
  {
    SweepStore store(path("r.sqlite"));
    std::vector<SweepRow> rows = store.rows();
    EXPECT_THAT(rows[5].build, ::testing::MatchesRegex("[0-9.]+[+][0-9a-f]{12}"));
    store.remove({rows[5].key});
    rows[5].key[0] = rows[5].key[0] == '0' ? '1' : '0';
    rows[5].build = "0.0.1+0123456789ab";
    store.add({rows[5]});
  }
  expect_bad_usage({"sweep", "grid.yaml", "-o", "r.sqlite"},
                   AllOf(HasSubstr("1 rows of another build"), HasSubstr("0.0.1+0123456789ab"),
                         HasSubstr("figures of two builds are not mixed; name another file, or remove it")));
  EXPECT_EQ(rows_in("r.sqlite"), grid_rows);
}

// The same program with another library of policies is another build for that library's policies.
TEST_F(SweepCommand, APolicyLibraryIsPartOfTheKey) {
  write("own.yaml", "name: own\nworkloads: [small.trace.jsonl]\nmachines: [small-host]\npolicies: [look-ahead, lru]\n");
  const auto rows = [&](const std::string& library) {
    const Answer answer = run({"sweep", "own.yaml", "--policy-library", library, "--json"});
    EXPECT_EQ(answer.code, 0) << answer.err;
    return answer.json()["rows"];
  };
  const std::string library = TENCACHE_BINARY_DIR "/tests/look_ahead.so", other = path("other.so");
  std::filesystem::copy_file(library, other);
  std::ofstream(other, std::ios::app) << "one more byte";
  const auto a = rows(library), b = rows(other);
  EXPECT_THAT(a[0]["build"].get<std::string>(), HasSubstr(", library "));
  EXPECT_NE(a[0]["key"], b[0]["key"]);
  EXPECT_NE(a[0]["build"], b[0]["build"]);
  EXPECT_EQ(a[1]["key"], b[1]["key"]);
}

// By hand: 730 GB at 0.1 $ a month are 0.1 $/h; 3.5 $/h with it are a tenth of a cent a second. An attached disk whose
// price no table has, and a spot machine of which nobody says how often it is taken away, have no cost.
TEST_F(SweepCommand, EachRowSaysWhatItsCostIsMadeOf) {
  write(
      "mine.yaml",
      "name: mine\nbase: small-host\ntiers: {nvme: null}\nlinks: {nvme_read: null, nvme_write: null}\nstaging: null\n");
  write("prices.yaml",
        "cloud: own\nsource: my list\nretrieved: 2026-11-01\nconfidence: measured\n"
        "attached_storage: {value: 0.1, source: disks, confidence: estimated}\n"
        "spot_interruptions_per_hour: {value: 0.5, source: a guess, confidence: estimated}\n"
        "prices: {mine: {on_demand: 3.5, spot: {value: 1.7, source: spot list, confidence: published}}}\n");
  const auto row_of = [&](const std::string& cost, const std::vector<std::string>& more) {
    write("one.yaml", "name: one\nworkloads: [small.trace.jsonl]\nmachines: [./mine.yaml]\npolicies: [lru]\ncost: {" +
                          cost + "}\n");
    std::vector<std::string> words = {"sweep", "one.yaml", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words).json()["rows"][0];
  };
  auto row = row_of("attached_storage: 730GB", {"--prices", "prices.yaml"});
  const double seconds = row["iteration_seconds"];
  EXPECT_DOUBLE_EQ(row["storage_usd_per_hour"], 0.1);
  EXPECT_EQ(row["storage_price_source"], "disks");
  EXPECT_EQ(row["storage_price_confidence"], "estimated");
  EXPECT_DOUBLE_EQ(row["usd_per_hour"], 3.6);
  EXPECT_DOUBLE_EQ(row["usd_per_iteration"], 0.001 * seconds);
  EXPECT_EQ(row["price_retrieved"], "2026-11-01");
  EXPECT_EQ(row["price_confidence"], "measured");
  EXPECT_EQ(row["spot_usd_per_hour"], 1.8);
  EXPECT_EQ(row["spot_price_source"], "spot list");
  EXPECT_EQ(row["spot_interruptions_per_hour"], 0.5);
  EXPECT_EQ(row["interruptions_source"], "a guess");
  EXPECT_DOUBLE_EQ(row["spot_usd_per_iteration"], 0.0005 * seconds * row["spot_slowdown"].get<double>());
  row = row_of("attached_storage: 730GB", {"--price", "mine=3.5", "--price", "mine:spot=1.7"});
  EXPECT_EQ(row["usd_per_iteration"], nullptr);
  EXPECT_EQ(row["spot_usd_per_iteration"], nullptr);
  row = row_of("", {"--price", "mine=3.5", "--price", "mine:spot=1.8"});
  EXPECT_DOUBLE_EQ(row["usd_per_hour"], 3.5);
  EXPECT_EQ(row["spot_usd_per_hour"], 1.8);
  EXPECT_EQ(row["spot_usd_per_iteration"], nullptr);
  EXPECT_THAT(run({"sweep", "one.yaml", "--price", "mine=3.5", "--price", "mine:spot=1.8"}).out,
              HasSubstr("how often they are taken away is not known: mine; say cost.interruptions_per_hour"));
  row = row_of("interruptions_per_hour: 0", {"--price", "mine:spot=1.8"});
  EXPECT_EQ(row["usd_per_hour"], nullptr);
  EXPECT_DOUBLE_EQ(row["spot_usd_per_iteration"], 0.0005 * seconds);
}

// As everywhere: only the machine as it is, with its own GPU's durations and that kind of trace, has been checked;
// where ratios were, that says nothing of seconds.
TEST_F(SweepCommand, EachRowSaysWhatMayBeBelieved) {
  write("believed.yaml",
        "name: believed\nworkloads:\n"
        "  - {name: own, generate: {model: gpt2, batch: 1, seq: 128, precision: fp16}}\n"
        "  - {name: other, generate: {model: gpt2, batch: 1, seq: 128, precision: fp16, gpu: t4}}\n"
        "machines: [10cache-l40s, {name: 10cache-l40s, gpu_memory: 20GiB}, g6e.xlarge]\npolicies: [lru]\n");
  const Answer answer = run({"sweep", "believed.yaml", "--json"});
  const auto rows = answer.json()["rows"];
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_THAT(rows[0]["validity"].get<std::string>(), HasSubstr("extrapolated (on this machine ratios of times"));
  EXPECT_EQ(rows[0]["validated_within"], nullptr);
  for (std::size_t i = 1; i < 6; ++i) {
    EXPECT_EQ(rows[i]["validity"], "extrapolated") << i;
    EXPECT_EQ(rows[i]["validated_within"], nullptr);
  }
  EXPECT_EQ(rows[0]["durations"], "modelled");
  EXPECT_EQ(rows[0]["rescaled_from"], "");
  EXPECT_EQ(rows[3]["durations"], "rescaled");
  EXPECT_EQ(rows[3]["rescaled_from"], "t4");
  const std::string text = run({"sweep", "believed.yaml"}).out;
  EXPECT_THAT(text, AllOf(HasSubstr("extrapolated, durations rescaled from t4"), Not(HasSubstr("validated within")),
                          HasSubstr("1 of 6 are extrapolated (on this machine ratios"),
                          HasSubstr("3 of 6 are modelled: rescaled from t4")));
}

TEST_F(SweepCommand, DurationsTakenAsTheyAreAreSaid) {
  write(
      "taken.yaml",
      "name: taken\nworkloads: [{trace: small.trace.jsonl, rescale: false}]\nmachines: [g5.xlarge]\npolicies: [lru]\n");
  const auto row = run({"sweep", "taken.yaml", "--json"}).json()["rows"][0];
  EXPECT_THAT(row["validity"].get<std::string>(),
              AllOf(HasSubstr("extrapolated, durations of "), HasSubstr(" taken as they are")));
}

// Nobody rents out more memory than the machine has. The ideal is in no count.
TEST_F(SweepCommand, AnEnlargedMachineHasNoPrice) {
  write("what_if.yaml",
        "name: what_if\nworkloads:\n  - generate: {model: gpt2, batch: 1, seq: 128, precision: fp16}\n"
        "machines: [{name: g5.xlarge, gpu_memory: [24GiB, 40GiB, 1MiB]}]\npolicies: [lru, ideal]\n");
  const auto rows = run({"sweep", "what_if.yaml", "--json"}).json()["rows"];
  EXPECT_EQ(rows[0]["usd_per_hour"], 1.006);
  EXPECT_EQ(rows[2]["usd_per_hour"], nullptr);
  EXPECT_THAT(rows[2]["price_source"].get<std::string>(), HasSubstr("what-if"));
  const std::string text = run({"sweep", "what_if.yaml", "--price", "g5.xlarge=2"}).out;
  EXPECT_THAT(text, AllOf(HasSubstr("no machine is sold with that much memory (what-if): g5.xlarge"),
                          HasSubstr("2 of 3 combinations fit"), HasSubstr("1 of 3 do not fit"),
                          HasSubstr("Prices: given by --price."), HasSubstr("GPUs: used/paid for")));
}

// New prices cost no simulation.
TEST_F(SweepCommand, PricesMayChange) {
  sweep_csv_of({"-o", "r.sqlite"});
  const Answer answer = run({"sweep", "grid.yaml", "-o", "r.sqlite", "--price", "g5.xlarge=7.2", "--json"});
  EXPECT_THAT(answer.err, HasSubstr("128 of 128"));
  const auto json = answer.json();  // outlives its rows
  for (const auto& row : json["rows"]) {
    if (row["machine"] != "g5.xlarge") continue;
    EXPECT_EQ(row["usd_per_hour"], 7.2);
    if (row["fits"] == true) {
      EXPECT_DOUBLE_EQ(row["usd_per_iteration"], 0.002 * row["iteration_seconds"].get<double>());
    }
  }
}

TEST_F(SweepCommand, ShardsMergeIntoTheWhole) {
  const std::string whole = sweep_csv_of({});
  std::size_t rows = 0;
  for (const char* shard : {"1", "2", "3"}) {
    EXPECT_EQ(
        run({"sweep", "grid.yaml", "--shard", std::string(shard) + "/3", "-o", std::string(shard) + ".sqlite"}).code,
        0);
    rows += rows_in(std::string(shard) + ".sqlite");
  }
  EXPECT_EQ(rows, grid_rows);
  const Answer two = run({"sweep", "merge", "1.sqlite", "2.sqlite", "-o", "two.sqlite"});
  EXPECT_THAT(two.err, HasSubstr("of 128 combinations are in none of the files"));
  ASSERT_EQ(run({"sweep", "merge", "3.sqlite", "1.sqlite", "2.sqlite", "-o", "all.sqlite", "--csv", "all.csv"}).code,
            0);
  EXPECT_EQ(content(path("all.csv")), whole);
  // The parts may have been started in different folders: what matters is the trace, not its name.
  std::filesystem::create_directory(path("elsewhere"));
  write("traced.yaml", "name: traced\nworkloads: [small.trace.jsonl]\nmachines: [small-host]\npolicies: [lru, g10]\n");
  write("elsewhere/traced.yaml",
        "name: traced\nworkloads: [../small.trace.jsonl]\nmachines: [small-host]\npolicies: [lru, g10]\n");
  ASSERT_EQ(run({"sweep", "traced.yaml", "-o", "here.sqlite"}).code, 0);
  ASSERT_EQ(run({"sweep", path("elsewhere/traced.yaml"), "-o", "there.sqlite"}).code, 0);
  const Answer both = run({"sweep", "merge", "here.sqlite", "there.sqlite", "-o", "both.sqlite", "--json"});
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_EQ(both.json()["rows"].size(), 2u);
  // Of another sweep, or at other prices.
  write("other.yaml", "name: other\nworkloads: [small.trace.jsonl]\nmachines: [small-host]\npolicies: [lru]\n");
  run({"sweep", "other.yaml", "-o", "other.sqlite"});
  expect_bad_usage({"sweep", "merge", "1.sqlite", "other.sqlite", "-o", "x.sqlite"},
                   HasSubstr("part of another sweep"));
  run({"sweep", "grid.yaml", "--shard", "2/3", "-o", "dear.sqlite", "--price", "g5.xlarge=9"});
  expect_bad_usage({"sweep", "merge", "1.sqlite", "dear.sqlite", "-o", "x.sqlite"}, HasSubstr("at other prices"));
}

// ---------------------------------------------------------------------------------------------------------- mpirun

class SweepUnderMpi : public SweepCommand {
 protected:
  void SetUp() override {
    SweepCommand::SetUp();
    if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no mpirun";
    if (!std::filesystem::exists(TENCACHE_BINARY_DIR "/sim/sweep/libtencache-mpi.so")) {
      GTEST_SKIP() << "this build has no MPI";
    }
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_plm", "isolated", 1);  // this host only: no ssh is looked for
    // Open MPI keeps what it allocates until the end.
    const char* options = std::getenv("ASAN_OPTIONS");
    setenv("ASAN_OPTIONS", (std::string(options == nullptr ? "" : options) + ":detect_leaks=0").c_str(), 1);
  }
  static std::vector<std::string> words(int ranks, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"mpirun", "--oversubscribe", "-n", std::to_string(ranks), program, "sweep"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(SweepUnderMpi, AnyNumberOfRanksGivesTheSameRows) {
  const std::string alone = sweep_csv_of({});
  for (const int ranks : {1, 2, 4}) {
    const std::string csv = std::to_string(ranks) + ".csv";
    const int status = wait_for(start(words(ranks, {"grid.yaml", "-o", csv + ".sqlite", "--csv", csv})));
    EXPECT_EQ(WEXITSTATUS(status), 0) << ranks;
    EXPECT_EQ(content(path(csv)), alone) << ranks << " ranks";
  }
}

TEST_F(SweepUnderMpi, RanksHaveAsManyThreadsAsTheyAreTold) {
  const std::string alone = sweep_csv_of({});
  const int status = wait_for(start(words(2, {"grid.yaml", "--threads", "3", "--csv", "threads.csv"})));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(content(path("threads.csv")), alone);
}

// One of the processes that simulate is killed at work: the job ends, and the next one does what was not done.
TEST_F(SweepUnderMpi, ALostRankIsMadeUpFor) {
  // Slow enough for one to be killed at it.
  write("grid.yaml",
        "name: grid\nworkloads:\n  - generate: {model: [gpt2-xl, bert-large-uncased], batch: [1, 2, 4, 8], seq: 512, "
        "precision: fp16}\nmachines: [g4dn.xlarge, g5.xlarge, g6e.xlarge]\n"
        "policies: [on-demand, lru, belady, zero-offload, 10cache]\n");
  const std::string whole = sweep_csv_of({});
  const std::size_t all_rows = 2 * 4 * 3 * 5;
  const pid_t job = start(words(3, {"grid.yaml", "-o", "lost.sqlite"}));
  const auto rows = [&] { return rows_in("lost.sqlite"); };
  int status = 0;
  bool killed = false;
  // Where names of hosts are slow to be found mpirun takes its time to start. It ends by itself, or is ended.
  for (int i = 0; i < 10'000 && waitpid(job, &status, WNOHANG) == 0; ++i) {
    usleep(i < 9'900 ? 2000 : 100'000);
    if (i == 9'900) kill(job, SIGTERM);
    if (killed || rows() == 0) continue;
    std::vector<pid_t> ranks;  // all simulate, the first writes too
    std::ifstream children("/proc/" + std::to_string(job) + "/task/" + std::to_string(job) + "/children");
    for (pid_t child = 0; children >> child;) ranks.push_back(child);
    if (ranks.size() == 3) killed = kill(ranks.back(), SIGKILL) == 0;
  }
  if (!killed) GTEST_SKIP() << "the job was over before one of its ranks could be killed";
  const std::size_t before = rows();
  EXPECT_GT(before, 0u);
  const bool ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  EXPECT_TRUE(before == all_rows || !ended_well);
  EXPECT_EQ(WEXITSTATUS(wait_for(start(words(3, {"grid.yaml", "-o", "lost.sqlite", "--csv", "lost.csv"})))), 0);
  EXPECT_EQ(content(path("lost.csv")), whole);
}

TEST_F(SweepUnderMpi, BadInputEndsTheJob) {
  write("wrong.yaml", "name: wrong\n");
  EXPECT_EQ(WEXITSTATUS(wait_for(start(words(3, {"wrong.yaml"})))), 2);
}

}  // namespace
}  // namespace tencache
