// A random user of the lanes between an accelerator, the host and files, with parts and buffers of a few pages: many
// parts are under way, transfers are stopped in the middle, and as soon as one has returned the host uses its memory
// for something else and the chunk is unmapped.
#pragma once

#include <string>

#include "executor/accelerator.h"
#include "tests/property/random_case.h"

namespace tencache {

// Empty, or what was wrong with a content. `folder`: for files. Throws Error as the lanes do.
std::string use_lanes(Accelerator& accelerator, Random& random, const std::string& folder);

}  // namespace tencache
