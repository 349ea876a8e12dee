// `tencache-torch`, the program that trains: a program of its own because LibTorch takes 0.4 s to load.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

namespace tencache {

// Looks beside this program, in ../libexec/tencache and in the build tree. Throws Error if this build has none.
std::string find_torch_program();

// A program at work. Its stderr is ours. Until `wait` or the end of this object an interrupt from the terminal is the
// program's to answer; we report how it ended.
class ChildProgram {
 public:
  // With our stdin and stdout. Throws Error if it cannot be started, as the next.
  ChildProgram(const std::string& program, const std::vector<std::string>& arguments);
  // It reads `input` from its stdin and writes to `output`.
  ChildProgram(const std::string& program, const std::string& input);
  ~ChildProgram();  // ends the program if it still runs
  ChildProgram(const ChildProgram&) = delete;
  ChildProgram& operator=(const ChildProgram&) = delete;

  std::FILE* output() const { return output_; }
  // Its exit code; 128 + n if signal n ended it.
  int wait();

 private:
  void start(const std::string& program, const std::vector<std::string>& arguments, int stream);
  void ended();

  void (*interrupt_)(int) = nullptr;
  void (*quit_)(int) = nullptr;
  std::FILE* output_ = nullptr;
  pid_t child_ = 0;  // 0: it has ended
};

}  // namespace tencache
