// Between LibTorch's allocators and the runtime: torch_cpu.cpp has the CPU's allocator, torch_cuda.cpp that of GPUs.
#pragma once

#include <c10/core/Allocator.h>

namespace tencache {

// The runtime's memory for a storage on that device; empty where the allocation is not the runtime's: on threads
// without a guard, of devices that are not paged, and of scalars outside ops.
c10::DataPtr allocate_paged(std::size_t bytes, c10::Device device, c10::DeleterFnPtr deleter);
// It is the runtime's, of a device that is not the CPU.
bool is_paged(const c10::DataPtr& data) noexcept;
// Lets go of it. False if the address is not the runtime's.
bool release_paged(void* address) noexcept;

}  // namespace tencache
