// Streams and events of a CUDA device (device_streams.h).
#pragma once

#include <memory>
#include <vector>

#include "core/thread_annotations.h"
#include "executor/cuda/cuda_driver.h"
#include "executor/device_streams.h"

namespace tencache {

class CudaDevice;

class CudaStreams final : public DeviceStreams {
 public:
  // The device outlives them.
  explicit CudaStreams(CudaDevice& device);
  ~CudaStreams() override;
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;

  DeviceStream make_stream() override;
  void destroy_stream(DeviceStream stream) noexcept override;
  void await_stream(DeviceStream stream) override;
  std::unique_ptr<CopyEngine> copies_on(DeviceStream stream) override;
  DeviceEvent record(DeviceStream stream) override;
  void let_go(DeviceEvent event) noexcept override;
  DeviceEvent record_timed(DeviceStream stream) override;
  void let_go_timed(DeviceEvent event) noexcept override;
  Nanoseconds between(DeviceEvent first, DeviceEvent second) override;
  void wait(DeviceStream stream, DeviceEvent event) override;
  bool over(DeviceEvent event) override;
  void await(DeviceEvent event) override;

 private:
  using Events = std::vector<CUevent>;
  CUevent record(DeviceStream stream, bool timed);
  Events& spare(bool timed) TENCACHE_REQUIRES(mutex_) { return timed ? spare_timed_ : spare_; }

  CudaDevice& device_;
  const CudaDriver& driver_;
  Mutex mutex_;
  Events spare_ TENCACHE_GUARDED_BY(mutex_), spare_timed_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
