// G10's recordings (MICRO'23) on the machine of its base runs, against what it published. Skipped where they are
// absent.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "configs/machine_yaml.h"
#include "policies/registry.h"
#include "sim/simulate.h"
#include "traces/import/csv.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

struct Recording {
  const char* name;
  double on_demand_seconds;      // ours, at 16 MiB
  double published_uvm_seconds;  // second iteration; ResNet: the steady one
  double published_g10_seconds;
  double published_deepum_seconds;
  double published_flashneuron_seconds;       // 0: it fails
  double g10_below, g10_above;                // tolerances under our rules, and …
  double g10_simulator_tolerance;             // … with those of G10's simulator
  double published_ssd_gb, published_cpu_gb;  // that its g10 moves in an iteration, each way
  double cpu_gb_tolerance;
};

class RecordingsTest : public testing::TestWithParam<Recording> {
 protected:
  void SetUp() override {
    const auto folder = std::filesystem::path(TENCACHE_SOURCE_DIR) / "../shared/traces/g10" / GetParam().name;
    if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no recording in " << folder;
    CsvImportOptions options;
    options.ops_file = folder.string();
    options.size_column = "bytes4k";
    trace_ = import_csv(options);
    machine_ = parse_machine_of_g10();
  }
  static MachineSpec parse_machine_of_g10() {
    return read_machine(std::string(TENCACHE_SOURCE_DIR) + "/configs/machines/g10-a100.yaml");
  }
  RunResult run(const std::string& policy, const std::map<std::string, std::string>& settings,
                const RunLimits& limits) const {
    const MadePolicy made = make_policy(policy, settings);
    const Program program = lower(trace_, *made.policy, machine_);
    return simulate(program, machine_, *made.policy, limits);
  }

  Trace trace_;
  MachineSpec machine_;
};

TEST_P(RecordingsTest, IdealIsTheSumOfTheKernels) {
  Nanoseconds sum = 0;
  for (const Op& op : trace_.ops) sum += op.duration_ns + op.gap_before_ns;
  const RunResult result = run("ideal", {}, {});
  ASSERT_TRUE(result.fits) << result.misfit;
  EXPECT_EQ(result.window.time_ns, sum * static_cast<Nanoseconds>(result.period));
}

TEST_P(RecordingsTest, OnDemand) {
  const RunResult result = run("on-demand", {}, {});
  ASSERT_TRUE(result.fits) << result.misfit;
  EXPECT_NEAR(result.iteration_seconds(), GetParam().on_demand_seconds, 0.1 * GetParam().on_demand_seconds);
}

TEST_P(RecordingsTest, UvmAsPublished) {
  const RunResult result = run("on-demand", {{"mode", "g10-uvm"}}, {.max_iterations = 2, .until_steady = false});
  ASSERT_TRUE(result.fits) << result.misfit;
  EXPECT_NEAR(static_cast<double>(result.iteration_ns.at(1)) * 1e-9, GetParam().published_uvm_seconds,
              0.15 * GetParam().published_uvm_seconds);
}

double gigabytes(const RunResult& result, const MachineSpec& machine, TierId from, TierId to) {
  const LinkId link = machine.link_between(from, to);
  return static_cast<double>(result.window.links[link].bytes) / static_cast<double>(result.period) * 1e-9;
}

TEST_P(RecordingsTest, G10) {
  const RunResult result = run("g10", {}, {});
  ASSERT_TRUE(result.fits) << result.misfit;
  EXPECT_GE(result.iteration_seconds(), GetParam().published_g10_seconds * (1 - GetParam().g10_below));
  EXPECT_LE(result.iteration_seconds(), GetParam().published_g10_seconds * (1 + GetParam().g10_above));
}

TEST_P(RecordingsTest, G10WithTheRunTimeRulesOfItsSimulator) {
  const RunResult result = run("g10", {{"promote", "false"}, {"victim", "fifo"}, {"overlap_faults", "true"}}, {});
  ASSERT_TRUE(result.fits) << result.misfit;
  EXPECT_NEAR(result.iteration_seconds(), GetParam().published_g10_seconds,
              GetParam().g10_simulator_tolerance * GetParam().published_g10_seconds);
}

// With the planner's units too. What is moved is planned, but for the faults, which go to CPU memory: ViT's plan does
// not reach its limit, and its faults are most of that.
TEST_P(RecordingsTest, G10AsItsSimulator) {
  const RunResult result = run("g10", {{"mode", "g10-simulator"}}, {});
  ASSERT_TRUE(result.fits) << result.misfit;
  EXPECT_NEAR(result.iteration_seconds(), GetParam().published_g10_seconds,
              GetParam().g10_simulator_tolerance * GetParam().published_g10_seconds);
  EXPECT_NEAR(gigabytes(result, machine_, 0, 2), GetParam().published_ssd_gb, 0.02 * GetParam().published_ssd_gb);
  EXPECT_NEAR(gigabytes(result, machine_, 2, 0), GetParam().published_ssd_gb, 0.02 * GetParam().published_ssd_gb);
  EXPECT_NEAR(gigabytes(result, machine_, 0, 1), GetParam().published_cpu_gb,
              GetParam().cpu_gb_tolerance * GetParam().published_cpu_gb);
}

TEST_P(RecordingsTest, DeepUmAsPublished) {
  const RunResult result = run("deepum", {{"mode", "g10-simulator"}}, {});
  ASSERT_TRUE(result.fits) << result.misfit;
  EXPECT_NEAR(result.iteration_seconds(), GetParam().published_deepum_seconds,
              0.05 * GetParam().published_deepum_seconds);
}

// Where it fails in G10's runs it does here: its memory is fragmented.
TEST_P(RecordingsTest, FlashNeuronAsPublished) {
  const RunResult result = run("flashneuron", {}, {});
  ASSERT_EQ(result.fits, GetParam().published_flashneuron_seconds > 0) << result.misfit;
  if (!result.fits) {
    ASSERT_EQ(result.policy_notes.size(), 2U);
    EXPECT_NE(result.policy_notes[1].find("fragmented"), std::string::npos);
    EXPECT_TRUE(run("flashneuron", {{"allocator", "exact"}}, {}).fits);
    return;
  }
  EXPECT_NEAR(result.iteration_seconds(), GetParam().published_flashneuron_seconds,
              0.05 * GetParam().published_flashneuron_seconds);
}

INSTANTIATE_TEST_SUITE_P(
    G10, RecordingsTest,
    testing::Values(Recording{"BERT_Base-256", 8.55, 19.65, 7.311, 9.160, 10.22, 0.03, 0.03, 0.03, 2.315, 7.248, 0.02},
                    Recording{"VIT-1280", 6.45, 24.60, 5.540, 7.558, 0, 0.08, 0.03, 0.04, 5.223, 23.61, 0.25},
                    Recording{"ResNet152-1280", 200.7, 526.8, 114.42, 132.0, 175.3, 0.03, 0.03, 0.03, 116.87, 146.75,
                              0.07}),
    [](const auto& info) {
      return std::string(info.param.name).substr(0, std::string(info.param.name).find_first_of("_1-"));
    });

}  // namespace
}  // namespace tencache
