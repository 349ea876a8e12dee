// What a measured run says of its steps, and of its prediction.
#include "answers/measured.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "studies/measured.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Measured, StepsCountFromTheThirdOn) {
  EXPECT_EQ(step_figures({}, 0).median_step_seconds, 0);
  EXPECT_DOUBLE_EQ(step_figures({9, 5}, 0).median_step_seconds, 7) << "no others: all count";
  const StepFigures odd = step_figures({9, 8, 3, 1, 2}, 0);
  EXPECT_DOUBLE_EQ(odd.median_step_seconds, 2);
  EXPECT_DOUBLE_EQ(odd.mean_step_seconds, 2);
  const StepFigures even = step_figures({9, 8, 1, 2, 4, 9}, 0);
  EXPECT_DOUBLE_EQ(even.median_step_seconds, 3);
  EXPECT_DOUBLE_EQ(even.mean_step_seconds, 4);
}

UntimedResult result_of(double iteration_seconds, double h2d_seconds, const Json& h2d_bytes, Bytes gpu_peak) {
  UntimedResult result;
  result.fits = true;
  result.iteration_seconds = iteration_seconds;
  result.compute_seconds = 1;
  result.gap_seconds = 0;
  result.stall_seconds.emplace();
  (*result.stall_seconds)[StallCause::h2d] = h2d_seconds;
  result.busy_seconds = {{"gpu_lane", 1.0}, {"h2d", h2d_seconds}};
  result.traffic_bytes = {{"h2d", h2d_bytes}};
  result.peak_bytes = {{"gpu", gpu_peak}};
  return result;
}

