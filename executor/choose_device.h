// Where the GPU's tier lies while a command runs on this computer: on a GPU, or in ordinary memory that stands in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/machine_spec.h"
#include "executor/accelerator.h"

namespace tencache {

struct ChosenDevice {
  std::string name = "host";                 // or the backend's
  std::shared_ptr<Accelerator> accelerator;  // null: ordinary memory
};

// On a GPU, unless asked otherwise, memory is one range in which tensors move (AllocatorKind::movable), and the program
// is ahead by up to so many ops (RunAhead::ops).
inline constexpr std::uint32_t gpu_run_ahead = 256;

// "auto", "host", and the backends by name.
std::vector<std::string> device_names();

// A backend's name throws Error that says what is missing. `auto` is the first backend with a
// device that has the memory which the machine's GPU tiers ask for, and says on stderr what it chose where it had a
// choice.
ChosenDevice choose_device(const std::string& device, const MachineSpec& machine);

}  // namespace tencache
