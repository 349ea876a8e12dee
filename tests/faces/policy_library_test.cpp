// Policies from shared libraries, from end to end: the example of the documentation, and libraries that are refused.
#include "tests/cli_fixture.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string library(const std::string& name) { return TENCACHE_BINARY_DIR "/tests/" + name + ".so"; }

TEST_F(CommandLine, ALibrarysPolicyIsARowLikeAnyOther) {
  const std::string trace = path("small.trace.jsonl");
  const Answer answer = run({"compare", trace, "-m", "small-host", "--policies", "look-ahead,on-demand",
                             "--policy-library", library("look_ahead"), "--json"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const Json rows = answer.json();
  const auto row = std::find_if(rows.begin(), rows.end(), [](const Json& r) { return r["policy"] == "look-ahead"; });
  ASSERT_NE(row, rows.end());
  EXPECT_EQ((*row)["fits"], true);
  EXPECT_EQ((*row)["manifest"]["options"]["ahead"], "4");
  EXPECT_EQ((*row)["manifest"]["run"]["policy_library"], std::filesystem::canonical(library("look_ahead")).string());
  EXPECT_EQ((*row)["manifest"]["hashes"]["policy_library"].get<std::string>().size(), 64u);

  const Answer all = run({"compare", trace, "-m", "small-host", "--policy-library", library("look_ahead")});
  EXPECT_THAT(all.out, AllOf(HasSubstr("look-ahead"), HasSubstr("on-demand")));
  const Answer listing = run({"policies", "--policy-library", library("look_ahead")});
  EXPECT_THAT(listing.out, HasSubstr("--set ahead=<number>  how far it looks (default 4 ops)"));
  const Answer set = run({"replay", trace, "-m", "small-host", "-p", "look-ahead", "--set", "ahead=2",
                          "--policy-library", library("look_ahead"), "--json"});
  EXPECT_EQ(set.json()["manifest"]["options"]["ahead"], "2");
}

TEST_F(CommandLine, AResultOfALibraryIsReproducedOnlyWhereTheLibraryIsNamed) {
  const std::string trace = path("small.trace.jsonl");
  ASSERT_EQ(run({"replay", trace, "-m", "small-host", "-p", "look-ahead", "--policy-library", library("look_ahead"),
                 "--json"},
                program, path("result.json"))
                .code,
            0);
  const Answer refused = run({"reproduce", "result.json"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("result.json"), HasSubstr("if you trust it, add --policy-library /")));
  EXPECT_EQ(run({"reproduce", "result.json", "--policy-library", library("look_ahead")}).code, 0);
}

TEST_F(CommandLine, TheCommandThatTuningPrintsNamesTheLibrary) {
  const Answer tuned = run({"tune", path("small.trace.jsonl"), "-m", "small-host", "-p", "look-ahead", "--over",
                            "ahead=1,2,4", "--policy-library", library("look_ahead")});
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  const std::size_t at = tuned.out.find("tencache replay ");
  ASSERT_NE(at, std::string::npos) << tuned.out;
  const std::string words = tuned.out.substr(at + std::string("tencache ").size());
  write_file(path("replay.sh"), "exec " + program + " " + words);
  EXPECT_EQ(run({path("replay.sh")}, "/bin/sh").code, 0) << words;
}

TEST_F(CommandLine, WithoutTheLibraryThePolicyIsUnknown) {
  expect_bad_usage({"replay", path("small.trace.jsonl"), "-m", "small-host", "-p", "look-ahead"},
                   HasSubstr("'look-ahead'"));
}

TEST_F(CommandLine, UnfitLibrariesAreRefusedWithTheReason) {
  const auto refused = [&](const std::string& file, const auto& reason) {
    SCOPED_TRACE(file);
    expect_bad_usage({"policies", "--policy-library", file}, AllOf(HasSubstr(file), reason));
  };
  refused("absent.so", HasSubstr("is not a file"));
  refused(path("small.trace.jsonl"), HasSubstr("cannot be loaded as a shared library"));
  refused(library("faulty_no_entry"), HasSubstr("TENCACHE_POLICY("));
  refused(library("faulty_old_version"),
          AllOf(HasSubstr("version 0 of the policy interface"), HasSubstr("compile it")));
  refused(library("faulty_other_layout"), HasSubstr("headers whose types differ"));
  refused(library("faulty_taken_name"), HasSubstr("'lru', which there is already"));
  refused(library("faulty_bad_name"), HasSubstr("named 'all'"));
}

TEST_F(CommandLine, WhatALibrarysPolicyThrowsNamesIt) {
  for (const char* command : {"replay", "compare", "explain"}) {
    const auto with = [&](const char* policy) {
      return std::vector<std::string>{command,
                                      path("small.trace.jsonl"),
                                      "-m",
                                      "small-host",
                                      "-p",
                                      policy,
                                      "--policy-library",
                                      library("faulty_throwing")};
    };
    expect_bad_usage(with("throws-text"), HasSubstr("tencache: policy 'throws-text' failed: boom"));
    expect_bad_usage(with("throws-number"), HasSubstr("threw what is no std::exception"));
  }
}

// The page shows the code that the tests build.
TEST(WritingAPolicy, ShowsTheExampleAsItIs) {
  const std::string root = TENCACHE_SOURCE_DIR;
  EXPECT_THAT(content(root + "/docs/writing-a-policy.md"), HasSubstr(content(root + "/docs/examples/look_ahead.cpp")));
}

}  // namespace
}  // namespace tencache
