#include "executor/torch/interception.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "executor/torch/torch_cuda.h"

namespace tencache {
namespace {

void attach(LiveRuntime& runtime, c10::DeviceType device) {
  paging::Host host;
  host.device = device;
  if (device != c10::DeviceType::CPU) {
    host.install_allocator = torch_cuda::install_allocator;
    host.let_go_of_workspaces = torch_cuda::let_go_of_workspaces;
    host.before_release = torch_cuda::before_release;
    host.stream = torch_cuda::current_stream;
  }
  host.raise = [](const tencache_live&, int) { rethrow_live_failure(); };
  paging::attach(runtime.abi(), host);
}

}  // namespace

ThreadGuard::ThreadGuard(LiveRuntime& runtime, c10::DeviceType device)
    : guard_((attach(runtime, device), paging::Guard())) {}
ThreadGuard::~ThreadGuard() = default;

TensorId live_id(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? paging::tensor_of(tensor.storage()) : none;
}

void mark(LiveRuntime& runtime, const at::Tensor& tensor, Role role, std::string_view name) {
  if (const TensorId id = live_id(tensor); id != none) runtime.mark(id, role, name);
}

PinnedTensors::PinnedTensors(LiveRuntime& runtime, std::vector<at::Tensor> tensors, bool written)
    : runtime_(runtime), tensors_(std::move(tensors)), ids_(paging::tensors_of(tensors_)), written_(written) {
  runtime_.pin(ids_, written_);
  paging::find_at_their_places(tensors_);
}

PinnedTensors::~PinnedTensors() {
  try {
    runtime_.unpin(ids_, written_);
  } catch (...) {  // what was given up with it is lost: the runtime's next call throws it again
    runtime_.fail(std::current_exception());
  }
}

at::Tensor bring_back(LiveRuntime&, const at::Tensor& tensor) {
  const c10::AutoGradMode no_grad(false);
  const std::size_t bytes = static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
  auto* const memory = new std::byte[std::max<std::size_t>(bytes, 1)];
  at::Tensor copy = at::from_blob(
      memory, tensor.sizes(), [](void* data) { delete[] static_cast<std::byte*>(data); },
      at::TensorOptions().dtype(tensor.dtype()));
  copy.copy_(tensor);
  return copy;
}

void set_audit(bool on) { paging::set_audit(on); }

std::vector<AuditFinding> audit_findings() { return paging::audit_findings(); }

}  // namespace tencache
