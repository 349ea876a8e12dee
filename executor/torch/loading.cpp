#include "executor/torch/loading.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace tencache::paging {
namespace {

constexpr std::uint64_t least_bytes = 1 << 20;

// Nobody records, wraps or traces the op: its kernel is all that is left of it.
bool is_plain(c10::DispatchKeySet below, const at::Tensor& tensor) {
  for (const c10::DispatchKey key : {c10::DispatchKey::Python, c10::DispatchKey::PythonDispatcher,
                                     c10::DispatchKey::Functionalize, c10::DispatchKey::Tracer}) {
    if (below.has(key)) return false;
  }
  return !(c10::GradMode::is_enabled() && tensor.requires_grad()) && !tensor.is_inference();
}

// Newer versions of PyTorch have no names of dimensions.
template <typename Tensor>
bool has_names(const Tensor& tensor) {
  if constexpr (requires { tensor.has_names(); }) return tensor.has_names();
  return false;
}

bool is_dense(const at::Tensor& tensor) {
  return tensor.defined() && !has_names(tensor) && tensor.has_storage() && tensor.layout() == c10::kStrided &&
         tensor.is_contiguous() && tensor.nbytes() >= least_bytes && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor() && !tensor.is_quantized();
}

bool is_paged(const at::Tensor& tensor, Pager& pager) {
  return pager.tensor_of_shared(*tensor.storage().unsafeGetStorageImpl()) != tencache_no_tensor;
}

// Memory that the driver would copy from slowly.
bool is_source(const at::Tensor& tensor, c10::DispatchKeySet below, Pager& pager) {
  return is_dense(tensor) && tensor.device().type() == c10::DeviceType::CPU && is_plain(below, tensor) &&
         !is_paged(tensor, pager) && !tensor.is_pinned();
}

void bring(const tencache_live& live, Pager& pager, const at::Tensor& to, const at::Tensor& from) {
  pager.check(live, live.upload(live.runtime, to.data_ptr(), from.data_ptr(), from.nbytes(), pager.host().stream()));
}

// copy_(self, src, non_blocking)
bool load_into(c10::DispatchKeySet below, const tencache_live& live, Pager& pager, torch::jit::Stack& stack) {
  const at::Tensor self = torch::jit::peek(stack, 0, 3).toTensor(), src = torch::jit::peek(stack, 1, 3).toTensor();
  if (!is_source(src, below, pager) || !is_dense(self) || !is_paged(self, pager) || !is_plain(below, self) ||
      self.scalar_type() != src.scalar_type() || self.sizes() != src.sizes()) {
    return false;
  }
  bring(live, pager, self, src);
  self.unsafeGetTensorImpl()->bump_version();
  torch::jit::drop(stack, 3);
  torch::jit::push(stack, self);
  return true;
}

// Of _to_copy(self, dtype, layout, device, pin_memory, non_blocking, memory_format): what its result is to be, where it
// is such a copy.
std::optional<at::TensorOptions> options_of_new(c10::DispatchKeySet below, Pager& pager, torch::jit::Stack& stack) {
  const auto argument = [&](std::size_t position) { return torch::jit::peek(stack, position, 7); };
  const at::Tensor self = argument(0).toTensor();
  const bool same = (argument(1).isNone() || argument(1).toScalarType() == self.scalar_type()) &&
                    argument(2).isNone() && (argument(4).isNone() || !argument(4).toBool()) && argument(6).isNone();
  if (!same || argument(3).isNone() || argument(3).toDevice().type() != pager.host().device ||
      !is_source(self, below, pager)) {
    return {};
  }
  return self.options().device(argument(3).toDevice()).pinned_memory(false);
}

bool load_new(c10::DispatchKeySet below, const tencache_live& live, Pager& pager, torch::jit::Stack& stack) {
  const std::optional<at::TensorOptions> options = options_of_new(below, pager, stack);
  if (!options) return false;
  const at::Tensor self = torch::jit::peek(stack, 0, 7).toTensor(), made = at::empty(self.sizes(), *options);
  if (!is_paged(made, pager)) return false;
  bring(live, pager, made, self);
  torch::jit::drop(stack, 7);
  torch::jit::push(stack, made);
  return true;
}

}  // namespace

bool load(const OpSchema& info, c10::DispatchKeySet below, const tencache_live& live, Pager& pager,
          torch::jit::Stack& stack) {
  if (pager.host().stream == nullptr) return false;
  if (info.base_name == "aten::copy_") return load_into(below, live, pager, stack);
  return info.base_name == "aten::_to_copy" && load_new(below, live, pager, stack);
}

bool store(const OpSchema& info, c10::DispatchKeySet below, const tencache_live& live, Pager& pager,
           torch::jit::Stack& stack) {
  if (pager.host().stream == nullptr || info.base_name != "aten::_to_copy") return false;
  const std::optional<at::TensorOptions> options = options_of_new(below, pager, stack);
  if (!options) return false;
  const c10::impl::ExcludeDispatchKeyGuard not_inside(paging_key);
  const at::Tensor self = torch::jit::peek(stack, 0, 7).toTensor(), made = at::empty({0}, *options);
  tencache_storage stored = {tencache_no_tensor, nullptr};
  pager.check(live, live.store(live.runtime, self.nbytes(), self.data_ptr(), &stored));
  if (stored.tensor == tencache_no_tensor) return false;
  c10::StorageImpl& storage = *made.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(pager.take_over(stored, true, storage.allocator()->raw_deleter()));
  storage.set_nbytes(self.nbytes());
  made.unsafeGetTensorImpl()->set_sizes_contiguous(self.sizes());
  pager.see(storage);
  torch::jit::drop(stack, 7);
  torch::jit::push(stack, made);
  return true;
}

}  // namespace tencache::paging
