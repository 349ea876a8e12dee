#include "executor/cuda/cuda_memory.h"

#include <algorithm>

#include "core/check.h"
#include "core/error.h"
#include "executor/clock.h"
#include "executor/cuda/cuda_device.h"
#include "executor/order_site.h"

namespace tencache {
namespace {

// `unlimited`: all that is free but for what kernels and libraries still load.
Bytes limit(Bytes capacity, Bytes free) { return capacity < unlimited ? capacity : free - free / 16; }

}  // namespace

CudaMemory::CudaMemory(CudaDevice& device, std::string name, Bytes capacity, Bytes granularity, bool addressed)
    : device_(device),
      driver_(device.driver()),
      name_(std::move(name)),
      page_(device.granularity()),
      granularity_(granularity),
      addressed_(addressed),
      room_(limit(capacity, device.free_bytes()), granularity) {
  TENCACHE_CHECK(granularity % page_ == 0);
  if (capacity < unlimited) device.check_free(name_, capacity);
}

CudaMemory::~CudaMemory() {
  if (!device_.try_bind()) return;
  try {
    for (TensorId tensor = 0; tensor < ranges_.size(); tensor++) {
      if (ranges_.exists(tensor)) destroy(tensor);
    }
    while (let_go_of_oldest()) {
    }
  } catch (const Error&) {
    return;  // after a fault of a kernel nothing works any more; the driver frees all with the process
  }
  while (release_one_waiting()) {
  }
  for (const auto& [bytes, addresses] : free_addresses_) {
    for (const CUdeviceptr address : addresses) driver_.cuMemAddressFree(address, bytes);
  }
}

void CudaMemory::create(TensorId tensor, Bytes bytes) {
  CUdeviceptr address = 0;
  if (bytes != 0) {
    std::vector<CUdeviceptr>& free = free_addresses_[round_up(bytes, page_)];
    if (free.empty()) {
      device_.bind();
      check_cuda(driver_, driver_.cuMemAddressReserve(&address, round_up(bytes, page_), page_, 0, 0),
                 "reserving addresses");
    } else {
      address = free.back();
      free.pop_back();
    }
  }
  ranges_.create(tensor, address, bytes);
}

void CudaMemory::retire(TensorId tensor) { ranges_[tensor].retired = !addressed_; }

void CudaMemory::destroy(TensorId tensor) {
  Ranges::Range& gone = ranges_[tensor];
  while (!gone.mappings.empty()) unmap(tensor, gone.mappings.begin()->first, gone.mappings.begin()->second.bytes);
  if (gone.bytes != 0) free_addresses_[round_up(gone.bytes, page_)].push_back(gone.address);
  ranges_.destroy(tensor);
}

// ---- Parked chunks --------------------------------------------------------------------------------------------------

// Takes what is parked there over, if it is as large; what is in the way goes.
bool CudaMemory::adopt(CUdeviceptr at, Mapping& mapping) {
  auto next = parked_.lower_bound(at);
  if (next != parked_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.mapping.bytes > at) let_go(before);
  }
  if (next != parked_.end() && next->first == at && next->second.mapping.bytes == mapping.bytes) {
    mapping = std::move(next->second.mapping);
    parked_bytes_ -= mapping.room_bytes();
    parked_in_turn_.erase(next->second.number);
    parked_.erase(next);
    return true;
  }
  while (TENCACHE_ORDER_SITE("guard", next != parked_.end() && next->first < at + mapping.bytes)) let_go(next++);
  return false;
}

void CudaMemory::let_go(std::map<CUdeviceptr, Parked>::iterator parked) {
  Mapping& mapping = parked->second.mapping;
  check_cuda(driver_, TENCACHE_ORDER_SITE("table", driver_.cuMemUnmap(parked->first, mapping.bytes)),
             "unmapping memory");
  waiting_[mapping.bytes].push_back(mapping.handle);
  parked_bytes_ -= mapping.room_bytes();
  give_room(mapping.room);
  parked_in_turn_.erase(parked->second.number);
  parked_.erase(parked);
}

bool CudaMemory::let_go_of_oldest() {
  if (parked_in_turn_.empty()) return false;
  let_go(parked_.find(parked_in_turn_.begin()->second));
  return true;
}

// ---- Room -----------------------------------------------------------------------------------------------------------

std::vector<Extent> CudaMemory::take_room(Bytes room, Bytes offset) {
  std::vector<Extent> taken;
  if (addressed_) {
    TENCACHE_CHECK(offset + room <= room_.capacity() && room_.take_at({offset, room}));
    taken.push_back({offset, room});
    return taken;
  }
  while (!room_.take(room, taken)) {
    if (let_go_of_oldest()) continue;
    const Bytes left = room_.capacity() - room_.used();
    throw OutOfMemory("tier '" + name_ + "': " + format_bytes(room) + " are asked for and " + format_bytes(left) +
                          " of " + format_bytes(room_.capacity()) + " are free",
                      "", room - left);
  }
  return taken;
}

void CudaMemory::give_room(const std::vector<Extent>& room) {
  for (const Extent& extent : room) room_.give(extent);
}

