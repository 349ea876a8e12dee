// Chakra execution traces of MLCommons (`.et`), as converted from PyTorch's: a stream of protobuf messages, each after
// its length as a varint; the first is metadata, the others are nodes.
//
// The wire format is read here, by the few rules that it has (varints, fixed 32 and 64 bits, length-delimited), rather
// than with libprotobuf: a generated reader of one message type would bring the compiler protoc into the build and a
// library of 3 MB to every start, and would hold what this reader skips. Fields that are not used are passed over.
//
// What the conversion keeps of a PyTorch recording, and what it does not:
//   - A node carries the call's name, schema, arguments and results as text in the notation of an execution trace.
//   - A call that launched kernels is cut into pieces, "aten::mm(0)", "aten::mm(1)", of one rf_id: they are one call
//     again. The kernels are nodes of their own, after the piece that launched them, with their durations.
//   - Calls within calls, annotations and autograd's own nodes are left out, and identifiers are renumbered while
//     dependencies are not: what is around what is not known. So the level is the one that the file has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "traces/import/pytorch/byte_stream.h"
#include "traces/import/pytorch/execution_trace.h"
#include "traces/import/pytorch/to_trace.h"

namespace tencache {

struct ChakraTrace {
  ExecutionTrace calls;
  std::vector<Nanoseconds> kernel_ns;  // by node of calls: of its kernels
  std::vector<Nanoseconds> host_ns;    // by node of calls: of its pieces on the host
  std::uint64_t messages = 0, kernels = 0, other_nodes = 0;
};

// Throws Error with file and byte for anything that is no such stream.
ChakraTrace read_chakra(const std::string& path, const ImportProgress& progress = {});

struct ChakraImportOptions {
  std::vector<std::string> files;  // one a rank
  std::string model;               // empty: the first file's name
  std::uint64_t batch = 0, sequence_length = 0;
  bool as_recorded = false;
  ImportProgress progress;
};

// An iteration is the whole file. Annotations being left out, what runs on another thread than the first call is taken
// for the backward pass, and what follows it on the first thread for the optimizer's step. There are no start times:
// ops follow each other without gaps. Of several files, each is a rank: its ops and tensors follow those of the one
// before, and the ranks' collectives start together, the n-th of one with the n-th of the others.
ImportedTrace import_chakra(const ChakraImportOptions& options);

}  // namespace tencache
