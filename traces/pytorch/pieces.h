// The ops of a trace while it is made from a recording (traces/pytorch/to_trace.h): what is found out about them beyond
// the calls that they come from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "traces/pytorch/to_trace.h"

namespace tencache {

// An op of the trace: a call, one list position of it, or the updates of a sub-group.
struct Piece {
  const CallOp* call = nullptr;
  std::vector<StorageUse> uses;
  Device device = Device::gpu;
  OpCost cost;
  Nanoseconds duration_ns = 0, gap_ns = 0;
  DurationSource source = DurationSource::modelled;
  NameId module = 0;
  std::int32_t group = -1;
  bool first = true;    // of its call
  bool update = false;  // of several calls: all of a sub-group
};

// A module begins where the forward pass reads a parameter for the first time, and is named after that op; a backward
// op is of the module whose autograd sequence number it has. Returns their number.
std::uint64_t infer_modules(const TraceParts& parts, std::vector<Piece>& pieces, NamePool& names);

// Numbers the sub-groups of the optimizer's step: ops that share a storage of more than a scalar are of one. Where all
// are of one there are none. Returns their number.
std::uint64_t find_groups(const TraceParts& parts, std::vector<Piece>& pieces);

// The updates of each sub-group as one op, in the place of the last of them. Returns how many there were.
std::uint64_t fuse_updates(const TraceParts& parts, std::vector<Piece>& pieces);

// What an update is called: "Adam.step" of "Optimizer.step#Adam.step".
std::string_view update_name(const ExecutionTrace& recording, const Piece& piece);

// "mm" of "aten::mm".
std::string_view short_name(std::string_view name);
// "mm.12".
std::string numbered(std::string_view name, std::uint64_t number);

}  // namespace tencache
