// `tencache validate`: what its files may hold, the arithmetic of rows, which rows count, and the command itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "answers/validation.h"
#include "core/error.h"
#include "studies/validation/gpu.h"
#include "studies/validation/run.h"
#include "tests/in_process.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

// Its rows are those of the caller, each on a line, from line 14 on.
std::string file_of(const std::string& rows) {
  return "system: tiny\n"
         "source: none\n"
         "tolerance: {median: 0.1, worst: 0.25}\n"
         "machines:\n"
         "  - {name: small, base: demo-small-gpu, tiers: {gpu: {capacity: 1GiB}, cpu: {capacity: 8GiB}}}\n"
         "systems:\n"
         "  - {name: A, policy: lru, machine: small}\n"
         "  - {name: B, policy: on-demand, set: {chunk: 4MiB}, machine: small}\n"
         "workloads:\n"
         "  - {name: w, generate: {model: gpt2, batch: 1, seq: 16, gpu: l40s}}\n"
         "  - {name: v, recording: elsewhere}\n"
         "experiments:\n"
         "  - {name: e, workload: w, rows: [\n" +
         rows + "]}\n";
}

ValidationFile parse(const std::string& rows) { return parse_validation(file_of(rows), "t.yaml"); }

std::string complaint(const std::string& text) {
  try {
    parse_validation(text, "t.yaml");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}
std::string complaint_of(const std::string& rows) { return complaint(file_of(rows)); }

RunFigures took(double seconds) {
  RunFigures figures;
  figures.state = RunState::done;
  figures.figures["seconds"] = seconds;
  figures.figures["hit_rate.tensors"] = 0.5;
  figures.figures["bytes.h2d"] = 3e9;
  return figures;
}
RunFigures did_not(RunState state, const std::string& reason) {
  RunFigures figures;
  figures.state = state;
  figures.reason = reason;
  return figures;
}

// A takes 3 s, B takes 2 s, the ideal 1 s; of v nothing is known.
ValidationResult evaluated(const ValidationFile& file) {
  RunTable runs;
  for (const std::string workload : {"w", "v"}) {
    const bool known = workload == "w";
    runs[{workload, "A"}] = known ? took(3) : did_not(RunState::skipped, "no recording");
    runs[{workload, "B"}] = known ? took(2) : did_not(RunState::skipped, "no recording");
    runs[{workload, "ideal on small"}] = known ? took(1) : did_not(RunState::skipped, "no recording");
  }
  return evaluate(file, runs);
}

TEST(ValidationFile, ReadsRowsOfEachKind) {
  const ValidationFile file = parse(
      "{of: A, over: B, published: 3/2, fitted: true},\n{of: ideal, over: A, published: 30 %..40 %},\n"
      "{of: A, metric: bytes.h2d, published: 2.9e9, workload: [w, v], not_judged: because},\n{order: [ideal, B, A]},\n"
      "{fails: A, name: too much}");
  const std::vector<ValidationRow>& rows = file.experiments.at(0).rows;
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0].name, "A ÷ B");
  EXPECT_EQ(rows[0].published.from, 1.5);
  EXPECT_TRUE(rows[0].fitted);
  EXPECT_THAT(rows[1].published.from, DoubleNear(0.3, 1e-12));
  EXPECT_THAT(rows[1].published.to, DoubleNear(0.4, 1e-12));
  EXPECT_EQ(rows[2].metric, "bytes.h2d");
  EXPECT_THAT(rows[2].workloads, ElementsAre("w", "v"));
  EXPECT_EQ(rows[2].not_judged, "because");
  EXPECT_THAT(rows[3].order, ElementsAre("ideal", "B", "A"));
  EXPECT_EQ(rows[4].kind, RowKind::fails);
  EXPECT_EQ(rows[4].name, "too much");
  EXPECT_EQ(file.systems.at(1).scenario.policy.settings.at("chunk"), "4MiB");
  EXPECT_THAT(runs_needed(file),
              ElementsAre(RunKey{"w", "A"}, RunKey{"w", "B"}, RunKey{"w", "ideal on small"}, RunKey{"v", "A"}));
}

