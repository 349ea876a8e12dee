// How much memory a run takes: three blocks of parameters that are updated in place, one op each.
#include "studies/fit.h"

#include <fstream>
#include <iterator>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "studies/deepspeed_memory.h"
#include "studies/minimum.h"
#include "studies/policy_run.h"
#include "tests/in_process.h"
#include "traces/file/file_io.h"
#include "traces/file/trace_file.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

MachineSpec machine(Bytes gpu, Bytes cpu, bool power_of_two) {
  MachineSpec machine;
  machine.name = "box";
  Tier first, second;
  first.name = "gpu";
  first.kind = TierKind::gpu;
  first.capacity = gpu;
  second.name = "cpu";
  second.capacity = cpu;
  second.allocation.power_of_two = power_of_two;
  machine.tiers = {first, second};
  for (const bool in : {true, false}) {
    Link link;
    link.name = in ? "h2d" : "d2h";
    link.from = in ? 1 : 0;
    link.to = in ? 0 : 1;
    link.bandwidth = 1'000'000'000;
    machine.links.push_back(link);
  }
  machine.initial_tier = 1;
  machine.validate();
  return machine;
}

Trace three_blocks(Bytes bytes) {
  Trace trace;
  for (TensorId i = 0; i < 3; ++i) {
    trace.add_tensor(std::string("w").append(std::to_string(i)), bytes, Role::parameter, true);
    Op op;
    op.name = trace.names.intern("op");
    op.duration_ns = 1'000'000;
    const TensorId ids[] = {i};
    trace.add_op(op, ids, ids);
  }
  return trace;
}

// One block at a time is enough for the GPU. CPU memory has to take all three before the first op, so that 36 MiB is
// its least whatever the GPU has.
TEST(Fit, FindsTheLeastOfEachTier) {
  const Trace trace = three_blocks(12 * MiB);
  const MachineSpec roomy = machine(64 * MiB, GiB, false);
  const auto least = [&](const MachineSpec& on, TierId tier) {
    const KnownRun as_is = known_run(run_policy(trace, on, "lru", {}, {}), on);
    const auto found = minimum_capacity(trace, on, tier, "lru", {}, {}, as_is);
    EXPECT_EQ(minimum_capacity(trace, on, tier, "lru", {}, {}, std::nullopt).has_value(), found.has_value());
    return found;
  };
  EXPECT_EQ(least(roomy, 0), 12 * MiB);
  EXPECT_EQ(least(roomy, 1), 36 * MiB);
  const MachineSpec little_cpu = machine(64 * MiB, 30 * MiB, false);
  EXPECT_FALSE(run_policy(trace, little_cpu, "lru", {}, {}).result.fits);
  EXPECT_EQ(least(little_cpu, 1), 36 * MiB);
  EXPECT_EQ(least(little_cpu, 0), std::nullopt);  // no GPU memory helps
}

// A block is more than the GPU has, and all three more than the CPU has.
TEST(Fit, FindsWhatTwoTiersLack) {
  const Trace trace = three_blocks(12 * MiB);
  const MachineSpec small = machine(8 * MiB, 30 * MiB, false);
  EXPECT_EQ(minimum_capacity(trace, small, 0, "lru", {}, {}, std::nullopt), std::nullopt);
  EXPECT_EQ(minimum_capacity(trace, small, 1, "lru", {}, {}, std::nullopt), std::nullopt);
  const auto joint = joint_minimum(trace, small, 0, "lru", {}, {});
  ASSERT_TRUE(joint);
  EXPECT_EQ(joint->bytes, 12 * MiB);
  EXPECT_EQ(joint->other, 1);
  EXPECT_EQ(joint->more, 6 * MiB);
}

