// The memory and the ops of a PyTorch program on a live runtime: what the C++ programs of this project (interception.h)
// and a user's Python programs (program/) share. Knows the runtime through live_abi.h alone, so that it can be compiled
// with the PyTorch that a user has.
//
// Memory: an allocator for the CPU, or for CUDA (torch_cuda.h), that hands out storages of the runtime on guarded
// threads, and PyTorch's own memory elsewhere. One of the two devices is paged, the other's tensors are left alone.
// Ops: a boxed fallback above autograd. Ops that are made of others are looked through; of every other op the tensors
// are brought in and pinned, whatever runs inside it. What is read and written comes from the op's schema, corrected by
// the lists in executor/torch/recorder/op_schema.cpp.
//
// Ops on lists of tensors (`_foreach_*`, fused optimizers) run in groups of at most tencache_live::group_bytes: tensor
// by tensor they do the same, to the bit.
//
// On an accelerator libraries keep workspaces between ops, of which no schema knows: what an op has allocated and
// neither let go of nor returned stays in the GPU tier until it is let go of.
//
// Where tensors move, each storage has a record (storage_record.h), by which an op's storages are pointed to where
// their tensors lie when it begins. On an accelerator somebody else may lie at the old address by then: storages of
// tensors that left since the last op, and which the op does not use, get an address that nobody may access before it
// runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <vector>

#include "executor/live/live_abi.h"

namespace tencache::paging {

// What differs between those who page.
struct Host {
  c10::DeviceType device = c10::DeviceType::CPU;          // whose tensors are paged
  void (*install_allocator)() = nullptr;                  // of another device than the CPU
  void (*let_go_of_workspaces)() = nullptr;               // that libraries keep there; may be null
  void (*before_release)(const void* context) = nullptr;  // of a storage of the runtime's, by its DataPtr's; or null
  void* (*stream)() = nullptr;                            // the calling thread's, of the device; or null
  void (*raise)(const tencache_live&, int status) = nullptr;  // throws what a call failed with
};

// One runtime at a time, and one device: throws Error where there is another. Until the runtime ends. `live`
// lives as long.
void attach(const tencache_live& live, const Host& host);
const tencache_live* attached();  // nullptr: none
// What was pinned or exposed there: the storages have the tensors' addresses now, which do not change meanwhile.
void find_at_their_places(const std::vector<at::Tensor>& tensors);
// Throws what a call of the attached runtime failed with, if it did.
void check(const tencache_live& live, int status);

// Which allocations of guarded threads are the runtime's: all, or only those inside an op that uses memory of the
// runtime (so that data sets, tokenizers and the like are left alone). For all threads.
enum class Allocations { all, beside_paged };
void set_allocations(Allocations which);

// While it lives, this thread's allocations and ops are the runtime's. May nest.
class Guard {
 public:
  Guard();

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
};
// The same, without a scope.
void set_guarded(bool on);
bool guarded();

// The runtime's id of the storage; tencache_no_tensor for memory that is not the runtime's (and for no memory).
std::uint32_t tensor_of(const c10::Storage& storage);
// Those of all storages behind the tensors, each once, in order.
std::vector<std::uint32_t> tensors_of(const std::vector<at::Tensor>& tensors);

// While one is set, ops of the calling thread go to it in place of the runtime, and what they allocate is PyTorch's own
// memory. `below`: redispatch to these. Of ops that are made of others it gets the others, of views nothing.
class OpTaker {
 public:
  virtual ~OpTaker() = default;
  virtual void take(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack& stack) = 0;
};
void set_op_taker(OpTaker* taker);  // nullptr: no longer
// The calling thread is guarded, and neither in an op nor with a taker of its ops.
bool between_ops();

// Ops on lists that ran in groups, since `attach`.
std::uint64_t split_ops();
// While on, every op on lists runs element by element: what it then needs is the least.
void split_all_lists(bool on);

}  // namespace tencache::paging
