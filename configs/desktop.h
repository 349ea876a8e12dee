// Machines that have no file: a desktop around a card of configs/gpus.yaml, whose other figures are assumed, and the
// computer that the program runs on, as its system describes it.
#pragma once

#include <optional>
#include <string>

#include "core/units.h"

namespace tencache {

// A machine file's content, and the file that stands for it in messages and hashes.
struct MachineText {
  std::string text, file;
};

// "rtx-4090", "RTX4090", "4090": none where no desktop has such a card.
std::optional<MachineText> desktop_with(const std::string& card);

// Read from /proc and /sys under `root` ("" of this computer). Throws Error where there is no GPU that is known.
MachineText machine_of_system(const std::string& root);

// What the CPU's cores reach: from memory 60 % of what its channels have nominally, 10 GB/s a core at most; Adam 28
// bytes of that a parameter, 0.15 billion a core at most.
struct CpuFigures {
  BytesPerSecond bandwidth = 0;
  double adam_parameters_per_second = 0, tflops = 0;
};
CpuFigures cpu_figures(std::uint32_t channels, double mega_transfers, std::uint32_t cores);

}  // namespace tencache
