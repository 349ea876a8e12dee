// Chakra traces: the wire format, pieces and kernels, ranks, errors, and the published recording.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/error.h"
#include "tests/exact/recorded_calls.h"
#include "traces/file/file_io.h"
#include "traces/import/pytorch/chakra.h"
#include "traces/import/pytorch/literal.h"
#include "traces/summary.h"

namespace tencache {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes += static_cast<char>((value & 127) | 128);
  return bytes + static_cast<char>(value);
}
std::string number(std::uint64_t field, std::uint64_t value) { return varint(field << 3) + varint(value); }
std::string text(std::uint64_t field, const std::string& value) {
  return varint(field << 3 | 2) + varint(value.size()) + value;
}
std::string framed(const std::string& message) { return varint(message.size()) + message; }

struct Call {
  std::uint64_t id;
  std::string name, schema, inputs, input_types, outputs, output_types;
  std::uint64_t rf_id, thread = 1, duration_us = 3;
};

std::string side(std::uint64_t field, const std::string& values, const std::string& types) {
  return text(field, text(1, values) + text(2, "[]") + text(3, types));
}

std::string node(const Call& call) {
  return framed(number(1, call.id) + text(2, call.name) + number(3, 4) + number(7, call.duration_us) +
                side(8, call.inputs, call.input_types) + side(9, call.outputs, call.output_types) +
                text(10, text(1, "is_cpu_op") + number(27, 1)) + text(10, text(1, "rf_id") + number(9, call.rf_id)) +
                text(10, text(1, "tid") + number(9, call.thread)) +
                text(10, text(1, "op_schema") + text(29, call.schema)));
}

std::string kernel(std::uint64_t id, std::uint64_t duration_us) {
  return framed(number(1, id) + text(2, "some_kernel") + number(7, duration_us) +
                text(10, text(1, "is_cpu_op") + number(27, 0)));
}

// A product in two pieces with a kernel each, its gradient on another thread, and an update.
std::string small_trace() {
  const std::string mm = "aten::mm(Tensor self, Tensor mat2) -> Tensor", tensors = "['Tensor(float)', 'Tensor(float)']";
  const std::string x = "[1, 10, 0, 8, 4, 'cuda:0']", w = "[2, 20, 0, 16, 4, 'cuda:0']",
                    y = "[3, 30, 0, 8, 4, 'cuda:0']", g = "[4, 40, 0, 16, 4, 'cuda:0']";
  return framed(text(1, "1.0")) +
         node({5, "aten::mm(0)", mm, "[" + x + ", " + w + "]", tensors, "[" + y + "]", "['Tensor(float)']", 11}) +
         kernel(6, 20) +
         node({7, "aten::mm(1)", mm, "[" + x + ", " + w + "]", tensors, "[" + y + "]", "['Tensor(float)']", 11}) +
         kernel(8, 5) +
         node({9, "aten::mm", mm, "[" + x + ", " + y + "]", tensors, "[" + g + "]", "['Tensor(float)']", 12, 2}) +
         kernel(10, 30) +
         node({11, "aten::add_", "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)",
               "[" + w + ", " + g + ", -0.1]", "['Tensor(float)', 'Tensor(float)', 'Double']", "[" + w + "]",
               "['Tensor(float)']", 13}) +
         kernel(12, 4);
}

class Chakra : public ::testing::Test {
 protected:
  Chakra() { std::filesystem::create_directories(directory_); }
  ~Chakra() override { std::filesystem::remove_all(directory_); }

