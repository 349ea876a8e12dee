#include "executor/live/fault_handler.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <vector>

#include "core/check.h"
#include "executor/live/import_table.h"
#include "executor/live/live_runtime.h"
#include "executor/live/system_calls.h"

namespace tencache {
namespace {

std::atomic<LiveRuntime*> served{nullptr};
std::atomic<pid_t> owner{0};
struct sigaction of_others;  // what the process does with faults that are not ours
thread_local bool handling = false, handing_on = false;

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

// A handler may raise the signal again when it is done (Python's faulthandler), for the one that was there before it.
void hand_on(int signal, siginfo_t* info, void* context) {
  if (handing_on || (of_others.sa_handler == SIG_DFL && (of_others.sa_flags & SA_SIGINFO) == 0)) {
    ::signal(signal, SIG_DFL);  // the access is made again, and ends the process
    return;
  }
  handing_on = true;
  if ((of_others.sa_flags & SA_SIGINFO) != 0) {
    of_others.sa_sigaction(signal, info, context);
  } else if (of_others.sa_handler != SIG_IGN) {
    of_others.sa_handler(signal);
  } else {
    ::signal(signal, SIG_DFL);  // an access that faults cannot be ignored
  }
  handing_on = false;
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

std::shared_mutex ending;  // a runtime, while threads ask it

bool is_paged(const void* address) {
  const std::shared_lock lock(ending);
  LiveRuntime* const runtime = served;
  return runtime != nullptr && runtime->machine().owns(address);
}

// Others may install a handler when this one is there already: theirs comes after it.
int set_action(int signal, const struct sigaction* action, struct sigaction* old) {
  if (signal != SIGSEGV) return ::sigaction(signal, action, old);
  if (old != nullptr) *old = of_others;
  if (action != nullptr) of_others = *action;
  return 0;
}

sighandler_t set_handler(int signal, sighandler_t handler) {
  if (signal != SIGSEGV) return ::signal(signal, handler);
  const sighandler_t old = of_others.sa_handler;
  of_others = {};
  of_others.sa_handler = handler;
  return old;
}

void take_signal() {
  struct sigaction present {};
  TENCACHE_CHECK(::sigaction(SIGSEGV, nullptr, &present) == 0);
  if ((present.sa_flags & SA_SIGINFO) != 0 && present.sa_sigaction == on_fault) return;
  of_others = present;
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  ::sigemptyset(&action.sa_mask);
  TENCACHE_CHECK(::sigaction(SIGSEGV, &action, nullptr) == 0);
}

}  // namespace

void serve_faults(LiveRuntime* runtime) {
  {
    const std::unique_lock lock(ending);
    owner = ::getpid();
    served = runtime;
  }
  keep_serving_faults();
}

void keep_serving_faults() {
  if (served == nullptr) return;
  static const std::vector<ImportedFunction> functions = [] {
    const std::span<const ImportedFunction> calls = system_calls_of_tensors(is_paged);
    std::vector<ImportedFunction> all(calls.begin(), calls.end());
    all.push_back({"sigaction", reinterpret_cast<void*>(set_action)});
    all.push_back({"signal", reinterpret_cast<void*>(set_handler)});
    return all;
  }();
  take_signal();
  replace_imports(functions);
}

}  // namespace tencache