TEST(ValidationFile, RefusesWhatItDoesNotKnowWithItsLine) {
  EXPECT_THAT(complaint_of("{of: A, published: 1},\n{of: A, publishd: 1}"),
              HasSubstr("t.yaml:15: unknown key 'publishd' in a row; valid keys are name, workload"));
  EXPECT_THAT(complaint_of("{of: C, published: 1}"),
              HasSubstr("t.yaml:14: rows.of: unknown 'C'; valid are A, B, ideal"));
  EXPECT_THAT(complaint_of("{of: A, metric: bytes.up, published: 1}"), HasSubstr("bytes.h2d"));
  EXPECT_THAT(complaint_of("{of: A, published: none}"), HasSubstr("t.yaml:14: rows.published: 'none' is not a number"));
  EXPECT_THAT(complaint_of("{of: A, published: 2..1}"), HasSubstr("ends below its begin"));
  EXPECT_THAT(complaint_of("{of: A, published: 3/0}"), HasSubstr("not a number above 0"));
  EXPECT_THAT(complaint_of("{of: A}"), HasSubstr("key 'published' is missing in a row"));
  EXPECT_THAT(complaint_of("{of: A, order: [A, B], published: 1}"), HasSubstr("one of 'of'"));
  EXPECT_THAT(complaint_of("{order: [A, B], fitted: true}"), HasSubstr("'fitted' belongs to a row with 'of'"));
  EXPECT_THAT(complaint_of("{order: [A]}"), HasSubstr("at least two"));
  EXPECT_THAT(complaint_of("{of: ideal, published: 1}"), HasSubstr("ideal is compared with a system"));
  EXPECT_THAT(complaint_of("{of: ideal, metric: bytes.h2d, published: 1}"),
              HasSubstr("t.yaml:14: ideal is compared with a system"));
  EXPECT_THAT(complaint_of("{order: [ideal, ideal]}"), HasSubstr("t.yaml:14: rows.order: ideal is compared"));
  EXPECT_THAT(complaint_of("{fails: ideal}"), HasSubstr("t.yaml:14: rows.fails: ideal is no system"));
  EXPECT_THAT(complaint_of("{of: A, published: 1, workload: u}"), HasSubstr("workload: unknown 'u'; valid are w, v"));
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = file_of("{of: A, published: 1}");
    return complaint(text.replace(text.find(from), from.size(), to));
  };
  EXPECT_THAT(with("policy: lru", "policy: lrv"), HasSubstr("t.yaml:7: no policy is named 'lrv'"));
  EXPECT_THAT(with("chunk: 4MiB", "chnk: 4MiB"), HasSubstr("t.yaml:8: "));
  EXPECT_THAT(with("seq: 16", "sequence: 16"), HasSubstr("t.yaml:10: unknown key 'sequence' in workloads.generate"));
  EXPECT_THAT(with("machine: small", "machine: smal"), HasSubstr("t.yaml:7: systems.machine: unknown machine 'smal'"));
  EXPECT_THAT(with("recording: elsewhere", "title: x"), HasSubstr("either 'recording'"));
  EXPECT_THAT(with("base: demo", "bass: demo"), HasSubstr("t.yaml:5: unknown key 'bass'"));
  EXPECT_THAT(with("worst: 0.25", "worst: 25"), HasSubstr("t.yaml:3: tolerance.worst: must be below 1"));
  EXPECT_THAT(with("name: B", "name: A"), HasSubstr("'A' stands twice"));
}

TEST(ValidationRows, RatiosAndErrors) {
  const ValidationFile file = parse(
      "{of: A, over: B, published: 1.25},\n{of: ideal, over: A, published: 0.2..0.4},\n{of: ideal, over: B, published: "
      "0.4},\n"
      "{of: A, metric: hit_rate.tensors, published: 40 %},\n{of: A, metric: bytes.h2d, published: 3.2e9..4e9},\n"
      "{of: A, metric: stall_seconds.h2d, published: 0..0.1}");
  const ValidationResult result = evaluated(file);
  const std::vector<RowResult>& rows = result.rows.at(0);
  EXPECT_THAT(rows[0].simulated.value(), DoubleNear(1.5, 1e-12));
  EXPECT_THAT(rows[0].error.value(), DoubleNear(0.2, 1e-12));
  EXPECT_EQ(rows[1].error.value(), 0);  // within the range
  EXPECT_THAT(rows[2].error.value(), DoubleNear(0.25, 1e-12));
  EXPECT_THAT(rows[3].error.value(), DoubleNear(0.25, 1e-12));
  EXPECT_THAT(rows[4].error.value(), DoubleNear(-0.0625, 1e-12));  // from the nearer end
  EXPECT_EQ(rows[3].verdict, Verdict::within);
  EXPECT_EQ(rows[5].verdict, Verdict::within);                        // no such stall
  EXPECT_EQ(rows[4].verdict, Verdict::missed);                        // outside of its range, however little
  EXPECT_THAT(result.median_error.value(), DoubleNear(0.25, 1e-12));  // of three: ranges have no such error
  EXPECT_THAT(result.worst_error.value(), DoubleNear(0.25, 1e-12));
  EXPECT_EQ(result.judged, 6u);
  EXPECT_EQ(result.missed, 1u);
  EXPECT_FALSE(result.passed);
}

