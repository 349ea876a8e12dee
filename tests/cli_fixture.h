// Starting the built `tencache` program in a folder of its own, for the tests of the command line.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "traces/file/trace_file.h"

namespace tencache {

inline const std::string program = TENCACHE_BINARY_DIR "/cli/tencache";

inline std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Answer {
  int code = -1;
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

class CommandLine : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / ("tencache_cli_test_" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ / "work");
    write_trace(small_trace(), path("small.trace.jsonl"));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / "work" / name).string(); }

  // A word a string; `out`, if given, is where stdout goes.
  Answer run(const std::vector<std::string>& words, const std::string& executable = program,
             std::string out = "") const {
    const std::string err = (folder_ / "err").string();
    const bool own_out = out.empty();
    if (own_out) out = (folder_ / "out").string();
    std::string command = "cd '" + (folder_ / "work").string() + "' && '" + executable + "'";
    for (const std::string& word : words) command += " '" + word + "'";
    command += " >'" + out + "' 2>'" + err + "' </dev/null";
    const int status = std::system(command.c_str());
    Answer answer;
    answer.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (own_out) answer.out = content(out);
    answer.err = content(err);
    return answer;
  }

  // An error of the contract: exit code 2, nothing on stdout, one line on stderr.
  void expect_bad_usage(const std::vector<std::string>& words, const ::testing::Matcher<std::string>& message) const {
    std::string shown;
    for (const std::string& word : words) shown += word.substr(0, 60) + " ";
    SCOPED_TRACE(shown);
    const Answer answer = run(words);
    EXPECT_EQ(answer.code, 2);
    EXPECT_EQ(answer.out, "");
    EXPECT_THAT(answer.err, ::testing::AllOf(::testing::StartsWith("tencache: "), message));
    EXPECT_EQ(std::count(answer.err.begin(), answer.err.end(), '\n'), 1) << answer.err;
  }

  std::set<std::string> files_in_work() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "work"))
      names.insert(entry.path().filename().string());
    return names;
  }

  // Two layers, forward, backward, and an optimizer step that may be placed; a few ms an op, a few MiB a tensor.
  static Trace small_trace() {
    Trace trace;
    trace.header.model = "two layers";
    trace.header.batch = 4;
    trace.header.sequence_length = 8;
    const auto tensor = [&](const char* name, Role role, bool persistent) {
      return trace.add_tensor(name, 4 * MiB, role, persistent);
    };
    const TensorId input = tensor("input", Role::input, true);
    const TensorId w0 = tensor("w0", Role::parameter, true), w1 = tensor("w1", Role::parameter, true);
    const TensorId s0 = tensor("s0", Role::optimizer_state, true), s1 = tensor("s1", Role::optimizer_state, true);
    const TensorId a0 = tensor("a0", Role::activation, false), a1 = tensor("a1", Role::activation, false);
    const TensorId g0 = tensor("g0", Role::gradient, false), g1 = tensor("g1", Role::gradient, false);
    const auto op = [&](const char* name, const char* module, Phase phase, std::vector<TensorId> reads,
                        std::vector<TensorId> writes, std::int32_t group = -1) {
      Op o;
      o.name = trace.names.intern(name);
      o.module = trace.names.intern(module);
      o.phase = phase;
      o.duration_ns = 3'000'000;
      o.gap_before_ns = 10'000;
      o.group = group;
      o.placeable = o.reorderable = group >= 0;
      trace.add_op(o, reads, writes);
    };
    op("forward 0", "layer0", Phase::forward, {input, w0}, {a0});
    op("forward 1", "layer1", Phase::forward, {a0, w1}, {a1});
    op("backward 1", "layer1", Phase::backward, {a1, a0, w1}, {g1});
    op("backward 0", "layer0", Phase::backward, {a0, input, w0}, {g0});
    op("update 1", "optimizer", Phase::optimizer, {g1, w1, s1}, {w1, s1}, 1);
    op("update 0", "optimizer", Phase::optimizer, {g0, w0, s0}, {w0, s0}, 0);
    return trace;
  }
  static constexpr Nanoseconds small_ideal_ns = 6 * 3'010'000;

  std::filesystem::path folder_;
};

}  // namespace tencache
