// A CUDA device as the accelerator of the real machine, through the driver alone: no CUDA runtime is needed, only a
// driver. It works in the device's primary context, which is LibTorch's, too.
//
// Copies run on a stream of their engine's own; what is waited for are events. HostMachine orders work of different
// streams: an op or a copy starts when the host has seen the end of what it waits for.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "executor/accelerator.h"
#include "executor/cuda/cuda_driver.h"
#include "executor/cuda/cufile.h"

namespace tencache {

class CudaDevice final : public Accelerator {
 public:
  // The driver table outlives the device. Throws Error that says what is missing: a device, its support of mapped
  // memory, a driver that works.
  // `files`: GPUDirect Storage for links between files and the device, instead of this computer's (cufile.h).
  CudaDevice(const CudaDriver& driver, int ordinal, const CuFile* files = nullptr);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::string describe() const override;
  Bytes free_bytes() const override;
  Bytes granularity() const override { return granularity_; }
  std::unique_ptr<TierMemory> memory(const std::string& name, Bytes capacity, Bytes granularity,
                                     bool addressed) override;
  std::unique_ptr<DeviceRange> range(const std::string& tier, Bytes capacity) override;
  bool pin(std::byte* host, Bytes bytes, std::string& reason) override;
  void unpin(std::byte* host) noexcept override;
  std::unique_ptr<CopyEngine> copy_engine() override;
  std::shared_ptr<DeviceStreams> streams() override;
  std::unique_ptr<DirectFiles> direct_files(std::string& reason) override;
  std::unique_ptr<ReplayKernels> replay_kernels() override;

  const CudaDriver& driver() const { return driver_; }
  // Makes the context the calling thread's. Cheap; before every use of the driver.
  void bind() const;
  // For destructors: false where that fails. After a fault of a kernel nothing works any more; what is not given back
  // then, the driver takes back with the process.
  bool try_bind() const noexcept;
  CUmemAllocationProp allocation_properties() const;
  CUmemAccessDesc access() const;
  // Throw Error: a tier is to have more than is free; memory that was free for it is not any more.
  void check_free(const std::string& tier, Bytes capacity) const;
  [[noreturn]] void used_up(const std::string& tier, Bytes capacity) const;
  // Whether copies of one call may go to the driver as one. It is told of batches in page-locked memory only.
  bool batches() const { return !pin_refused_; }

 private:
  const CudaDriver& driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  Bytes granularity_ = 0;
  const CuFile* files_ = nullptr;
  bool direct_memory_ = false;  // its memory can be other devices' destination
  std::atomic<bool> pin_refused_ = false;
};

// Copies on that stream, which nobody waits for here and which outlives them, or on one of their own (none).
std::unique_ptr<CopyEngine> make_copy_engine(CudaDevice& device, std::optional<CUstream> stream);
// cuda_replay_kernels.cpp. The device outlives them.
std::unique_ptr<ReplayKernels> make_replay_kernels(CudaDevice& device);

}  // namespace tencache