// Two ranks with the same blocks, and a third whose op takes a nanosecond longer: the search by one of alike ranks
// finds what the search by all of them finds.
TEST(Fit, ComputesAlikeRanksOnce) {
  const auto ranks = [](std::size_t count, Nanoseconds longer) {
    Trace trace = three_blocks(12 * MiB);
    for (std::size_t rank = 1; rank < count; ++rank) {
      for (TensorId i = 0; i < 3; ++i) {
        const std::string name = std::string("v").append(std::to_string(3 * rank + i));
        const TensorId ids[] = {trace.add_tensor(name, 12 * MiB, Role::parameter, true)};
        Op op = trace.ops[i];
        op.rank = static_cast<std::uint16_t>(rank);
        if (rank + 1 == count) op.duration_ns += longer;
        trace.add_op(op, ids, ids);
      }
    }
    return trace;
  };
  MachineSpec three = machine(64 * MiB, GiB, false);
  Resource bus;
  bus.name = "bus";
  bus.bandwidth = 1'500'000'000;
  bus.shared = 0;
  three.resources = {bus};
  for (Link& link : three.links) link.uses = {0};
  three.other_ranks = {three, three};
  EXPECT_THAT(alike_ranks(ranks(3, 0), three), ::testing::ElementsAre(0u, 0u, 0u));
  EXPECT_THAT(alike_ranks(ranks(3, 1), three), ::testing::ElementsAre(0u, 0u, 2u));
  for (const TierId tier : {TierId{0}, TierId{1}}) {
    const auto least = [&](Nanoseconds longer) {
      const Trace trace = ranks(3, longer);
      return minimum_capacity(trace, three, tier, "lru", {}, {},
                              known_run(run_policy(trace, three, "lru", {}, {}), three));
    };
    EXPECT_EQ(least(0), least(1));
    EXPECT_EQ(least(0), tier == 0 ? 12 * MiB : 36 * MiB);
  }
  three.other_ranks[1].tiers[0].capacity = 32 * MiB;
  EXPECT_THAT(alike_ranks(ranks(3, 0), three), ::testing::ElementsAre(0u, 0u, 2u));
}

// All three start in CPU memory; from then on those that are written on the GPU are no longer there (a write makes the
// copy stale), but each is written back when it leaves. With room for all on the GPU the CPU keeps none.
TEST(Fit, TellsStartUpFromTheSteadyState) {
  const Trace trace = three_blocks(12 * MiB);
  const MachineSpec roomy = machine(64 * MiB, GiB, true);
  Timeline timeline;
  const Outcome outcome = run_policy(trace, roomy, "lru", {}, {}, {.timeline = &timeline});
  const std::vector<TierPeak> peaks = tier_peaks(timeline, outcome.result, roomy);
  EXPECT_EQ(peaks[1].startup_peak_bytes, 36 * MiB);
  EXPECT_EQ(peaks[1].steady_peak_bytes, 0u);
  EXPECT_EQ(peaks[0].startup_peak_bytes, 36 * MiB);
  EXPECT_EQ(peaks[0].steady_peak_bytes, 36 * MiB);
  EXPECT_EQ(outcome.result.peak_bytes[1], 36 * MiB);
  // Page-locked one by one each takes 16 MiB.
  EXPECT_EQ(peaks[1].pinned_peak_bytes, 48 * MiB);
  EXPECT_EQ(peaks[0].pinned_peak_bytes, std::nullopt);
  const MachineSpec exact = machine(64 * MiB, GiB, false);
  EXPECT_EQ(tier_peaks(timeline, outcome.result, exact)[1].pinned_peak_bytes, std::nullopt);
}

