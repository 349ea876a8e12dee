// The memory and the ops of a PyTorch program on a live runtime: what the C++ programs of this project (interception.h)
// and a user's Python programs (program/) share. Knows the runtime through live_abi.h alone, so that it can be compiled
// with the PyTorch that a user has.
//
// Memory: an allocator for the CPU, or for CUDA (torch_cuda.h), that hands out storages of the runtime on guarded
// threads, and PyTorch's own memory elsewhere. One of the two devices is paged, the other's tensors are left alone.
// Ops: a boxed fallback above autograd. Ops that are made of others are looked through; of every other op the tensors
// are brought in and pinned, whatever runs inside it. What is read and written comes from the op's schema, corrected by
// the lists in executor/torch/recorder/op_lists.h.
//
// Ops on lists of tensors (`_foreach_*`, fused optimizers) run in groups of at most tencache_live::group_bytes: tensor
// by tensor they do the same, to the bit.
//
// On an accelerator libraries keep workspaces between ops, of which no schema knows: what an op has allocated and
// neither let go of nor returned stays in the GPU tier until it is let go of.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <string>
#include <vector>

#include "executor/live/live_abi.h"

namespace tencache::paging {

// What differs between those who page.
struct Host {
  c10::DeviceType device = c10::DeviceType::CPU;              // whose tensors are paged
  void (*install_allocator)() = nullptr;                      // of another device than the CPU
  void (*let_go_of_workspaces)() = nullptr;                   // that libraries keep there; may be null
  void (*raise)(const tencache_live&, int status) = nullptr;  // throws what a call failed with
};

// One runtime at a time, and one device: throws Error where there is another. Until the runtime ends. `live`
// lives as long.
void attach(const tencache_live& live, const Host& host);
const tencache_live* attached();  // nullptr: none
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

// ---- Storages that were there before.
enum class Adoption { adopted, left_in_file, paged_before, empty, mapped, foreign };
// empty: no memory on the device whose tensors are paged. foreign: memory that is neither the CPU allocator's own nor
// mapped by PyTorch may be shared with somebody, and stays where it is; so does all that a GPU had before. mapped: it lies
// in a file that PyTorch has mapped, and is to be adopted with the others there: see `adopt_mapped`.
// Moves the content of a storage into the runtime's memory. Throws what `raise` throws.
Adoption adopt(c10::StorageImpl& storage);
// As `adopt`, and those in private mappings of files. `all`: all tensors of the program. Storages of one mapping may have
// bytes in common (a second read of the same weights); then, or if others may come because the file is still open, all of
// the mapping's are `foreign`. left_in_file: adopted, too, but nothing was copied: nobody has written to it, and the file is
// the storage's copy on disk from now on. Small ones are copied.
struct Adopted {
  Adoption how = Adoption::empty;
  std::uint64_t bytes = 0;
};
std::vector<Adopted> adopt_mapped(const std::vector<at::Tensor>& wanted, const std::vector<at::Tensor>& all);
// How storages that are parts of others are told from the rest: by one of them, a part of `whole`.
void know_parts(const at::Tensor& part, const c10::StorageImpl* whole);
// The storage's address gets known outside PyTorch (numpy's views): writes to it are noticed from now on; memory that is
// not the runtime's is never adopted, and the answer is false.
bool expose(c10::StorageImpl& storage);
// The same for all storages of the runtime, those that are still to come as well, until it ends: code that is no op gets
// tensors of which nobody says so. Each op that writes, and each copy, then changes the protection of its pages.
void expose_all();
// The way back, for a storage of the runtime: memory of PyTorch's own. What is lent (lent_tensors.h) stays, and
// what is on a GPU.
void give_back(c10::StorageImpl& storage);

// Ops on lists that ran in groups, since `attach`.
std::uint64_t split_ops();
// While on, every op on lists runs element by element: what it then needs is the least.
void split_all_lists(bool on);

// ---- Audit: see interception.h.
struct Finding {
  std::string op, argument;
  bool operator==(const Finding&) const = default;
};
void set_audit(bool on);
std::vector<Finding> audit_findings();

}  // namespace tencache::paging
