// The files of configs/kernels: what is read, and that each mistake is named with its file and line.
#include "configs/kernel_yaml.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>

#include "configs/gpu_yaml.h"
#include "core/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

const std::string good =
    "name: chip\n"
    "measured: true\n"
    "table: chip.csv\n"
    "matmul:\n"
    "  start: 3us\n"
    "  share: 0.9\n"
    "  half_tile: 0.8\n"
    "  quarter_tile: 0.7\n"
    "  depth: 200\n"
    "  tail: 0.4\n"
    "  memory_share: 0.85\n"
    "  cache_share: 1.5\n"
    "  split_start: 2us\n"
    "  unaligned_share: 0.1\n"
    "  source: a test\n"
    "  confidence: measured\n"
    "attention:\n"
    "  - {kernel: flash2, head_dimension: 64, start: 10us, share: 0.5, depth: 100, tail: 0.3, backward: 0.85,\n"
    "     source: a test, confidence: published}\n"
    "kernel_start: {elementwise: 2us, source: a test, confidence: measured}\n"
    "sustained: {value: 0.95, source: a test, confidence: estimated}\n"
    "bandwidth_share: {elementwise: 0.8, norm: 0.5, source: a test, confidence: measured}\n"
    "error: {elementwise: 0.1, matmul: 0.04, source: a test, confidence: measured}\n"
    "collectives:\n"
    "  - {ranks: 8, latency: 10us, bandwidth: 300GB/s, root: 5, source: a test, confidence: measured}\n";

const std::string good_table =
    "kind,shape,causal,attention_kernel,bytes,time_ns,set\n"
    "matmul,2x128x64x32,,,,5000,fit\n"
    "matmul,1x64x64x64,,,,4000,judge\n"
    "attention,1x8x2x512x512x64,1,flash2,,30000,fit\n"
    "norm,,,,1048576,6000,judge\n";

class KernelFiles : public ::testing::Test {
 protected:
  KernelFiles() {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) / (std::string("tencache_kernels_") + test->name());
    fs::create_directories(folder_);
  }
  ~KernelFiles() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  // Of what reading the chip with this table says.
  std::string table_error(const std::string& table) const {
    write("chip.yaml", good);
    write("chip.csv", table);
    return error([&] { read_kernels(folder_.string(), "chip"); });
  }
  template <typename Read>
  static std::string error(Read read) {
    try {
      read();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  fs::path folder_;
};

// The good file with one piece replaced, and the line where the piece stands.
std::string changed(const std::string& text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return std::string(text).replace(at, from.size(), to);
}
std::string place(const std::string& file, const std::string& text, const std::string& piece) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(text.find(piece));
  return file + ":" + std::to_string(std::count(text.begin(), end, '\n') + 1) + ": ";
}

