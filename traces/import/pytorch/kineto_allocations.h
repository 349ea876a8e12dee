// The allocations and frees of a Kineto trace that was recorded with profile_memory=True ("[memory]" events), of one
// GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "traces/allocations.h"
#include "traces/import/pytorch/byte_stream.h"

namespace tencache {

// `device`: its index, where the recording has several GPUs; absent: the one that allocates most. Blocks that were
// there before the recording began are born at its beginning: those that are freed in it one by one, the others, of
// which only the sum is known, as one. Iterations begin at ProfilerStep annotations. Throws Error for a file that is no
// Kineto trace, or has no such events.
Allocations read_kineto_allocations(const std::string& path, std::optional<std::int64_t> device = {},
                                    const ImportProgress& progress = {});

}  // namespace tencache