CUresult CudaMemory::create_handle(Bytes bytes, CUmemGenericAllocationHandle& handle) {
  const CUmemAllocationProp properties = device_.allocation_properties();
  const CUresult result = driver_.cuMemCreate(&handle, bytes, &properties, 0);
  if (result == CUDA_SUCCESS) created_bytes_ += bytes;
  return result;
}

bool CudaMemory::release_one_waiting() {
  if (waiting_.empty()) return false;
  const auto largest = std::prev(waiting_.end());
  TENCACHE_ORDER_SITE("table", driver_.cuMemRelease(largest->second.back()));
  created_bytes_ -= largest->first;
  largest->second.pop_back();
  if (largest->second.empty()) waiting_.erase(largest);
  return true;
}

CUmemGenericAllocationHandle CudaMemory::take_handle(Bytes bytes) {
  while (true) {
    CUmemGenericAllocationHandle handle = 0;
    if (const auto same = waiting_.find(bytes); same != waiting_.end()) {
      handle = same->second.back();
      same->second.pop_back();
      if (same->second.empty()) waiting_.erase(same);
      return handle;
    }
    const bool fits = !TENCACHE_ORDER_SITE("guard", created_bytes_ + bytes > room_.capacity());
    const CUresult result = fits ? create_handle(bytes, handle) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) return handle;
    if (result != CUDA_ERROR_OUT_OF_MEMORY) check_cuda(driver_, result, "taking memory");
    if (release_one_waiting() || let_go_of_oldest()) continue;
    TENCACHE_CHECK(fits);  // its room was free
    device_.used_up(name_, room_.capacity());
  }
}

void CudaMemory::map(TensorId tensor, Bytes begin, Bytes bytes, Bytes offset) {
  const Nanoseconds start = clock_ns();
  Ranges::Range& of = ranges_[tensor];
  TENCACHE_CHECK(bytes != 0 && begin + bytes <= round_up(of.bytes, page_));
  if (begin % page_ != 0) {
    throw Error("tier '" + name_ + "': chunks begin at multiples of the GPU's pages of " + format_bytes(page_) +
                "; choose a chunk size (chunk_bytes) that is one");
  }
  Mapping mapping;
  mapping.bytes = round_up(bytes, page_);
  const auto next = of.mappings.lower_bound(begin);
  TENCACHE_CHECK(next == of.mappings.end() || begin + mapping.bytes <= next->first);
  TENCACHE_CHECK(next == of.mappings.begin() || std::prev(next)->first + std::prev(next)->second.bytes <= begin);
  device_.bind();
  if (adopt(of.address + begin, mapping)) {
    of.mappings.emplace_hint(next, begin, std::move(mapping));
    note_map(bytes, start);
    return;
  }
  mapping.room = take_room(round_up(bytes, granularity_), offset);
  try {
    mapping.handle = take_handle(mapping.bytes);
    const CUdeviceptr at = of.address + begin;
    CUresult result = driver_.cuMemMap(at, mapping.bytes, 0, mapping.handle, 0);
    if (result == CUDA_SUCCESS) {
      const CUmemAccessDesc access = device_.access();
      result = driver_.cuMemSetAccess(at, mapping.bytes, &access, 1);
      if (result != CUDA_SUCCESS) driver_.cuMemUnmap(at, mapping.bytes);
    }
    if (result != CUDA_SUCCESS) {
      waiting_[mapping.bytes].push_back(mapping.handle);
      check_cuda(driver_, result, "mapping memory");
    }
  } catch (...) {
    give_room(mapping.room);
    throw;
  }
  of.mappings.emplace_hint(next, begin, std::move(mapping));
  note_map(bytes, start);
}

void CudaMemory::note_map(Bytes bytes, Nanoseconds start) {
  statistics_.maps++;
  statistics_.mapped_bytes += bytes;
  statistics_.extents++;
  statistics_.peak_used_bytes = std::max(statistics_.peak_used_bytes, room_.used() - parked_bytes_);
  statistics_.map_ns += clock_ns() - start;
}

void CudaMemory::unmap(TensorId tensor, Bytes begin, Bytes bytes) {
  const Nanoseconds start = clock_ns();
  Ranges::Range& of = ranges_[tensor];
  const auto found = of.mappings.find(begin);
  TENCACHE_CHECK(found != of.mappings.end() && found->second.bytes == round_up(bytes, page_));
  device_.bind();
  if (of.retired) {
    parked_bytes_ += found->second.room_bytes();
    parked_in_turn_[parked_count_] = of.address + begin;
    parked_[of.address + begin] = {std::move(found->second), parked_count_++};
  } else {
    check_cuda(driver_, TENCACHE_ORDER_SITE("table", driver_.cuMemUnmap(of.address + begin, found->second.bytes)),
               "unmapping memory");
    waiting_[found->second.bytes].push_back(found->second.handle);
    give_room(found->second.room);
  }
  of.mappings.erase(found);
  statistics_.unmaps++;
  statistics_.unmap_ns += clock_ns() - start;
}

ChunkMemoryStatistics CudaMemory::statistics() const {
  ChunkMemoryStatistics result = statistics_;
  result.used_bytes = room_.used() - parked_bytes_;
  return result;
}

}  // namespace tencache
