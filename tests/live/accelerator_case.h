// A random user of an accelerator, who keeps to executor/accelerator.h and no more: chunks come and go, copies of
// several engines overlap, engines are destroyed with copies under way, tensors retire, and another library of the
// program makes another context current in between. What replays use of the interface is less.
#pragma once

#include <functional>
#include <string>

#include "executor/accelerator.h"
#include "tests/property/random_case.h"

namespace tencache {

// Empty, or what was wrong with a content. `interfere`: the other library. Throws Error as the accelerator does.
std::string use_accelerator(Accelerator& accelerator, Random& random, Bytes capacity,
                            const std::function<void()>& interfere);

}  // namespace tencache
