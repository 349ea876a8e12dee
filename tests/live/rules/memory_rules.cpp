// Memory of the device, its addresses, and page-locked memory of the host.
#include <cmath>

#include "tests/live/rules/rules_state.h"

namespace tencache::rules {
namespace {

bool whole(const RulesState& at, Bytes bytes) { return bytes % at.options.granularity == 0; }

bool on_device(const RulesState& at, const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id >= 0 && location.id < at.options.devices;
}

CUresult CUDAAPI memory_info(std::size_t* free, std::size_t* total) {
  RULES_CALL("cuMemGetInfo");
  *free = at.options.memory - at.memory.used();
  *total = at.options.memory;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI granularity(std::size_t* bytes, const CUmemAllocationProp* properties,
                             CUmemAllocationGranularity_flags) {
  RULES_CALL("cuMemGetAllocationGranularity");
  RULE(on_device(at, properties->location), "the location is a device", CUDA_ERROR_INVALID_VALUE);
  *bytes = at.options.granularity;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI reserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr,
                         unsigned long long flags) {
  RULES_CALL("cuMemAddressReserve");
  RULE(bytes != 0 && whole(at, bytes), "\"size … must be a multiple of the host page size\", here of the granularity",
       CUDA_ERROR_INVALID_VALUE);
  RULE((alignment & (alignment - 1)) == 0, "\"alignment … must be a power of two\"", CUDA_ERROR_INVALID_VALUE);
  RULE(flags == 0, "\"flags: must be zero\"", CUDA_ERROR_INVALID_VALUE);
  *address = at.memory.reserve(bytes, alignment);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI free_addresses(CUdeviceptr address, std::size_t bytes) {
  RULES_CALL("cuMemAddressFree");
  const auto found = at.memory.reservations.find(address);
  RULE(found != at.memory.reservations.end() && found->second == bytes,
       "\"The size must match what was given to memAddressReserve and the ptr given must match what was returned\"",
       CUDA_ERROR_INVALID_VALUE);
  RULE(!at.memory.overlaps_mapping({address, bytes}), "what is mapped is unmapped first", CUDA_ERROR_INVALID_VALUE);
  at.memory.reservations.erase(found);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* properties,
                        unsigned long long flags) {
  RULES_CALL("cuMemCreate");
  RULE(bytes != 0 && whole(at, bytes),
       "\"The size of this allocation must be a multiple of the value given via cuMemGetAllocationGranularity\"",
       CUDA_ERROR_INVALID_VALUE);
  RULE(properties->type == CU_MEM_ALLOCATION_TYPE_PINNED && on_device(at, properties->location),
       "the properties are those of memory of a device", CUDA_ERROR_INVALID_VALUE);
  RULE(flags == 0, "\"flags for future use, must be zero now\"", CUDA_ERROR_INVALID_VALUE);
  if (!at.memory.can_hold(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  RULE(at.memory.created() + bytes <= at.budget, "the budget is not exceeded", CUDA_ERROR_OUT_OF_MEMORY);
  *handle = at.memory.create(bytes);
  at.counts.creations++;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI release_handle(CUmemGenericAllocationHandle handle) {
  RULES_CALL("cuMemRelease");
  const auto found = at.memory.handles.find(handle);
  RULE(found != at.memory.handles.end() && !found->second.released,
       "\"If handle is not a valid handle the behavior is undefined\"", CUDA_ERROR_INVALID_VALUE);
  // "The memory allocation will be freed when all outstanding mappings to the memory are unmapped"
  if (!found->second.mapped) {
    call.change(at.memory.place(found->second));
    at.log.forget(at.memory.place(found->second));
  }
  found->second.released = true;
  at.memory.free_if_unused(handle);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI map(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
                     unsigned long long flags) {
  RULES_CALL("cuMemMap");
  const auto found = at.memory.handles.find(handle);
  RULE(found != at.memory.handles.end() && !found->second.released, "the handle is one of cuMemCreate",
       CUDA_ERROR_INVALID_VALUE);
  RULE(whole(at, address) && whole(at, bytes),
       "\"Both ptr, size, and offset must be a multiple of the value given via cuMemGetAllocationGranularity\"",
       CUDA_ERROR_INVALID_VALUE);
  RULE(offset == 0, "\"Note: currently must be zero\"", CUDA_ERROR_INVALID_VALUE);
  RULE(bytes == found->second.bytes, "all of the memory is mapped, so that it can be unmapped",
       CUDA_ERROR_INVALID_VALUE);
  RULE(flags == 0, "\"flags for future use, must be zero now\"", CUDA_ERROR_INVALID_VALUE);
  // The driver allows aliases; a tier's memory has none.
  RULE(!found->second.mapped, "memory is mapped in one place", CUDA_ERROR_INVALID_VALUE);
  RULE(at.memory.reserved({address, bytes}),
       "\"This range must be an address reservation previously reserved with cuMemAddressReserve\"",
       CUDA_ERROR_INVALID_VALUE);
  RULE(!at.memory.overlaps_mapping({address, bytes}),
       "\"cuMemMap can only create mappings on VA range reservations that are not currently mapped\"",
       CUDA_ERROR_INVALID_VALUE);
  call.change(at.memory.place(found->second));
  at.memory.map(address, handle);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count) {
  RULES_CALL("cuMemSetAccess");
  const auto found = at.memory.mappings.find(address);
  RULE(found != at.memory.mappings.end() && found->second.bytes == bytes,
       "\"The range must be a fully mapped address range containing all allocations created by cuMemMap\"",
       CUDA_ERROR_INVALID_VALUE);
  RULE(count == 1 && on_device(at, access->location) && access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
       "the device may read and write", CUDA_ERROR_INVALID_VALUE);
  at.memory.open(address);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI unmap(CUdeviceptr address, std::size_t bytes) {
  RULES_CALL("cuMemUnmap");
  const auto found = at.memory.mappings.find(address);
  RULE(found != at.memory.mappings.end() && found->second.bytes == bytes,
       "\"The range must be the entire contiguous address range that was mapped to\"", CUDA_ERROR_INVALID_VALUE);
  // It "does not appear to synchronize in all cases" (PyTorch, c10/cuda/CUDACachingAllocator.cpp): whoever unmaps
  // waits.
  const DeviceMemory::Handle handle = at.memory.handles.at(found->second.handle);
  const Range range = at.memory.place(handle);
  call.change(range);
  if (at.queue.touches(range)) return call.breaks("memory in use is not unmapped", CUDA_ERROR_INVALID_VALUE);
  at.memory.unmap(address);
  if (handle.released) at.log.forget(range);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI allocate(CUdeviceptr* address, std::size_t bytes) {
  RULES_CALL("cuMemAlloc");
  RULE(bytes != 0, "\"If bytesize is 0, cuMemAlloc() returns CUDA_ERROR_INVALID_VALUE\"", CUDA_ERROR_INVALID_VALUE);
  if (!at.memory.can_hold(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = at.memory.allocate(bytes);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI free_allocation(CUdeviceptr address) {
  RULES_CALL("cuMemFree");
  const auto found = at.memory.allocations.find(address);
  RULE(found != at.memory.allocations.end(), "\"must have been returned by a previous call\"",
       CUDA_ERROR_INVALID_VALUE);
  const Range range{address, found->second.bytes};
  call.change(range);
  if (at.queue.touches(range)) return call.breaks("memory in use is not freed", CUDA_ERROR_INVALID_VALUE);
  at.memory.free(address);
  at.log.forget(range);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI page_lock(void* host, std::size_t bytes, unsigned flags) {
  RULES_CALL("cuMemHostRegister");
  const Range range{reinterpret_cast<std::uint64_t>(host), bytes};
  RULE(host != nullptr && bytes != 0, "there is a range", CUDA_ERROR_INVALID_VALUE);
  RULE((flags & ~unsigned{CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP}) == 0,
       "the flags are of ordinary memory", CUDA_ERROR_INVALID_VALUE);
  RULE(at.memory.page_locked(range) == DeviceMemory::Locked::none, "no part of the range is registered",
       CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  if (at.options.model != nullptr) {
    at.host.spend(std::llround(at.options.model->page_lock_ns_per_byte * static_cast<double>(bytes)));
  }
  call.change(range);  // pages may move while they are locked
  at.memory.locked[range.begin] = bytes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI unlock(void* host) {
  RULES_CALL("cuMemHostUnregister");
  const auto found = at.memory.locked.find(reinterpret_cast<std::uint64_t>(host));
  RULE(found != at.memory.locked.end(), "\"The base address must be the same one specified to cuMemHostRegister()\"",
       CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  const Range range{found->first, found->second};
  call.change(range);
  if (at.queue.touches(range)) return call.breaks("a range in use stays page-locked", CUDA_ERROR_INVALID_VALUE);
  at.memory.locked.erase(found);
  at.log.forget(range);
  return CUDA_SUCCESS;
}

}  // namespace

void add_memory_rules(CudaDriver& table) {
  table.cuMemGetInfo = memory_info;
  table.cuMemGetAllocationGranularity = granularity;
  table.cuMemAddressReserve = reserve;
  table.cuMemAddressFree = free_addresses;
  table.cuMemCreate = create;
  table.cuMemRelease = release_handle;
  table.cuMemMap = map;
  table.cuMemUnmap = unmap;
  table.cuMemSetAccess = set_access;
  table.cuMemHostRegister = page_lock;
  table.cuMemHostUnregister = unlock;
  table.cuMemAlloc = allocate;
  table.cuMemFree = free_allocation;
}

}  // namespace tencache::rules