// A computer with 8 GiB of CPU memory and a disk that reads 1 GB/s.
class LiveSettings : public ::testing::Test {
 protected:
  LiveSetting setting_of(LiveRanks ranks, const std::string& more = "", const std::string& cpu_memory = "") {
    const std::string file = ::testing::TempDir() + "live_settings." + std::to_string(::getpid()) + ".yaml";
    std::ofstream(file) << "name: box\ninitial_tier: cpu\n"
                           "cpu: {adam_parameters_per_second: 1000}\n"
                           "tiers:\n"
                           "  - {name: gpu, kind: gpu, capacity: 1GiB}\n"
                           "  - {name: cpu, kind: cpu, capacity: 8GiB}\n"
                           "  - {name: nvme, kind: nvme, capacity: 1MiB}\n"
                           "links:\n"
                           "  - {name: h2d, from: cpu, to: gpu, bandwidth: 8GB/s}\n"
                           "  - {name: nvme_read, from: nvme, to: gpu, bandwidth: 1GB/s}\n"
                        << more;
    Scenario scenario;
    scenario.machine.name = file;
    scenario.machine.cpu_memory = cpu_memory;
    scenario.policy.name = "lru";
    scenario.hardware.device = "host";
    LiveSetting setting(scenario, {::testing::TempDir()}, std::move(ranks));
    std::filesystem::remove(file);
    return setting;
  }
  static LiveRanks here(std::uint64_t rank, std::uint64_t count) {
    LiveRanks ranks;
    ranks.rank_here = rank;
    ranks.count_here = count;
    return ranks;
  }
  static std::string error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(LiveSettings, ARankHasItsPartOfMemoryAndDisks) {
  const LiveSetting setting = setting_of(here(1, 4));
  EXPECT_EQ(setting.machine.rank_count(), 1u);
  EXPECT_EQ(setting.machine.tiers[0].capacity, GiB);
  EXPECT_EQ(setting.machine.tiers[1].capacity, 2 * GiB);
  EXPECT_EQ(setting.machine.tiers[2].capacity, 256 * KiB);
  EXPECT_EQ(setting.machine.links[0].bandwidth, 8'000'000'000u);
  EXPECT_EQ(setting.machine.links[1].bandwidth, 250'000'000u);
  EXPECT_EQ(setting.machine.cpu.adam_parameters_per_second, 1000) << "each has a core";
  EXPECT_EQ(setting.host.rank_count(), 4u);
  EXPECT_EQ(setting.host.of_rank(3).links[1].bandwidth, 1'000'000'000u);
}

TEST_F(LiveSettings, MemoryThatIsGivenIsEachRanks) {
  const LiveSetting setting = setting_of(here(1, 2), "", "3GiB");
  EXPECT_EQ(setting.machine.tiers[1].capacity, 3 * GiB);
  EXPECT_EQ(setting.machine.links[1].bandwidth, 500'000'000u);
}

TEST_F(LiveSettings, AMachineOfSeveralRanksSaysWhatTheyShare) {
  const LiveSetting setting = setting_of(here(1, 2), "ranks: 2\n");
  EXPECT_EQ(setting.machine.tiers[1].capacity, 8 * GiB) << "nothing";
  EXPECT_EQ(setting.machine.links[1].bandwidth, 1'000'000'000u);
  EXPECT_THAT(error_of([&] { setting_of(here(1, 3), "ranks: 2\n"); }),
              AllOf(HasSubstr(".yaml: the machine has 2 ranks, and 3 run on this computer"), HasSubstr("`ranks: 3`")));
}

TEST_F(LiveSettings, ARankThatIsNotThereIsRefused) {
  EXPECT_THAT(error_of([&] { setting_of(here(2, 2)); }),
              HasSubstr("LOCAL_RANK 2: of 2 ranks on this computer (LOCAL_WORLD_SIZE) the last one is 1"));
}

TEST(Measured, FiguresStandSideBySide) {
  const UntimedResult predicted = result_of(3, 2, 100, 64), measured = result_of(4, 0, 50.5, 64);
  const ResultComparison compared = compare_results(predicted, measured).value();
  EXPECT_DOUBLE_EQ(compared.iteration_seconds.error.value(), -0.25);
  EXPECT_DOUBLE_EQ(compared.time_seconds.compute.error.value(), 0);
  EXPECT_FALSE(compared.time_seconds.gaps.error) << "nothing was measured";
  EXPECT_EQ(compared.stall_seconds.size(), all_causes.size());
  EXPECT_EQ(compared.stall_seconds[0].first, "h2d");
  EXPECT_EQ(compared.stall_seconds[0].second.predicted, 2);
  EXPECT_EQ(compared.stall_seconds[0].second.measured, 0);
  EXPECT_DOUBLE_EQ(compared.traffic_bytes[0].second.error.value(), 100 / 50.5 - 1);
  EXPECT_DOUBLE_EQ(compared.peak_bytes[0].second.error.value(), 0);
  // Training compares its median step.
  EXPECT_DOUBLE_EQ(compare_results(predicted, measured, 2).value().iteration_seconds.error.value(), 0.5);

  Document document;
  document.add_table(comparison_table(compared));
  const std::string text = document_text(document);
  EXPECT_THAT(text, HasSubstr("predicted against measured  predicted  measured  error\n"));
  EXPECT_THAT(text, HasSubstr("  iteration "));
  EXPECT_THAT(text, HasSubstr("-25.0 %"));
  EXPECT_THAT(text, HasSubstr("  waits for h2d "));
  EXPECT_THAT(text, Not(HasSubstr("gaps"))) << "zero on both sides";
}

TEST(Measured, WhatDoesNotFitIsNotCompared) {
  const UntimedResult fits = result_of(3, 2, 100, 64);
  UntimedResult misfit;
  EXPECT_FALSE(compare_results(fits, misfit));
  EXPECT_FALSE(compare_results(misfit, fits));
  Prediction prediction;
  prediction.result = misfit;
  const PredictedResult predicted = predicted_result(prediction, {});
  EXPECT_FALSE(predicted.file) << "of a temporary file";
  EXPECT_FALSE(predicted.iteration_seconds || predicted.error || predicted.comparison);
}

LiveAnswer live_run(std::vector<double> steps, const Prediction* prediction) {
  Trace trace;
  const TensorId tensor = trace.add_tensor("w", 4096, Role::parameter, true);
  Op op;
  op.duration_ns = 1'000'000;
  trace.add_op(op, std::vector<TensorId>{tensor}, {});
  Workload workload;
  workload.machine.name = "box";
  Tier& gpu = workload.machine.tiers.emplace_back();
  gpu.name = "gpu";
  gpu.kind = TierKind::gpu;
  gpu.capacity = MiB;
  workload.scenario.trace.file = "train.py";
  workload.trace = std::make_shared<const Trace>(trace);
  workload.scenario.iterations = steps.size();
  Outcome outcome;
  outcome.policy = "lru";
  outcome.result.window.evictions = 6;
  outcome.result.period = 3;
  outcome.result.peak_bytes = {4096};
  ProgramFigures figures;
  figures.step_seconds = std::move(steps);
  figures.peak_bytes = 4096;
  figures.deviations = 2;
  figures.first_deviation = "step 5: op aten::relu";
  return live_answer(workload, outcome, std::move(figures), prediction);
}

TEST(Measured, ALiveRunIsComparedByItsMedianStep) {
  Prediction prediction;
  prediction.result = result_of(3, 2, 100, 64);
  prediction.sha256 = "abc";
  const LiveAnswer run = live_run({9, 8, 2, 2, 2}, &prediction);
  EXPECT_EQ(run.measured, true);
  EXPECT_EQ(run.training.evictions_per_step, 2);
  EXPECT_EQ(run.prediction->measured_seconds, 2);
  EXPECT_DOUBLE_EQ(run.prediction->error.value(), 0.5);
  EXPECT_EQ(run.manifest.run.iterations, 5u);
  const std::string text = document_text(document_of(run));
  EXPECT_THAT(text, HasSubstr("step time: median 2.000 s, mean 2.000 s (steps 3 to 5)"));
  EXPECT_THAT(text, HasSubstr("left the recorded schedule 2 times, first in step 5: op aten::relu"));
  EXPECT_THAT(text, HasSubstr("+50.0 %"));

  const LiveAnswer brief = live_run({9, 8}, &prediction);
  EXPECT_FALSE(brief.prediction->comparison || brief.prediction->error);
  EXPECT_EQ(to_json_of(brief)["prediction"]["measured_seconds"], nullptr);
  EXPECT_THAT(document_text(document_of(brief)), HasSubstr("steps are comparable from the third on, so none was"));
}

// A recording of four steps is predicted as one iteration of 3 s, with 1 of compute: a step takes 0.75 and 0.25.
TEST(Measured, SeveralRecordedStepsAreComparedAsTheMeanOfOne) {
  Prediction prediction;
  prediction.result = result_of(3, 2, 100, 64);
  prediction.result.ideal_seconds = 2;
  Trace& trace = prediction.outcome.program.trace;
  trace.header.provenance.made_by = MadeBy::recorded;
  trace.details.push_back({.step = 3});
  const LiveAnswer run = live_run({9, 8, 0.25, 0.25, 1}, &prediction);
  EXPECT_EQ(run.prediction->steps, 4u);
  EXPECT_EQ(run.prediction->iteration_seconds, 0.75);
  EXPECT_EQ(run.prediction->measured_seconds, 0.5) << "the mean: experts differ from step to step";
  EXPECT_DOUBLE_EQ(run.prediction->error.value(), 0.5);
  EXPECT_EQ(run.prediction->comparison->time_seconds.compute.predicted, 0.25);
  EXPECT_EQ(run.prediction->comparison->stall_seconds[0].second.predicted, 0.5);
  EXPECT_EQ(run.prediction->comparison->traffic_bytes[0].second.predicted, 25);
  EXPECT_EQ(run.prediction->comparison->peak_bytes[0].second.predicted, 64);
  EXPECT_EQ(run.ideal_seconds, 0.5);
  EXPECT_THAT(document_text(document_of(run)), HasSubstr("predicted is a mean of 4 recorded steps"));
}

// The document that another program reads is the one that was written.
TEST(Measured, AnswersAreReadAsTheyWereWritten) {
  Prediction prediction;
  prediction.result = result_of(3, 2, 100, 64);
  const Json written = to_json_of(live_run({9, 8, 2}, &prediction));
  LiveAnswer read;
  read_answer(written, read);
  EXPECT_EQ(to_json_of(read), written);
}

}  // namespace
}  // namespace tencache
