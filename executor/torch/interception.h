// LibTorch on the live runtime: how tensors' memory and the ops of a LibTorch program reach LiveRuntime.
//
//   LiveRuntime runtime(machine, policy);
//   {
//     ThreadGuard guard(runtime);            // this thread is paged from here on: its allocations and its ops
//     auto model = …;                        // created inside, so that its memory is paged
//     for (…) { runtime.iteration_boundary(); …; loss.backward(); optimizer.step(); }
//   }                                        // all tensors go before the runtime
//
// paging.h says how.
//
// Limits. Raw access outside an op (data_ptr, accessor, at::tensor of a C array, memcpy into a tensor) needs
// PinnedTensors. Ops on threads without a guard must not touch paged tensors. One runtime at a time. Not supported: JIT
// fusers, opaque oneDNN layouts, nested tensors, tensors inside custom classes (packed weights).
//
// Backward runs on the calling thread (CPU tensors) or on threads of autograd that inherit the guard from the caller.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include "executor/live/live_runtime.h"
#include "executor/torch/op_audit.h"
#include "executor/torch/paging.h"

namespace tencache {

// This thread's allocations (on `device`, CPU or CUDA) and ops are the runtime's for as long as it lives. May nest,
// with the same device. Throws Error if another runtime is guarded at the same time. CUDA: the runtime has the
// accelerator that LibTorch computes on, and a fence.
class ThreadGuard {
 public:
  explicit ThreadGuard(LiveRuntime& runtime, c10::DeviceType device = c10::DeviceType::CPU);
  ~ThreadGuard();
  ThreadGuard(const ThreadGuard&) = delete;
  ThreadGuard& operator=(const ThreadGuard&) = delete;

 private:
  paging::Guard guard_;
};

// The runtime's id of the tensor's storage; `none` for memory that is not the runtime's (and for no memory).
TensorId live_id(const at::Tensor& tensor);
// What a tensor is, for policies and recordings; no effect on memory that is not the runtime's.
void mark(LiveRuntime& runtime, const at::Tensor& tensor, Role role, std::string_view name);

// Brings the tensors into the GPU tier and keeps them there, for raw access to their memory.
class PinnedTensors {
 public:
  PinnedTensors(LiveRuntime& runtime, std::vector<at::Tensor> tensors, bool written = true);
  ~PinnedTensors();
  PinnedTensors(const PinnedTensors&) = delete;
  PinnedTensors& operator=(const PinnedTensors&) = delete;

 private:
  LiveRuntime& runtime_;
  std::vector<at::Tensor> tensors_;
  std::vector<TensorId> ids_;
  bool written_;
};

// A plain copy in LibTorch's own memory, which outlives the runtime. For results and checkpoints.
at::Tensor bring_back(LiveRuntime& runtime, const at::Tensor& tensor);

// ---- Audit: finds ops that write an argument which their schema says they only read (results would be silently wrong
// when the tensor is evicted without being written back). Slow; run it once per workload.
using AuditFinding = paging::Finding;
// While on, every op's read-only tensors are checksummed before and after. What is found counts as written from then
// on. Of tensors on the CPU only.
void set_audit(bool on);
// Each op and argument once, in order of discovery, since `set_audit(true)`.
std::vector<AuditFinding> audit_findings();

}  // namespace tencache
