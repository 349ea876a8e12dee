// Which calls of a recording are the ops of a trace: those that touch memory, each byte once.
//
// PyTorch records calls within calls: linear calls addmm, autograd's function calls mm. The level taken:
//   1. A call that only makes or views tensors (empty, view, t, as_strided, a reshape without a copy, result_type, …)
//      is no op. What it allocates is the storage of whoever uses it.
//   2. Of the others, the innermost: a call with a schema within which no other op was called. It reads its tensor
//      arguments and writes its new results and what its schema marks as written, "Tensor(a!)".
//   3. A call around ops is an op too where it must have launched something itself: it returns a new storage that none
//      of them wrote, or that they only filled while some argument of it was left unread (convolution_backward,
//      embedding_dense_backward).
//   4. Calls without a schema are no ops (autograd's functions, annotations), unless nothing within them is one and
//      they return a new storage (custom functions). Collectives read and write what they are given.
//   5. A kernel that torch.compile made lists its results among its arguments, and does not say which: it writes those
//      that were allocated and have no content yet and reads the others; where all have content, it reads and writes
//      all.
//   6. A product that adds to its first argument (addmm) is one op, whatever a CPU copies and casts within it.
//   7. A call that writes an argument which no op within it touched is an op too (mul_ with a number that is cast).
// Beyond the schemas: batch norm also updates its running statistics. An argument that is written as a whole without
// being read (fill_, zero_, copy_, out=) counts as written only. A layer norm's backward pass looks at its bias's
// shape.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "traces/import/pytorch/execution_trace.h"
#include "traces/import/pytorch/storages.h"

namespace tencache {

// A storage's part in a call.
struct StorageUse {
  std::uint32_t storage = none;
  std::uint32_t ref = none;  // by which tensor; none: a workspace
  bool read = false, write = false;
  std::uint32_t position = none;   // in a list of tensors; none: in no list
  bool several_positions = false;  // the storage stands at several
};

struct CallOp {
  std::uint32_t node = none;
  std::vector<StorageUse> uses;  // in the order of the arguments, then results, then workspaces
};

// In the order in which they ended. Storages that a call allocates and nothing but itself sees are its workspaces.
std::vector<CallOp> find_ops(const ExecutionTrace& trace, const Storages& storages);

// Whether a call of that name may be an op: not of those that only make or view tensors whatever they are given (rule
// 1).
bool touches_memory(std::string_view name);

// What a schema says of its arguments: "aten::add_.Tensor(Tensor(a!) self, …) -> …".
struct SchemaArguments {
  std::vector<std::string_view> names;
  std::vector<bool> written;
};
SchemaArguments parse_schema(std::string_view schema);

}  // namespace tencache
