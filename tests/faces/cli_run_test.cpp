// Commands that run on this computer's hardware (`run`, `calibrate`), from end to end. Each test starts the built
// program.
#include "configs/machine_yaml.h"
#include "tests/cli_fixture.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

TEST_F(CommandLine, RunReplayRunsAheadOnAGpuOnly) {
  if (run({"calibrate", "--help"}).out.find("Not part of this build") != std::string::npos) {
    GTEST_SKIP() << "built without the executor";
  }
  expect_bad_usage({"run", "replay", "--device", "host", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand",
                    "--directory", path(""), "--run-ahead", "8"},
                   AllOf(HasSubstr("--run-ahead 8"), HasSubstr("stands in for a GPU")));
}

TEST_F(CommandLine, RunReplayVerifiesAndComparesWithItsPrediction) {
  if (run({"calibrate", "--help"}).out.find("Not part of this build") != std::string::npos) {
    GTEST_SKIP() << "built without the executor";
  }
  const Answer answer =
      run({"run", "replay", "--device", "host", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand",
           "--iterations", "4", "--directory", path(""), "--prediction", "p.json", "--timeline", "t.json", "--json"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const Json result = answer.json();
  EXPECT_EQ(result["measured"], true);
  EXPECT_EQ(result["verification"]["tensors"], 9);
  EXPECT_EQ(result["verification"]["corrupted"], 0);
  EXPECT_GE(result["mapping"]["gpu"]["maps"], 9);
  EXPECT_GE(result["mapping"]["gpu"]["pieces"], result["mapping"]["gpu"]["maps"]);
  EXPECT_GT(result["mapping"]["gpu"]["map_seconds"], 0);
  EXPECT_GE(result["iteration_seconds"].get<double>(), result["ideal_seconds"].get<double>());
  EXPECT_EQ(result["prediction"]["sha256"], sha256_of_file(path("p.json")));
  EXPECT_THAT(answer.err, HasSubstr(sha256_of_file(path("p.json"))));
  EXPECT_EQ(Json::parse(content(path("p.json")))["iteration_seconds"], result["prediction"]["iteration_seconds"]);
  const Json comparison = result["prediction"]["comparison"];
  EXPECT_EQ(comparison["iteration_seconds"]["error"], result["prediction"]["error"]);
  for (const auto& [group, name] : {std::pair("time_seconds", "compute"),
                                    {"time_seconds", "gaps"},
                                    {"stall_seconds", "h2d"},
                                    {"busy_seconds", "gpu_lane"},
                                    {"busy_seconds", "d2h"},
                                    {"traffic_bytes", "h2d"},
                                    {"peak_bytes", "cpu"}}) {
    for (const char* side : {"predicted", "measured"}) {
      EXPECT_TRUE(comparison[group][name][side].is_number()) << group << " " << name << " " << side;
    }
  }
  const Json& iteration = comparison["iteration_seconds"];
  EXPECT_DOUBLE_EQ(iteration["error"].get<double>(),
                   iteration["predicted"].get<double>() / iteration["measured"].get<double>() - 1);
  EXPECT_EQ(iteration["measured"], result["iteration_seconds"]);
  EXPECT_EQ(comparison["peak_bytes"]["gpu"]["measured"], result["peak_bytes"]["gpu"]);
  EXPECT_THAT(answer.err, AllOf(HasSubstr("memory: up to "), HasSubstr("tier nvme: up to "),
                                HasSubstr(" will be written over nvme_write"), HasSubstr(" a day at that rate")));
  std::map<int, std::string> processes;
  const Json timeline = Json::parse(content(path("t.json")));
  for (const Json& event : timeline) {
    if (event["name"] == "process_name") processes[event["pid"]] = event["args"]["name"];
    if (event["name"] == "process_sort_index") {
      EXPECT_EQ(event["args"]["sort_index"], event["pid"]);
    }
  }
  EXPECT_THAT(processes, ::testing::ElementsAre(::testing::Pair(1, "predicted: on-demand"),
                                                ::testing::Pair(2, "measured: on-demand")));
  EXPECT_EQ(result["manifest"]["run"]["verify"], "pages");
  EXPECT_EQ(result["manifest"]["run"]["directory"], path(""));
  // The same again: the same bytes.
  const std::string hash = sha256_of_file(path("p.json"));
  EXPECT_FALSE(Json::parse(content(path("p.json"))).contains("timing"));
  EXPECT_EQ(run({"run", "replay", "--device", "host", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand",
                 "--iterations", "4", "--directory", path(""), "--prediction", "p2.json"})
                .code,
            0);
  EXPECT_EQ(sha256_of_file(path("p2.json")), hash);

  const Answer text =
      run({"run", "replay", "--device", "host", "small.trace.jsonl", "-m", "small-host", "-p", "layer-streaming",
           "--scale-bytes", "1/2", "--scale-time", "0.5", "--predict", "--directory", path("")});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("9 tensors verified, 0 corrupted"));
  EXPECT_THAT(text.err, HasSubstr("scaled by 1/2, its times by 0.5"));
  for (const char* row : {"predicted against measured", "  iteration", "  gpu_lane busy", "  gpu peak"}) {
    EXPECT_THAT(text.out, HasSubstr(row));
  }
  const Answer disturbed =
      run({"run", "replay", "--device", "host", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand",
           "--iterations", "2", "--faults", "seed=5,delay=0.2:1ms,slow_link=0.5:2x,copy_error=@3", "--json"});
  EXPECT_EQ(disturbed.code, 0) << disturbed.err;
  EXPECT_EQ(disturbed.json()["verification"]["corrupted"], 0);
  EXPECT_EQ(disturbed.json()["faults"]["injected"]["copy_error"], 1);
  expect_bad_usage({"run", "replay", "--device", "host", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand",
                    "--faults", "seed=5", "--predict"},
                   HasSubstr("--predict"));
  expect_bad_usage({"run", "replay", "--device", "host", "small.trace.jsonl", "-m", "small-host", "-p", "nobody"},
                   HasSubstr("no policy is named 'nobody'"));
  expect_bad_usage(
      {"run", "replay", "--device", "host", "small.trace.jsonl", "-m", "small-host", "-p", "lru", "--scale-bytes", "2"},
      HasSubstr("--scale-bytes 2: give a factor from 0 to 1"));
  const Answer misfit = run({"run", "replay", "--device", "host", "small.trace.jsonl", "-m", "small-host", "-p",
                             "on-demand", "--gpu-memory", "15MiB", "--directory", path("")});
  EXPECT_EQ(misfit.code, 1);
  EXPECT_THAT(misfit.out, HasSubstr("backward 1"));
  EXPECT_EQ(run({"run", "replay", "--device", "host", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand",
                 "--directory", "/no/such"})
                .code,
            2);
}

TEST_F(CommandLine, WithoutAGpuTheReasonIsSaid) {
  if (run({"calibrate", "--help"}).out.find("Not part of this build") != std::string::npos) {
    GTEST_SKIP() << "built without the executor";
  }
  const Answer answer = run({"run", "replay", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand", "--device",
                             "cuda", "--gpu-memory", "64MiB", "--directory", path("")});
  if (answer.code == 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(answer.code, 2);
  EXPECT_THAT(answer.err, AllOf(::testing::ContainsRegex("CUDA"), HasSubstr("--device host")));
  expect_bad_usage({"run", "replay", "small.trace.jsonl", "-m", "small-host", "-p", "lru", "--device", "tpu"},
                   HasSubstr("host"));
}

TEST_F(CommandLine, CalibrateWritesAMachineThatReads) {
  if (run({"calibrate", "--help"}).out.find("Not part of this build") != std::string::npos) {
    GTEST_SKIP() << "built without the executor";
  }
  expect_bad_usage({"calibrate", "-o", "no/such/folder/m.yaml"}, HasSubstr("no/such/folder"));
  expect_bad_usage({"calibrate", "-o", "m.yaml", "--directory", "/no/such"}, HasSubstr("/no/such"));
  expect_bad_usage({"calibrate", "-o", "m.yaml", "--name", "a b"}, HasSubstr("a b"));
  EXPECT_FALSE(fs::exists(path("m.yaml")));
  expect_bad_usage({"calibrate", "-o", "m.yaml", "--directory", path(""), "--file-bytes", "1PiB"},
                   HasSubstr("quarter"));
  const Answer answer = run({"calibrate", "--device", "host", "-o", "m.yaml", "--quick", "--gpu-memory", "64MiB",
                             "--directory", path(""), "--file-bytes", "64MiB", "--json"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const MachineSpec machine = read_machine(path("m.yaml"));
  EXPECT_EQ(machine.tiers[0].capacity, 64 * MiB);
  EXPECT_GT(machine.cpu.adam_parameters_per_second, 1e6);
  EXPECT_GE(machine.links.size(), 4u);
  for (const Fact& fact : machine.facts) EXPECT_EQ(fact.confidence, "measured") << fact.path;
  const Json json = answer.json();
  EXPECT_EQ(json["name"], "this-computer");
  EXPECT_EQ(json["copies"]["h2d"].size(), 3u);
  EXPECT_GT(json["beside_computing"]["duplex_factor"].get<double>(), 0.1);
  EXPECT_TRUE(json["files"]["rates"][0]["read_bytes_per_second"]["value"].is_number());
  // On a busy computer a copy may seem to cost nothing: then it is null here and stands in no machine file.
  EXPECT_EQ(std::any_of(machine.facts.begin(), machine.facts.end(),
                        [](const Fact& fact) { return fact.path == "host.per_transfer"; }),
            json["host_seconds_per_transfer"].is_object());
  // Measured figures come with their spread, which intervals are drawn from.
  EXPECT_TRUE(
      std::any_of(machine.facts.begin(), machine.facts.end(), [](const Fact& fact) { return fact.spread > 0; }));
  const Answer sampled = run({"replay", "small.trace.jsonl", "-m", "m.yaml", "-p", "on-demand", "--gpu-memory", "16MiB",
                              "--samples", "8", "--json"});
  EXPECT_LT(sampled.json()["interval_seconds"][0], sampled.json()["interval_seconds"][1]);
  EXPECT_EQ(run({"replay", "small.trace.jsonl", "-m", "m.yaml", "-p", "zero-offload"}).code, 0);
}

// The dashboard is a package of its own.
TEST_F(CommandLine, WithoutTheDashboardItIsSaidWhatToInstall) {
  const fs::path bin = folder_ / "bin";
  fs::create_directories(bin);
  fs::copy_file(program, bin / "tencache");
  const Answer answer = run({"gui"}, (bin / "tencache").string());
  EXPECT_EQ(answer.code, 2);
  EXPECT_THAT(answer.err, AllOf(HasSubstr("package tencache-gui"), HasSubstr("build from source")));
}

TEST_F(CommandLine, RunKnowsItsCommands) {
  expect_bad_usage({"run", "train", "c.yaml"}, AllOf(HasSubstr("unknown command 'train'"), HasSubstr("python")));
  expect_bad_usage({"record", "c.yaml"}, HasSubstr("unknown command 'record'"));
}

}  // namespace
}  // namespace tencache