// 1000 parameters of 2 bytes, all trained: 2000, 2000 and 4000 bytes are 2048, 2048 and 4096 when page-locked; fp32
// gradients go by sub-groups of 300: 1200 three times, and 400, are 2048 three times, and 512.
TEST(Fit, CountsWhatDeepSpeedTakes) {
  const ModelShape model{.largest_parameter = 500, .parameters = 1000, .element_bytes = 2, .trained = 1000};
  const auto offload = deepspeed_memory("zero-offload", {}, model);
  ASSERT_TRUE(offload);
  EXPECT_EQ(offload->all(false), 18'000u);
  EXPECT_EQ(offload->all(true), 8000u + 4096 + 4096 + 2048);
  EXPECT_EQ(offload->page_locked(true), 4096u + 4096 + 2048);
  Settings settings{{"offload_param", "cpu"},       {"offload_optimizer", "cpu"}, {"sub_group", "300"},
                    {"max_in_cpu", "100"},          {"buffer_count", "5"},        {"buffer_size", "500"},
                    {"optimizer_buffer_count", "4"}};
  const auto infinity = deepspeed_memory("zero-infinity", settings, model);
  EXPECT_EQ(infinity->all(false), 2048u + 2000 + 16'000);
  EXPECT_EQ(infinity->all(true), 2048u + 2048 + 12'000 + 3 * 2048 + 512);
  settings["offload_param"] = settings["offload_optimizer"] = "nvme";
  // 200 bytes of parameters and 5 buffers of 1000 in one piece; gradients; 4 buffers of a sub-group.
  EXPECT_EQ(deepspeed_memory("zero-infinity", settings, model)->all(false), 256u + 8192 + 2000 + 4 * 2048);
  EXPECT_FALSE(deepspeed_memory("10cache", settings, model));
  EXPECT_FALSE(deepspeed_memory("zero-offload", settings, {.parameters = 1000}));  // no optimizer is known
}

class FitCommand : public ::testing::Test {
 protected:
  static Json fit(std::vector<std::string> words, int code) {
    words.insert(words.begin(), std::string("fit"));
    words.emplace_back("--json");
    const InProcessAnswer answer = run_in_process(words);
    EXPECT_EQ(answer.code, code) << answer.err;
    return answer.out.empty() ? Json() : Json::parse(answer.out);
  }
};

TEST_F(FitCommand, AnswersForAModelWithoutATrace) {
  const Json gpt2 =
      fit({"--model", "gpt2", "--batch", "1", "--seq", "128", "-m", "g5.xlarge", "-p", "zero-offload"}, 0);
  EXPECT_EQ(gpt2["fits"], true);
  EXPECT_THAT(gpt2["trace"].get<std::string>(), HasSubstr("--model gpt2"));
  const Json& policy = gpt2["policies"][0];
  EXPECT_EQ(policy["manifest"]["run"]["generate"]["model"], "gpt2");
  EXPECT_EQ(policy["manifest"]["hashes"]["trace"], nullptr);
  EXPECT_GT(policy["minimum_gpu_bytes"], 0);
  EXPECT_GT(policy["minimum_cpu_bytes"], 0);
  EXPECT_EQ(policy["minimum_nvme_bytes"], 0);
  ASSERT_EQ(policy["tiers"].size(), 3u);
  EXPECT_GE(policy["peak_bytes"]["cpu"], policy["tiers"][1]["startup_peak_bytes"]);
  EXPECT_EQ(gpt2["staging"]["bytes"], 256 * MiB);
  EXPECT_EQ(run_in_process({"fit", "-m", "g5.xlarge"}).code, 2);
  EXPECT_THAT(run_in_process({"fit", "x.trace.jsonl", "--model", "gpt2", "-m", "g5.xlarge"}).err, HasSubstr("exclude"));
  EXPECT_THAT(run_in_process({"fit", "--batch", "1", "-m", "g5.xlarge"}).err, HasSubstr("--model"));
}

// What the machine and the options cannot serve is a no, not bad usage. What is larger than all staging buffers,
// Llama's embedding of 1002 MiB, passes them in parts.
TEST_F(FitCommand, SaysNoWhereBuffersAreTooSmall) {
  const auto with = [&](const std::string& policy, const std::vector<std::string>& more, int code) {
    std::vector<std::string> words = {"--model", "llama-3-8b", "--batch", "1",    "--seq",     "128",
                                      "-m",      "g5.xlarge",  "-p",      policy, "--minimum", "none"};
    words.insert(words.end(), more.begin(), more.end());
    return fit(words, code);
  };
  const Json refused = with("zero-infinity", {"--set", "offload_param=nvme"}, 1);
  EXPECT_THAT(refused["policies"][0]["reason"].get<std::string>(), HasSubstr("raise buffer_size"));
  for (const char* policy : {"10cache", "lru", "belady", "l2l", "patrickstar"}) {
    EXPECT_EQ(with(policy, {"--changes", "none"}, 1)["policies"][0]["fits"], true) << policy;
  }
}

TEST_F(FitCommand, KeepsToALimitOfPageLockedMemory) {
  const std::vector<std::string> words = {"--model",   "gpt2", "--batch",      "1",         "--seq", "128", "-m",
                                          "g5.xlarge", "-p",   "zero-offload", "--minimum", "none"};
  const auto with = [&](const char* limit, int code) {
    std::vector<std::string> limited = words;
    limited.insert(limited.end(), {"--pinned-limit", limit});
    return fit(limited, code);
  };
  EXPECT_EQ(with("50%", 0)["policies"][0]["pinned_fits"], true);
  const Json over = with("256MiB", 1);  // the staging buffers alone
  EXPECT_EQ(over["policies"][0]["pinned_fits"], false);
  EXPECT_EQ(over["policies"][0]["fits"], true);
  EXPECT_EQ(over["fits"], false);
  EXPECT_TRUE(with("half", 2).is_null());
  std::vector<std::string> text = {"fit"};
  text.insert(text.end(), words.begin(), words.end());
  text.insert(text.end(), {"--pinned-limit", "256MiB"});
  EXPECT_THAT(run_in_process(text).out,
              ::testing::AllOf(HasSubstr("zero-offload    no"), HasSubstr("of 256.00 MiB allowed")));
}

// Each of GPT-2's small tensors takes a whole page where memory is mapped in pages of 2 MiB, so what is alive at once
// takes more there than its bytes. PyTorch's allocator rounds to 512 bytes instead. The least CPU memory is beside the
// staging buffers.
TEST_F(FitCommand, CountsPagesAndStagingBuffers) {
  const std::string paged = ::testing::TempDir() + "paged_" + std::to_string(::getpid()) + ".yaml";
  std::ofstream(paged) << "name: paged\nbase: g5.xlarge\ntiers: {gpu: {granularity: 2MiB}}\n";
  for (const auto& [machine, granularity] : {std::pair{paged, 2 * MiB}, {std::string("g5.xlarge"), Bytes{512}}}) {
    const std::vector<std::string> words = {"--model", "gpt2", "--batch", "1",  "--seq",
                                            "128",     "-m",   machine,   "-p", "zero-offload"};
    const Json gpt2 = fit(words, 0);
    const Json& demand = gpt2["demand"][0];
    EXPECT_EQ(demand["gpu_granularity_bytes"], granularity);
    EXPECT_EQ(demand["tiers"][0]["held_bytes"], demand["peak_bytes_in_gpu_memory"]);
    const auto peak = demand["peak"]["bytes"].get<Bytes>(), in_pages = demand["peak_bytes_in_gpu_memory"].get<Bytes>();
    std::vector<std::string> text = {"fit"};
    text.insert(text.end(), words.begin(), words.end());
    const std::string out = run_in_process(text).out;
    EXPECT_THAT(out, HasSubstr(" + 256.00 MiB of buffers"));
    if (granularity == 512) {
      EXPECT_GE(in_pages, peak);
      EXPECT_LT(in_pages, peak + peak / 100);
      EXPECT_THAT(out, ::testing::Not(HasSubstr("each tensor in whole")));
    } else {
      EXPECT_GT(in_pages, peak + peak / 10);
      EXPECT_THAT(out, HasSubstr("each tensor in whole 2.00 MiB"));
    }
  }
}

// Two ranks with 256 MiB of staging buffers each and, rounded, at least 48 MiB of blocks.
TEST_F(FitCommand, AddsUpPageLockedMemoryOfRanks) {
  Trace trace = three_blocks(12 * MiB);
  for (TensorId i = 0; i < 3; ++i) {
    const TensorId id = trace.add_tensor(std::string("v").append(std::to_string(i)), 12 * MiB, Role::parameter, true);
    Op op = trace.ops[i];
    op.rank = 1;
    const TensorId ids[] = {id};
    trace.add_op(op, ids, ids);
  }
  const std::string file = ::testing::TempDir() + "/two_ranks.trace.jsonl";
  write_trace(trace, file);
  const auto within = [&](const char* limit, int code) {
    return fit({file, "-m", "g6e.12xlarge", "--no-rescale", "-p", "10cache", "--minimum", "none", "--pinned-limit",
                limit, "--changes", "none"},
               code)["policies"][0]["pinned_fits"];
  };
  EXPECT_EQ(within("400MiB", 1), false);  // enough for one
  EXPECT_EQ(within("1GiB", 0), true);
  EXPECT_EQ(within("0.4%", 0), true);  // of 2 × 95.25 GiB: 780 MiB
  EXPECT_EQ(within("0.2%", 1), false);
}

TEST_F(FitCommand, PrintsAlikeRanksOnce) {
  const InProcessAnswer answer =
      run_in_process({"fit", "--model", "gpt2", "--batch", "4", "--seq", "64", "--data-parallel", "4", "--zero", "3",
                      "-m", "g5.12xlarge", "-p", "lru", "--minimum", "none"});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, AllOf(HasSubstr("\nranks 0-3, alike\n"), ::testing::Not(HasSubstr("\nrank 1\n"))));
}

// Of GPT-2's 124.4 million parameters DeepSpeed's stage 2 takes 18 bytes each, 2.08 GiB; the simulation puts what does
// not fit on the SSD.
TEST_F(FitCommand, SaysWhereDeepSpeedWouldRunOutOfMemory) {
  for (const char* command : {"fit", "compare"}) {
    const auto with = [&](const char* memory, bool fits) {
      const std::vector<std::string> words = {command, "--model", "gpt2",        "--batch",   "1",
                                              "--seq", "64",      "-m",          "g5.xlarge", "--cpu-memory",
                                              memory,  "-p",      "zero-offload"};
      std::vector<std::string> json = words;
      json.emplace_back("--json");
      const Json all = Json::parse(run_in_process(json).out);
      const Json& policy = all.is_array() ? all.back() : all["policies"][0];
      EXPECT_EQ(policy["fits"], true) << policy;
      EXPECT_EQ(policy["deepspeed_cpu_memory"]["fits"], fits) << policy;
      return run_in_process(words).out;
    };
    EXPECT_THAT(with("2GiB", false), AllOf(HasSubstr("zero-offload: DeepSpeed itself would run out of CPU memory"),
                                           HasSubstr("2.09 GiB of 2.00 GiB")));
    EXPECT_THAT(with("4GiB", true), ::testing::Not(HasSubstr("DeepSpeed itself")));
  }
}

// Whatever the command, what was changed of the machine stands in the title, and that the SSD sets the bound is no
// prediction.
TEST_F(FitCommand, SaysWhatMachineAndWhatKindOfBound) {
  const auto words = [](const std::string& command, const std::vector<std::string>& more) {
    std::vector<std::string> list = {command, "--model", "gpt2", "--batch", "1", "--seq", "64", "-m", "g5.xlarge"};
    list.insert(list.end(), {"--gpu-memory", "1GiB", "--cpu-memory", "256MiB", "--limit", "nvme_write=50MB/s"});
    list.insert(list.end(), more.begin(), more.end());
    return list;
  };
  const std::string title = "g5.xlarge with GPU memory 1.00 GiB, CPU memory 256.00 MiB, nvme_write at most 50.00 MB/s";
  const std::string binds = "nvme_write at 50.00 MB/s, from op ",
                    note = "reads and writes overlapping: a limit, no prediction";
  const std::vector<std::string> policy = {"-p", "lru"};
  for (const char* command : {"compare", "fit", "bound", "explain", "replay", "endurance", "tune", "sensitivity"}) {
    SCOPED_TRACE(command);
    const std::string name = command;
    std::vector<std::string> more = name == "bound" ? std::vector<std::string>() : policy;
    if (name == "fit") more = {"-p", "foresight", "--minimum", "none", "--changes", "none"};
    if (name == "explain") more.insert(more.end(), {"--policies", "none", "--top", "0"});
    if (name == "tune") more.insert(more.end(), {"--budget", "1"});
    if (name == "sensitivity") more.insert(more.end(), {"--over", "h2d=10GB/s,20GB/s"});
    const InProcessAnswer answer = run_in_process(words(name, more));
    EXPECT_EQ(answer.code, name == "fit" ? 1 : 0) << answer.err;
    EXPECT_THAT(answer.out, HasSubstr(title));
    if (name == "compare" || name == "fit" || name == "bound" || name == "explain") {
      EXPECT_THAT(answer.out, HasSubstr(note));
      EXPECT_THAT(answer.out, HasSubstr(name == "compare" ? note : binds));
      more.emplace_back("--json");
      const Json all = Json::parse(run_in_process(words(name, more)).out);
      const Json& json = all.is_array() ? all.front() : all;
      EXPECT_THAT(json["notes"].back(), HasSubstr(note));
      if (name == "fit") continue;
      EXPECT_EQ(json["binding"]["name"], json["bound_term"]);
      EXPECT_EQ(json["binding"]["links"][0], "nvme_write");
      EXPECT_GT(json["binding"]["windows"].size(), 0u);
    }
  }
}

// As `compare` has them: of the trace as recorded, and whatever is recomputed.
TEST_F(FitCommand, NamesBothBoundsOfATraceWithChoices) {
  std::istringstream text(
      "--model gpt2 --batch 8 --seq 512 --recompute choose -m g5.xlarge --gpu-memory 3GiB -p foresight");
  const std::vector<std::string> of(std::istream_iterator<std::string>(text), {});
  const auto with = [&](std::string command, const std::vector<std::string>& more) {
    std::vector<std::string> words = {std::move(command)};
    words.insert(words.end(), of.begin(), of.end());
    words.insert(words.end(), more.begin(), more.end());
    return run_in_process(words).out;
  };
  const std::vector<std::string> quick = {"--minimum", "none", "--changes", "none"};
  const Json fit = Json::parse(with("fit", {"--minimum", "none", "--changes", "none", "--json"}));
  const Json compared = Json::parse(with("compare", {"--json"})).front();
  EXPECT_LT(fit["bound_choice_seconds"], fit["bound_seconds"]);
  for (const char* name : {"bound_seconds", "bound_choice_seconds", "bound_term"}) {
    EXPECT_EQ(fit[name], compared[name]) << name;
  }
  EXPECT_THAT(with("fit", quick), HasSubstr(" an iteration, whatever it recomputes (as recorded "));
}

TEST_F(FitCommand, SaysWhatTheCpuComputesOfTheWaitForIt) {
  const std::vector<std::string> words = {"compare", "--model", "gpt2",      "--batch", "1",           "--seq",
                                          "64",      "-m",      "g5.xlarge", "-p",      "zero-offload"};
  EXPECT_THAT(run_in_process(words).out, HasSubstr("Of cpu_optimizer the CPU's own computing, the rest its waits"));
  std::vector<std::string> json = words;
  json.emplace_back("--json");
  const Json result = Json::parse(run_in_process(json).out).back();
  const Json& wait = result["cpu_optimizer_wait_seconds"];
  EXPECT_GT(wait["computing"], 0);
  EXPECT_NEAR(wait["computing"].get<double>() + wait["transfers"].get<double>(),
              result["stall_seconds"]["cpu_optimizer"].get<double>(), 1e-12);
}

// Tries on a long trace take minutes: of several policies they are made where they are asked for, and a note says so.
TEST_F(FitCommand, SearchesALongTraceOnlyWhereAsked) {
  const auto answer = [](const std::string& policies, const std::string& micro_batches) {
    return run_in_process({"fit", "--model", "gpt2", "--batch", micro_batches, "--micro-batches", micro_batches,
                           "--seq", "8", "-m", "g5.xlarge", "-p", policies});
  };
  const InProcessAnswer several = answer("lru,fifo", "200");
  EXPECT_THAT(several.err, HasSubstr("the least memory of 2 policies is not searched on a trace of"));
  EXPECT_THAT(several.out, Not(HasSubstr("least GPU memory")));
  for (const InProcessAnswer& searched : {answer("lru", "200"), answer("lru,fifo", "2")}) {
    EXPECT_THAT(searched.err, Not(HasSubstr("not searched")));
    EXPECT_THAT(searched.out, HasSubstr("least GPU memory"));
  }
}

TEST_F(FitCommand, ResultsOfAModelAreReproduced) {
  const std::string file = ::testing::TempDir() + "/model_result.json";
  const InProcessAnswer result = run_in_process(
      {"replay", "--model", "gpt2", "--batch", "1", "--seq", "64", "-m", "g5.xlarge", "-p", "lru", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  std::ofstream(file) << result.out;
  const InProcessAnswer again = run_in_process({"reproduce", file});
  EXPECT_EQ(again.code, 0) << again.out << again.err;
}

// What nobody said of a desktop around a card is named, until somebody says it.
TEST(Fit, NamesWhatIsAssumedOfADesktop) {
  std::vector<std::string> words = {"fit", "--model",  "gpt2", "--batch", "1",         "--seq", "64",
                                    "-m",  "rtx-4090", "-p",   "lru",     "--minimum", "none",  "--json"};
  const auto desktop = [&] {
    const Json answer = Json::parse(run_in_process(words).out);
    for (const Json& line : answer.at("assumed")) {
      if (line.get<std::string>().starts_with("a desktop with")) return line.get<std::string>();
    }
    return std::string();
  };
  EXPECT_THAT(desktop(), AllOf(HasSubstr("61.00 GiB of cpu"), HasSubstr("nvme_read at 6.00 GB/s")));
  words.insert(words.end(), {"--cpu-memory", "32GiB", "--nvme", "7GB/s"});
  EXPECT_THAT(desktop(), AllOf(Not(HasSubstr("of cpu")), Not(HasSubstr("nvme_read")), HasSubstr("h2d at")));
}

}  // namespace
}  // namespace tencache
