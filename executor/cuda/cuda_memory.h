// Memory of a tier on a GPU: physical memory of the driver's virtual memory management, mapped chunk by chunk into
// address ranges that never change. An access to an evicted chunk is an error of the device instead of somebody else's
// bytes; nothing is copied and nothing fragments.
//
// A chunk has one piece of physical memory: mapping costs the driver a constant time per piece, far more than its pages
// do. Pieces of chunks that left wait, by size, for a chunk of the same size; where a size lacks one, waiting pieces of
// other sizes are given back to the driver until a new one fits under the cap. A training step repeats its sizes, so
// that this ends after the first.
//
// Chunks of a retired tensor stay mapped when they go ("parked"), for a tensor of the same size that gets these
// addresses next: a training step allocates and frees the same activations again and again, and mapping costs more than
// many of their ops take. The oldest ones are let go of where memory is short.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "executor/cuda/cuda_driver.h"
#include "executor/extent_allocator.h"
#include "executor/tensor_ranges.h"
#include "executor/tier_memory.h"

namespace tencache {

class CudaDevice;

class CudaMemory final : public TierMemory {
 public:
  // `granularity` is a multiple of the device's. A capacity of `unlimited` is what the device has free. Throws Error if
  // it has less than the capacity free.
  CudaMemory(CudaDevice& device, std::string name, Bytes capacity, Bytes granularity, bool addressed);
  ~CudaMemory() override;
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  void create(TensorId tensor, Bytes bytes) override;
  void retire(TensorId tensor) override;
  void destroy(TensorId tensor) override;
  // `begin` is a multiple of the device's granularity: Error otherwise, for chunks of such a size cannot be mapped.
  void map(TensorId tensor, Bytes begin, Bytes bytes, Bytes offset) override;
  void unmap(TensorId tensor, Bytes begin, Bytes bytes) override;
  std::byte* address(TensorId tensor) const override { return reinterpret_cast<std::byte*>(ranges_.address(tensor)); }
  Bytes bytes(TensorId tensor) const override { return ranges_.bytes(tensor); }
  bool mapped(TensorId tensor, Bytes begin) const override { return ranges_[tensor].mappings.contains(begin); }
  Bytes capacity() const override { return room_.capacity(); }
  ChunkMemoryStatistics statistics() const override;
  // Physical memory that the driver has given, mapped or waiting; never above the capacity.
  Bytes created_bytes() const { return created_bytes_; }

 private:
  struct Mapping {
    Bytes bytes = 0;  // of physical memory
    CUmemGenericAllocationHandle handle = 0;
    std::vector<Extent> room;

    Bytes room_bytes() const {
      Bytes sum = 0;
      for (const Extent& extent : room) sum += extent.bytes;
      return sum;
    }
  };
  using Ranges = TensorRanges<CUdeviceptr, std::map<Bytes, Mapping>>;  // mappings by begin
  struct Parked {
    Mapping mapping;
    std::uint64_t number = 0;  // in the order of parking
  };

  bool adopt(CUdeviceptr at, Mapping& mapping);
  void let_go(std::map<CUdeviceptr, Parked>::iterator parked);
  bool let_go_of_oldest();
  void note_map(Bytes bytes, Nanoseconds start);
  std::vector<Extent> take_room(Bytes room, Bytes offset);
  void give_room(const std::vector<Extent>& room);
  CUmemGenericAllocationHandle take_handle(Bytes bytes);
  CUresult create_handle(Bytes bytes, CUmemGenericAllocationHandle& handle);
  bool release_one_waiting();

  CudaDevice& device_;
  const CudaDriver& driver_;
  std::string name_;
  Bytes page_;         // of the device
  Bytes granularity_;  // of the tier
  bool addressed_;
  ExtentAllocator room_;  // the cap; where a caller keeps addresses, they are checked here
  Ranges ranges_;
  std::map<Bytes, std::vector<CUdeviceptr>> free_addresses_;            // by bytes
  std::map<Bytes, std::vector<CUmemGenericAllocationHandle>> waiting_;  // by bytes; no entry is empty
  Bytes created_bytes_ = 0;
  std::map<CUdeviceptr, Parked> parked_;                 // by address; none overlap, nor does what is mapped
  std::map<std::uint64_t, CUdeviceptr> parked_in_turn_;  // by number
  std::uint64_t parked_count_ = 0;                       // ever
  Bytes parked_bytes_ = 0;                               // of room
  ChunkMemoryStatistics statistics_;
};

}  // namespace tencache
