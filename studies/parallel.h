// Independent simulations on all cores.
#pragma once

#include <cstddef>
#include <functional>

namespace tencache {

// Runs body(0), body(1), … body(count - 1) on `threads` threads, the caller's among them (0: as many as there are
// cores). They start in that order. After one throws, no other starts; of those that threw, the first in order is
// rethrown when all have ended.
void on_all_cores(std::size_t count, const std::function<void(std::size_t)>& body, std::size_t threads = 0);

}  // namespace tencache
