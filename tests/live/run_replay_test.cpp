// Recordings, scaled down, on the real machine under every policy: no tensor comes back corrupted. All of G10's, for
// longer and in files as well: bench/replay_recordings.py.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "configs/machine_yaml.h"
#include "core/engine/engine.h"
#include "core/error.h"
#include "executor/host_machine.h"
#include "executor/replay_bodies.h"
#include "policies/registry.h"
#include "sim/rehearse.h"
#include "traces/file/trace_file.h"
#include "traces/import/csv.h"
#include "traces/summary.h"
#include "traces/transform/edits.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;

TEST(ScaleTest, FactorsAreFractionsOrNumbers) {
  EXPECT_EQ(parse_scale("--scale-bytes", "1"), 1);
  EXPECT_EQ(parse_scale("--scale-bytes", "0"), 0);
  EXPECT_EQ(parse_scale("--scale-bytes", "0.25"), 0.25);
  EXPECT_EQ(parse_scale("--scale-bytes", "1/1024"), 1.0 / 1024);
  for (const char* wrong : {"", "2", "-1", "1/0", "1/", "/2", "1/2/3", "half", "nan", "1/-2"}) {
    EXPECT_THROW(parse_scale("--scale-bytes", wrong), Error) << wrong;
  }
}

TEST(ScaleTest, BytesAndTimesScaleApart) {
  Trace trace;
  trace.add_tensor("large", 1'000'000, Role::parameter, true);
  trace.add_tensor("tiny", 3, Role::parameter, true);
  Op op;
  op.duration_ns = 1000;
  op.gap_before_ns = 50;
  op.bytes = 4000;
  trace.add_op(op, std::vector<TensorId>{0, 1}, {});
  scale_trace(trace, 0.25, 0.1);
  EXPECT_EQ(trace.tensors[0].bytes, 250'000U);
  EXPECT_EQ(trace.tensors[1].bytes, 1U) << "no tensor disappears";
  EXPECT_EQ(trace.ops[0].bytes, 1000U);
  EXPECT_EQ(trace.ops[0].duration_ns, 100);
  EXPECT_EQ(trace.ops[0].gap_before_ns, 5);
  scale_trace(trace, 1, 0);
  EXPECT_EQ(trace.tensors[0].bytes, 250'000U);
  EXPECT_EQ(trace.ops[0].duration_ns, 0);
}

std::uint64_t tensors_read(const Trace& trace) {
  std::set<TensorId> read;
  for (const Op& op : trace.ops) read.insert(trace.reads(op).begin(), trace.reads(op).end());
  return read.size();
}

// Two iterations without computing or pacing. What a policy that cannot move enough does not fit into gets a GPU for
// the whole peak.
void replay_for_real(const Trace& trace, MachineSpec machine, const std::string& policy) {
  SCOPED_TRACE(policy);
  const std::string folder = fs::temp_directory_path().string();
  for (Tier& tier : machine.tiers) {
    if (tier.kind == TierKind::nvme) tier.directories = {folder};
  }
  for (const bool enough : {false, true}) {
    if (enough) machine.tiers[0].capacity = 2 * summarize(trace).peak_demand.bytes;
    machine = with_real_pages(machine);
    const MadePolicy made = make_policy(policy);
    const Program program = lower(trace, *made.policy, machine);
    const Layout layout = made.policy->layout(machine, &program);
    HostMachineOptions options;
    options.pace = false;
    options.unlimited_gpu = layout.unlimited_gpu;
    options.addressed = addressed_tiers(machine, layout);
    ReplayBodies bodies(program.trace, {.duration_scale = 0});
    HostMachine host(machine, bodies, options);
    EngineOptions engine_options;
    engine_options.rehearse = rehearse;
    Engine engine(machine, host, *made.policy, &program, std::move(engine_options));
    const RunResult result = engine.run({.max_iterations = 2, .until_steady = false});
    if (!result.fits && !enough) continue;
    ASSERT_TRUE(result.fits) << result.misfit;
    const ReplayCounts counts = bodies.counts();
    EXPECT_EQ(counts.first_corruption, "");
    EXPECT_EQ(counts.corrupted_tensors, 0U);
    EXPECT_EQ(counts.ops, 2 * program.trace.ops.size());
    EXPECT_EQ(counts.verified_tensors, tensors_read(program.trace));
    return;
  }
}

MachineSpec shipped_machine(const std::string& name) {
  return read_machine(std::string(TENCACHE_SOURCE_DIR) + "/configs/machines/" + name + ".yaml");
}

class RunReplayTest : public testing::TestWithParam<std::string> {};

TEST_P(RunReplayTest, ASampleComesBackAsItWasWritten) {
  Trace trace = read_trace(TENCACHE_SOURCE_DIR "/traces/samples/gpt-small.trace.jsonl.zst");
  scale_trace(trace, 1.0 / 16, 0);
  MachineSpec machine = shipped_machine("small-host");
  machine.tiers[0].capacity = 4 * MiB;
  machine.tiers[1].capacity = 8 * MiB;
  replay_for_real(trace, machine, GetParam());
}

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const PolicyInfo& info : list_policies()) names.push_back(info.name);
  return names;
}

const auto policy_case = [](const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
};

INSTANTIATE_TEST_SUITE_P(Policies, RunReplayTest, testing::ValuesIn(policy_names()), policy_case);

class RecordingReplayTest : public testing::TestWithParam<std::string> {};

TEST_P(RecordingReplayTest, ComesBackAsItWasWritten) {
  const fs::path folder = fs::path(TENCACHE_SOURCE_DIR) / "../shared/traces/g10" / GetParam();
  if (!fs::exists(folder)) GTEST_SKIP() << "no recording in " << folder;
  CsvImportOptions options;
  options.ops_file = folder.string();
  options.size_column = "bytes4k";
  Trace trace = import_csv(options);
  scale_trace(trace, 1.0 / 8192, 0);
  MachineSpec machine = shipped_machine("g10-a100-small");
  machine.tiers[0].capacity = 9 * MiB;
  machine.tiers[1].capacity = 4 * MiB;
  for (const char* policy : {"g10", "10cache"}) replay_for_real(trace, machine, policy);
}

INSTANTIATE_TEST_SUITE_P(Recordings, RecordingReplayTest,
                         testing::Values("BERT_Base-256", "Inceptionv3-1536", "ResNet152-1280", "SENet154-1024",
                                         "VIT-1280"),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return info.param.substr(0, info.param.find_first_of("-_"));
                         });

}  // namespace
}  // namespace tencache
