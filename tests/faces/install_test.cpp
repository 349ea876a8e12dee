// What `cmake --install` puts down works on its own: moved to another place, from another folder, with another home.
#include "tests/cli_fixture.h"

namespace tencache {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class Installed : public CommandLine {
 protected:
  void SetUp() override {
    CommandLine::SetUp();
    const std::string build = TENCACHE_BINARY_DIR;
    for (const char* component : {"tencache", "torch"}) {
      const Answer done =
          run({"--install", build, "--prefix", path("first"), "--component", component}, TENCACHE_CMAKE);
      ASSERT_EQ(done.code, 0) << done.err;
    }
    fs::rename(path("first"), path("moved"));
    setenv("HOME", path("home").c_str(), 1);
  }
  Answer installed(const std::vector<std::string>& words) const { return run(words, path("moved/bin/tencache")); }
};

TEST_F(Installed, FindsItsFilesWhereItWasMovedTo) {
  EXPECT_EQ(installed({"--version"}).code, 0);
  // Not in the source tree, where a program of a build looks as well.
  const fs::path machines = path("moved/share/tencache/configs/machines");
  fs::copy_file(machines / "g10-a100.yaml", machines / "only-here.yaml");
  const Answer table =
      installed({"compare", path("moved/share/tencache/samples/gpt2-small.trace.jsonl.zst"), "-m", "only-here",
                 "--policies", "lru,g10", "--gpu-memory", "1300MiB", "--no-rescale", "--json"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_GE(table.json().size(), 3u);
  for (const char* file : {"gpus.yaml", "validated.yaml", "models/gpt2-xl.yaml", "sweeps/ten-thousand.yaml"}) {
    EXPECT_TRUE(fs::exists(machines.parent_path() / file)) << file;
  }
  EXPECT_TRUE(fs::is_directory(machines.parent_path() / "prices"));
}

TEST_F(Installed, BringsCompletionAndDocuments) {
  for (const char* file : {"share/bash-completion/completions/tencache", "share/doc/tencache/copyright",
                           "share/doc/tencache/policies.md", "share/doc/tencache/CHANGELOG.md",
                           "share/doc/tencache/schemas/machine.schema.json",  // of an input, and of an answer
                           "share/doc/tencache/schemas/bound.schema.json"}) {
    EXPECT_TRUE(fs::exists(path("moved") + "/" + file)) << file;
  }
}

TEST_F(Installed, HeadersAreEnoughForAPolicyLibrary) {
  const std::string source = path("moved/share/doc/tencache/examples/look_ahead.cpp");
  const Answer compiled =
      run({"-std=c++20", "-shared", "-fPIC", "-I", path("moved/include/tencache"), source, "-o", path("look_ahead.so")},
          TENCACHE_COMPILER);
  ASSERT_EQ(compiled.code, 0) << compiled.err;
  const Answer listing = installed({"policies", "--policy-library", path("look_ahead.so")});
  EXPECT_EQ(listing.code, 0) << listing.err;
  EXPECT_THAT(listing.out, HasSubstr("look-ahead"));
}

}  // namespace
}  // namespace tencache
