// The trace format: JSON Lines, `.trace.jsonl`, optionally compressed, `.trace.jsonl.zst`.
//
// One JSON object a line. First the header, then every tensor, then every op, each in the order of its id, then every
// choice of recomputation, in the order of their backward passes. The keys
// (in the order the writer gives them; a reader takes any order), `=` marks the default of a key that may be left out:
//
//   header  kind "header", format_version, model ="", batch =0, sequence_length =0, precision ="", hardware ="",
//           made_by = (unknown) ³, made_with ={} ³, recorded_by ="", stack ="" ², tensor_count, op_count,
//           choice_count =0 ⁶
//   tensor  kind "tensor", id, name, bytes (1 … 1 PiB), role, persistent, stored_bytes =bytes ²,
//           profiled_uses =0 ⁷
//   op      kind "op", id, name, phase, device, module ="", duration_ns, duration_source, gap_before_ns =0, issue_ns =0
//           (unknown) ⁴, flops =0, bytes =0 (memory traffic, 0: unknown), group =-1 (none), placeable =false,
//           reorderable =false, stream ="compute" ², rank =0, rendezvous ="" (none), kernel = (unknown) ², shape ²,
//           causal =false ², attention_kernel = (unknown) ², launches =1 ², step =0 ², revealed_by = (none) ²,
//           cpu_duration_ns =0 (unknown) ², reads, writes (lists of tensor ids, in access order), frees =[] ⁵
//   choice ⁶ kind "choice", module, micro_batch =0, before (id of an op), elementwise =[], attention =[], block =[]
//           (lists of op ids, rising)
//
//   role             parameter gradient activation optimizer_state master_parameter input workspace kv_cache ² expert ²
//   phase            forward loss backward optimizer prefill ² decode ²
//   kernel           matmul attention attention_backward elementwise norm reduction copy gather optimizer collective
//   attention_kernel flash1 flash2 flash3 cudnn
//   device           gpu cpu
//   stream           compute communication
//   duration_source  measured modelled
//   made_by          generated recorded imported
//
// Quantities are integers: bytes, nanoseconds. Ids count 0, 1, 2, … for tensors and for ops. Where the header has
// tensor_count and op_count (the writer gives both), a file cut at the end of a line is noticed as well. Unknown keys
// are errors. What ² marks needs format version 2, ³ version 3, ⁴ version 4, ⁵ version 5, ⁶ version 6, ⁷ version 7. In
// versions 1 and 2 the sentence in recorded_by says how the trace was made, and the reader takes made_by and made_with
// from it. docs/trace-format.md explains the meaning of each key.
#pragma once

#include <string>
#include <string_view>

#include "core/trace.h"
#include "traces/file/file_io.h"

namespace tencache {

// Reads and validates a trace (Trace::validate). Compression is recognised by content. Throws Error "file:line: what".
Trace read_trace(const std::string& path, Bytes maximum_bytes = default_maximum_file_bytes);

// The same from text in memory; `name` stands for the file in messages.
Trace parse_trace(std::string_view text, const std::string& name);

// The version that the trace is written as: the first that has all of it.
int format_version(const Trace& trace);

// Writes the file atomically, compressed if the name ends in ".zst". Equal traces give equal bytes, and what was
// written reads back as an equal trace. Bytes of names that are not UTF-8 become U+FFFD.
void write_trace(const Trace& trace, const std::string& path);

// The text of the file.
std::string format_trace(const Trace& trace);

}  // namespace tencache
