// A random user of HostMachine on an accelerator, who cancels copies and at once runs an op on what they read, as
// executor/host_machine.h allows: "an op waits until copies that were cancelled before it have stopped reading".
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "executor/accelerator.h"
#include "tests/property/random_case.h"

namespace tencache {

// Empty, or what was wrong with a content. `pause`: other threads may go on. Throws Error as the machine does.
std::string use_machine(const std::shared_ptr<Accelerator>& accelerator, Random& random,
                        const std::function<void()>& pause);

}  // namespace tencache
