// Import of a Kineto trace alone: times of ops, and with profile_memory the allocations and frees. It has no identities
// of tensors, so that which op reads what is only partly known:
//
//   - The ops are the calls that launched something on the GPU themselves; on a CPU the innermost calls that touch
//     memory.
//   - An allocation begins a tensor: written by the op in which it happened, or by the next one on that thread. Its
//   free
//     ends it: read by the last op that had begun. With record_shapes an op also reads the live tensors that have the
//     sizes of its arguments, of several of one size the latest. Other uses are unknown.
//   - What is freed without having been allocated was there before. Paired by size with what is allocated and not
//   freed,
//     it is one tensor that the iteration hands on to the next.
//   - The rest of the memory in use (parameters, optimizer states, all that lives through the iteration) is known as a
//     sum only: one tensor that every op reads, so that no policy can move what nobody knows the uses of.
#pragma once

#include <optional>
#include <string>

#include "traces/import/pytorch/kineto.h"
#include "traces/import/pytorch/to_trace.h"

namespace tencache {

struct KinetoImportOptions {
  std::string file;
  std::optional<std::int64_t> iteration;  // empty: the last complete one
  std::string model;                      // empty: the file's name
  std::uint64_t batch = 0, sequence_length = 0;
  ImportProgress progress;
};

// Throws Error for a file without memory events.
ImportedTrace import_kineto(const KinetoImportOptions& options);

}  // namespace tencache
