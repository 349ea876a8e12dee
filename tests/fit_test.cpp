// How much memory a run takes: three blocks of parameters that are updated in place, one op each.
#include "sim/fit.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "sim/policy_run.h"
#include "tests/in_process.h"
#include "traces/file_io.h"
#include "traces/trace_file.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
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
  const auto least = [&](const MachineSpec& on, TierId tier, bool fits) {
    return minimum_capacity(trace, on, tier, "lru", {}, {}, fits);
  };
  EXPECT_EQ(least(roomy, 0, true), 12 * MiB);
  EXPECT_EQ(least(roomy, 1, true), 36 * MiB);
  const MachineSpec little_cpu = machine(64 * MiB, 30 * MiB, false);
  EXPECT_FALSE(run_policy(trace, little_cpu, "lru", {}, {}).result.fits);
  EXPECT_EQ(least(little_cpu, 1, false), 36 * MiB);
  EXPECT_EQ(least(little_cpu, 0, false), std::nullopt);  // no GPU memory helps
}

// A block is more than the GPU has, and all three more than the CPU has.
TEST(Fit, FindsWhatTwoTiersLack) {
  const Trace trace = three_blocks(12 * MiB);
  const MachineSpec small = machine(8 * MiB, 30 * MiB, false);
  EXPECT_EQ(minimum_capacity(trace, small, 0, "lru", {}, {}, false), std::nullopt);
  EXPECT_EQ(minimum_capacity(trace, small, 1, "lru", {}, {}, false), std::nullopt);
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
      return minimum_capacity(ranks(3, longer), three, tier, "lru", {}, {}, true);
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
  EXPECT_EQ(peaks[1].startup, 36 * MiB);
  EXPECT_EQ(peaks[1].steady, 0u);
  EXPECT_EQ(peaks[0].startup, 36 * MiB);
  EXPECT_EQ(peaks[0].steady, 36 * MiB);
  EXPECT_EQ(outcome.result.peak_bytes[1], 36 * MiB);
  // Page-locked one by one each takes 16 MiB.
  EXPECT_EQ(peaks[1].pinned, 48 * MiB);
  EXPECT_EQ(peaks[0].pinned, 0u);
  const MachineSpec exact = machine(64 * MiB, GiB, false);
  EXPECT_EQ(tier_peaks(timeline, outcome.result, exact)[1].pinned, 0u);
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
    std::vector<std::string> words = {"--model", "llama-3-8b", "--batch", "1",    "--seq",       "128",
                                      "-m",      "g5.xlarge",  "-p",      policy, "--no-minimum"};
    words.insert(words.end(), more.begin(), more.end());
    return fit(words, code);
  };
  const Json refused = with("zero-infinity", {"--set", "offload_param=nvme"}, 1);
  EXPECT_THAT(refused["policies"][0]["reason"].get<std::string>(), HasSubstr("raise buffer_size"));
  for (const char* policy : {"10cache", "lru", "belady", "l2l", "patrickstar"}) with(policy, {}, 0);
}

TEST_F(FitCommand, KeepsToALimitOfPageLockedMemory) {
  const std::vector<std::string> words = {"--model",   "gpt2", "--batch",      "1",           "--seq", "128", "-m",
                                          "g5.xlarge", "-p",   "zero-offload", "--no-minimum"};
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

// Each of GPT-2's small tensors takes a whole page of 2 MiB of an A10G, so that what is alive at once takes more there
// than its bytes; the least CPU memory is beside the staging buffers.
TEST_F(FitCommand, CountsPagesAndStagingBuffers) {
  const std::vector<std::string> words = {"--model", "gpt2", "--batch",   "1",  "--seq",
                                          "128",     "-m",   "g5.xlarge", "-p", "zero-offload"};
  const Json gpt2 = fit(words, 0);
  const Json& demand = gpt2["demand"][0];
  EXPECT_EQ(demand["gpu_granularity_bytes"], 2 * MiB);
  EXPECT_GT(demand["peak_bytes_in_gpu_memory"], demand["peak"]["bytes"]);
  EXPECT_EQ(demand["tiers"][0]["held_bytes"], demand["peak_bytes_in_gpu_memory"]);
  std::vector<std::string> text = {"fit"};
  text.insert(text.end(), words.begin(), words.end());
  EXPECT_THAT(run_in_process(text).out,
              ::testing::AllOf(HasSubstr("each tensor in whole 2.00 MiB"), HasSubstr(" + 256.00 MiB of buffers")));
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
    return fit({file, "-m", "g6e.12xlarge", "--no-rescale", "-p", "lru", "--no-minimum", "--pinned-limit", limit},
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
                      "-m", "g5.12xlarge", "-p", "lru", "--no-minimum"});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, AllOf(HasSubstr("\nranks 0-3, alike\n"), ::testing::Not(HasSubstr("\nrank 1\n"))));
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

}  // namespace
}  // namespace tencache
