// The summary of validation by machine says what docs/validation.md does.
#include "configs/validated.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <sstream>

#include "configs/machine_yaml.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

std::string text(std::optional<double> share) {
  if (!share) return "none";
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.1f %%", 100 * *share);
  return buffer;
}

TEST(Validated, IsTheSummaryOfTheReport) {
  const std::string report = read_file(TENCACHE_SOURCE_DIR "/docs/validation.md");
  const std::vector<Validated> list = read_validated();
  EXPECT_EQ(list.size(), 6u);
  for (const Validated& entry : list) {
    const std::size_t row = report.find("| " + entry.system + " |");
    ASSERT_NE(row, std::string::npos) << entry.system;
    std::istringstream line(report.substr(row, report.find('\n', row) - row));
    std::vector<std::string> cells;
    for (std::string cell; std::getline(line, cell, '|');) cells.push_back(cell.substr(cell.empty() ? 0 : 1));
    ASSERT_GE(cells.size(), 7u);
    EXPECT_EQ(cells[2], std::to_string(entry.rows) + " ") << entry.system;
    EXPECT_EQ(cells[4], text(entry.median) + " ") << entry.system;
    EXPECT_EQ(cells[6], text(entry.worst) + " ") << entry.system;
    for (const std::string& machine : entry.machines) EXPECT_NO_THROW(read_machine(machine)) << machine;
  }
}

// Ratios say nothing of seconds; of seconds, those of the policies and models that were measured.
TEST(Validated, OnlyMeasuredSecondsOfThePolicyAndModelCount) {
  const std::vector<Validated> list = read_validated();
  const auto text_of = [&](const char* machine, const char* policy, const char* model, const char* buffers = "32",
                           const char* other = "1") {
    const Provenance made{MadeBy::generated, {{"model", model}, {"batch", "4"}}};
    const PolicyRun run{policy, {{"buffers", buffers}, {"other", other}}, {{"buffers", "0"}, {"other", "1"}}};
    return validity_text(validated_for(list, machine, made.made_by), run, made);
  };
  EXPECT_EQ(text_of("10cache-l40s", "10cache", "opt-6.7b"),
            "extrapolated (on this machine ratios of times and hit rates of 10cache, l2l, zero-infinity were checked, "
            "within 22.9 %)");
  EXPECT_EQ(text_of("mlp-offload-4gpu", "mlp-offload", "mlp-offload-40b"),
            "validated within 43.7 % (MLP-Offload (SC'25))");
  // Not with options that none of them had.
  for (const auto& [buffers, other] : {std::pair{"0", "1"}, {"33", "1"}, {"32", "2"}}) {
    const std::string text = text_of("mlp-offload-4gpu", "mlp-offload", "mlp-offload-40b", buffers, other);
    EXPECT_TRUE(text.starts_with("extrapolated (on this machine ") && text.ends_with(", with other options)")) << text;
  }
  EXPECT_TRUE(text_of("mlp-offload-4gpu", "lru", "mlp-offload-40b").starts_with("extrapolated (on this machine "));
  EXPECT_TRUE(text_of("mlp-offload-4gpu", "mlp-offload", "gpt2").starts_with("extrapolated (on this machine "));
  EXPECT_EQ(text_of("mlp-offload", "mlp-offload", "mlp-offload-40b"), "extrapolated");
}

TEST(Validated, CountsForTheSameMachineAndKindOfTrace) {
  const std::vector<Validated> list = read_validated();
  const Validated* found = validated_for(list, "10cache-l40s", MadeBy::generated);
  ASSERT_NE(found, nullptr);
  EXPECT_DOUBLE_EQ(found->worst, 0.229);
  EXPECT_EQ(validated_for(list, "10cache-l40s", MadeBy::recorded), nullptr);
  EXPECT_EQ(validated_for(list, "g5.xlarge", MadeBy::generated), nullptr);
  EXPECT_NE(validated_for(list, "g10-a100", MadeBy::imported), nullptr);
  EXPECT_EQ(validated_for(list, "g10-a100", MadeBy::unknown), nullptr);
}

}  // namespace
}  // namespace tencache
