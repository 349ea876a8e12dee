// Kineto traces: joined with an execution trace by ids and by names, and by themselves with memory events; names
// stripped; the published recordings.
#include "traces/import/pytorch/import_kineto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <random>

#include "core/error.h"
#include "tests/exact/recorded_calls.h"
#include "traces/demand.h"
#include "traces/file/file_io.h"
#include "traces/file/trace_file.h"
#include "traces/import/pytorch/import_pytorch.h"
#include "traces/import/pytorch/join.h"
#include "traces/summary.h"
#include "traces/transform/edits.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string event(const std::string& category, const std::string& name, int thread, double begin_us, double duration_us,
                  const std::string& arguments = "") {
  return R"({"ph": "X", "cat": ")" + category + R"(", "name": ")" + name + R"(", "pid": 1, "tid": )" +
         std::to_string(thread) + R"(, "ts": )" + std::to_string(begin_us) + R"(, "dur": )" +
         std::to_string(duration_us) + R"(, "args": {)" + arguments + "}}";
}

std::string call(const std::string& name, int thread, double begin_us, double duration_us, int rf_id = 0) {
  return event(name.find('#') == std::string::npos ? "cpu_op" : "user_annotation", name, thread, begin_us, duration_us,
               rf_id == 0 ? "" : "\"Record function id\": " + std::to_string(rf_id));
}

// A kernel and its launch at `launch_us`.
std::string kernel(int thread, double launch_us, double begin_us, double duration_us, int correlation) {
  const std::string id = "\"correlation\": " + std::to_string(correlation);
  return event("cuda_runtime", "cudaLaunchKernel", thread, launch_us, 1, id) + ",\n" +
         event("kernel", "some_kernel", 7, begin_us, duration_us, id);
}

std::string memory(double time_us, std::uint64_t address, std::int64_t bytes, std::uint64_t total, int thread = 1,
                   int device_type = 1) {
  return R"({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": )" + std::to_string(thread) +
         R"(, "ts": )" + std::to_string(time_us) + R"(, "args": {"Device Type": )" + std::to_string(device_type) +
         R"(, "Device Id": 0, "Addr": )" + std::to_string(address) + R"(, "Bytes": )" + std::to_string(bytes) +
         R"(, "Total Allocated": )" + std::to_string(total) + "}}";
}

std::string document(const std::vector<std::string>& events) {
  std::string text =
      "{\"schemaVersion\": 1, \"deviceProperties\": [{\"id\": 0, \"name\": \"Round GPU\"}],\n\"traceEvents\": [";
  for (const std::string& item : events) text += (text.ends_with('[') ? "\n" : ",\n") + item;
  return text + "\n], \"traceName\": \"t\"}\n";
}

class Kineto : public ::testing::Test {
 protected:
  Kineto() { std::filesystem::create_directories(directory_); }
  ~Kineto() override { std::filesystem::remove_all(directory_); }

  std::string write(const std::string& text, const std::string& name) {
    write_file((directory_ / name).string(), text);
    return (directory_ / name).string();
  }

  Trace join(const std::vector<RecordedCall>& calls, const std::vector<std::string>& events) {
    PytorchImportOptions options;
    options.execution_trace = write(recording(calls), "et.json");
    options.kineto = write(document(events), "kineto.json");
    ImportedTrace imported = import_pytorch(options);
    notes_ = imported.notes;
    return std::move(imported.trace);
  }

  Trace import(const std::vector<std::string>& events) {
    KinetoImportOptions options;
    options.file = write(document(events), "kineto.json");
    ImportedTrace imported = import_kineto(options);
    notes_ = imported.notes;
    return std::move(imported.trace);
  }

  static std::string error_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  static std::vector<std::string> times_of(const Trace& trace) {
    std::vector<std::string> times;
    for (const Op& op : trace.ops) {
      times.push_back(std::to_string(op.gap_before_ns) + "+" + std::to_string(op.duration_ns));
    }
    return times;
  }

  std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() / ("tencache_import_kineto_test_" + std::to_string(::getpid()));
  std::vector<std::string> notes_;
};

// Two products and an update in place, of which the recordings tell: rf_ids are the ids.
std::vector<RecordedCall> three_ops() {
  const std::string mm = "aten::mm(Tensor self, Tensor mat2) -> Tensor";
  const RecordedValue a = tensor(1, 10, {4, 4}), b = tensor(2, 20, {4, 4}), c = tensor(3, 30, {4, 4});
  return {
      around(1, 0, "ProfilerStep#5"),
      op(2, 1, "aten::matmul(Tensor self, Tensor other) -> Tensor", {a, b}, {c}),
      op(3, 2, mm, {a, b}, {c}),
      op(4, 1, mm, {a, c}, {tensor(4, 40, {4, 4})}),
      around(5, 1, "Optimizer.step#SGD.step"),
      op(6, 5, "aten::add_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)", {a, tensor(4, 40, {4, 4})}, {a}),
  };
}

