#include "cli/torch_program.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "core/error.h"

extern char** environ;

namespace tencache {
std::string find_torch_program() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place :
       {"tencache-torch", "../libexec/tencache/tencache-torch", "../executor/torch/tencache-torch"}) {
    const fs::path candidate = folder / place;
    if (fs::is_regular_file(candidate, error)) return candidate.lexically_normal().string();
  }
  throw Error(
      "training and recording need the program tencache-torch, which is not here: install TenCache's package "
      "tencache-torch; in a build from source install LibTorch (package libtorch-dev) and build again");
}

ChildProgram::ChildProgram(const std::string& program, const std::vector<std::string>& arguments) {
  start(program, arguments, -1);
}

ChildProgram::ChildProgram(const std::string& program, const std::string& input) {
  // A socket: where nobody reads the input, how the program ends says why, and no signal ends us.
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error("cannot start " + program + ": " + std::strerror(errno));
  }
  output_ = fdopen(ends[0], "r");
  start(program, {}, ends[1]);
  for (std::size_t sent = 0; sent < input.size();) {
    const ssize_t bytes = send(ends[0], input.data() + sent, input.size() - sent, MSG_NOSIGNAL);
    if (bytes < 0) break;
    sent += static_cast<std::size_t>(bytes);
  }
  shutdown(ends[0], SHUT_WR);
}

// `stream`: its stdin and stdout, closed here; -1: ours.
void ChildProgram::start(const std::string& program, const std::vector<std::string>& arguments, int stream) {
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO}) {
    if (stream >= 0) posix_spawn_file_actions_adddup2(&files, stream, standard);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  for (const int signal : {SIGINT, SIGQUIT, SIGPIPE}) sigaddset(&defaults, signal);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);

  interrupt_ = std::signal(SIGINT, SIG_IGN);
  quit_ = std::signal(SIGQUIT, SIG_IGN);
  const int failure = posix_spawn(&child_, program.c_str(), &files, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (stream >= 0) close(stream);
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
  if (output_ != nullptr) std::fclose(output_);
  std::signal(SIGINT, interrupt_);
  std::signal(SIGQUIT, quit_);
}

}  // namespace tencache
