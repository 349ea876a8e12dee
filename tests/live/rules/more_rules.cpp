#include "tests/live/rules/more_rules.h"

#include <cstring>

#include "tests/live/rules/rules_state.h"

namespace tencache::rules {
namespace {

// "Makes all future work submitted to hStream wait for all work captured in hEvent." "Other APIs such as
// cuStreamWaitEvent() use the most recently captured state at the time of the API call, and are not affected by later
// calls to cuEventRecord()."
CUresult CUDAAPI wait_event(CUstream stream, CUevent event, unsigned flags) {
  RULES_CALL("cuStreamWaitEvent");
  const auto found = at.events.find(event);
  RULE(found != at.events.end(), "the event exists", CUDA_ERROR_INVALID_HANDLE);
  const auto on = at.streams.find(stream);
  RULE(on != at.streams.end(), "the stream exists", CUDA_ERROR_INVALID_HANDLE);
  RULE(flags == CU_EVENT_WAIT_DEFAULT, "\"CU_EVENT_WAIT_EXTERNAL … is invalid outside of stream capture\"",
       CUDA_ERROR_INVALID_VALUE);
  at.queue.wait(on->second, found->second.last, found->second.known);
  return CUDA_SUCCESS;
}

// "Returns CUDA_SUCCESS if all captured work has been completed, or CUDA_ERROR_NOT_READY if any captured work is
// incomplete."
CUresult CUDAAPI query(CUevent event) {
  RULES_CALL("cuEventQuery");
  const auto found = at.events.find(event);
  RULE(found != at.events.end(), "the event exists", CUDA_ERROR_INVALID_HANDLE);
  if (!at.queue.over(found->second.last)) return CUDA_ERROR_NOT_READY;
  at.host.clock().learn(found->second.known);
  return CUDA_SUCCESS;
}

// "If cuEventRecord() has not been called on either event then CUDA_ERROR_INVALID_HANDLE is returned. If … one or both
// of them has not yet been completed …, CUDA_ERROR_NOT_READY is returned. If either event was created with the
// CU_EVENT_DISABLE_TIMING flag, then this function will return CUDA_ERROR_INVALID_HANDLE."
CUresult CUDAAPI elapsed(float* milliseconds, CUevent start, CUevent end) {
  RULES_CALL("cuEventElapsedTime");
  const auto first = at.events.find(start), second = at.events.find(end);
  RULE(first != at.events.end() && second != at.events.end(), "both events exist", CUDA_ERROR_INVALID_HANDLE);
  for (const CapturedWork* event : {&first->second, &second->second}) {
    RULE(event->recorded && event->timed, "both events are recorded, and made with timing", CUDA_ERROR_INVALID_HANDLE);
  }
  if (!at.queue.over(first->second.last) || !at.queue.over(second->second.last)) return CUDA_ERROR_NOT_READY;
  const Nanoseconds ns = at.queue.end_ns(second->second.last) - at.queue.end_ns(first->second.last);
  *milliseconds = static_cast<float>(static_cast<double>(ns) / 1e6);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI copy_inside(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  RULES_CALL("cuMemcpyDtoDAsync");
  DeviceJob job;
  job.kind = JobKind::copy;
  RULE(to + bytes <= from || from + bytes <= to, "source and destination do not overlap", CUDA_ERROR_INVALID_VALUE);
  RULE(call.touch_device(job, from, bytes, false) && call.touch_device(job, to, bytes, true),
       "all of the memory is mapped and accessible", CUDA_ERROR_ILLEGAL_ADDRESS);
  job.run = [=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); };
  return call.submit(stream, std::move(job));
}

}  // namespace

MoreRules more_rules() { return {wait_event, query, elapsed, copy_inside}; }

}  // namespace tencache::rules
