// Which copy an op was waiting for, or would have been: what brought the tensors that it uses.
#pragma once

#include <cstdint>
#include <functional>

#include "core/machine_spec.h"
#include "core/timeline.h"
#include "core/trace.h"

namespace tencache {

// Calls `use` with the index of each copy's span and that of the op's span that used first what it brought, in order of
// the ops. Spans of ops and tensors that the trace does not have are passed over.
void for_each_first_use(const Timeline& timeline, const MachineSpec& machine, const Trace& trace,
                        const std::function<void(std::uint32_t transfer, std::uint32_t op)>& use);

}  // namespace tencache
