#include "cli/child_program.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "core/error.h"

extern char** environ;

namespace tencache {

ChildProgram::ChildProgram(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  for (const int signal : {SIGINT, SIGQUIT, SIGPIPE}) sigaddset(&defaults, signal);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);

  interrupt_ = std::signal(SIGINT, SIG_IGN);
  quit_ = std::signal(SIGQUIT, SIG_IGN);
  const int failure = posix_spawn(&child_, program.c_str(), nullptr, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (failure == 0) return;
  ended();
  throw Error("cannot start " + program + ": " + std::strerror(failure));
}

ChildProgram::~ChildProgram() {
  if (child_ == 0) return;
  kill(child_, SIGTERM);
  waitpid(child_, nullptr, 0);
  ended();
}

int ChildProgram::wait() {
  int status = 0;
  while (waitpid(child_, &status, 0) < 0) {
    if (errno != EINTR) throw Error(std::string("cannot wait for a program: ") + std::strerror(errno));
  }
  ended();
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void ChildProgram::ended() {
  child_ = 0;
  std::signal(SIGINT, interrupt_);
  std::signal(SIGQUIT, quit_);
}

}  // namespace tencache