// The iteration takes 100 us from 1000 on; its kernels run at 1010+20, 1040+10 and 1060+5.
std::vector<std::string> three_ops_timed(bool ids) {
  const auto id = [&](int rf_id) { return ids ? rf_id : 0; };
  return {
      call("ProfilerStep#5", 1, 1000, 90, id(1)),
      call("aten::matmul", 1, 1001, 8, id(2)),
      call("aten::mm", 1, 1002, 6, id(3)),
      kernel(1, 1003, 1010, 20, 71),
      call("aten::mm", 1, 1020, 6, id(4)),
      kernel(1, 1021, 1040, 10, 72),
      call("Optimizer.step#SGD.step", 1, 1040, 20, id(5)),
      call("aten::add_", 1, 1045, 6, id(6)),
      kernel(1, 1046, 1060, 5, 73),
      call("ProfilerStep#6", 1, 1100, 50),
      call("aten::mm", 1, 1110, 10),
      kernel(1, 1111, 1120, 500, 74),
  };
}

TEST_F(Kineto, JoinedByIdTheOpsHaveTheTimesOfTheirKernels) {
  const Trace trace = join(three_ops(), three_ops_timed(true));
  // Idle time is the gap of the op that ends it; what is left of the 100 us goes before the first.
  EXPECT_THAT(times_of(trace), ElementsAre("45000+20000", "10000+10000", "10000+5000"));
  EXPECT_EQ(summarize(trace).all_ops.duration_ns + summarize(trace).gap_ns, 100'000);
  EXPECT_EQ(trace.ops[0].duration_source, DurationSource::measured);
  EXPECT_EQ(trace.header.hardware, "Round GPU");
  EXPECT_THAT(notes_, Contains(HasSubstr("5 of 5 calls matched by record-function id")));
}

TEST_F(Kineto, WithoutIdsTheNamesAreAligned) {
  const Trace by_name = join(three_ops(), three_ops_timed(false));
  EXPECT_THAT(notes_, Contains(HasSubstr("5 of 5 calls matched by aligning their names")));
  EXPECT_EQ(times_of(by_name), times_of(join(three_ops(), three_ops_timed(true))));
}

TEST_F(Kineto, OfAnotherProgramIsAnError) {
  std::vector<std::string> events{call("ProfilerStep#5", 1, 1000, 90)};
  for (int i = 0; i < 5; ++i) events.push_back(call("aten::relu", 1, 1010 + i, 0.5));
  EXPECT_THAT(error_of([&] { join(three_ops(), events); }),
              AllOf(HasSubstr("not of the same program"), HasSubstr("0 × aten::relu in the one, 5 in the other")));
}

// Calls on the host only: an op's own time, without that of calls within it.
TEST_F(Kineto, OnACpuAnOpHasItsOwnTime) {
  std::vector<std::string> events = three_ops_timed(true);
  std::erase_if(events, [](const std::string& text) { return text.find("cuda_runtime") != std::string::npos; });
  const Trace trace = join(three_ops(), events);
  // mm 1002+6, mm 1020+6, add_ 1045+6: the rest of the 100 us is gaps.
  EXPECT_THAT(times_of(trace), ElementsAre("51000+6000", "12000+6000", "19000+6000"));
}

TEST_F(Kineto, AnOpWithoutATimeIsModelledAndSaidSo) {
  std::vector<RecordedCall> calls = three_ops();
  for (int i = 0; i < 15; ++i) {
    calls.push_back(op(100 + static_cast<std::uint64_t>(i), 1, "aten::relu(Tensor self) -> Tensor",
                       {tensor(1, 10, {4, 4})}, {tensor(60, 60 + static_cast<std::uint64_t>(i), {4, 4})}));
  }
  std::vector<std::string> events = three_ops_timed(true);
  for (int i = 0; i < 14; ++i) events.push_back(call("aten::relu", 1, 1070 + i, 0.5, 100 + i));
  const Trace trace = join(calls, events);
  EXPECT_THAT(notes_, Contains(HasSubstr("1 op without a measured time: 0 ns")));
  EXPECT_EQ(trace.ops.back().duration_source, DurationSource::modelled);
  EXPECT_EQ(trace.ops[5].duration_source, DurationSource::measured);
}

TEST_F(Kineto, AlignmentIsALongestCommonSubsequence) {
  using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
  EXPECT_EQ(align({}, {}, 10), Pairs());
  EXPECT_EQ(align({1, 2, 3}, {1, 2, 3}, 10), (Pairs{{0, 0}, {1, 1}, {2, 2}}));
  EXPECT_EQ(align({1, 2, 3}, {2, 3, 4}, 10), (Pairs{{1, 0}, {2, 1}}));
  EXPECT_EQ(align({1, 2, 3}, {4, 5, 6}, 3), Pairs()) << "more edits than allowed";
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint32_t> a(random() % 12), b(random() % 12);
    for (std::uint32_t& value : a) value = static_cast<std::uint32_t>(random() % 3);
    for (std::uint32_t& value : b) value = static_cast<std::uint32_t>(random() % 3);
    std::vector<std::vector<std::size_t>> best(a.size() + 1, std::vector<std::size_t>(b.size() + 1, 0));
    for (std::size_t i = 1; i <= a.size(); ++i) {
      for (std::size_t j = 1; j <= b.size(); ++j) {
        best[i][j] = a[i - 1] == b[j - 1] ? best[i - 1][j - 1] + 1 : std::max(best[i - 1][j], best[i][j - 1]);
      }
    }
    const Pairs pairs = align(a, b, 100);
    EXPECT_EQ(pairs.size(), best[a.size()][b.size()]);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      EXPECT_EQ(a[pairs[i].first], b[pairs[i].second]);
      EXPECT_TRUE(i == 0 || (pairs[i - 1].first < pairs[i].first && pairs[i - 1].second < pairs[i].second));
    }
  }
}

