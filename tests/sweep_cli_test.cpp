// `tencache sweep` as a program: interrupted and resumed, in shards, under mpirun.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "core/error.h"
#include "sim/sweep/sweep_results.h"
#include "tests/cli_fixture.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
  expect_bad_usage({"sweep", "filtered.yaml"}, HasSubstr("leave no combination"));
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
  wrong("10cache", "11cache", "unknown policy '11cache'; valid names are");
  wrong("10cache]", "{name: 10cache, options: {nothing: 1}}]", "nothing");
  wrong("seq: 128", "seq: machine", "the machine does not say it");
  write("wrong.yaml", std::string(grid) + "exclude: [{colour: red}]\n");
  expect_bad_usage({"sweep", "wrong.yaml"}, HasSubstr("unknown key 'colour' in a filter"));
  expect_bad_usage({"sweep", "nothing"}, HasSubstr("unknown sweep 'nothing'"));
  expect_bad_usage({"sweep"}, HasSubstr("a sweep file is missing"));
  expect_bad_usage({"sweep", "grid.yaml", "--shard", "3/2"}, HasSubstr("from 1/n to n/n"));
  expect_bad_usage({"sweep", "grid.yaml", "--price", "g6.xlarge=1"},
                   HasSubstr("no machine here is called 'g6.xlarge'"));
}

// Killed at random moments and started again, until it is done: the same rows, none of them simulated twice.
TEST_F(SweepCommand, ResumesAfterBeingKilled) {
  const std::string whole = sweep_csv_of({});
  std::mt19937 random_number(7);
  std::size_t kills = 0, last = 0;
  for (int attempt = 0; attempt < 200 && last < grid_rows; ++attempt) {
    const pid_t child = start({program, "sweep", "grid.yaml", "-o", "killed.sqlite", "--threads", "1"});
    usleep(static_cast<useconds_t>(5000 + random_number() % 60000));
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

// One of the processes that simulate is killed at work: the job ends, and the next one does what was not done.
TEST_F(SweepUnderMpi, ALostRankIsMadeUpFor) {
  const std::string whole = sweep_csv_of({});
  const pid_t job = start(words(3, {"grid.yaml", "-o", "lost.sqlite"}));
  const auto rows = [&] { return rows_in("lost.sqlite"); };
  int status = 0;
  bool killed = false;
  // Where names of hosts are slow to be found mpirun takes its time to start. It ends by itself, or is ended.
  for (int i = 0; i < 10'000 && waitpid(job, &status, WNOHANG) == 0; ++i) {
    usleep(i < 9'900 ? 2000 : 100'000);
    if (i == 9'900) kill(job, SIGTERM);
    if (killed || rows() == 0) continue;
    std::vector<pid_t> ranks;  // the first writes, the others simulate
    std::ifstream children("/proc/" + std::to_string(job) + "/task/" + std::to_string(job) + "/children");
    for (pid_t child = 0; children >> child;) ranks.push_back(child);
    if (ranks.size() == 3) killed = kill(ranks.back(), SIGKILL) == 0;
  }
  if (!killed) GTEST_SKIP() << "the job was over before one of its ranks could be killed";
  const std::size_t before = rows();
  EXPECT_GT(before, 0u);
  const bool ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  EXPECT_TRUE(before == grid_rows || !ended_well);
  EXPECT_EQ(WEXITSTATUS(wait_for(start(words(3, {"grid.yaml", "-o", "lost.sqlite", "--csv", "lost.csv"})))), 0);
  EXPECT_EQ(content(path("lost.csv")), whole);
}

TEST_F(SweepUnderMpi, BadInputEndsTheJob) {
  write("wrong.yaml", "name: wrong\n");
  EXPECT_EQ(WEXITSTATUS(wait_for(start(words(3, {"wrong.yaml"})))), 2);
}

}  // namespace
}  // namespace tencache
