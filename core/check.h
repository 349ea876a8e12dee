// Broken invariants stop the program, in release builds too: a wrong figure is worse than no figure.
// Conditions that the environment can cause (bad files, full disks) are `Error`s instead, see error.h.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace tencache {

[[noreturn, gnu::cold]] inline void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "tencache: broken invariant: %s (%s:%d). This is a bug in TenCache; please report it.\n",
               expression, file, line);
  std::abort();
}

}  // namespace tencache

#define TENCACHE_CHECK(expression) \
  (static_cast<bool>(expression) ? void(0) : ::tencache::check_failed(#expression, __FILE__, __LINE__))
