// `reproduce` of what commands print of a whole question: the same bytes, or what differs.
#include <functional>

#include "tests/cli_fixture.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

class Repeat : public CommandLine {
 protected:
  Json keep(const std::string& file, std::vector<std::string> words) const {
    words.emplace_back("--json");
    const Answer answer = run(words);
    EXPECT_LE(answer.code, 1) << answer.err;
    write_file(path(file), answer.out);
    return Json::parse(answer.out);
  }
  void save(const std::string& file, const Json& json) const { write_file(path(file), json.dump()); }
};

// Options of every kind: lists, flags, several of a name, values with an equals sign; a model; what does not fit.
TEST_F(Repeat, EveryCommandGivesTheSameBytes) {
  const std::string trace = "small.trace.jsonl";
  const std::vector<std::vector<std::string>> commands = {
      {"bound", trace, "-m", "small-host", "--gpu-memory", "17MiB"},
      {"replay", trace, "-m", "small-host", "-p", "on-demand", "--set", "victim=fifo", "--timeline", "points.csv"},
      {"fit", trace, "-m", "small-host", "-p", "lru", "--limit", "h2d=1GB/s", "--limit", "d2h=1GB/s"},
      {"explain", trace, "-m", "g10-a100", "--no-rescale", "--gpu-memory", "17MiB", "-p", "on-demand", "--set",
       "victim=fifo", "--policies", "lru", "--top", "1"},
      {"explain", trace, "-m", "small-host", "--gpu-memory", "8MiB", "-p", "lru"},
      {"endurance", trace, "-m", "g10-a100", "--no-rescale", "--gpu-memory", "17MiB", "-p", "lru", "--duty", "50"},
      {"sensitivity", trace, "-m", "small-host", "-p", "lru", "--over", "h2d=1GB/s..4GB/s:2", "--over",
       "gpu_memory=16MiB,17MiB", "--csv", "points.csv"},
      {"tune", trace, "-m", "small-host", "-p", "layer-streaming", "--set", "chunk=1MiB", "--over", "buffers=2..3",
       "--jitter", "5%", "--threads", "2"},
      {"tune", "--model", "gpt2", "--batch", "1", "--seq", "64", "-m", "g5.xlarge", "-p", "layer-streaming", "--budget",
       "3"}};
  for (const auto& words : commands) {
    const Json printed = keep("a.json", words);
    EXPECT_EQ(printed["manifest"]["command"]["name"], words[0]);
    std::filesystem::remove(path("points.csv"));
    const Answer answer = run({"reproduce", "a.json"});
    EXPECT_EQ(answer.code, 0) << words[0] << "\n" << answer.out << answer.err;
    EXPECT_FALSE(std::filesystem::exists(path("points.csv")));
    EXPECT_EQ(run({"reproduce", "a.json", "--json"}).json()["results"][0]["command"], words[0]);
  }
}