TEST(ValidationRows, AMedianAboveTheToleranceIsNotPassedThoughNoRowIsMissed) {
  const ValidationResult result = evaluated(parse("{of: A, over: B, published: 1.25}"));
  EXPECT_EQ(result.missed, 0u);
  EXPECT_FALSE(result.passed);
}

TEST(ValidationFile, ASystemMayTrainWithOtherTraces) {
  std::string text = file_of("{of: A, over: B, published: 1}");
  text.replace(text.find("policy: lru"), 11, "policy: lru, generate: {seq: 32, precision: fp16}");
  const ValidationFile file = parse_validation(text, "t.yaml");
  EXPECT_EQ(
      generate_for(file.workload("w"), file.system_named("A").generate),
      (GenerateSettings{{"model", "gpt2"}, {"batch", "1"}, {"seq", "32"}, {"gpu", "l40s"}, {"precision", "fp16"}}));
  EXPECT_EQ(generate_for(file.workload("w"), file.system_named("B").generate), file.workload("w").generate);
  text.replace(text.find("workload: w"), 11, "workload: v");
  EXPECT_THAT(complaint(text), HasSubstr("t.yaml:14: system 'A' changes what is generated, workload 'v' is recorded"));
}

TEST(ValidationRows, WhatWasFittedOrIsListedOnlyDoesNotCount) {
  const ValidationFile file = parse(
      "{of: A, over: B, published: 1.5},\n{of: A, over: B, published: 9, fitted: true},\n"
      "{of: A, over: B, published: 9, not_judged: no stated rate explains it}");
  const ValidationResult result = evaluated(file);
  EXPECT_EQ(result.judged, 1u);
  EXPECT_EQ(result.fitted, 1u);
  EXPECT_EQ(result.listed, 1u);
  EXPECT_EQ(result.worst_error, 0);
  EXPECT_TRUE(result.passed);
  EXPECT_LT(result.rows.at(0)[1].error.value(), -0.8);  // it is shown all the same
  EXPECT_THAT(document_text(document_of(validation_answer({result}))),
              HasSubstr("[not judged: no stated rate explains it]"));
}

TEST(ValidationRows, SkippedRowsDoNotCountAndSayWhy) {
  const ValidationFile file = parse("{of: A, over: B, published: 1.5},\n{of: A, published: 7, workload: [w, v]}");
  const ValidationResult result = evaluated(file);
  EXPECT_EQ(result.skipped, 1u);
  EXPECT_EQ(result.judged, 1u);
  EXPECT_TRUE(result.passed);
  EXPECT_EQ(result.rows.at(0)[1].detail, "no recording");
  EXPECT_THAT(validation_markdown({result}), HasSubstr("| no recording |  | skipped |"));
}

TEST(ValidationRows, OrdersAndFailures) {
  const ValidationFile file = parse(
      "{order: [ideal, B, A]},\n{order: [A, B]},\n{fails: A},\n{fails: B},\n{of: A, over: B, published: 1},\n"
      "{of: B, over: ideal, published: 2}");
  RunTable runs;
  runs[{"w", "A"}] = took(3);
  runs[{"w", "B"}] = took(2);
  runs[{"w", "ideal on small"}] = took(1);
  ValidationResult result = evaluate(file, runs);
  EXPECT_EQ(result.rows.at(0)[0].verdict, Verdict::within);
  EXPECT_EQ(result.rows.at(0)[1].verdict, Verdict::missed);
  EXPECT_THAT(result.rows.at(0)[1].detail, HasSubstr("3 < 2 s"));
  EXPECT_EQ(result.rows.at(0)[2].verdict, Verdict::missed);
  runs[{"w", "A"}] = did_not(RunState::out_of_memory, "op 7 needs 1 GiB");
  runs[{"w", "B"}] = did_not(RunState::refused, "needs an SSD");
  result = evaluate(file, runs);
  EXPECT_EQ(result.rows.at(0)[0].verdict, Verdict::missed);
  EXPECT_EQ(result.rows.at(0)[2].verdict, Verdict::within);
  EXPECT_EQ(result.rows.at(0)[3].verdict, Verdict::missed);  // refused is not out of memory
  EXPECT_EQ(result.rows.at(0)[4].verdict, Verdict::missed);
  EXPECT_THAT(result.rows.at(0)[4].detail, HasSubstr("op 7 needs 1 GiB"));
  EXPECT_FALSE(result.passed);
}

