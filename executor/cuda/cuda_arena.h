// A range of a GPU's addresses for a whole tier. Physical memory is mapped into it in large pieces, each when one of
// its bytes is used for the first time, and stays: one call that sets access a piece.
#pragma once

#include <string>
#include <vector>

#include "executor/accelerator.h"
#include "executor/cuda/cuda_driver.h"

namespace tencache {

class CudaDevice;

class CudaArena final : public DeviceRange {
 public:
  // Throws Error if the device has less than the capacity free. The device outlives this.
  CudaArena(CudaDevice& device, std::string name, Bytes capacity);
  ~CudaArena() override;  // nothing that was submitted touches it any more
  CudaArena(const CudaArena&) = delete;
  CudaArena& operator=(const CudaArena&) = delete;

  std::byte* begin() const override { return reinterpret_cast<std::byte*>(address_); }
  std::byte* guard() const override { return begin() + bytes_; }
  void cover(Bytes offset, Bytes bytes) override;

 private:
  Bytes bytes_of(std::size_t piece) const;
  void map(std::size_t piece);

  CudaDevice& device_;
  const CudaDriver& driver_;
  std::string name_;
  Bytes bytes_;        // of the range, whole pages of the device; the guard has as many behind it
  Bytes piece_bytes_;  // of physical memory
  CUdeviceptr address_ = 0;
  std::vector<CUmemGenericAllocationHandle> pieces_;  // 0: not mapped yet
};

}  // namespace tencache
