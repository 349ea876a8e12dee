// A random user of a HostLoader (executor/host_loader.h): two streams, sources that change as soon as they may.
#pragma once

#include <string>

#include "executor/accelerator.h"
#include "tests/live/arena_case.h"
#include "tests/property/random_case.h"

namespace tencache {

// Empty, or what was wrong with a content. Throws Error as the loader does, but for what failed by `fail`: then it
// loads again.
std::string use_loader(Accelerator& accelerator, Random& random, Bytes capacity, const UserTrouble& trouble);

}  // namespace tencache
