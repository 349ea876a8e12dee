// Where the GPU's tier lies while a command runs on this computer: on a GPU, or in ordinary memory that stands in.
#pragma once

#include <memory>
#include <string>

#include "core/machine_spec.h"
#include "core/trace.h"
#include "executor/accelerator.h"

namespace tencache {

// The most bytes of a recorded step that are alive at once, in pages of the accelerator if there is one.
Bytes peak_in_pages(Trace trace, const Accelerator* accelerator);

// Null: ordinary memory. `cuda` throws Error that says what is missing. `auto` is the GPU where there is one that has
// the memory which the machine's GPU tiers ask for, and says on stderr what it chose where it had a choice.
std::shared_ptr<Accelerator> choose_device(const std::string& device, const MachineSpec& machine);

}  // namespace tencache
