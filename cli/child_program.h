// A program that a command starts and waits for: the dashboard.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tencache {

// A program at work, with our stdin, stdout and stderr. Until `wait` or the end of this object an interrupt from the
// terminal is the program's to answer; we report how it ended.
class ChildProgram {
 public:
  // Throws Error if it cannot be started.
  ChildProgram(const std::string& program, const std::vector<std::string>& arguments);
  ~ChildProgram();  // ends the program if it still runs
  ChildProgram(const ChildProgram&) = delete;
  ChildProgram& operator=(const ChildProgram&) = delete;

  // Its exit code; 128 + n if signal n ended it.
  int wait();

 private:
  void ended();

  void (*interrupt_)(int) = nullptr;
  void (*quit_)(int) = nullptr;
  pid_t child_ = 0;  // 0: it has ended
};

}  // namespace tencache
