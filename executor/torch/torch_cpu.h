// PyTorch's allocator for the CPU, which is ours from `install_allocator` on: the runtime's memory on guarded threads
// (paged_storage.h), PyTorch's own elsewhere. torch_cuda.h is its twin for GPUs. Any thread may call.
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstddef>

namespace tencache::torch_cpu {

// No effect the second time. Before it nothing else here may be called but `keep_in_place`.
void install_allocator();
// Memory of PyTorch's own.
c10::DataPtr allocate_plain(std::size_t bytes);
// Frees memory that is the runtime's, or PyTorch's own.
void let_go(void* address);
// PyTorch's own accessor, whose name differs between its versions.
c10::DataPtr& data_of(c10::StorageImpl& storage);
// It is PyTorch's own memory, whose address nobody outside has.
bool is_plain(const c10::StorageImpl& storage);
// The address of PyTorch's own memory gets known outside. False: it is another allocator's.
bool keep_in_place(c10::StorageImpl& storage);

}  // namespace tencache::torch_cpu
