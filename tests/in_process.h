// Running a command of `tencache` within the test: no program to start, and breakpoints work.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.h"
#include "gtest/gtest.h"

namespace tencache {

struct InProcessAnswer {
  int code = -1;
  std::string out, err;
};

// A word a string, without the "tencache" before them.
inline InProcessAnswer run_in_process(const std::vector<std::string>& words) {
  std::vector<const char*> arguments{"tencache"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  InProcessAnswer answer;
  answer.code = run_command_line(static_cast<int>(arguments.size()), arguments.data());
  answer.out = ::testing::internal::GetCapturedStdout();
  answer.err = ::testing::internal::GetCapturedStderr();
  return answer;
}

}  // namespace tencache
