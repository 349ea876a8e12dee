// The ops of a trace while it is made from a recording (traces/import/pytorch/to_trace.h): what is found out about them
// beyond the calls that they come from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "traces/import/pytorch/to_trace.h"

namespace tencache {

// An op of the trace: a call, or one list position of it.
struct Piece {
  const CallOp* call = nullptr;
  std::vector<StorageUse> uses;
  Device device = Device::gpu;
  OpCost cost;
  Nanoseconds duration_ns = 0, gap_ns = 0;
  DurationSource source = DurationSource::modelled;
  NameId module = 0;
  bool first = true;  // of its call
};

// A module begins where the forward pass reads a parameter for the first time, and is named after that op; a backward
// op is of the module whose autograd sequence number it has. Returns their number.
std::uint64_t infer_modules(const TraceParts& parts, std::vector<Piece>& pieces, NamePool& names);

// "mm" of "aten::mm".
std::string_view short_name(std::string_view name);
// "mm.12".
std::string numbered(std::string_view name, std::uint64_t number);

}  // namespace tencache
