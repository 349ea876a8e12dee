// Ops of a replay on a CUDA device: kernels that check and write the patterns, and one that is busy for the recorded
// duration. They run on a stream of their own; `run` returns when the stream is done.
#pragma once

#include <vector>

#include "executor/cuda/cuda_device.h"
#include "executor/replay_bodies.h"

namespace tencache {

class CudaReplayKernels final : public ReplayKernels {
 public:
  // The device outlives it. Throws Error if the driver cannot compile the kernels (it is older than the toolkit that
  // they were built with).
  explicit CudaReplayKernels(CudaDevice& device);
  ~CudaReplayKernels() override;
  CudaReplayKernels(const CudaReplayKernels&) = delete;
  CudaReplayKernels& operator=(const CudaReplayKernels&) = delete;

  Nanoseconds run(std::span<ReplayAccess> accesses, Nanoseconds duration_ns, const ReplayOptions& options) override;

 private:
  void make_room(std::size_t accesses);
  void launch(CUfunction function, std::uint64_t threads, void** parameters);

  CudaDevice& device_;
  const CudaDriver& driver_;
  CUmodule module_ = nullptr;
  CUfunction begin_ = nullptr, write_ = nullptr, check_ = nullptr, compute_ = nullptr;
  CUstream stream_ = nullptr;
  CUdeviceptr report_ = 0;  // a Report and a word for each access
  std::size_t report_words_ = 0;
  std::vector<std::uint64_t> host_report_;
};

}  // namespace tencache