TEST(ValidationRows, Median) {
  EXPECT_EQ(median_of({}), std::nullopt);
  EXPECT_EQ(median_of({3}), 3);
  EXPECT_EQ(median_of({9, 1, 2}), 2);
  EXPECT_EQ(median_of({4, 1, 2, 9}), 3);
}

TEST(ValidationFile, AllThatShipAreRead) {
  const std::vector<ValidationFile> files = read_validations({});
  EXPECT_FALSE(files.empty());
  for (const ValidationFile& file : files) EXPECT_FALSE(file.experiments.empty()) << file.name;
  EXPECT_THROW(read_validations({"nothing"}), Error);
}

// What takes a fraction of a second of what ships; the rest is for `tencache validate`.
// `validate` takes durations as they are, so each trace has to be of the GPU of the machine that it is simulated on.
TEST(ShippedValidations, GenerateForTheGpuOfEachMachine) {
  for (const ValidationFile& file : read_validations({})) {
    for (const RunKey& key : runs_needed(file)) {
      const ValidationWorkload& workload = file.workload(key.first);
      if (!workload.recording.empty()) continue;
      for (const ValidationSystem& system : file.systems) {
        if (key.second != system.name && key.second != ideal_run(system)) continue;
        std::string gpu;
        for (const auto& [name, value] : generate_for(workload, system.generate)) {
          if (name == "gpu") gpu = value;
        }
        EXPECT_EQ(gpu, system.machine().gpu) << file.name << ": " << workload.name << " under " << system.name;
      }
    }
  }
}

TEST(ShippedValidations, NoRowOf10CacheAndSsdTrainIsMissed) {
  const std::vector<ValidationFile> files = read_validations({"10cache", "ssdtrain"});
  const std::vector<ValidationResult> results = run_validations(files, {});
  for (const ValidationResult& result : results) {
    EXPECT_EQ(result.skipped, 0u) << document_text(document_of(validation_answer({result})));
    EXPECT_LT(result.median_error.value_or(0), 0.125) << document_text(document_of(validation_answer({result})));
    EXPECT_EQ(result.missed, 0u) << document_text(document_of(validation_answer({result})));
  }
}

// Rows stand each on a line, from line 12 on.
std::string gpu_file_of(const std::string& rows, const std::string& generate = "loss: {value: fused, source: s}") {
  return "kind: gpu\n"
         "system: tiny\n"
         "source: none\n"
         "tolerance: {median: 0.1, worst: 0.3, p90: none, gpu_median: 0.05}\n"
         "models:\n"
         "  - {name: m, family: gpt2, layers: 2, hidden: 128, heads: 2, vocabulary: 512}\n"
         "throughput:\n"
         "  - name: t\n"
         "    generate: {" +
         generate +
         "}\n"
         "    not_judged: a reason\n"
         "    rows:\n" +
         rows;
}
ValidationFile parse_gpu(const std::string& rows) { return parse_validation(gpu_file_of(rows), "t.yaml"); }

