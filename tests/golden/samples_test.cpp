// The recordings that are shipped, made by live LibTorch programs: what they say of their programs, and that every
// policy replays them with less memory than they need.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "policies/registry.h"
#include "sim/simulate.h"
#include "traces/file/trace_file.h"
#include "traces/summary.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;

const fs::path folder = fs::path(TENCACHE_SOURCE_DIR) / "traces/samples";

struct Sample {
  const char* name;
  std::uint64_t trained;  // parameters
  Bytes kept_bytes;       // of parameters that are frozen, and of running statistics
};
const std::vector<Sample> samples = {{"gpt-small", 5'692'672, 0},
                                     {"gpt2-small", 123'849'984, 0},
                                     {"lora-encoder", 407'556, 75'608'064},
                                     {"lstm", 3'940'352, 0},
                                     {"resnet", 11'173'962, 38'560}};

Trace read(const std::string& name) { return read_trace((folder / (name + ".trace.jsonl.zst")).string()); }

Bytes bytes_of(const Trace& trace, Role role) {
  Bytes bytes = 0;
  for (const Tensor& tensor : trace.tensors) bytes += tensor.role == role ? tensor.bytes : 0;
  return bytes;
}

TEST(SamplesTest, AreAllListedAndSmall) {
  std::vector<std::string> found, listed;
  Bytes bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    found.push_back(entry.path().filename().string());
    bytes += entry.file_size();
  }
  for (const Sample& sample : samples) listed.push_back(std::string(sample.name) + ".trace.jsonl.zst");
  std::ranges::sort(found);
  std::ranges::sort(listed);
  EXPECT_EQ(found, listed);
  EXPECT_LT(bytes, 1 * MiB);
}

TEST(SamplesTest, SayWhatTheirProgramsDo) {
  for (const Sample& sample : samples) {
    SCOPED_TRACE(sample.name);
    const Trace trace = read(sample.name);
    const TraceSummary summary = summarize(trace);
    EXPECT_EQ(trace.header.model, sample.name);
    EXPECT_EQ(trace.header.recorded_by, "tencache record");
    EXPECT_EQ(to_string(trace.header.provenance.made_by), "recorded");
    EXPECT_EQ(summary.measured_share(), 1);
    for (const Phase phase : {Phase::forward, Phase::backward, Phase::optimizer}) {
      EXPECT_GT(summary.ops[static_cast<std::size_t>(phase)][static_cast<std::size_t>(Device::gpu)].duration_ns, 0);
    }
    // AdamW in fp32: a gradient and two moments for each parameter that is trained.
    EXPECT_EQ(bytes_of(trace, Role::gradient), 4 * sample.trained);
    EXPECT_EQ(bytes_of(trace, Role::optimizer_state), 8 * sample.trained);
    EXPECT_EQ(bytes_of(trace, Role::parameter), 4 * sample.trained + sample.kept_bytes);
    EXPECT_GT(bytes_of(trace, Role::activation), 0U);
    EXPECT_TRUE(std::ranges::any_of(trace.ops, [](const Op& op) { return op.placeable && op.reorderable; }));
    EXPECT_GE(summary.module_count, 4U);
    EXPECT_GT(summary.peak_demand.bytes, summary.working_set.bytes);
  }
}

// A GPU with 60 % of what the recording needs at once, CPU memory and an SSD that hold all of it.
MachineSpec machine_for(const TraceSummary& summary) {
  const auto tier = [](const char* name, TierKind kind, Bytes capacity) {
    Tier made;
    made.name = name;
    made.kind = kind;
    made.capacity = capacity;
    made.granularity = 4 * KiB;
    return made;
  };
  MachineSpec machine;
  machine.name = "sixty-percent";
  const Bytes all = 2 * summary.all_tensors.bytes;
  machine.tiers = {
      tier("gpu", TierKind::gpu, std::max(summary.peak_demand.bytes / 10 * 6, summary.working_set.bytes / 10 * 11)),
      tier("cpu", TierKind::cpu, all), tier("nvme", TierKind::nvme, all)};
  const auto link = [&machine](const char* name, TierId from, TierId to, BytesPerSecond bandwidth) {
    Link made;
    made.name = name;
    made.from = from;
    made.to = to;
    made.bandwidth = bandwidth;
    machine.links.push_back(made);
  };
  link("h2d", 1, 0, 4'000'000'000);
  link("d2h", 0, 1, 4'000'000'000);
  link("nvme_read", 2, 1, 2'000'000'000);
  link("nvme_write", 1, 2, 1'000'000'000);
  machine.staging = {.tier = 1, .count = 16, .bytes = 16 * MiB};
  machine.initial_tier = 1;
  machine.cpu.adam_parameters_per_second = 2e8;
  machine.validate();
  return machine;
}

// Those that give up by default where they could evict are told to evict; planners plan briefly.
std::map<std::string, std::string> settings_of(const PolicyInfo& info) {
  std::map<std::string, std::string> settings;
  for (const Options::Info& option : info.options) {
    const bool evicts = std::find(option.choices.begin(), option.choices.end(), "evict") != option.choices.end();
    if (option.name == "overflow" && evicts) settings["overflow"] = "evict";
    if (option.name == "plan_events") settings["plan_events"] = "20000";
  }
  return settings;
}

TEST(SamplesTest, EveryPolicyReplaysThem) {
  for (const Sample& sample : samples) {
    const Trace trace = read(sample.name);
    const MachineSpec machine = machine_for(summarize(trace));
    Nanoseconds least_ns = 0;
    for (const Op& op : trace.ops) least_ns += op.phase == Phase::optimizer ? 0 : op.duration_ns;
    for (const PolicyInfo& info : list_policies()) {
      SCOPED_TRACE(sample.name + std::string(" under ") + info.name);
      const MadePolicy made = make_policy(info.name, settings_of(info));
      const Program program = lower(trace, *made.policy, machine);
      const RunResult result = simulate(program, machine, *made.policy, {.max_iterations = 4});
      ASSERT_TRUE(result.fits) << result.misfit;
      EXPECT_GE(result.iteration_seconds(), static_cast<double>(least_ns) * 1e-9);
      if (info.name == "ideal") continue;
      EXPECT_LE(result.peak_bytes[0], machine.tiers[0].capacity);
    }
  }
}

}  // namespace
}  // namespace tencache
