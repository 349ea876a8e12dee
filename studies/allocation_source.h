// Allocation events from whatever has them: traces, Kineto recordings, event files, STAlloc's logs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "studies/question_options.h"
#include "traces/allocations.h"
#include "traces/import/pytorch/byte_stream.h"
#include "traces/transform/allocations_of.h"

namespace tencache {

struct AllocationSource {
  std::vector<std::string> files;  // one or more; several only of traces, which are iterations in turn
  GivenTraces given = {};          // by words among the files
  AllocationsOfTraces traces = {};
  std::optional<std::int64_t> gpu = {};  // of a recording of several
};

struct LoadedAllocations {
  Allocations allocations;
  bool generated = false;  // from traces: nothing of it is a recording of an allocator
  std::uint32_t iterations = 0;
};

// Tells what a file is by its content. Throws Error.
LoadedAllocations load_allocations(const AllocationSource& source, const ImportProgress& progress = {});

}  // namespace tencache
