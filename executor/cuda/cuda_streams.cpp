#include "executor/cuda/cuda_streams.h"

#include "executor/cuda/cuda_device.h"
#include "executor/order_site.h"

namespace tencache {
namespace {

CUstream stream_of(DeviceStream stream) { return static_cast<CUstream>(stream); }
CUevent event_of(DeviceEvent event) { return static_cast<CUevent>(event); }

}  // namespace

CudaStreams::CudaStreams(CudaDevice& device) : device_(device), driver_(device.driver()) {}

CudaStreams::~CudaStreams() {
  if (!device_.try_bind()) return;
  for (const CUevent event : spare_) driver_.cuEventDestroy(event);
  for (const CUevent event : spare_timed_) driver_.cuEventDestroy(event);
}

DeviceStream CudaStreams::make_stream() {
  device_.bind();
  CUstream stream = nullptr;
  check_cuda(driver_, driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "making a stream for copies");
  return stream;
}

void CudaStreams::destroy_stream(DeviceStream stream) noexcept {
  if (device_.try_bind()) driver_.cuStreamDestroy(stream_of(stream));
}

void CudaStreams::await_stream(DeviceStream stream) {
  device_.bind();
  check_cuda(driver_, TENCACHE_ORDER_SITE("wait", driver_.cuStreamSynchronize(stream_of(stream))),
             "waiting for a stream");
}

std::unique_ptr<CopyEngine> CudaStreams::copies_on(DeviceStream stream) {
  return make_copy_engine(device_, stream_of(stream));
}

DeviceEvent CudaStreams::record(DeviceStream stream) { return record(stream, false); }

DeviceEvent CudaStreams::record_timed(DeviceStream stream) { return record(stream, true); }

CUevent CudaStreams::record(DeviceStream stream, bool timed) {
  device_.bind();
  CUevent event = nullptr;
  {
    const MutexLock lock(mutex_);
    if (!spare(timed).empty()) {
      event = spare(timed).back();
      spare(timed).pop_back();
    }
  }
  const unsigned flags = CU_EVENT_BLOCKING_SYNC | (timed ? 0 : CU_EVENT_DISABLE_TIMING);  // waiting burns no core
  if (event == nullptr) check_cuda(driver_, driver_.cuEventCreate(&event, flags), "making an event");
  const CUresult result = TENCACHE_ORDER_SITE("event", driver_.cuEventRecord(event, stream_of(stream)));
  if (result != CUDA_SUCCESS) {
    const MutexLock lock(mutex_);
    spare(timed).push_back(event);
  }
  check_cuda(driver_, result, "an event behind a stream's work");
  return event;
}

void CudaStreams::let_go(DeviceEvent event) noexcept {
  const MutexLock lock(mutex_);
  spare_.push_back(event_of(event));
}

void CudaStreams::let_go_timed(DeviceEvent event) noexcept {
  const MutexLock lock(mutex_);
  spare_timed_.push_back(event_of(event));
}

Nanoseconds CudaStreams::between(DeviceEvent first, DeviceEvent second) {
  device_.bind();
  float milliseconds = 0;
  check_cuda(driver_, driver_.cuEventElapsedTime(&milliseconds, event_of(first), event_of(second)),
             "asking for the time between two events");
  return static_cast<Nanoseconds>(1e6 * static_cast<double>(milliseconds));
}

void CudaStreams::wait(DeviceStream stream, DeviceEvent event) {
  device_.bind();
  check_cuda(driver_, TENCACHE_ORDER_SITE("wait", driver_.cuStreamWaitEvent(stream_of(stream), event_of(event), 0)),
             "a wait between streams");
}

bool CudaStreams::over(DeviceEvent event) {
  device_.bind();
  const CUresult result = driver_.cuEventQuery(event_of(event));
  if (result == CUDA_ERROR_NOT_READY) return false;
  check_cuda(driver_, result, "asking how far a stream is");
  return true;
}

void CudaStreams::await(DeviceEvent event) {
  device_.bind();
  check_cuda(driver_, TENCACHE_ORDER_SITE("wait", driver_.cuEventSynchronize(event_of(event))), "waiting for a stream");
}

}  // namespace tencache
