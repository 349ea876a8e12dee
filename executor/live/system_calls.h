// System calls that other libraries make with memory of paged tensors: safetensors writes a checkpoint from it, numpy's
// tofile and readinto use it. The kernel cannot wait for a tensor that is not there, so what it refuses (EFAULT), or
// leaves off in the middle, is done through a buffer: the copy from or to the tensor faults, and faults are served (fault_handler.h).
#pragma once

#include <span>

#include "executor/live/import_table.h"

namespace tencache {

// read, write, pread, pwrite, readv, writev, send, recv, fread and fwrite. `is_paged`: whether an address is a paged
// tensor's; called on any thread. One for the process.
std::span<const ImportedFunction> system_calls_of_tensors(bool (*is_paged)(const void* address));

}  // namespace tencache
