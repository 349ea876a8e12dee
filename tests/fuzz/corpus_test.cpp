// Every file of the corpus through its reader: seeds, what fuzzing reached beyond them, and what once broke something.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "tests/fuzz/readers.h"
#include "traces/file/file_io.h"

namespace tencache::fuzz {
namespace {

namespace fs = std::filesystem;
const fs::path corpus = fs::path(TENCACHE_SOURCE_DIR) / "tests/fuzz/corpus";

std::vector<fs::path> files_of(const Reader& reader) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(corpus / reader.name)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

class Corpus : public testing::TestWithParam<Reader> {};

// That nothing else happens than reading or refusing is what the test is for; that a seed is read shows that the rest
// of the corpus gets beyond the first lines.
TEST_P(Corpus, IsReadOrRefused) {
  const Reader& reader = GetParam();
  int read = 0;
  for (const fs::path& file : files_of(reader)) {
    SCOPED_TRACE(file);
    const std::string refusal = read_or_refuse(reader.name, read_file(file.string()));
    read += refusal.empty() ? 1 : 0;
    if (file.filename().string().starts_with("seed")) {
      EXPECT_EQ(refusal, "");
    }
  }
  EXPECT_GT(read, 0);
}

// What is cut off or has a bit flipped is read or refused, wherever that is.
TEST_P(Corpus, SurvivesDamage) {
  const Reader& reader = GetParam();
  for (const fs::path& file : files_of(reader)) {
    SCOPED_TRACE(file);
    const std::string bytes = read_file(file.string());
    const std::size_t stride = std::max<std::size_t>(1, bytes.size() / 40);
    for (std::size_t at = 0; at < bytes.size(); at += stride) {
      read_or_refuse(reader.name, bytes.substr(0, at));
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
      read_or_refuse(reader.name, damaged);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Readers, Corpus, testing::ValuesIn(readers().begin(), readers().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(CorpusTest, EveryFolderIsOfAReader) {
  for (const fs::directory_entry& entry : fs::directory_iterator(corpus)) {
    EXPECT_TRUE(std::any_of(readers().begin(), readers().end(), [&](const Reader& reader) {
      return entry.path().filename() == reader.name;
    })) << entry.path();
  }
}

}  // namespace
}  // namespace tencache::fuzz