TEST_F(KernelFiles, AGoodFileIsRead) {
  write("chip.yaml", good);
  write("chip.csv", good_table);
  const KernelConstants kernels = read_kernels(folder_.string(), "chip");
  EXPECT_EQ(kernels.name, "chip");
  EXPECT_TRUE(kernels.measured);
  EXPECT_EQ(kernels.matmul.start_ns, 3000);
  EXPECT_EQ(kernels.matmul.depth, 200);
  EXPECT_EQ(kernels.matmul.fp32_share, 1);  // not given
  ASSERT_EQ(kernels.attention.size(), 1u);
  EXPECT_EQ(kernels.attention[0].kernel, AttentionKernel::flash2);
  EXPECT_EQ(kernels.attention[0].head_dimension, 64u);
  EXPECT_EQ(kernels.start_ns[static_cast<std::size_t>(KernelKind::elementwise)], 2000);
  EXPECT_EQ(kernels.sustained, 0.95);
  EXPECT_EQ(kernels.bandwidth_share[static_cast<std::size_t>(KernelKind::norm)], 0.5);
  EXPECT_EQ(kernels.error[static_cast<std::size_t>(KernelKind::matmul)], 0.04);
  ASSERT_EQ(kernels.collectives.size(), 1u);
  EXPECT_EQ(kernels.collectives[0].bandwidth, 300'000'000'000u);
  // Only what is to be fitted on corrects the model.
  ASSERT_EQ(kernels.measured_matmuls.size(), 1u);
  EXPECT_EQ(kernels.measured_matmuls[0].m, 256u);  // batch times rows
  EXPECT_EQ(kernels.measured_matmuls[0].time_ns, 5000);

  const std::vector<MeasuredKernel> rows = read_kernel_table(folder_.string(), "chip");
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_TRUE(rows[1].judge);
  EXPECT_TRUE(rows[2].kernel.causal);
  EXPECT_EQ(rows[2].kernel.shape[2], 2u);
  EXPECT_EQ(rows[3].bytes, 1048576u);
}

TEST_F(KernelFiles, EachMistakeIsNamedWithItsLine) {
  struct Mistake {
    std::string from, to, complaint;
  };
  for (const Mistake& mistake : std::vector<Mistake>{
           {"  depth: 200", "  deepness: 200", "unknown key 'deepness' in matmul; valid keys are start, share"},
           {"  start: 3us", "  start: 3", "matmul: start: '3' has no unit; write 3us, 3ms or 3s"},
           {"  share: 0.9", "  share: 1.2", "matmul: share '1.2' is not a number from 0.01 to 1"},
           {"  share: 0.9", "  share: nan", "matmul: share 'nan' is not a number from 0.01 to 1"},
           {"  tail: 0.4", "  tail: [0.4]", "matmul: tail is a list; expected text"},
           {"confidence: measured", "confidence: sure",
            "matmul: confidence 'sure'; valid are published, measured, estimated"},
           {"kernel: flash2", "kernel: flash9", "attention: unknown kernel 'flash9'; valid are flash1, flash2"},
           {"head_dimension: 64", "head_dimension: 0", "attention: head_dimension '0' is not a number from 1 to 4096"},
           {"sustained: {value: 0.95", "sustained: {value: 9", "sustained: value '9' is not a number from 0.1 to 1.2"},
           {"{elementwise: 0.8", "{elementwise: 3", "bandwidth_share: elementwise '3' is not a number from 0.01 to 2"},
           {"norm: 0.5", "worm: 0.5", "unknown key 'worm' in bandwidth_share; valid keys are matmul"},
           {"bandwidth: 300GB/s", "bandwidth: 0", "collectives: bandwidth must be above 0"},
           {"bandwidth: 300GB/s", "bandwidth: 300", "has no unit; write 300GB/s"},
           {"measured: true", "measured: yes", "measured: 'yes'; valid are true, false"},
           {"name: chip", "names: chip", "unknown key 'names' in a chip's kernels"},
       }) {
    const std::string what = error([&] { parse_kernels(changed(good, mistake.from, mistake.to), "k.yaml"); });
    EXPECT_THAT(what, HasSubstr(mistake.complaint));
    EXPECT_THAT(what, HasSubstr(place("k.yaml", good, mistake.from)));
  }
  EXPECT_THAT(error([] { parse_kernels("name: [", "k.yaml"); }), HasSubstr("not valid YAML"));
  EXPECT_THAT(error([] { parse_kernels("", "k.yaml"); }), HasSubstr("a chip's kernels: expected a map"));
}

TEST_F(KernelFiles, ProductsInFp8HaveASectionAndATable) {
  const std::string fp8 =
      "matmul_fp8:\n"
      "  table: chip-fp8.csv\n"
      "  start: 4us\n"
      "  share: 0.8\n"
      "  half_tile: 0.8\n"
      "  quarter_tile: 0.7\n"
      "  depth: 300\n"
      "  tail: 0.4\n"
      "  memory_share: 0.85\n"
      "  cache_share: 1.5\n"
      "  split_start: 2us\n"
      "  error: 0.05\n"
      "  source: a test\n"
      "  confidence: measured\n";
  const std::string header = good_table.substr(0, good_table.find('\n') + 1);
  const std::string table = header + "matmul,1x128x64x32,,,,2500,fit\nmatmul,1x64x64x64,,,,2000,judge\n";
  write("chip.yaml", good + fp8);
  write("chip.csv", good_table);
  write("chip-fp8.csv", table);
  const KernelConstants kernels = read_kernels(folder_.string(), "chip");
  EXPECT_EQ(kernels.matmul_fp8.start_ns, 4000);
  EXPECT_EQ(kernels.matmul_fp8.depth, 300);
  EXPECT_EQ(kernels.error_fp8, 0.05);
  ASSERT_EQ(kernels.measured_matmuls.size(), 1u);
  ASSERT_EQ(kernels.measured_matmuls_fp8.size(), 1u);
  EXPECT_EQ(kernels.measured_matmuls_fp8[0].time_ns, 2500);
  const std::vector<MeasuredKernel> rows = read_kernel_table(folder_.string(), "chip");
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_FALSE(rows[3].kernel.fp8);
  EXPECT_TRUE(rows[4].kernel.fp8);
  EXPECT_TRUE(rows[5].judge);

  const auto read = [&] { read_kernels(folder_.string(), "chip"); };
  write("chip-fp8.csv", header + "norm,,,,1048576,6000,fit\n");
  EXPECT_THAT(error(read), HasSubstr("chip-fp8.csv:2: kind 'norm' in a table of fp8 products; it takes matmul only"));
  write("chip-fp8.csv", changed(table, "1x128x64x32", "128x64x32"));
  EXPECT_THAT(error(read), HasSubstr("chip-fp8.csv:2: shape '128x64x32' of a matmul; it takes 4 numbers"));
  fs::remove(folder_ / "chip-fp8.csv");
  EXPECT_THAT(error(read), HasSubstr("chip-fp8.csv"));
  for (const auto& [from, to, complaint] : std::vector<std::array<std::string, 3>>{
           {"start: 4us", "start: 4", "matmul_fp8: start: '4' has no unit; write 4us, 4ms or 4s"},
           {"start: 4us", "start: 0us", "matmul_fp8: start must be above 0"},
           {"error: 0.05", "error: 0", "matmul_fp8: error '0' is not a number from 0.0001 to 10"},
           {"depth: 300", "fp32_share: 1", "unknown key 'fp32_share' in matmul_fp8"}}) {
    const std::string what =
        error([&, from = from, to = to] { parse_kernels(changed(good + fp8, from, to), "k.yaml"); });
    EXPECT_THAT(what, HasSubstr(complaint));
    EXPECT_THAT(what, HasSubstr(place("k.yaml", good + fp8, from)));
  }
}

TEST_F(KernelFiles, WhatIsMissingIsNamed) {
  const auto without = [](const std::string& from, const std::string& to) {
    const std::size_t begin = good.find(from);
    return error([&] { parse_kernels(std::string(good).erase(begin, good.find(to) - begin), "k.yaml"); });
  };
  EXPECT_THAT(without("matmul:", "attention:"), HasSubstr("key 'matmul' is missing in a chip's kernels"));
  EXPECT_THAT(without("error:", "collectives:"), HasSubstr("key 'error' is missing in a chip's kernels"));
  EXPECT_THAT(without("  unaligned_share", "  source"), HasSubstr("key 'unaligned_share' is missing in matmul"));
  EXPECT_THAT(without("  source: a test\n  conf", "  confidence"), HasSubstr("key 'source' is missing in matmul"));
  EXPECT_THAT(error([] { parse_kernels(changed(good, "{elementwise: 0.1, ", "{"), "k.yaml"); }),
              HasSubstr("error: 'elementwise' is missing"));
  EXPECT_THAT(error([] { parse_kernels(changed(good, "{elementwise: 0.8, ", "{"), "k.yaml"); }),
              HasSubstr("bandwidth_share: 'elementwise' is missing"));
}

TEST_F(KernelFiles, MistakesOfTablesAreNamedWithTheirLine) {
  struct Mistake {
    std::string from, to, complaint;
  };
  for (const Mistake& mistake : std::vector<Mistake>{
           {"matmul,2x128", "matmult,2x128", "unknown kind 'matmult'; valid are matmul, attention"},
           {"2x128x64x32", "2x128x64", "shape '2x128x64' of a matmul; it takes 4 numbers with x between them"},
           {"2x128x64x32", "2x128x64x32x8", "it takes 4 numbers"},
           {"2x128x64x32", "2x0x64x32", "it takes 4 numbers"},
           {"2x128x64x32", "2x128x64x", "it takes 4 numbers"},
           {"1048576,6000", "1048576,0", "time_ns is 0; a kernel takes at least a nanosecond"},
           {"1048576,6000", "1048576,-6", "column 'time_ns' is '-6'; it takes a whole number"},
           {"6000,judge", "6000,train", "unknown set 'train'; valid are fit, judge"},
           {"flash2,,30000", "flash8,,30000", "unknown attention_kernel 'flash8'; valid are flash1"},
       }) {
    const std::string what = table_error(changed(good_table, mistake.from, mistake.to));
    EXPECT_THAT(what, HasSubstr(mistake.complaint));
    EXPECT_THAT(what, HasSubstr(place("chip.csv", good_table, mistake.from)));
  }
  EXPECT_THAT(table_error(changed(good_table, "bytes,time_ns", "bytes,time")),
              HasSubstr("chip.csv:1: column 'time_ns' is missing; a table of kernels has kind, shape"));
  EXPECT_THAT(table_error(good_table.substr(0, good_table.find('\n') + 1)), HasSubstr("has no rows"));
  fs::remove(folder_ / "chip.csv");
  EXPECT_THAT(error([&] { read_kernels(folder_.string(), "chip"); }), HasSubstr("chip.csv"));
}

TEST_F(KernelFiles, AFileIsNamedAfterItsChip) {
  write("other.yaml", good);
  EXPECT_THAT(error([&] { read_kernels(folder_.string(), "other"); }),
              HasSubstr("is of 'chip'; the file is named after its chip"));
}

TEST_F(KernelFiles, AGpuNamesAFileThatExists) {
  const std::string gpus =
      "gpus:\n"
      "  - name: box\n"
      "    kernels: chop\n"
      "    memory: {value: 80GB, source: a test, confidence: published}\n"
      "    memory_bandwidth: {value: 2TB/s, source: a test, confidence: published}\n"
      "    fp32_tflops: {value: 20, source: a test, confidence: published}\n"
      "    cache: {value: 40MiB, source: a test, confidence: published}\n"
      "    multiprocessors: {value: 108, source: a test, confidence: published}\n"
      "    interconnect: {value: 100GB/s, source: a test, confidence: published}\n";
  write("chip.yaml", good);
  write("chip.csv", good_table);
  EXPECT_THAT(error([&] { parse_gpus(gpus, "g.yaml", folder_.string()); }),
              HasSubstr("GPU 'box': kernels 'chop' is no file of " + folder_.string()));
  const std::vector<GpuSpec> read =
      parse_gpus(changed(gpus, "kernels: chop", "kernels: chip"), "g.yaml", folder_.string());
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].kernels.name, "chip");
}

TEST_F(KernelFiles, WhatShipsIsRead) {
  std::size_t measured = 0;
  for (const GpuSpec& gpu : list_gpus()) {
    SCOPED_TRACE(gpu.name);
    EXPECT_EQ(gpu.kernels.measured, !gpu.kernels.measured_matmuls.empty());
    for (std::size_t kind = 1; kind < kernel_kind_count; ++kind) EXPECT_GT(gpu.kernels.error[kind], 0);
    measured += gpu.kernels.measured ? 1 : 0;
  }
  EXPECT_GE(measured, 5u);
}

}  // namespace
}  // namespace tencache