TEST(GpuValidation, ALineIsAWorkloadOfAtMostEightRanksAndTwoMicroBatches) {
  const ValidationFile file = parse_gpu(
      "      - l40s,m,64,32,3,5,y,grad,amp,1000,judge\n"
      "      - l40s,m,64,64,3,2,y,grad,amp,10*64/2,fit  # the same simulation\n"
      "      - l40s,gpt2,64,1,3,1,n,full,fp32,900,list\n");
  ASSERT_EQ(file.workloads.size(), 2u);
  EXPECT_EQ(file.workloads[0].generate, (GenerateSettings{{"model", "m"},
                                                          {"gpu", "l40s"},
                                                          {"seq", "64"},
                                                          {"batch", "48"},
                                                          {"micro-batches", "2"},
                                                          {"precision", "bf16"},
                                                          {"recompute", "block"},
                                                          {"data-parallel", "8"},
                                                          {"gradient-precision", "fp32"},
                                                          {"zero", "2"},
                                                          {"loss", "fused"}}));
  EXPECT_EQ(file.workloads[0].model.value().max_sequence, 64u);
  EXPECT_FALSE(file.workloads[1].model.has_value());
  const std::vector<ValidationRow>& rows = file.experiments.at(0).rows;
  EXPECT_EQ(rows[0].workloads, rows[1].workloads);
  EXPECT_EQ(rows[0].training.value().tokens, 64 * 3 * 2);
  EXPECT_EQ(rows[1].published.from, 320);
  EXPECT_TRUE(rows[1].fitted);
  EXPECT_EQ(rows[2].not_judged, "a reason");
  EXPECT_EQ(file.tolerance.p90, std::nullopt);
}

TEST(GpuValidation, RefusesWhatItDoesNotKnowWithItsLine) {
  const std::string good = "      - l40s,m,64,1,3,1,n,full,pure,1000,judge\n";
  const auto with = [&](const std::string& row) { return complaint(gpu_file_of(good + "      - " + row + "\n")); };
  EXPECT_THAT(with("l40s,m,64"), HasSubstr("t.yaml:13: a row of throughput has 11 columns, found 3: gpu, model"));
  EXPECT_THAT(with("l40x,m,64,1,3,1,n,full,pure,1000,judge"), HasSubstr("t.yaml:13: gpu: "));
  EXPECT_THAT(with("l40s,x,64,1,3,1,n,full,pure,1000,judge"), HasSubstr("models of this file: m"));
  EXPECT_THAT(with("l40s,m,0,1,3,1,n,full,pure,1000,judge"), HasSubstr("sequence: '0' is not a whole number from 1"));
  EXPECT_THAT(with("l40s,m,64,1,3,1,n,half,pure,1000,judge"), HasSubstr("sharding: unknown 'half'; valid are full"));
  EXPECT_THAT(with("l40s,m,64,1,3,1,n,full,pure,1*,judge"), HasSubstr("'1*' is not a number above 0"));
  EXPECT_THAT(complaint(gpu_file_of(good, "zero: {value: 3, source: s}")), HasSubstr("follows from a row's columns"));
  EXPECT_THAT(complaint(gpu_file_of(good, "loss: {value: fused}")), HasSubstr("key 'source' is missing"));
  EXPECT_THAT(complaint(file_of("{of: A, published: 1}") + "throughput: []\n"),
              HasSubstr("'throughput' belongs to a file of kind: gpu"));
}

TEST(GpuValidation, HoldsTheMedianOfEachGpu) {
  const ValidationFile file = parse_gpu(
      "      - l40s,m,64,1,1,1,n,full,pure,100,judge\n"
      "      - l40s,m,64,1,2,1,n,full,pure,100,judge\n"
      "      - l40s,m,64,1,3,1,n,full,pure,100,fit\n"
      "      - l4,m,64,1,1,1,n,full,pure,100,judge\n");
  RunTable runs;  // 64 tokens a sequence: ratios of 1.06, 1.08, 3 and 1
  const std::vector<RunKey> keys = runs_needed(file);
  const double seconds[] = {64 / 106.0, 128 / 108.0, 192 / 300.0, 64 / 100.0};
  for (std::size_t i = 0; i < keys.size(); ++i) runs[keys[i]] = took(seconds[i]);
  const ValidationResult result = evaluate(file, runs);
  EXPECT_EQ(result.missed, 0u);
  EXPECT_THAT(result.failures, ElementsAre("l40s: median ratio 1.070, 0.95 to 1.05"));
  EXPECT_FALSE(result.passed);
  EXPECT_EQ(summarize({result}, ValidationKind::gpu).judged, 3u);
  EXPECT_EQ(summarize({result}, ValidationKind::offloading).rows(), 0u);
  EXPECT_EQ(p90_of({4, 1, 2}), 4);
  EXPECT_THAT(document_text(document_of(validation_answer({result}))),
              HasSubstr("Not passed: l40s: median ratio 1.070"));
}