// Of 5000 bytes in use before, 1000 are freed within and 1000 of the same size are left behind; 4000 stay.
std::vector<std::string> memory_events() {
  return {
      call("ProfilerStep#1", 1, 1000, 100), call("aten::mm", 1, 1010, 10),
      memory(1011, 111, 2048, 7048),        kernel(1, 1012, 1020, 10, 1),
      call("aten::relu", 1, 1030, 10),      memory(1031, 222, 512, 7560),
      kernel(1, 1032, 1040, 10, 2),         memory(1035, 222, -512, 7048),
      memory(1045, 333, -1000, 6048),       call("Optimizer.step#SGD.step", 1, 1050, 30),
      call("aten::add", 1, 1055, 10),       memory(1056, 333, 1000, 7048),
      kernel(1, 1057, 1060, 10, 3),         memory(1070, 111, -2048, 5000),
  };
}

TEST_F(Kineto, AllocationsAndFreesAreLifetimes) {
  const Trace trace = import(memory_events());
  std::vector<std::string> ops;
  for (const Op& op : trace.ops) {
    std::string text(trace.name(op));
    for (const TensorId id : trace.reads(op)) text += " " + trace.name(trace.tensors[id]);
    text += " ->";
    for (const TensorId id : trace.writes(op)) text += " " + trace.name(trace.tensors[id]);
    ops.push_back(text);
  }
  EXPECT_THAT(ops, ElementsAre("aten::mm resident -> activation.0", "aten::relu activation.2 resident -> workspace.1",
                               "aten::add activation.0 resident -> activation.2"));
  EXPECT_EQ(trace.tensors[0].bytes, 4000u);
  EXPECT_TRUE(trace.tensors[0].persistent);
  EXPECT_TRUE(trace.tensors[3].persistent) << "handed on to the next iteration";
  EXPECT_EQ(trace.ops[2].phase, Phase::optimizer);
  EXPECT_THAT(times_of(trace), ElementsAre("50000+10000", "10000+10000", "10000+10000"));
}

TEST_F(Kineto, WhatCannotBeRightIsRefused) {
  std::string unaddressed = memory(1011, 111, 2048, 2048);
  unaddressed.erase(unaddressed.find(R"("Addr": 111, )"), std::string(R"("Addr": 111, )").size());
  const std::string step = call("ProfilerStep#1", 1, 1000, 100), mm = call("aten::mm", 1, 1010, 5);
  EXPECT_THAT(error_of([&] {
                import({step, mm, unaddressed, kernel(1, 1012, 1020, 5, 1)});
              }),
              AllOf(HasSubstr("without 'Addr'"), HasSubstr("1.12 or newer")));
  EXPECT_THAT(error_of([&] {
                import({step, mm, memory(1011, 111, 2048, 2048), kernel(1, 1012, 1020, 7e15, 1)});
              }),
              HasSubstr("'some_kernel' takes"));
}

