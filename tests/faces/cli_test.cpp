// The `tencache` program from end to end: what scripts rely on. Each test starts the built program.
#include <map>
#include <sstream>

#include "configs/machine_yaml.h"
#include "tests/cli_fixture.h"
#include "tests/exact/recorded_calls.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

// The names under "Subcommands:" of a help text.
std::vector<std::string> subcommands(const std::string& help) {
  std::vector<std::string> names;
  const std::string title = "\nSubcommands:\n";
  const std::size_t begin = help.find(title);
  if (begin == std::string::npos) return names;
  std::istringstream lines(help.substr(begin + title.size()));
  for (std::string line; std::getline(lines, line) && !line.empty();) {
    if (line.size() > 2 && line[2] != ' ') names.push_back(line.substr(2, line.find(' ', 2) - 2));
  }
  return names;
}

TEST_F(CommandLine, EveryCommandHasHelp) {
  const Answer all = run({"--help"});
  EXPECT_EQ(all.code, 0);
  std::vector<std::vector<std::string>> commands;
  for (const std::string& name : subcommands(all.out)) commands.push_back({name});
  EXPECT_THAT(commands, ::testing::IsSupersetOf({std::vector<std::string>{"generate"}, {"replay"}, {"run"}}));
  for (std::size_t i = 0; i < commands.size(); ++i) {
    std::vector<std::string> words = commands[i];
    SCOPED_TRACE(words.back());
    words.push_back("--help");
    const Answer answer = run(words);
    EXPECT_EQ(answer.code, 0);
    EXPECT_EQ(answer.err, "");
    EXPECT_THAT(answer.out, HasSubstr("Usage: tencache " + words[0]));
    for (const std::string& name : subcommands(answer.out)) {
      commands.push_back(commands[i]);
      commands.back().push_back(name);
    }
    if (answer.out.find("Not part of this build") != std::string::npos) continue;
    const std::size_t examples = answer.out.find("Examples:\n  tencache ");
    ASSERT_NE(examples, std::string::npos);
    EXPECT_THAT(answer.out.substr(examples), HasSubstr("\n  tencache " + words[0]));
  }
  EXPECT_THAT(commands, ::testing::IsSupersetOf({std::vector<std::string>{"import", "csv"}, {"run", "python"}}));
  EXPECT_THAT(run({"--version"}).out, ::testing::MatchesRegex("tencache [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

// Whatever a command reads, it does not write over: no matter through which option or which other file it comes.
TEST_F(CommandLine, NoOutputIsAnInputOrAnotherOutput) {
  const std::string shipped = TENCACHE_SOURCE_DIR "/configs/";
  fs::copy(shipped + "models/gpt2.yaml", path("gm.yaml"));
  fs::copy(shipped + "machines/small-host.yaml", path("base.yaml"));
  fs::copy(shipped + "prices/aws.yaml", path("prices.yaml"));
  write_file(path("derived.yaml"), "name: derived\nbase: ./base.yaml\n");
  write_file(path("ds.json"),
             R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/x"},
"offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}})");
  write_file(path("sweep.yaml"),
             "name: x\nworkloads: [{generate: {model: ./gm.yaml, batch: 1, seq: 64}}]\n"
             "machines: [./derived.yaml]\npolicies: [lru]\n");
  const std::vector<std::string> model = {"--model", "./gm.yaml", "--batch", "1", "--seq", "64"};
  const std::vector<std::string> trace = {"small.trace.jsonl"}, lru = {"-p", "lru"}, base = {"-m", "base.yaml"},
                                 derived = {"-m", "derived.yaml"}, over = {"--over", "pcie=1GB/s,2GB/s"};
  const auto expect_refused = [&](const std::vector<std::vector<std::string>>& parts) {
    std::vector<std::string> words;
    for (const auto& part : parts) words.insert(words.end(), part.begin(), part.end());
    const std::string output = words.back();
    const std::string before = fs::exists(path(output)) ? content(path(output)) : "";
    expect_bad_usage(words, HasSubstr(": " + output + " is another file of this command"));
    EXPECT_EQ(fs::exists(path(output)) ? content(path(output)) : "", before);
  };
  expect_refused({{"replay"}, model, base, lru, {"--timeline", "gm.yaml"}});
  expect_refused({{"replay"}, trace, base, lru, {"--prices", "prices.yaml", "--timeline", "prices.yaml"}});
  expect_refused({{"replay"}, trace, derived, lru, {"--timeline", "base.yaml"}});
  expect_refused({{"replay"}, trace, base, lru, {"--timeline", "./n1", "--decisions", "n1"}});
  expect_refused({{"sensitivity"}, model, base, lru, over, {"--csv", "gm.yaml"}});
  expect_refused({{"sensitivity"}, trace, derived, lru, over, {"--csv", "base.yaml"}});
  expect_refused({{"sensitivity"}, trace, base, lru, over, {"--csv", "n1", "--svg", "./n1"}});
  expect_refused({{"tune"}, model, base, lru, {"--csv", "gm.yaml"}});
  expect_refused({{"tune"}, trace, base, lru, {"--csv", "base.yaml"}});
  expect_refused({{"tune"}, trace, base, {"--from-deepspeed", "ds.json", "--csv", "ds.json"}});
  expect_refused({{"sweep", "sweep.yaml", "--csv", "gm.yaml"}});
  expect_refused({{"sweep", "sweep.yaml", "-o", "base.yaml"}});
  expect_refused({{"import", "trace", "small.trace.jsonl", "--strip-names", "-o", "small.trace.jsonl"}});
  expect_refused({{"import", "kineto", "ds.json", "-o", "ds.json"}});
  expect_refused({{"import", "chakra", "ds.json", "-o", "ds.json"}});
  expect_refused({{"import", "pytorch", "ds.json", "-o", "ds.json"}});
  write_file(path("ops.csv"), "op\n");
  expect_refused({{"import", "csv", ".", "-o", "ops.csv"}});
  if (run({"run", "replay", "--help"}).out.find("Not part of this build") != std::string::npos) return;
  expect_refused({{"run", "replay"}, model, derived, lru, {"--timeline", "base.yaml"}});
}

TEST_F(CommandLine, BadUsageListsWhatIsValid) {
  const std::string trace = path("small.trace.jsonl");
  expect_bad_usage({}, HasSubstr("import, info, replay, compare"));
  expect_bad_usage({"replai"}, AllOf(HasSubstr("unknown command 'replai'"), HasSubstr("the nearest is replay")));
  expect_bad_usage({"run"}, HasSubstr("valid are replay, python"));
  expect_bad_usage({"run", "fast"},
                   AllOf(HasSubstr("after 'tencache run'"), HasSubstr("valid names are replay, python")));
  expect_bad_usage({"import", "xml"}, AllOf(HasSubstr("after 'tencache import'"), HasSubstr("valid names are csv")));
  expect_bad_usage({"replay", "-m", "small-host", "-p", "ideal"}, HasSubstr("TRACE is required"));
  expect_bad_usage({"replay", trace, "-p", "ideal"}, HasSubstr("--machine is required"));
  expect_bad_usage({"replay", trace, "-m", "small-host", "-p", "ideal", "--machin", "x"},
                   AllOf(HasSubstr("unknown option '--machin'"), HasSubstr("--machine"),
                         HasSubstr("tencache replay --help lists all")));
  expect_bad_usage({"fit", trace, "-m", "small-host", "--price", "small-host=3"},
                   HasSubstr("unknown option '--price'"));
  expect_bad_usage({"import", "kineto", trace, "-o", "o", "--iteration", "-7"}, HasSubstr("'-7' is no whole number"));
  expect_bad_usage({"policies", "all"}, HasSubstr("all"));
  expect_bad_usage({"replay", "", "-m", "small-host", "-p", "ideal"}, HasSubstr("TRACE: must not be empty"));
  expect_bad_usage({"replay", trace, "-m", "", "-p", "ideal"}, HasSubstr("--machine: must not be empty"));
  expect_bad_usage({"info", ""}, HasSubstr("TRACE: must not be empty"));
  expect_bad_usage({"generate", "--model", "gpt2", "--batch", "1", "-o", ""}, HasSubstr("--output: must not be empty"));
  expect_bad_usage({"generate", "--model", "gpt2", "--batch", "1", "-o", "o", "--launch-gap", "x"},
                   HasSubstr("--launch-gap: not a time: 'x'"));
  expect_bad_usage({"import", "trace", trace, "-o", ""}, HasSubstr("--output: must not be empty"));
  expect_bad_usage({"import", "csv", "nonexist", "-o", "o"}, HasSubstr("nonexist: cannot be read: No such file"));
  expect_bad_usage({"report", path("."), "-o", "o.html"}, HasSubstr("is a directory; name a file"));
  expect_bad_usage({"replay", trace, "-m", "small-hots", "-p", "ideal"},
                   AllOf(HasSubstr("'small-hots'"), HasSubstr("small-host;")));
  expect_bad_usage({"replay", trace, "-m", "small-host", "-p", "idael"},
                   AllOf(HasSubstr("'idael'"), HasSubstr("nearest is ideal;"), HasSubstr("tencache policies")));
  expect_bad_usage({"compare", trace, "-m", "small-host", "--policies", "ideal,ondemnad"},
                   AllOf(HasSubstr("'ondemnad'"), HasSubstr("on-demand"), HasSubstr("`all` is all")));
  expect_bad_usage({"compare", trace, "-m", "small-host", "--policies", "ideal,"},
                   HasSubstr("'ideal,' has an empty name"));
  expect_bad_usage({"compare", trace, "-m", "small-host", "--policies", "bound"}, HasSubstr("'bound' is no policy"));
  expect_bad_usage({"replay", trace, "-m", "small-host", "-p", "on-demand", "--set", "victims=lru"},
                   AllOf(HasSubstr("'victims'"), HasSubstr("victim, free_dead")));
  expect_bad_usage({"replay", trace, "-m", "small-host", "-p", "on-demand", "--set", "victim=mru"},
                   AllOf(HasSubstr("mru"), HasSubstr("lru"), HasSubstr("fifo")));
  expect_bad_usage({"replay", trace, "-m", "small-host", "-p", "on-demand", "--set", "victim"}, HasSubstr("key=value"));
  expect_bad_usage(
      {"replay", trace, "-m", "small-host", "-p", "on-demand", "--set", "victim=lru", "--set", "victim=lru"},
      HasSubstr("given twice"));
  expect_bad_usage({"replay", trace, "-m", "small-host", "-p", "ideal", "--gpu-memory", "8Gib"},
                   AllOf(HasSubstr("--gpu-memory"), HasSubstr("8Gib"), HasSubstr("GiB")));
  expect_bad_usage({"replay", trace, "-m", "small-host", "-p", "ideal", "--iterations", "0"},
                   HasSubstr("--iterations"));
  expect_bad_usage({"replay", trace, "-m", "small-host", "-p", "ideal", "--iterations", "many"},
                   HasSubstr("--iterations"));
}

TEST_F(CommandLine, ReplayJsonKeepsTheContract) {
  const Answer answer = run({"replay", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand", "--json"});
  EXPECT_EQ(answer.code, 0);
  EXPECT_EQ(answer.err, "");
  const Json result = answer.json();
  for (const char* key : {"policy",
                          "machine",
                          "trace",
                          "fits",
                          "iteration_seconds",
                          "first_iteration_seconds",
                          "ideal_seconds",
                          "bound_seconds",
                          "slowdown",
                          "stall_seconds",
                          "busy_seconds",
                          "phase_seconds",
                          "gpu_hit_rate",
                          "traffic_bytes",
                          "peak_bytes",
                          "mean_utilization",
                          "allocators",
                          "tokens_per_second",
                          "usd_per_million_tokens",
                          "simulated_events",
                          "manifest",
                          "timing",
                          "compute_seconds",
                          "gap_seconds"}) {
    EXPECT_TRUE(result.contains(key)) << key;
  }
  EXPECT_EQ(result["policy"], "on-demand");
  EXPECT_EQ(result["machine"], "small-host");
  EXPECT_EQ(result["trace"], "small.trace.jsonl");
  EXPECT_EQ(result["fits"], true);
  EXPECT_EQ(result["usd_per_million_tokens"], nullptr);
  for (const char* cause : {"h2d", "d2h", "nvme_read", "nvme_write", "cpu_optimizer", "memory"}) {
    EXPECT_TRUE(result["stall_seconds"][cause].is_number()) << cause;
  }
  for (const char* link : {"h2d", "d2h", "nvme_read", "nvme_write"}) {
    EXPECT_TRUE(result["traffic_bytes"][link].is_number_unsigned()) << link;
    EXPECT_TRUE(result["busy_seconds"][link].is_number()) << link;
    EXPECT_TRUE(result["mean_utilization"][link].is_number()) << link;
  }
  for (const char* tier : {"gpu", "cpu", "nvme"}) {
    EXPECT_TRUE(result["peak_bytes"][tier].is_number_unsigned()) << tier;
    EXPECT_TRUE(result["mean_utilization"][tier].is_number()) << tier;
  }
  EXPECT_TRUE(result["gpu_hit_rate"]["accesses"].is_number());
  EXPECT_TRUE(result["gpu_hit_rate"]["bytes"].is_number());
  EXPECT_LE(result["peak_bytes"]["gpu"].get<Bytes>(), 16 * MiB);

  // Ideal: the sum of durations and gaps, to the nanosecond. 32 tokens an iteration.
  EXPECT_DOUBLE_EQ(result["ideal_seconds"].get<double>(), to_seconds(small_ideal_ns));
  const double iteration = result["iteration_seconds"].get<double>();
  EXPECT_DOUBLE_EQ(result["slowdown"].get<double>(), iteration / to_seconds(small_ideal_ns));
  EXPECT_DOUBLE_EQ(result["tokens_per_second"].get<double>(), 32 / iteration);
  EXPECT_GE(result["bound_seconds"].get<double>(), 4 * 0.00301);  // the four ops that no policy may move
  EXPECT_LE(result["bound_seconds"].get<double>(), iteration);
  EXPECT_DOUBLE_EQ(result["efficiency"].get<double>(), result["bound_seconds"].get<double>() / iteration);

  const Json& attribution = result["attribution"];
  Nanoseconds sum = attribution["compute_ns"].get<Nanoseconds>() + attribution["gap_ns"].get<Nanoseconds>();
  for (const auto& [cause, stall] : attribution["stall_ns"].items()) sum += stall.get<Nanoseconds>();
  EXPECT_EQ(sum, attribution["time_ns"].get<Nanoseconds>());
  EXPECT_GT(attribution["time_ns"].get<Nanoseconds>(), small_ideal_ns);  // 36 MiB do not fit into 16

  const Json& manifest = result["manifest"];
  EXPECT_EQ(manifest["hashes"]["trace"], sha256_of_file(path("small.trace.jsonl")));
  EXPECT_EQ(manifest["hashes"]["machine"], sha256_of_file(read_machine("small-host").file));
  EXPECT_EQ(manifest["options"]["victim"], "lru");
  EXPECT_TRUE(manifest.contains("version"));
  EXPECT_TRUE(manifest.contains("seed"));
}

// Of all ranks' tokens, at the price of the whole machine.
TEST_F(CommandLine, TokensHaveAPriceWhereTheMachineHasOne) {
  write_file(path("priced.yaml"), "base: small-host\nname: priced\nprice: {on_demand: 7.2}\n");
  write_file(path("two.yaml"), "base: small-host\nname: two\nranks: 2\nprice: {on_demand: 7.2}\n");
  write_file(path("euro.yaml"), "base: small-host\nname: euro\nprice: {on_demand: 7.2, currency: EUR}\n");
  Trace two = small_trace();  // 32 tokens an iteration, of which each rank has half
  const std::size_t ops = two.ops.size();
  const TensorId input = two.add_tensor("input of rank 1", 4 * MiB, Role::input, true);
  Op op = two.ops[0];
  op.rank = 1;
  for (std::size_t i = 0; i < ops; ++i) two.add_op(op, std::vector<TensorId>{input}, {});
  write_trace(two, path("two.trace.jsonl"));
  const auto check = [&](const std::string& trace, const std::string& machine) {
    const Json result = run({"replay", trace, "-m", machine, "-p", "on-demand", "--json"}).json();
    EXPECT_DOUBLE_EQ(result["usd_per_million_tokens"].get<double>(),
                     7.2 / 3600 * result["iteration_seconds"].get<double>() / 32 * 1e6);
  };
  check("small.trace.jsonl", "priced.yaml");
  check("two.trace.jsonl", "two.yaml");
  EXPECT_EQ(run({"replay", "small.trace.jsonl", "-m", "euro.yaml", "-p", "on-demand", "--json"})
                .json()["usd_per_million_tokens"],
            nullptr);
  EXPECT_THAT(run({"replay", "small.trace.jsonl", "-m", "priced.yaml", "-p", "on-demand"}).out,
              HasSubstr(" $/1M tokens at 7.2 $/h\n"));
  EXPECT_THAT(run({"replay", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand"}).out,
              AllOf(HasSubstr(" tokens/s\n"), ::testing::Not(HasSubstr("$/1M"))));
}

TEST_F(CommandLine, CompareHasCostsWhereAPriceIsAsked) {
  const std::vector<std::string> words = {"compare", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand"};
  EXPECT_THAT(run(words).out, ::testing::Not(HasSubstr("$/1M")));
  std::vector<std::string> priced = words;
  priced.insert(priced.end(), {"--price", "small-host=7.2"});
  const double seconds = run({"compare", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand", "--json"})
                             .json()[1]["iteration_seconds"]
                             .get<double>();
  char cost[32];
  std::snprintf(cost, sizeof cost, " %.4g ", 7.2 / 3600 * seconds / 32 * 1e6);
  EXPECT_THAT(run(priced).out,
              AllOf(HasSubstr("$/1M tokens"), HasSubstr("Cost at 7.2 $/h on demand"), HasSubstr(cost)));
}

TEST_F(CommandLine, SameInputSameBytes) {
  const std::vector<std::string> words = {"compare", "small.trace.jsonl", "-m", "small-host", "--json"};
  const auto without_timing = [&] {
    Json list = run(words).json();
    for (Json& result : list) EXPECT_EQ(result.erase("timing"), 1u);
    return list.dump();
  };
  EXPECT_EQ(without_timing(), without_timing());
  const std::vector<std::string> text = {"replay", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand"};
  EXPECT_EQ(run(text).out, run(text).out);
}

TEST_F(CommandLine, OptionsTakeEffect) {
  const auto seconds = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"replay", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words).json();
  };
  const double small = seconds({})["iteration_seconds"].get<double>();
  // Everything fits into 64 MiB: nothing moves any more.
  EXPECT_DOUBLE_EQ(seconds({"--gpu-memory", "64MiB"})["iteration_seconds"].get<double>(), to_seconds(small_ideal_ns));
  EXPECT_GT(seconds({"--cpu-memory", "4MiB"})["iteration_seconds"].get<double>(), small);
  const Json limited = seconds({"--limit", "h2d=100MB/s", "--limit", "d2h=300MB/s"});
  EXPECT_GT(limited["iteration_seconds"].get<double>(), small);
  EXPECT_EQ(limited["manifest"]["run"]["limits"], (Json{"h2d=100MB/s", "d2h=300MB/s"}));
  EXPECT_EQ(seconds({"--limit", "h2d=9GB/s"})["iteration_seconds"], small);  // above the link's own 400 MB/s
  const std::vector<std::string> replay = {"replay", "small.trace.jsonl", "-m",     "small-host",
                                           "-p",     "on-demand",         "--limit"};
  for (const auto& [limit, message] : {std::pair("h2d", "LINK=BANDWIDTH"),
                                       {"pcie=1GB/s", "valid names are h2d, d2h, nvme_read, nvme_write"},
                                       {"h2d=fast", "h2d=fast"},
                                       {"h2d=12", "'12' has no unit; write 12GB/s"},
                                       {"h2d=0", "above 0"}}) {
    std::vector<std::string> words = replay;
    words.push_back(limit);
    expect_bad_usage(words, AllOf(HasSubstr("--limit"), HasSubstr(message)));
  }
  const Json never = seconds({"--set", "free_dead=never", "--set", "victim=fifo"});
  EXPECT_EQ(never["manifest"]["options"]["free_dead"], "never");
  EXPECT_NE(never["traffic_bytes"], seconds({})["traffic_bytes"]);
  const Json forced = seconds({"--iterations", "7"});
  EXPECT_EQ(forced["iterations"], 7);
  EXPECT_EQ(forced["manifest"]["run"]["iterations"], 7);
}

TEST_F(CommandLine, CompareIsBestFirstWithMisfitsLast) {
  const Answer answer = run({"compare", "small.trace.jsonl", "-m", "small-host", "--json"});
  EXPECT_EQ(answer.code, 0);
  const Json list = answer.json();
  ASSERT_EQ(list.size(), run({"policies", "--json"}).json().size() + 1);
  EXPECT_EQ(list[0]["policy"], "bound");
  EXPECT_EQ(list[0]["iteration_seconds"], list[1]["bound_seconds"]);
  EXPECT_EQ(list[1]["policy"], "ideal");
  EXPECT_EQ(list[1]["efficiency"], nullptr);
  EXPECT_EQ(list[1]["validity"], nullptr);
  EXPECT_EQ(list[2]["validity"], "extrapolated");  // nobody measured this machine
  EXPECT_DOUBLE_EQ(list[1]["iteration_seconds"].get<double>(), to_seconds(small_ideal_ns));
  double last = 0;
  bool fits = true;
  for (const Json& result : list) {
    EXPECT_LE(result["fits"].get<bool>(), fits) << "a row that fits after one that does not";
    fits = result["fits"].get<bool>();
    if (!fits) {
      EXPECT_NE(result["reason"].get<std::string>(), "");
      EXPECT_EQ(result["iteration_seconds"], nullptr);
      continue;
    }
    if (result["policy"] == "ideal") continue;  // it comes first though others, which move updates, may be faster
    EXPECT_GE(result["iteration_seconds"].get<double>(), last);
    EXPECT_GE(result["iteration_seconds"].get<double>(), result["bound_seconds"].get<double>());
    last = result["iteration_seconds"].get<double>();
  }
  const Answer text = run({"compare", "small.trace.jsonl", "-m", "small-host", "--policies", "on-demand"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("two layers, batch 4 on small-host"), HasSubstr("(bound)"),
                              HasSubstr("\nideal"), HasSubstr("\non-demand"), HasSubstr("░")));

  // Intervals: from figures with a source, the same for the same seed.
  const std::vector<std::string> sampled = {"compare",   "small.trace.jsonl", "-m", "demo-small-gpu", "--policies",
                                            "on-demand", "--samples",         "4",  "--seed",         "5"};
  const Answer table = run(sampled);
  EXPECT_EQ(table.code, 0);
  EXPECT_THAT(table.out, HasSubstr("90 % of 4 samples of the machine's figures"));
  EXPECT_EQ(table.out, run(sampled).out);
  std::vector<std::string> words = sampled;
  words.push_back("--json");
  const Json rows = run(words).json();
  EXPECT_TRUE(rows[1]["interval_seconds"].is_null());  // ideal
  EXPECT_EQ(rows[2]["samples"], 4);
  EXPECT_LE(rows[2]["interval_seconds"][0], rows[2]["interval_seconds"][1]);
  EXPECT_EQ(rows[2]["manifest"]["run"]["sample_seed"], "5");
}

// Two ranks with parts of the model, which nobody runs under Belady's rule.
TEST_F(CommandLine, CompareNamesTheFastestThatCanBeRun) {
  std::vector<std::string> words = {"compare", "-m", "p4d.24xlarge", "-p", "belady,layer-streaming"};
  words.insert(words.end(), {"--model", "gpt2", "--batch", "2", "--seq", "256", "--data-parallel", "2", "--zero", "3"});
  words.insert(words.end(), {"--gpu-memory", "700MiB"});
  EXPECT_THAT(run(words).out, HasSubstr("No system runs such a step under belady today. Of what can be run "
                                        "layer-streaming is the fastest."));
  words.emplace_back("--any-policy");
  EXPECT_THAT(run(words).out, ::testing::Not(HasSubstr("No system runs such a step")));
  words.emplace_back("--json");
  const Json all = run(words).json();
  const auto belady = std::find_if(all.begin(), all.end(), [](const Json& row) { return row["policy"] == "belady"; });
  ASSERT_NE(belady, all.end());
  EXPECT_EQ((*belady)["runs_with"], "nothing");
  EXPECT_EQ((*belady)["changes_training"], "no");
}

TEST_F(CommandLine, WhatDoesNotFitExitsWith1AndNamesTheOp) {
  // "backward 1" needs four tensors of 4 MiB.
  const std::vector<std::string> words = {"small.trace.jsonl", "-m", "small-host", "--gpu-memory", "15MiB"};
  std::vector<std::string> replay = {"replay", "-p", "on-demand"},
                           compare = {"compare", "--policies", "on-demand,zero-offload"};
  replay.insert(replay.end(), words.begin(), words.end());
  compare.insert(compare.end(), words.begin(), words.end());
  const Answer text = run(replay);
  EXPECT_EQ(text.code, 1);
  EXPECT_THAT(text.out, AllOf(HasSubstr("does not fit"), HasSubstr("backward 1")));
  replay.push_back("--json");
  const Answer json = run(replay);
  EXPECT_EQ(json.code, 1);
  EXPECT_EQ(json.json()["fits"], false);
  EXPECT_EQ(json.json()["misfit"]["op"], "backward 1");
  EXPECT_EQ(json.json()["misfit"]["bytes_missing"], 1 * MiB);
  EXPECT_EQ(json.json()["iteration_seconds"], nullptr);
  EXPECT_DOUBLE_EQ(json.json()["ideal_seconds"].get<double>(), to_seconds(small_ideal_ns));
  const Answer none_fits = run(compare);
  EXPECT_EQ(none_fits.code, 1);
  EXPECT_THAT(none_fits.out, AllOf(HasSubstr("on-demand: out of memory"), HasSubstr("backward 1")));
  // The row `ideal` that is added fits; it was not asked for.
  compare[2] = "on-demand";
  EXPECT_EQ(run(compare).code, 1);
  compare.push_back("--json");
  const Answer list = run(compare);
  EXPECT_EQ(list.code, 1);
  ASSERT_EQ(list.json().size(), 3u);
  EXPECT_EQ(list.json()[1]["policy"], "ideal");
  compare.pop_back();
  compare[2] = "on-demand,ideal,zero-offload";
  EXPECT_EQ(run(compare).code, 1);
}

TEST_F(CommandLine, ImportOfRecordings) {
  const RecordedValue a = tensor(1, 10, {64}), b = tensor(2, 20, {64});
  std::ofstream(path("et.json")) << recording({op(3, 0, "aten::relu(Tensor self) -> Tensor", {a}, {b})});
  const Answer imported = run({"import", "pytorch", "et.json", "--gpu", "a10g", "-o", "et.trace.jsonl", "--json"});
  EXPECT_EQ(imported.code, 0) << imported.err;
  EXPECT_EQ(imported.json()["ops"], 1);
  EXPECT_THAT(imported.json()["notes"].dump(), HasSubstr("no times recorded"));
  EXPECT_EQ(run({"import", "trace", "et.trace.jsonl", "--strip-names", "-o", "stripped.trace.jsonl"}).code, 0);
  EXPECT_EQ(read_trace(path("stripped.trace.jsonl")).name(read_trace(path("stripped.trace.jsonl")).ops[0]), "op.0");
  expect_bad_usage({"import", "pytorch", "et.json", "-o", "no.trace.jsonl"}, HasSubstr("--assume-gpu NAME"));
  expect_bad_usage({"import", "pytorch", "et.json", "--gpu", "abacus", "-o", "no.trace.jsonl"}, HasSubstr("abacus"));
  expect_bad_usage({"import", "pytorch", "et.json", "--gpu", "a10g", "--nodes", "7-3", "-o", "no.trace.jsonl"},
                   HasSubstr("--nodes"));
  expect_bad_usage({"import", "kineto", "et.json", "-o", "no.trace.jsonl"}, HasSubstr("it is an execution trace"));
  expect_bad_usage({"import", "chakra", "et.json", "-o", "no.trace.jsonl"},
                   HasSubstr("Chakra's JSON, which holds no tensors"));
  // What is wrong with the file comes before what is wrong with the options and the second file.
  std::ofstream(path("cut.json")) << content(path("et.json")).substr(0, content(path("et.json")).size() / 2);
  std::ofstream(path("text.json")) << "no JSON";
  for (const char* file : {"cut.json", "text.json"}) {
    for (const std::vector<std::string>& more :
         {std::vector<std::string>{}, {"--gpu", "abacus"}, {"--nodes", "7-3"}, {"no-such-file.json"}}) {
      std::vector<std::string> words = {"import", "pytorch", file, "-o", "no.trace.jsonl"};
      words.insert(words.begin() + 3, more.begin(), more.end());
      expect_bad_usage(words, StartsWith("tencache: " + std::string(file) + ":"));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path("no.trace.jsonl")));
}

TEST_F(CommandLine, InfoShowsKernelsAndStepsWhereTheTraceHasThem) {
  const Json training = run({"info", "small.trace.jsonl", "--json"}).json();
  EXPECT_EQ(training["header"]["format_version"], 1);
  for (const char* key : {"prefill", "decode"}) EXPECT_FALSE(training["ops"]["by_phase"].contains(key));
  for (const char* key : {"kv_cache", "expert"}) EXPECT_FALSE(training["tensors"]["by_role"].contains(key));
  EXPECT_FALSE(training["ops"].contains("by_kernel") || training.contains("steps"));
  EXPECT_FALSE(training["header"].contains("stack"));

  const std::string newer = TENCACHE_SOURCE_DIR "/tests/data/version-2.trace.jsonl";
  const Json info = run({"info", newer, "--json"}).json();
  EXPECT_EQ(info["header"]["format_version"], 2);
  EXPECT_EQ(info["header"]["stack"], "vllm 0.9");
  EXPECT_EQ(info["steps"], 2);
  EXPECT_EQ(info["ops"]["by_phase"]["decode"]["gpu"]["count"], 3);
  EXPECT_EQ(info["tensors"]["by_role"]["expert"]["bytes"], 16384);
  const Json& kernels = info["ops"]["by_kernel"];
  EXPECT_EQ(kernels.size(), 4u);
  EXPECT_EQ(kernels["matmul"]["count"], 2);
  EXPECT_DOUBLE_EQ(kernels["matmul"]["seconds"].get<double>(), 1.6e-6);
  EXPECT_EQ(kernels["unknown"]["count"], 1);
  EXPECT_THAT(run({"info", newer}).out,
              AllOf(HasSubstr("stack          vllm 0.9"), HasSubstr("matmul             2 ops, 1.60 us"),
                    HasSubstr("steps          2"), HasSubstr("kv_cache         1, 8.00 KiB")));
  const Json phases = run({"replay", newer, "-m", "small-host", "-p", "on-demand", "--json"}).json()["phase_seconds"];
  EXPECT_DOUBLE_EQ(phases["prefill"].get<double>(), 2.4e-6);
  EXPECT_TRUE(phases.contains("decode"));
}

TEST_F(CommandLine, InfoListingsAndImport) {
  const Json info = run({"info", "small.trace.jsonl", "--json"}).json();
  EXPECT_EQ(info["ops"]["count"], 6);
  EXPECT_EQ(info["tensors"]["by_role"]["parameter"]["bytes"], 8 * MiB);
  EXPECT_EQ(info["largest_gpu_working_set"]["name"], "backward 1");
  EXPECT_EQ(info["largest_gpu_working_set"]["bytes"], 16 * MiB);
  EXPECT_DOUBLE_EQ(info["compute_seconds"].get<double>(), 0.018);
  EXPECT_THAT(run({"info", "small.trace.jsonl"}).out,
              AllOf(HasSubstr("two layers"), HasSubstr("needs at least 16.00 MiB")));

  std::set<std::string> names;
  for (const Json& policy : run({"policies", "--json"}).json()) names.insert(policy["name"].get<std::string>());
  EXPECT_THAT(names, ::testing::IsSupersetOf({"ideal", "on-demand", "layer-streaming", "zero-offload"}));
  names.clear();
  for (const Json& machine : run({"machines", "--json"}).json()) names.insert(machine["name"].get<std::string>());
  EXPECT_THAT(names, ::testing::IsSupersetOf({"g10-a100", "10cache-l40s", "teraio-h100", "mlp-offload"}));
  EXPECT_THAT(run({"policies"}).out, AllOf(HasSubstr("--set victim=<lru|fifo>"), HasSubstr("source:")));
  EXPECT_THAT(run({"machines"}).out, HasSubstr("g10-a100"));

  std::ofstream(path("ops.csv")) << "id,phase,kernel,time_ms,inputs,outputs\n0,fwd,k0,1.5,0,1\n1,bwd,k1,2,1 0,2\n";
  std::ofstream(path("tensors.csv")) << "id,role,bytes4k\n0,weight,8192\n1,act,4096\n2,grad_weight,4096\n";
  const Answer imported = run({"import", "csv", "ops.csv", "tensors.csv", "-o", "csv.trace.jsonl.zst", "--json"});
  EXPECT_EQ(imported.code, 0) << imported.err;
  EXPECT_EQ(imported.json()["ops"], 2);
  EXPECT_EQ(imported.json()["sha256"], sha256_of_file(path("csv.trace.jsonl.zst")));
  EXPECT_EQ(read_trace(path("csv.trace.jsonl.zst")).ops[1].duration_ns, 2'000'000);
}

TEST_F(CommandLine, BrokenInputsAreOneErrorAndLeaveNothing) {
  write_trace(small_trace(), path("good.trace.jsonl.zst"));
  const std::string text = content(path("small.trace.jsonl")), packed = content(path("good.trace.jsonl.zst"));
  const auto write = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(path(name), std::ios::binary) << bytes;
  };
  write("empty.trace.jsonl", "");
  write("cut.trace.jsonl", text.substr(0, text.size() / 2));
  write("cut_at_line.trace.jsonl", text.substr(0, text.find('\n', text.size() / 2) + 1));
  write("cut.trace.jsonl.zst", packed.substr(0, packed.size() / 2));
  write("flipped.trace.jsonl.zst", packed.substr(0, 40) + static_cast<char>(packed[40] ^ 0x55) + packed.substr(41));
  write("binary.trace.jsonl", std::string("\x7f"
                                          "ELF\0\1\2\3",
                                          8));
  write("array.trace.jsonl", "[1, 2]\n");
  write("huge.trace.jsonl", std::string(100'000, '['));
  fs::create_directory(path("folder"));
  std::vector<std::string> traces = {"missing",
                                     "empty.trace.jsonl",
                                     "cut.trace.jsonl",
                                     "cut_at_line.trace.jsonl",
                                     "cut.trace.jsonl.zst",
                                     "flipped.trace.jsonl.zst",
                                     "binary.trace.jsonl",
                                     "array.trace.jsonl",
                                     "huge.trace.jsonl",
                                     "folder",
                                     "/dev/null"};
  const std::set<std::string> before = files_in_work();
  for (const std::string& trace : traces) {
    expect_bad_usage({"replay", trace, "-m", "small-host", "-p", "on-demand", "--timeline", "t.json"},
                     HasSubstr(trace));
    expect_bad_usage({"compare", trace, "-m", "small-host", "--json"}, HasSubstr(trace));
    expect_bad_usage({"info", trace}, HasSubstr(trace));
  }
  expect_bad_usage({"info", "cut.trace.jsonl"}, ::testing::ContainsRegex("cut.trace.jsonl:[0-9]+: "));
  for (const char* text_of_machine : {"", "[", "name: x", "name: x\ntiers: 7\n", "\t", "a: *b"}) {
    write("m.yaml", text_of_machine);
    expect_bad_usage({"replay", "small.trace.jsonl", "-m", "m.yaml", "-p", "ideal"}, HasSubstr("m.yaml"));
  }
  write("m.yaml", std::string(100'000, '['));
  expect_bad_usage({"replay", "small.trace.jsonl", "-m", "m.yaml", "-p", "ideal"}, HasSubstr("m.yaml"));
  write("m.yaml", "name: x\ntiers:\n  - {name: gpu, kind: gpu, capacity: 1Gib}\n");
  expect_bad_usage({"replay", "small.trace.jsonl", "-m", "m.yaml", "-p", "ideal"},
                   HasSubstr("m.yaml:3: tiers.gpu.capacity"));
  fs::remove(path("m.yaml"));

  write("ops.csv", "id,phase,kernel,time_ms,inputs,outputs\n0,fwd,k0,1.5,0,9\n");
  write("tensors.csv", "id,role,bytes4k\n0,weight,8192\n");
  expect_bad_usage({"import", "csv", "ops.csv", "tensors.csv", "-o", "new.trace.jsonl"}, HasSubstr("ops.csv:2"));
  fs::remove(path("ops.csv"));
  fs::remove(path("tensors.csv"));
  EXPECT_EQ(files_in_work(), before) << "something half written";
}

TEST_F(CommandLine, ValuesThatMeanNothingAreRefused) {
  for (const char* option : {"--batch", "--sequence-length"}) {
    for (const char* value : {"-1", "0"}) {
      expect_bad_usage({"import", "csv", "x", "-o", "y.trace.jsonl", option, value}, HasSubstr(option));
    }
  }
  expect_bad_usage({"replay", "small.trace.jsonl", "-m", "small-host", "-p", "ideal", "--gpu-memory", "24"},
                   HasSubstr("--gpu-memory: '24' has no unit; write 24GiB"));
  // Gigabytes at a byte a second.
  expect_bad_usage({"replay", "--model", "gpt2", "--batch", "8", "--seq", "256", "-m", "g5.xlarge", "-p", "on-demand",
                    "--gpu-memory", "1250MiB", "--limit", "h2d=1B/s"},
                   HasSubstr("passes a hundred years; check the slowest, link 'h2d' with 1 B/s"));
  for (const char* option : {"--gpu-memory", "--timeline"}) {
    expect_bad_usage({"replay", "small.trace.jsonl", "-m", "small-host", "-p", "ideal", option, ""},
                     HasSubstr(std::string(option) + ": must not be empty"));
  }
  const std::string recording = content(path("small.trace.jsonl"));
  expect_bad_usage(
      {"replay", "small.trace.jsonl", "-m", "small-host", "-p", "ideal", "--timeline", "./small.trace.jsonl"},
      HasSubstr("--timeline: ./small.trace.jsonl"));
  EXPECT_EQ(content(path("small.trace.jsonl")), recording);
  ::setenv("TENCACHE_CONFIGS", "/no/such", 1);
  expect_bad_usage({"machines"}, HasSubstr("TENCACHE_CONFIGS is /no/such"));
  ::unsetenv("TENCACHE_CONFIGS");
}

TEST_F(CommandLine, MisfitLeavesAnOlderTimelineAlone) {
  std::ofstream(path("t.json")) << "older";
  const Answer answer = run({"replay", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand", "--gpu-memory",
                             "1MiB", "--timeline", "t.json"});
  EXPECT_EQ(answer.code, 1) << answer.err;
  EXPECT_EQ(content(path("t.json")), "older");
}

TEST_F(CommandLine, OutputsThatCannotBeWritten) {
  const std::set<std::string> before = files_in_work();
  const std::vector<std::string> replay = {"replay", "small.trace.jsonl", "-m",        "small-host",
                                           "-p",     "on-demand",         "--timeline"};
  for (const char* file : {"no/such/folder/t.json", "/proc/t.json", "/dev/full", "."}) {
    std::vector<std::string> words = replay;
    words.push_back(file);
    expect_bad_usage(words, HasSubstr(file));
  }
  EXPECT_EQ(files_in_work(), before);
  for (const std::vector<std::string>& words : {std::vector<std::string>{"machines", "--json"}, {"policies"}}) {
    const Answer full = run(words, program, "/dev/full");
    EXPECT_EQ(full.code, 2);
    EXPECT_THAT(full.err, HasSubstr("standard output"));
  }
}

TEST_F(CommandLine, TimelineIsCompleteChromeTrace) {
  const Json result = run({"replay", "small.trace.jsonl", "-m", "small-host", "-p", "on-demand", "--iterations", "3",
                           "--timeline", "t.json", "--json"})
                          .json();
  const Json timeline = Json::parse(content(path("t.json")));
  std::map<std::uint64_t, std::string> threads;
  std::map<std::string, int> ops;
  std::map<std::uint64_t, int> flow_starts, flow_ends;
  std::set<std::string> counters, causes, processes;
  double stalls_us = 0;
  Bytes moved = 0;
  for (const Json& event : timeline["traceEvents"]) {
    const std::string kind = event["ph"];
    if (kind == "M" && event["name"] == "thread_name") threads[event["tid"]] = event["args"]["name"];
    if (kind == "M" && event["name"] == "process_name") processes.insert(event["args"]["name"]);
    if (kind == "C") counters.insert(event["name"]);
    if (kind == "s") ++flow_starts[event["id"]];
    if (kind == "f") ++flow_ends[event["id"]];
    if (kind != "X") continue;
    EXPECT_GE(event["ts"].get<double>(), 0);
    EXPECT_GE(event["dur"].get<double>(), 0);
    const std::string category = event["cat"], thread = threads[event["tid"]];
    if (category == "op") {
      EXPECT_EQ(thread, "GPU");
      ++ops[event["name"]];
      EXPECT_EQ(event["dur"], 3000.0);
      EXPECT_TRUE(event["args"]["reads"].is_array());
    } else if (category == "stall") {
      EXPECT_EQ(thread, "GPU stalls");
      causes.insert(event["name"]);
      stalls_us += event["dur"].get<double>();
    } else if (category == "transfer") {
      EXPECT_THAT(thread, HasSubstr(" to "));
      EXPECT_LE(event["args"]["GB/s"].get<double>(), 0.4001);  // of the fastest link
      EXPECT_NE(event["args"]["asked by"], "");
      EXPECT_NE(event["name"], "");
      moved += event["args"]["bytes"].get<Bytes>();
    }
  }
  EXPECT_THAT(processes, ::testing::ElementsAre("predicted: on-demand"));
  EXPECT_THAT(threads[10], HasSubstr("h2d: cpu to gpu"));
  EXPECT_EQ(threads.size(), 4u + 4u);
  EXPECT_EQ(ops.size(), 6u);
  for (const auto& [name, count] : ops) EXPECT_EQ(count, 3) << name;
  EXPECT_THAT(counters, ::testing::IsSupersetOf({"memory gpu", "memory cpu"}));
  EXPECT_EQ(flow_starts, flow_ends);
  EXPECT_GT(flow_starts.size(), 6u);
  EXPECT_GT(moved, 0u);
  EXPECT_TRUE(causes.contains("h2d"));
  // Three iterations took the first one and two like the result.
  const double all = result["first_iteration_seconds"].get<double>() + 2 * result["iteration_seconds"].get<double>();
  EXPECT_NEAR(stalls_us * 1e-6, all - 3 * to_seconds(small_ideal_ns), 1e-3);
}

}  // namespace
}  // namespace tencache
