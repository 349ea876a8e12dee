// Ops of a replay on a CUDA device: kernels that check and write the patterns, and one that is busy for the recorded
// duration. `run` returns when their stream is done.
#pragma once

#include <vector>

#include "executor/cuda/cuda_kernels.h"
#include "executor/replay_bodies.h"

namespace tencache {

class CudaReplayKernels final : public ReplayKernels {
 public:
  // The device outlives it.
  explicit CudaReplayKernels(CudaDevice& device);
  ~CudaReplayKernels() override;
  CudaReplayKernels(const CudaReplayKernels&) = delete;
  CudaReplayKernels& operator=(const CudaReplayKernels&) = delete;

  Nanoseconds run(std::span<ReplayAccess> accesses, Nanoseconds duration_ns, const ReplayOptions& options) override;

 private:
  void make_room(std::size_t accesses);

  CudaDevice& device_;
  const CudaDriver& driver_;
  CudaKernels kernels_;
  CUfunction begin_, write_, check_, compute_;
  CUdeviceptr report_ = 0;  // a Report and a word for each access
  std::size_t report_words_ = 0;
  std::vector<std::uint64_t> host_report_;
};

}  // namespace tencache