  std::string write(const std::string& bytes, const std::string& name = "t.et") {
    write_file((directory_ / name).string(), bytes);
    return (directory_ / name).string();
  }
  Trace import(const std::vector<std::string>& files) {
    ChakraImportOptions options;
    for (std::size_t i = 0; i < files.size(); ++i) {
      options.files.push_back(write(files[i], "rank" + std::to_string(i) + ".et"));
    }
    ImportedTrace imported = import_chakra(options);
    notes_ = imported.notes;
    return std::move(imported.trace);
  }
  std::string error(const std::string& bytes) {
    try {
      import({bytes});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() / ("tencache_import_chakra_test_" + std::to_string(::getpid()));
  std::vector<std::string> notes_;
};

TEST_F(Chakra, PiecesAreOneCallAndKernelsGiveItsTime) {
  const Trace trace = import({small_trace()});
  ASSERT_EQ(trace.ops.size(), 3u);
  EXPECT_EQ(trace.name(trace.ops[0]), "aten::mm");
  EXPECT_EQ(trace.ops[0].duration_ns, 25'000);
  EXPECT_EQ(trace.ops[1].duration_ns, 30'000);
  EXPECT_EQ(trace.ops[1].phase, Phase::backward);
  EXPECT_EQ(trace.ops[2].phase, Phase::optimizer);
  const TraceSummary summary = summarize(trace);
  EXPECT_EQ(summary.tensors[static_cast<std::size_t>(Role::parameter)].bytes, 64u);
  EXPECT_EQ(summary.tensors[static_cast<std::size_t>(Role::gradient)].bytes, 64u);
  EXPECT_EQ(summary.tensors[static_cast<std::size_t>(Role::input)].bytes, 32u);
  EXPECT_EQ(summary.gap_ns, 0);
  EXPECT_THAT(notes_, Contains(HasSubstr("3 calls, 4 kernels")));
}

TEST_F(Chakra, SeveralFilesAreRanks) {
  const Trace trace = import({small_trace(), small_trace()});
  ASSERT_EQ(trace.ops.size(), 6u);
  EXPECT_EQ(trace.ops[3].rank, 1);
  EXPECT_EQ(trace.tensors.size(), 8u);
  EXPECT_EQ(trace.reads(trace.ops[3])[0], trace.reads(trace.ops[0])[0] + 4);
}

TEST_F(Chakra, DamagedAndForeignFilesAreOneClearError) {
  const std::string good = small_trace();
  for (const std::size_t cut : {good.size() - 1, good.size() / 2, std::size_t{2}}) {
    EXPECT_THAT(error(good.substr(0, cut)), HasSubstr("rank0.et")) << cut;
  }
  EXPECT_THAT(error("{\"schema\": \"1.1.0\", \"nodes\": []}"), HasSubstr("Chakra trace"));
  EXPECT_THAT(error(std::string(20, '\xff')), HasSubstr("no length of a message"));
  EXPECT_THAT(error(framed(text(1, "1.0"))), HasSubstr("no nodes"));
  EXPECT_THAT(error(framed("") + framed(std::string("\x0b", 1))), HasSubstr("not a protobuf message"));
}

TEST_F(Chakra, WhateverIsDamagedIsAnErrorOrATrace) {
  std::size_t traces = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    try {
      import({damaged(small_trace(), seed)});
      ++traces;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank0.et")) << seed;
    }
  }
  EXPECT_GT(traces, 20u) << "some damage does not matter";
}

TEST_F(Chakra, ArgumentsAreInPythonsNotation) {
  ExecutionTrace trace;
  EXPECT_EQ(read_literal_tensors("[[1, 2, 0, 6, 4, 'cuda:0'], True, [[3, 4, 0, 1, 8, 'cpu']], '<None>', (1,)]",
                                 "[[2, 3], [], [[1]], [], [[]]]",
                                 "['Tensor(float)', 'Bool', 'GenericList[Tensor(long)]', 'None', 'Tuple']", trace),
            2u);
  EXPECT_EQ(trace.refs[0].bytes(), 24u);
  EXPECT_THAT(trace.shape(trace.refs[0]), ElementsAre(2u, 3u));
  EXPECT_EQ(trace.refs[1].device, TensorDevice::host);
  EXPECT_TRUE(trace.refs[1].in_list);
  EXPECT_THROW(read_literal_tensors("[[1, 2", "", "", trace), Error);
  EXPECT_THROW(read_literal_tensors(std::string(100, '['), "", "", trace), Error);
  EXPECT_THROW(read_literal_tensors("[[1, 2, 0, 1000000000000000000, 4, 'cuda:0']]", "", "['Tensor(float)']", trace),
               Error);
}

// The same ResNet-50 as the execution traces of the collection.
TEST_F(Chakra, TheFeedersTestTrace) {
  const std::string file =
      std::string(TENCACHE_SOURCE_DIR) + "/../shared/traces/pytorch/chakra_feeder_tests_trace.tar.gz";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no recording " << file;
  ChakraImportOptions options;
  options.files = {file};
  const ImportedTrace imported = import_chakra(options);
  const TraceSummary summary = summarize(imported.trace);
  EXPECT_THAT(imported.notes.front(), HasSubstr("3664 nodes"));
  EXPECT_EQ(summary.tensors[static_cast<std::size_t>(Role::optimizer_state)].bytes, 25'557'032ull * 4) << "momentum";
  EXPECT_EQ(summary.gradients_of_step.bytes, 25'557'032ull * 4);
  EXPECT_EQ(summary.measured_share(), 1);
}

}  // namespace
}  // namespace tencache