TEST_F(Kineto, SizesOfArgumentsTellSomeReads) {
  const std::string shapes = R"("Input Dims": [[512], []], "Input type": ["float", "Scalar"])";
  const Trace trace = import({
      call("ProfilerStep#1", 1, 1000, 100),
      call("aten::mm", 1, 1010, 5),
      memory(1011, 111, 2048, 2048),
      kernel(1, 1012, 1020, 5, 1),
      event("cpu_op", "aten::relu", 1, 1030, 5, shapes),
      kernel(1, 1032, 1040, 5, 2),
      call("aten::add", 1, 1050, 5),
      kernel(1, 1052, 1060, 5, 3),
      memory(1070, 111, -2048, 0),
  });
  ASSERT_EQ(trace.ops.size(), 3u);
  EXPECT_EQ(trace.reads(trace.ops[1]).size(), 1u);
  EXPECT_EQ(trace.reads(trace.ops[2]).size(), 1u);
  EXPECT_THAT(notes_, Contains(HasSubstr("1 arguments found, 0 not")));
}

TEST_F(Kineto, ShapesOfArgumentsTellTheKernels) {
  const auto shapes = [](const std::string& dimensions, const std::string& more = "") {
    return R"("Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"], "Input Dims": )" + dimensions + more;
  };
  const Trace trace = import({
      call("ProfilerStep#1", 1, 1000, 100),
      event("cpu_op", "aten::mm", 1, 1010, 5, shapes("[[16, 24], [24, 48]]")),
      memory(1011, 111, 1536, 2048),
      kernel(1, 1012, 1020, 5, 1),
      event("cpu_op", "aten::mm", 1, 1030, 5,
            shapes("[[16, 24], [24, 48]]", R"(, "Input Strides": [[25, 1], [1, 24]])")),
      kernel(1, 1031, 1040, 5, 2),
      kernel(1, 1032, 1045, 5, 3),
      event("cpu_op", "aten::_scaled_dot_product_flash_attention", 1, 1050, 5,
            shapes("[[2, 8, 64, 32], [2, 4, 64, 32], [2, 4, 64, 32], [], []]",
                   R"(, "Concrete Inputs": ["", "", "", "0.", "True"])")),
      kernel(1, 1052, 1060, 5, 4),
      memory(1070, 111, -1536, 0),
  });
  ASSERT_EQ(trace.ops.size(), 3u);
  const auto kernel_of_op = [&](OpIndex op) { return trace.kernel(trace.ops[op]); };
  EXPECT_EQ(kernel_of_op(0), (Kernel{.kind = KernelKind::matmul, .shape = {1, 16, 48, 24}}));
  EXPECT_EQ(kernel_of_op(1),
            (Kernel{.kind = KernelKind::matmul, .unaligned = true, .launches = 2, .shape = {1, 16, 48, 24}}));
  EXPECT_EQ(kernel_of_op(2), (Kernel{.kind = KernelKind::attention,
                                     .attention = AttentionKernel::flash2,
                                     .causal = true,
                                     .shape = {2, 8, 4, 64, 64, 32}}));
  EXPECT_EQ(trace.ops[0].flops, 2u * 16 * 48 * 24);
  EXPECT_EQ(trace.ops[0].bytes, 2u * (16 * 24 + 24 * 48) + 1536);  // what it is given and what it writes
  EXPECT_EQ(trace.header.precision, "bf16");
}

