// The part of a live Python program that sees PyTorch's headers: built at first use with the PyTorch that the user has
// (python/tencache/_paging.py), loaded beside the runtime, which comes compiled. Functions are C; tensors are addresses
// of at::TensorImpl (Tensor._cdata in Python), which the caller keeps alive.
//
// Functions that can fail return a status of live_abi.h; the calling thread's tencache_program_message says why.
#include <c10/util/Exception.h>

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "executor/live/live_abi.h"
#include "executor/torch/adoption.h"
#include "executor/torch/lent_tensors.h"
#include "executor/torch/paging.h"
#include "executor/torch/program/update.h"
#include "executor/torch/recorder/op_schema.h"
#include "executor/torch/torch_cuda.h"

// Adds up how many bytes are the runtime's now, how many of them stay in the file that they lie in, and how many were
// left alone. `mapped`: how many lie in files that PyTorch has mapped, and wait for tencache_program_adopt_mapped.
struct tencache_adopted_bytes {
  uint64_t adopted, in_files, left, mapped;
};

namespace tencache {
namespace {

thread_local std::string failure_message;

// To Python this is torch.OutOfMemoryError (before 2.5 torch.cuda.OutOfMemoryError) or RuntimeError.
[[noreturn]] void raise(const tencache_live& live, int status) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  if (status == tencache_out_of_memory) throw c10::OutOfMemoryError(here, live.message());
  throw c10::Error(here, live.message());
}

template <typename Work>
int guarded(const Work& work) {
  try {
    work();
    return tencache_ok;
  } catch (const c10::OutOfMemoryError& error) {
    failure_message = error.what_without_backtrace();
    return tencache_out_of_memory;
  } catch (const c10::Error& error) {
    failure_message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    failure_message = error.what();
  }
  return tencache_failed;
}

at::Tensor tensor_at(void* address) {
  auto* const impl = static_cast<c10::TensorImpl*>(address);
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(impl));
}

template <typename Visit>
void each_storage(void* const* tensors, std::size_t count, const Visit& visit) {
  for (std::size_t i = 0; i < count; ++i) {
    visit_storages(tensor_at(tensors[i]),
                   [&](const c10::Storage& storage, bool) { visit(*storage.unsafeGetStorageImpl()); });
  }
}

std::vector<at::Tensor> tensors_at(void* const* tensors, std::size_t count) {
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(tensor_at(tensors[i]));
  return all;
}

std::vector<std::uint32_t> ids_of(void* const* tensors, std::size_t count) {
  return paging::tensors_of(tensors_at(tensors, count));
}

void add_up(const paging::Adopted& one, tencache_adopted_bytes& sums) {
  using enum paging::Adoption;
  if (one.how == adopted || one.how == left_in_file) sums.adopted += one.bytes;
  if (one.how == left_in_file) sums.in_files += one.bytes;
  if (one.how == foreign) sums.left += one.bytes;
  if (one.how == mapped) sums.mapped += one.bytes;
}

const std::shared_ptr<Update>& of(void* update) { return *static_cast<std::shared_ptr<Update>*>(update); }

}  // namespace
}  // namespace tencache

using namespace tencache;

