// The trace format: JSON Lines, `.trace.jsonl`, optionally compressed, `.trace.jsonl.zst`.
//
// One JSON object a line. First the header, then every tensor, then every op, each in the order of its id. The keys
// (in the order the writer gives them; a reader takes any order), `=` marks the default of a key that may be left out:
//
//   header  kind "header", format_version 1, model ="", batch =0, sequence_length =0, precision ="", hardware ="",
//           recorded_by ="", tensor_count, op_count
//   tensor  kind "tensor", id, name, bytes (1 … 1 PiB), role, persistent
//   op      kind "op", id, name, phase, device, module ="", duration_ns, duration_source, gap_before_ns =0, flops =0,
//           bytes =0 (memory traffic, 0: unknown), group =-1 (none), placeable =false, reorderable =false, rank =0,
//           rendezvous ="" (none), reads, writes (lists of tensor ids, in access order)
//
//   role             parameter gradient activation optimizer_state master_parameter input workspace
//   phase            forward loss backward optimizer
//   device           gpu cpu
//   duration_source  measured modelled
//
// Quantities are integers: bytes, nanoseconds. Ids count 0, 1, 2, … for tensors and for ops. Where the header has
// tensor_count and op_count (the writer gives both), a file cut at the end of a line is noticed as well. Unknown keys
// are errors. docs/trace-format.md explains the meaning of each key.
#pragma once

#include <string>
#include <string_view>

#include "core/trace.h"
#include "traces/file_io.h"

namespace tencache {

// Reads and validates a trace (Trace::validate). Compression is recognised by content. Throws Error "file:line: what".
Trace read_trace(const std::string& path, Bytes maximum_bytes = default_maximum_file_bytes);

// The same from text in memory; `name` stands for the file in messages.
Trace parse_trace(std::string_view text, const std::string& name);

// Writes the file atomically, compressed if the name ends in ".zst". Equal traces give equal bytes, and what was
// written reads back as an equal trace. Bytes of names that are not UTF-8 become U+FFFD.
void write_trace(const Trace& trace, const std::string& path);

// The text of the file.
std::string format_trace(const Trace& trace);

}  // namespace tencache