TEST(GpuValidation, ThroughputIsThatOfTheGeneratedTrace) {
  const ValidationFile file = parse_gpu(
      "      - l40s,m,64,2,3,1,n,full,pure,100,list\n"
      "      - l40s,m,64,2,3,1,n,none,pure,100,list\n");
  const ValidationResult result = run_validations({file}, {}).at(0);
  // Two ranks alike, simulated as one: what the trace of both takes.
  const Trace trace = generate_trace(file.workloads[0].generate, &*file.workloads[0].model);
  // Communication is hidden in part.
  Nanoseconds hidden = 0, exposed = 0;
  for (const Op& op : trace.ops) {
    hidden += op.occupied_ns();
    exposed += op.gap_before_ns + op.duration_ns;
  }
  const auto tokens_per_second = [](Nanoseconds both) { return 64 * 3 / (static_cast<double>(both) * 0.5e-9); };
  EXPECT_LT(result.rows[0][0].simulated.value(), tokens_per_second(hidden) + 1);
  EXPECT_GT(result.rows[0][0].simulated.value(), tokens_per_second(exposed));
  EXPECT_NE(result.rows[0][1].simulated, result.rows[0][0].simulated);  // other collectives
}

TEST(GpuValidation, KernelsAgainstTheirTarget) {
  const std::string head = "kind: gpu\nsystem: tiny\nsource: none\nkernels:\n";
  const std::string row = "  - {chip: h100, gpu: h100, median: {matmul: 0.9, attention: 0.9, attention 64: 0.0001}}\n";
  const ValidationFile file = parse_validation(head + row, "t.yaml");
  const ValidationResult result = run_validations({file}, {}).at(0);
  const std::vector<ValidationRow>& rows = file.experiments.at(0).rows;
  ASSERT_EQ(rows.size(), 4u);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool small = rows[i].kernels->head_dimension == 64;
    EXPECT_EQ(result.rows[0][i].verdict, small ? Verdict::missed : Verdict::within) << rows[i].name;
  }
  EXPECT_EQ(result.rows[0][0].kernels.value().kernels, 240u);
  EXPECT_EQ(result.median_error, std::nullopt);  // their errors do not dilute those of rows
  // Products in fp8 only where a target names them: none of the bf16 ones above.
  const ValidationFile fp8 =
      parse_validation(head + "  - {chip: h100, gpu: h100, median: {matmul: 0.9, matmul fp8: 0.0001}}\n", "t.yaml");
  ASSERT_EQ(fp8.experiments.at(0).rows.size(), 2u);
  EXPECT_EQ(fp8.experiments.at(0).rows[1].name, "matmul, fp8");
  const ValidationResult judged = run_validations({fp8}, {}).at(0);
  EXPECT_EQ(judged.rows[0][0].verdict, Verdict::within);
  EXPECT_EQ(judged.rows[0][1].verdict, Verdict::missed);
  EXPECT_EQ(judged.rows[0][1].kernels.value().kernels, 240u);
  EXPECT_NE(judged.rows[0][1].kernels.value().median, judged.rows[0][0].kernels.value().median);
  EXPECT_THAT(complaint(head + "  - {chip: a100, gpu: a100-80g, median: {matmul fp8: 0.1}}\n"),
              HasSubstr("t.yaml:5: unknown key 'matmul fp8'"));
  EXPECT_THAT(complaint(head + "  - {chip: h100, gpu: h100, median: {gather: 0.1}}\n"),
              HasSubstr("t.yaml:5: unknown key"));
}

class ValidateCommand : public ::testing::Test {
 protected:
  ValidateCommand() { fs::create_directories(folder_); }
  ~ValidateCommand() override { fs::remove_all(folder_); }

  InProcessAnswer run(std::vector<std::string> words) const {
    words.insert(words.begin(), "validate");
    return run_in_process(words);
  }
  std::string write(const std::string& name, const std::string& rows) const {
    write_file((folder_ / name).string(), file_of(rows));
    return (folder_ / name).string();
  }

  const fs::path folder_ = fs::path(::testing::TempDir()) / ("tencache_validate_test_" + std::to_string(::getpid()));
};

