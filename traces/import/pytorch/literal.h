// Arguments of calls in Python's notation, as Chakra traces hold them: "[[4, 5, 0, 64, 4, 'cuda:0'], True, '<None>']".
#pragma once

#include <cstdint>
#include <string_view>

#include "traces/import/pytorch/execution_trace.h"

namespace tencache {

// Adds the tensors among the values to trace.refs, with their shapes. Returns how many. Throws Error, without a place,
// for text that is no such list, nested deeper than 16 levels, or with a tensor that cannot be right.
std::uint32_t read_literal_tensors(std::string_view values, std::string_view shapes, std::string_view types,
                                   ExecutionTrace& trace);

}  // namespace tencache
