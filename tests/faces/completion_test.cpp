// Completion, in bash itself as well.
#include "tests/cli_fixture.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

class Completion : public CommandLine {
 protected:
  std::vector<std::string> lines_of(const std::string& text) const {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }

  // What the program offers.
  std::vector<std::string> offered(std::vector<std::string> words) const {
    words.insert(words.begin(), {"__complete", "tencache"});
    const Answer answer = run(words);
    EXPECT_EQ(answer.code, 0) << answer.err;
    return lines_of(answer.out);
  }

  // What bash would put in place of the last piece of the line.
  std::vector<std::string> in_bash(const std::string& line) const {
    std::ofstream(path("complete.bash")) << "PATH='" << TENCACHE_BINARY_DIR "/cli':$PATH\n"
                                         << "compopt() { :; }  # knows only completions that a key began\n"
                                         << "source <(tencache completion bash)\n"
                                         << "COMP_LINE='" << line << "' COMP_POINT=" << line.size() << "\n"
                                         << "complete -p tencache >registered\n"
                                         << "_tencache tencache\n"
                                         << "((${#COMPREPLY[@]} == 0)) || printf '%s\\n' \"${COMPREPLY[@]}\"\n";
    const Answer answer = run({path("complete.bash")}, "/bin/bash");
    EXPECT_EQ(answer.code, 0);
    EXPECT_EQ(answer.err, "");
    EXPECT_EQ(content(path("registered")), "complete -F _tencache tencache\n");
    return lines_of(answer.out);
  }
};

TEST_F(Completion, OffersCommandsAndOptionsAsTheyAreDefined) {
  EXPECT_THAT(offered({"comp"}), ElementsAre("compare", "completion"));
  EXPECT_THAT(offered({""}), AllOf(IsSupersetOf({"generate", "report", "info"}), Not(Contains(StartsWith("_")))));
  EXPECT_THAT(offered({"run", ""}), ElementsAre("replay", "python"));
  EXPECT_THAT(offered({"replay", "--po"}), UnorderedElementsAre("--policy", "--policy-library"));
  EXPECT_THAT(offered({"replay", "--"}),
              AllOf(Contains("--timeline"), Not(Contains("--trace-at")), Each(StartsWith("--"))));
  EXPECT_THAT(offered({"policies", ""}), Contains("--json"));  // nothing else can follow
  EXPECT_THAT(offered({"replay", "--nonsense="}), ElementsAre());
}

TEST_F(Completion, OffersValuesWhereAnOptionTakesThem) {
  EXPECT_THAT(offered({"replay", "t.jsonl", "-m", "g10"}), ElementsAre("g10-a100", "g10-a100-small", ":files"));
  EXPECT_THAT(offered({"replay", "--machine=g10-a100-"}), ElementsAre("--machine=g10-a100-small", ":files"));
  EXPECT_THAT(offered({"replay", "-p", "l2"}), ElementsAre("l2l"));
  EXPECT_THAT(offered({"compare", "--policies", "lru,zero-o"}), ElementsAre("lru,zero-offload"));
  EXPECT_THAT(offered({"compare", "--policies", "al"}), ElementsAre("all"));
  EXPECT_THAT(offered({"generate", "--model", "gpt2-x"}), ElementsAre("gpt2-xl", ":files"));
  EXPECT_THAT(offered({"generate", "--gpu", "h10"}), Contains("h100"));
  EXPECT_THAT(offered({"gui", "--theme", ""}), ElementsAre("light", "dark"));
  EXPECT_THAT(offered({"completion", ""}), ElementsAre("bash"));
  EXPECT_THAT(offered({"replay", "--policy", "g10", "--set", "vic"}), ElementsAre("victim="));
  EXPECT_THAT(offered({"replay", "-p", "g10", "--set", "victim=f"}), ElementsAre("victim=fifo"));
  EXPECT_THAT(offered({"info", ""}), ElementsAre(":files"));
  EXPECT_THAT(offered({"replay", "--timeline", "-"}), ElementsAre(":files"));  // the option's value, not an option
}

TEST_F(Completion, RunsInBash) {
  EXPECT_THAT(in_bash("tencache comp"), ElementsAre("compare", "completion"));
  EXPECT_THAT(in_bash("tencache run "), ElementsAre("replay", "python"));
  EXPECT_THAT(in_bash("tencache replay sm"), ElementsAre("small.trace.jsonl"));
  EXPECT_THAT(in_bash("tencache replay small.trace.jsonl -m g10-a100-"), ElementsAre("g10-a100-small"));
  // Bash replaces only what follows the last = of a word.
  EXPECT_THAT(in_bash("tencache replay --machine=g10-a100-"), ElementsAre("g10-a100-small"));
  EXPECT_THAT(in_bash("tencache replay -p g10 --set victim=f"), ElementsAre("fifo"));
  EXPECT_THAT(in_bash("tencache compare --policies lru,zero-o"), ElementsAre("lru,zero-offload"));
}

TEST_F(Completion, IsForBash) { expect_bad_usage({"completion", "csh"}, HasSubstr("bash")); }

}  // namespace
}  // namespace tencache