#pragma GCC visibility push(default)
extern "C" {

const char* tencache_program_message() { return failure_message.c_str(); }

// Off: only what ops on paged tensors allocate is paged, so that data sets, tokenizers and the like are left alone. On
// a GPU there are none, and this is without effect.
void tencache_program_page_all(int on) {
  const tencache_live* const live = paging::attached();
  const bool all = on != 0 || (live != nullptr && live->cuda_tensors != 0);
  paging::set_allocations(all ? paging::Allocations::all : paging::Allocations::beside_paged);
}

int tencache_program_attach(const tencache_live* live) {
  return guarded([&] {
    if (live->abi != tencache_live_abi) throw std::runtime_error("this library was built for another tencache");
    paging::Host host;
    host.raise = raise;
    if (live->cuda_tensors != 0) {
      host.device = c10::DeviceType::CUDA;
      host.install_allocator = torch_cuda::install_allocator;
      host.let_go_of_workspaces = torch_cuda::let_go_of_workspaces;
      host.before_release = torch_cuda::before_release;
      host.stream = torch_cuda::current_stream;
    }
    paging::attach(*live, host);
    tencache_program_page_all(0);
  });
}

// The calling thread's on the GPU.
void* tencache_program_stream() { return torch_cuda::current_stream(); }

// Waits for what PyTorch has the GPU do. NULL, or why it failed.
const char* tencache_program_synchronize() {
  return guarded(torch_cuda::synchronize) == tencache_ok ? nullptr : failure_message.c_str();
}

// Of the calling thread. Returns what it was.
int tencache_program_guard(int on) {
  const bool before = paging::guarded();
  paging::set_guarded(on != 0);
  return before ? 1 : 0;
}

int tencache_program_adopt(void* const* tensors, size_t count, tencache_adopted_bytes* sums) {
  return guarded([&] {
    each_storage(tensors, count, [&](c10::StorageImpl& storage) {
      add_up({paging::adopt(storage), storage.nbytes()}, *sums);
    });
  });
}

// `all`: all tensors of the program.
int tencache_program_adopt_mapped(void* const* tensors, size_t count, void* const* all, size_t all_count,
                                  tencache_adopted_bytes* sums) {
  return guarded([&] {
    for (const paging::Adopted& one : paging::adopt_mapped(tensors_at(tensors, count), tensors_at(all, all_count))) {
      add_up(one, *sums);
    }
  });
}

// `part`: a tensor whose storage is a part of `whole`, a storage.
void tencache_program_know_parts(void* part, void* whole) {
  paging::know_parts(tensor_at(part), static_cast<const c10::StorageImpl*>(whole));
}

int tencache_program_give_back(void* const* tensors, size_t count) {
  return guarded([&] {
    paging::await_lent();
    each_storage(tensors, count, [](c10::StorageImpl& storage) { paging::give_back(storage); });
  });
}

// Is any of the tensor's memory the runtime's?
int tencache_program_paged(void* tensor) { return ids_of(&tensor, 1).empty() ? 0 : 1; }

// The tensor's address gets known outside PyTorch. `paged`: whether it is the runtime's.
int tencache_program_expose(void* tensor, int* paged) {
  *paged = 0;
  return guarded([&] {
    each_storage(&tensor, 1, [&](c10::StorageImpl& storage) { *paged = paging::expose(storage) ? 1 : *paged; });
  });
}

// The same of a storage (UntypedStorage._cdata in Python).
int tencache_program_expose_storage(void* storage, int* paged) {
  *paged = 0;
  return guarded([&] { *paged = paging::expose(*static_cast<c10::StorageImpl*>(storage)) ? 1 : 0; });
}

// A number in place of the storage's address, for who only compares addresses: the same as long as it lives, and far
// from those of others. 0: it is not the runtime's.
uint64_t tencache_program_identity(void* storage) {
  return paging::identity_of(*static_cast<const c10::StorageImpl*>(storage));
}

// Whether accesses of code that is no op are errors, as nobody can serve them: the GPU tier is an accelerator's.
int tencache_program_serves_no_faults() {
  const tencache_live* const live = paging::attached();
  return live != nullptr && live->on_accelerator != 0 ? 1 : 0;
}

int tencache_program_expose_all() { return guarded(paging::expose_all); }

// Ops on lists of tensors that ran in groups, so far.
uint64_t tencache_program_split_ops() { return paging::split_ops(); }
void tencache_program_split_all_lists(int on) { paging::split_all_lists(on != 0); }

// `role`: Role of core/trace.h.
int tencache_program_mark(void* tensor, int role, const char* name) {
  return guarded([&] {
    const tencache_live* const live = paging::attached();
    if (live == nullptr) return;
    for (const std::uint32_t id : ids_of(&tensor, 1)) {
      if (const int status = live->mark(live->runtime, id, role, name, std::char_traits<char>::length(name))) {
        raise(*live, status);
      }
    }
  });
}

// Raw access: the caller gives what it gets in `ids` (room for `count`, at most one storage a tensor) back to unpin.
int tencache_program_pin(void* const* tensors, size_t count, int written, uint32_t* ids, size_t* pinned) {
  return guarded([&] {
    *pinned = 0;
    const tencache_live* const live = paging::attached();
    if (live == nullptr) return;
    const std::vector<std::uint32_t> found = ids_of(tensors, count);
    if (found.empty() || found.size() > count) return;
    if (const int status = live->pin(live->runtime, found.data(), found.size(), written)) raise(*live, status);
    paging::find_at_their_places(tensors_at(tensors, count));
    for (const std::uint32_t id : found) ids[(*pinned)++] = id;
  });
}

int tencache_program_unpin(const uint32_t* ids, size_t count, int written) {
  return guarded([&] {
    const tencache_live* const live = paging::attached();
    if (live == nullptr || count == 0) return;
    if (const int status = live->unpin(live->runtime, ids, count, written)) raise(*live, status);
  });
}

// ---- Updates of optimizers (update.h).

// Whether ops of the calling thread, here and now, are the runtime's.
int tencache_program_between_ops() { return paging::attached() != nullptr && paging::between_ops() ? 1 : 0; }

// Takes the calling thread's ops down until tencache_program_update_end. `step` may be NULL.
int tencache_program_update_begin(void* const* sample, size_t count, void* step, void** update) {
  return guarded([&] {
    at::Tensor steps = step != nullptr ? tensor_at(step) : at::Tensor();
    *update = new std::shared_ptr<Update>(std::make_shared<Update>(tensors_at(sample, count), std::move(steps)));
  });
}

// The message says why it cannot be run elsewhere.
int tencache_program_update_end(void* update) {
  return guarded([&] { of(update)->finish(); });
}

const char* tencache_program_update_signature(void* update) { return of(update)->signature().c_str(); }

void tencache_program_update_forget(void* update) { delete static_cast<std::shared_ptr<Update>*>(update); }

// On a thread of its own, as a task would: of tensors in PyTorch's own memory, for comparisons.
int tencache_program_update_run(void* update, void* const* tensors) {
  return guarded([&] {
    std::vector<float*> addresses;
    const std::vector<at::Tensor> all = tensors_at(tensors, of(update)->tensor_count());
    for (const at::Tensor& tensor : all) addresses.push_back(tensor.data_ptr<float>());
    std::async(std::launch::async, [&] { of(update)->run(addresses, all.front().numel()); }).get();
  });
}

// NULL, or why the updates of `count` parameters, each with `tensor_count` tensors, cannot be tasks.
const char* tencache_program_why_no_tasks(void* const* tensors, size_t tensor_count, size_t count) {
  failure_message = why_no_tasks(*paging::attached(), tensors_at(tensors, tensor_count * count), tensor_count);
  return failure_message.empty() ? nullptr : failure_message.c_str();
}

// `sub_groups`: how many tasks there are.
int tencache_program_update_tasks(void* update, const char* name, const int32_t* numbers, void* const* tensors,
                                  size_t count, size_t* sub_groups) {
  return guarded([&] {
    *sub_groups = run_as_tasks(*paging::attached(), of(update), name, {numbers, numbers + count},
                               tensors_at(tensors, of(update)->tensor_count() * count));
  });
}

}  // extern "C"
#pragma GCC visibility pop