// A sweep, however it came about: its parts and what they were joined to.
TEST_F(Repeat, ASweepGivesTheSameBytes) {
  write_file(path("few.yaml"),
             "name: few\nworkloads: [small.trace.jsonl]\n"
             "machines: [{name: small-host, gpu_memory: [17MiB, 20MiB]}]\npolicies: [lru, ideal]\n");
  const Json whole = keep("whole.json", {"sweep", "few.yaml", "-o", "whole.sqlite", "--csv", "few.csv", "--top", "1"});
  std::filesystem::remove(path("few.csv"));
  EXPECT_EQ(whole["manifest"]["command"]["arguments"], Json({{"FILE", {"few.yaml"}}}));
  EXPECT_EQ(whole["manifest"]["hashes"]["sweep"], sha256_of_file(path("few.yaml")));
  EXPECT_EQ(run({"reproduce", "whole.json"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(path("few.csv")));
  const Json part = keep("part.json", {"sweep", "few.yaml", "--shard", "2/2", "-o", "2.sqlite"});
  EXPECT_EQ(part["rows"].size(), 2u);
  EXPECT_EQ(run({"reproduce", "part.json"}).code, 0);
  EXPECT_THAT(run({"sweep", "merge", "2.sqlite", "-o", "half.sqlite"}).err,
              HasSubstr("1 of 2 combinations are in none of the files"));
  run({"sweep", "few.yaml", "--shard", "1/2", "-o", "1.sqlite"});
  EXPECT_EQ(keep("merged.json", {"sweep", "merge", "1.sqlite", "2.sqlite", "-o", "merged.sqlite"}), whole);
  EXPECT_EQ(run({"reproduce", "merged.json"}).code, 0);
  EXPECT_THAT(run({"sweep", "few.yaml", "-o", "merged.sqlite"}).err,
              HasSubstr("2 of 2 combinations are in merged.sqlite already"));
  expect_bad_usage({"reproduce", "whole.json", "--trace", "small.trace.jsonl"}, HasSubstr("is of a sweep"));
  Json changed = whole;
  changed["rows"][0]["iteration_seconds"] = 1;
  save("changed.json", changed);
  EXPECT_THAT(run({"reproduce", "changed.json"}).out,
              AllOf(HasSubstr("sweep of few"), HasSubstr("rows.0.iteration_seconds")));
  write_file(path("few.yaml"), content(path("few.yaml")) + "# more\n");
  EXPECT_THAT(run({"reproduce", "whole.json"}).out, HasSubstr("the sweep's file is not the one of then"));
}

TEST_F(Repeat, SaysWhatDiffers) {
  const Json printed = keep("a.json", {"sensitivity", "small.trace.jsonl", "-m", "small-host", "-p", "lru", "--over",
                                       "h2d=1GB/s,4GB/s", "--gpu-memory", "17MiB"});
  Json changed = printed;
  changed["lines"][0]["points"][1]["iteration_seconds"] = 1;
  save("changed.json", changed);
  const Answer answer = run({"reproduce", "changed.json", "--json"});
  EXPECT_EQ(answer.code, 1);
  const Json changes = answer.json()["results"][0]["changes"];
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0]["path"], "lines.0.points.1.iteration_seconds");
  EXPECT_THAT(run({"reproduce", "changed.json"}).out,
              AllOf(HasSubstr("sensitivity on small-host"), HasSubstr("lines.0.points.1.iteration_seconds")));

  // Elsewhere the trace is found where --trace says, under the name of then.
  std::filesystem::rename(path("small.trace.jsonl"), path("moved.trace.jsonl"));
  EXPECT_EQ(run({"reproduce", "a.json", "--trace", "moved.trace.jsonl"}).code, 0);
  Trace longer = small_trace();
  longer.ops[0].duration_ns += 1'000'000;
  write_trace(longer, path("moved.trace.jsonl"));
  const Answer other = run({"reproduce", "a.json", "--trace", "moved.trace.jsonl"});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.out, HasSubstr("the trace is not the one of then"));
}

TEST_F(Repeat, KnowsTheConfigurationThatTuneStartedAt) {
  const auto start = [&](const char* bucket) {
    write_file(path("ds.json"), std::string(R"({"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": )") +
                                    bucket + R"(, "offload_param": {"device": "cpu"},
                                    "offload_optimizer": {"device": "cpu"}}})");
  };
  start("0");
  // Written over the file that it starts at: the hash is that of what was read.
  const Json printed = keep("a.json", {"tune", "small.trace.jsonl", "-m", "10cache-l40s", "--no-rescale",
                                       "--from-deepspeed", "ds.json", "--deepspeed", "ds.json", "--budget", "5"});
  EXPECT_EQ(printed["manifest"]["run"]["from_deepspeed"], "ds.json");
  start("0");
  EXPECT_EQ(run({"reproduce", "a.json"}).code, 0);
  start("1000000");
  const Answer answer = run({"reproduce", "a.json"});
  EXPECT_EQ(answer.code, 1);
  EXPECT_THAT(answer.out, HasSubstr("the file of --from-deepspeed is not the one of then"));
}

// A result may be anyone's: it writes no file, loads no code and runs no other command.
TEST_F(Repeat, RefusesWhatNoResultMayAskFor) {
  const Json printed = keep("a.json", {"bound", "small.trace.jsonl", "-m", "small-host"});
  const auto with = [&](const std::function<void(Json&)>& change, const char* message) {
    Json changed = printed;
    change(changed["manifest"]["command"]);
    save("changed.json", changed);
    expect_bad_usage({"reproduce", "changed.json"}, HasSubstr(message));
  };
  with([](Json& command) { command["name"] = "reproduce"; }, "cannot repeat");
  with([](Json& command) { command["name"] = 3; }, "lacks a 'name'");
  with([](Json& command) { command["arguments"]["--csv"] = {"x"}; }, "'--csv', which no result may ask for");
  with([](Json& command) { command["arguments"]["--policy-library"] = {"x.so"}; }, "no result may ask for");
  with([](Json& command) { command["arguments"]["--csv=x"] = true; }, "--csv");
  with([](Json& command) { command["arguments"]["TRACE"] = 7; }, "neither texts nor true");
  with([](Json& command) { command["arguments"]["--speed"] = {"7"}; }, "unknown option '--speed=7'");
  EXPECT_EQ(run({"reproduce", "a.json"}).code, 0);
  keep("model.json", {"bound", "--model", "gpt2", "--batch", "1", "--seq", "64", "-m", "g5.xlarge"});
  expect_bad_usage({"reproduce", "model.json", "--trace", "small.trace.jsonl"}, HasSubstr("no trace file"));
}

}  // namespace
}  // namespace tencache
