// What a policy's settings say of memory beside what a simulation holds, of a model of a certain shape.
#pragma once

#include <cstdint>

#include "core/units.h"

namespace tencache {

// A rank's part of a model.
struct ModelShape {
  std::uint64_t largest_parameter = 0, parameters = 0;  // elements
  Bytes element_bytes = 2;
  Bytes state_bytes = 0;      // of master parameters and optimizer states
  std::uint64_t trained = 0;  // elements with optimizer states: by master weights, or else by two states each
  std::uint64_t shards = 1;   // ranks that share each parameter
};

// What settings reserve.
struct ReservedMemory {
  Bytes pinned_buffers = 0;  // CPU memory for what comes from NVMe and goes there
  Bytes cpu_home = 0;        // what lives in CPU memory for good
  Bytes gpu_bucket = 0;      // GPU memory where gradients gather
};

}  // namespace tencache