TEST_F(ValidateCommand, SimulatesReportsAndAnswers) {
  const std::string good = write("good.yaml", "{of: ideal, over: ideal, published: 1}");
  EXPECT_EQ(run({good}).code, 2);  // ideal with itself
  const std::string file =
      write("good.yaml", "{of: A, over: A, published: 1},\n{order: [ideal, A]},\n{of: A, published: 1, workload: v}");
  const std::string report = (folder_ / "report.md").string();
  const InProcessAnswer answer = run({file, "--json", "--report", report});
  ASSERT_EQ(answer.code, 0) << answer.err << answer.out;
  const nlohmann::json json = nlohmann::json::parse(answer.out);
  EXPECT_EQ(json["summary"]["judged"], 2);
  EXPECT_EQ(json["summary"]["skipped"], 1);
  EXPECT_EQ(json["systems"][0]["rows"][0]["simulated"], 1.0);
  EXPECT_GT(json["systems"][0]["runs"][0]["iteration_seconds"], 0);
  EXPECT_THAT(json["systems"][0]["runs"][2]["reason"].get<std::string>(), HasSubstr("--traces"));
  const std::string first = read_file(report);
  EXPECT_THAT(first, HasSubstr("| A ÷ A | w | 1.000 | 1.000 | +0.0 % |"));
  EXPECT_EQ(run({file, "--json", "--report", report}).out, answer.out);
  EXPECT_EQ(read_file(report), first);
}

TEST_F(ValidateCommand, AnswersNoWhereARowIsMissed) {
  const std::string file = write("bad.yaml", "{of: A, over: A, published: 2, note: it is itself}");
  const std::string report = (folder_ / "report.md").string();
  const InProcessAnswer answer = run({file, "--report", report});
  EXPECT_THAT(read_file(report),
              HasSubstr("- tiny, e, A ÷ A: published 2.000, simulated 1.000 (-50.0 %). it is itself"));
  EXPECT_EQ(answer.code, 1);
  EXPECT_THAT(answer.out, HasSubstr("-50.0 %"));
  EXPECT_THAT(answer.out, HasSubstr("Not passed"));
  EXPECT_EQ(answer.err, "");
}

// 120 characters a line, however many bytes they have; rows of tables stay whole, and no line begins with a mark that
// would make an item of it. A word of 9 and its mark take 12 with a space: 30 of them.
TEST_F(ValidateCommand, ReportsInLinesOf120Characters) {
  std::string note = "note:";
  for (int i = 0; i < 30; ++i) note += " ÷÷÷÷÷÷÷÷÷ -";
  const std::string file = write("bad.yaml", "{of: A, over: A, published: 2, note: '" + note + "'}");
  const std::string report = (folder_ / "report.md").string();
  run({file, "--report", report});
  std::istringstream lines(read_file(report));
  std::size_t longest = 0, indented = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("|")) {
      EXPECT_TRUE(line.ends_with("|")) << line;
      continue;
    }
    const auto characters = static_cast<std::size_t>(
        std::ranges::count_if(line, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
    longest = std::max(longest, characters);
    indented += line.starts_with("  ÷÷÷÷÷÷÷÷÷ -");
    EXPECT_FALSE(line.starts_with("  -")) << line;
  }
  EXPECT_LE(longest, 120u);
  EXPECT_GT(longest, 108u);  // no word of 11 more would fit
  EXPECT_EQ(indented, 3u);   // 30 × 12 characters after the item's first line
}

TEST_F(ValidateCommand, LeavesSlowWorkloadsOutIfAsked) {
  std::string text = file_of("{of: A, over: A, published: 1}");
  text.replace(text.find("gpu: l40s}"), 10, "gpu: l40s}, slow: true");
  const std::string file = (folder_ / "slow.yaml").string();
  write_file(file, text);
  EXPECT_THAT(run({file, "--quick"}).out, HasSubstr("left out by --quick"));
  EXPECT_THAT(run({file}).out, HasSubstr("1 rows count"));
}

TEST_F(ValidateCommand, RefusesBadInput) {
  EXPECT_EQ(run({"nothing"}).code, 2);
  EXPECT_THAT(run({"nothing"}).err, HasSubstr("`tencache validation` lists all"));
  EXPECT_EQ(run({(folder_ / "absent.yaml").string()}).code, 2);
  const std::string file = write("good.yaml", "{of: A, published: 1}");
  EXPECT_THAT(run({file, "--report", file}).err, HasSubstr("--report"));
  EXPECT_EQ(run({file, "--traces", "/nowhere"}).code, 2);
}

}  // namespace
}  // namespace tencache