TEST_F(Kineto, DamagedAndForeignFilesAreOneClearError) {
  const auto error = [&](const std::string& text) {
    KinetoImportOptions options;
    options.file = write(text, "k.json");
    return error_of([&] { import_kineto(options); });
  };
  EXPECT_THAT(error(document(three_ops_timed(true))), HasSubstr("profile_memory=True"));
  EXPECT_THAT(error(document({event("browser", "paint", 1, 1, 1)})), HasSubstr("Chrome trace of another program"));
  EXPECT_THAT(error(R"([{"ph": "X", "cat": "browser", "name": "paint"}])"),
              HasSubstr("Chrome trace of another program"));
  EXPECT_THAT(error(recording(three_ops())), HasSubstr("it is an execution trace"));
  EXPECT_THAT(error(document({call("aten::mm", 1, 1e300, 1)})), HasSubstr("beyond any time"));
  EXPECT_THAT(error(document({call("aten::mm", 1, 1, 1)}).substr(0, 150)), HasSubstr("cut short"));
  EXPECT_THAT(error(R"({"traceEvents": [1]})"), HasSubstr("Chrome trace of another program"));
  EXPECT_THAT(error(R"({"traceEvents": ["cpu_op"]})"), AllOf(HasSubstr(":1: byte 17"), HasSubstr("no object")));
  EXPECT_THAT(error(R"({"traceEvents": [{"cat": "cpu_op", "ts": }]})"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error(R"({"traceEvents": [] "a": 1})"), HasSubstr("should stand here"));
  EXPECT_THAT(error(R"({"traceEvents": [], "traceEvents": []})"), HasSubstr("stands twice"));
}

TEST_F(Kineto, WhateverIsDamagedIsAnErrorOrATrace) {
  std::size_t traces = 0;
  const std::string good = document(memory_events()), timed = document(three_ops_timed(true));
  PytorchImportOptions join_options;
  join_options.execution_trace = write(recording(three_ops()), "et.json");
  for (unsigned seed = 0; seed < 300; ++seed) {
    try {
      KinetoImportOptions options;
      options.file = write(damaged(good, seed), "k.json");
      import_kineto(options);
      ++traces;
      join_options.kineto = write(damaged(timed, seed), "k.json");
      import_pytorch(join_options);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(".json")) << seed;
    }
  }
  EXPECT_GT(traces, 20u) << "some damage does not matter";
}

TEST_F(Kineto, StrippedNamesSayNothingAndChangeNothing) {
  const Trace trace = join(three_ops(), three_ops_timed(true));
  const Trace stripped = strip_names(trace);
  const std::string text = format_trace(stripped);
  for (const char* name : {"aten", "mm", "kineto", "SGD", "tencache import"})
    EXPECT_THAT(text, ::testing::Not(HasSubstr(name)));
  EXPECT_EQ(format_trace(strip_names(stripped)), text) << "stable";
  EXPECT_EQ(times_of(stripped), times_of(trace));
  EXPECT_EQ(stripped.accesses, trace.accesses);
  EXPECT_EQ(stripped.ops[0].name, stripped.ops[1].name) << "one name, one number";
}

// ------------------------------------------------------------------------------------------ the published recordings

class KinetoRecording : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no recordings in " << folder;
  }
  const std::string folder = std::string(TENCACHE_SOURCE_DIR) + "/../shared/traces/pytorch/";
};

TEST_F(KinetoRecording, TheLinearPairIsAlignedByNames) {
  PytorchImportOptions options;
  options.execution_trace = folder + "linear_et.json.gz";
  options.kineto = folder + "linear_kineto.json.gz";
  const ImportedTrace imported = import_pytorch(options);
  EXPECT_THAT(imported.notes, Contains(HasSubstr("928 of 928 calls matched by aligning their names")));
  const TraceSummary summary = summarize(imported.trace);
  EXPECT_EQ(summary.measured_share(), 1);
  EXPECT_NEAR(static_cast<double>(summary.all_ops.duration_ns + summary.gap_ns), 27'152'000,
              1'000);  // the recorded iteration
  EXPECT_EQ(imported.trace.header.hardware, "NVIDIA GeForce RTX 2080 Ti");
}

// The execution trace is of ResNet-50 under DDP (53 convolutions), the Kineto trace of a network with 20.
TEST_F(KinetoRecording, TheResNetPairIsNotOfOneProgram) {
  PytorchImportOptions options;
  options.execution_trace = folder + "resnet_et.json.gz";
  options.kineto = folder + "resnet_kineto.json.gz";
  try {
    import_pytorch(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("not of the same program"));
  }
}

// The recorded allocator had at most 6.17 GiB in use; lifetimes are exact, so the trace needs as much.
TEST_F(KinetoRecording, ProfiledMemoryGivesTheRecordedPeak) {
  KinetoImportOptions options;
  options.file = folder + "hta_v100_profile_memory.json.gz";
  options.iteration = 4;
  const Trace trace = import_kineto(options).trace;
  EXPECT_EQ(demands_of(trace).front().peak.bytes, 6'629'508'096u);
  const TraceSummary summary = summarize(trace);
  EXPECT_NEAR(static_cast<double>(summary.all_ops.duration_ns + summary.gap_ns), 346.1e6, 0.5e6);  // ProfilerStep#4
  EXPECT_EQ(summary.tensors[static_cast<std::size_t>(Role::gradient)].count, 404u) << "one an AccumulateGrad";
}

}  // namespace
}  // namespace tencache
