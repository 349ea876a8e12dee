// The storages behind the tensors of an execution trace, told apart where the allocator used an address again.
//
// A recording has no frees. What it shows is who brings a storage about, and so the rule is:
//   1. A storage that is first seen as an argument was there before the recording: it is external.
//   2. A result whose storage is none of the call's own inputs, and which no call within it brought about, is newly
//      allocated by this call. If the address was known, what was there has been freed, and a new storage begins.
//   3. A call can only hand on what it was given or what it made. So an argument of an inner call that its caller was
//      not given and that no call before it brought about is newly allocated by the caller.
//   4. Calls without a schema (autograd's functions, annotations) are exempt from 2 and 3, since they have tensors of
//      their own: their results are new only at an address that was never seen.
//   5. An argument of no dimensions whose element is wider than those at its address is a number of Python's, for which
//      a tensor was made that no call tells of.
// Views and in-place ops return a storage of their inputs, and so are no allocations.
//
// Size: the largest extent of a storage's tensors. Without strides (before schema 1.1.1) an expanded tensor claims more
// elements than it has: a view with more elements than what it is a view of does not count, nor do views of it.
#pragma once

#include <cstdint>
#include <vector>

#include "traces/import/pytorch/execution_trace.h"

namespace tencache {

struct Storage {
  Bytes bytes = 0;
  TensorDevice device = TensorDevice::undefined;
  std::uint32_t born = none;  // the node that allocated it, the innermost; none: external
};

struct Storages {
  std::vector<Storage> storages;
  // By index of ExecutionTrace::refs; none: undefined, or of no elements.
  std::vector<std::uint32_t> of_ref;
  std::uint64_t addresses = 0;  // that were ever seen
  std::uint64_t reused = 0;     // of them, allocated more than once

  std::uint32_t external(std::uint32_t storage) const { return storages[storage].born == none; }
};

Storages find_storages(const ExecutionTrace& trace);

// Calls begin(index) and end(index) of every node in the order in which that happened.
template <typename Begin, typename End>
void walk(const ExecutionTrace& trace, Begin begin, End end) {
  for (std::uint32_t index = 0; index < trace.nodes.size(); ++index) {
    begin(index);
    for (std::uint32_t node = index; node != none && trace.nodes[node].last == index; node = trace.nodes[node].parent) {
      end(node);
    }
  }
}

}  // namespace tencache
