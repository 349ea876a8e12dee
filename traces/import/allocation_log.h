// Logs of allocations as STAlloc's tracer writes them (infinigence/STAlloc, Allocator/trace.cpp): a line
// "1 ADDRESS BYTES STREAM" for each allocation, "0 ADDRESS BYTES STREAM" for each free, and marks between them
// ("Iteration Index :3", micro-batches and layers), of which those of iterations matter here.
#pragma once

#include <string>
#include <string_view>

#include "traces/allocations.h"

namespace tencache {

// Whether a content that begins so is such a log.
bool is_allocation_log(std::string_view head);

// Throws Error with file and line.
Allocations read_allocation_log(const std::string& path);
Allocations parse_allocation_log(std::string_view text, const std::string& file);

}  // namespace tencache
