#include "executor/live/fault_handler.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>

#include "core/check.h"
#include "executor/live/live_runtime.h"

namespace tencache {
namespace {

std::atomic<LiveRuntime*> served{nullptr};
std::atomic<pid_t> owner{0};
struct sigaction before;
thread_local bool handling = false;

// Where the processor does not say: as if it were a write, which costs a copy more.
bool is_write([[maybe_unused]] const void* context) {
#if defined(__x86_64__)
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  return true;
#endif
}

[[noreturn]] void refuse(const char* why) {
  std::fflush(stdout);
  std::fprintf(stderr, "tencache: code outside PyTorch's ops touched the memory of a paged tensor: %s\n", why);
  ::_exit(1);
}

void hand_on(int signal, siginfo_t* info, void* context) {
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    ::signal(signal, SIG_DFL);  // the access is made again, and ends the process
  }
}

void on_fault(int signal, siginfo_t* info, void* context) {
  LiveRuntime* const runtime = served;
  if (runtime == nullptr || handling || !runtime->machine().owns(info->si_addr)) return hand_on(signal, info, context);
  if (::getpid() != owner) {
    refuse(
        "this process was forked from the one that trains and has none of its tensors; hand it copies, or start "
        "workers by spawn");
  }
  const int errno_before = errno;
  handling = true;
  try {
    if (!runtime->touch(info->si_addr, is_write(context))) refuse("it was freed before");
  } catch (const std::exception& error) {
    refuse(error.what());
  }
  handling = false;
  errno = errno_before;
}

void install() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    ::sigemptyset(&action.sa_mask);
    TENCACHE_CHECK(::sigaction(SIGSEGV, &action, &before) == 0);
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace

void serve_faults(LiveRuntime* runtime) {
  if (runtime != nullptr) install();
  owner = ::getpid();
  served = runtime;
}

}  // namespace tencache
