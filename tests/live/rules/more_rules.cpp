#include "tests/live/rules/more_rules.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "tests/live/rules/rules_state.h"

namespace tencache::rules {
namespace {

// "Write a value to memory": in the order of its stream, and seen by the host at any moment after that. "CUDA … stream
// memory operations … ordering … is not visible to CUDA" (stream memory operations): who has seen the word knows of no
// order between streams, so no clock learns from it.
CUresult CUDAAPI write_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  RULES_CALL("cuStreamWriteValue64");
  RULE(flags == CU_STREAM_WRITE_VALUE_DEFAULT, "the write is behind a fence", CUDA_ERROR_INVALID_VALUE);
  RULE(address % sizeof value == 0, "the word is aligned", CUDA_ERROR_INVALID_VALUE);
  DeviceJob job;
  job.kind = JobKind::fill;
  const Range word{address, sizeof value};
  if (!call.touch_device(job, address, sizeof value, true)) {
    RULE(at.memory.page_locked(word) == DeviceMemory::Locked::all, "the word is the device's, or page-locked",
         CUDA_ERROR_INVALID_VALUE);
    job.accesses.push_back({word, true, false});
  }
  job.run = [=] { std::atomic_ref(*reinterpret_cast<cuuint64_t*>(address)).store(value, std::memory_order_release); };
  return call.submit(stream, std::move(job));
}

// "Capture may not be initiated if stream is CU_STREAM_LEGACY. Capture must be ended on the same stream in which it was
// initiated, and it may only be initiated if the stream is not already in capture mode." "If mode is not
// CU_STREAM_CAPTURE_MODE_RELAXED, cuStreamEndCapture must be called on this stream from the same thread."
CUresult CUDAAPI begin_capture(CUstream stream, CUstreamCaptureMode mode) {
  RULES_CALL("cuStreamBeginCapture");
  RULE(stream != nullptr, "the legacy stream is not captured", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  RULE(at.streams.contains(stream), "the stream exists", CUDA_ERROR_INVALID_HANDLE);
  RULE(!at.captures.contains(stream), "the stream is not captured yet", CUDA_ERROR_ILLEGAL_STATE);
  at.captures[stream] = {at.host.line(), mode};
  return CUDA_SUCCESS;
}

CUresult CUDAAPI end_capture(CUstream stream, CUgraph* graph) {
  RULES_CALL("cuStreamEndCapture");
  const auto found = at.captures.find(stream);
  RULE(found != at.captures.end(), "the stream is captured", CUDA_ERROR_ILLEGAL_STATE);
  RULE(found->second.mode == CU_STREAM_CAPTURE_MODE_RELAXED || found->second.by == at.host.line(),
       "the thread that began a capture ends it", CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  at.captures.erase(found);
  *graph = nullptr;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI is_capturing(CUstream stream, CUstreamCaptureStatus* status) {
  RULES_CALL("cuStreamIsCapturing");
  RULE(at.streams.contains(stream), "the stream exists", CUDA_ERROR_INVALID_HANDLE);
  *status = at.captures.contains(stream) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

// "Sets the calling thread's stream capture interaction mode to the value contained in *mode, and overwrites *mode with
// the previous mode for the thread."
CUresult CUDAAPI exchange_mode(CUstreamCaptureMode* mode) {
  RULES_CALL("cuThreadExchangeStreamCaptureMode");
  std::swap(at.capture_modes[at.host.line()], *mode);
  return CUDA_SUCCESS;
}

}  // namespace

MoreRules more_rules() {
  return {.cuStreamWriteValue64 = write_value,
          .cuStreamBeginCapture = begin_capture,
          .cuStreamEndCapture = end_capture,
          .cuStreamIsCapturing = is_capturing,
          .cuThreadExchangeStreamCaptureMode = exchange_mode};
}

}  // namespace tencache::rules
