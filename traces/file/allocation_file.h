// Allocation events as a file, NAME.alloc.jsonl (.zst): one JSON object a line.
//
//   {"alloc": 7, "bytes": 1048576, "stream": 0}     block 7 is allocated; a stream other than 0 has a pool of its own
//   {"free": 7}                                     and freed; its number may be used again
//   {"mark": "iteration"}                           an iteration begins
//   {"recorded": {"allocated_bytes": n, "reserved_bytes": n}}   what the recorded allocator had, at most
//
// Lines may stand in any order that makes sense of each: the first line of a file decides what it is.
#pragma once

#include <string>
#include <string_view>

#include "traces/allocations.h"

namespace tencache {

// Whether a content that begins so is such a file.
bool is_allocation_file(std::string_view head);

// Throws Error with file and line: for damaged lines, a block that is alive already, a free of one that is not.
Allocations read_allocations(const std::string& path);
Allocations parse_allocations(std::string_view text, const std::string& file);

// The same events give the same bytes.
void write_allocations(const Allocations& allocations, const std::string& path);

}  // namespace tencache
