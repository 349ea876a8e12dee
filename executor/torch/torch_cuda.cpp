#include "executor/torch/torch_cuda.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <string>

#include "core/error.h"
#include "executor/torch/paged_storage.h"

namespace tencache::torch_cuda {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

constexpr c10::DeviceIndex device_index = 0;
const c10::Device device(c10::DeviceType::CUDA, device_index);

caching::CUDAAllocator* plain_allocator = nullptr;

void let_go(void* address) {
  if (!release_paged(address)) plain_allocator->raw_deleter()(address);
}

// Everything but tensors' storages is LibTorch's own allocator's; what it keeps for streams besides the default one,
// its statistics and the emptying of its cache are not forwarded. Its `allocate` is const in some versions of LibTorch
// and not in others; that which the base class knows overrides it.
class PagedAllocator final : public CUDAPluggableAllocator {
 public:
  PagedAllocator()
      : CUDAPluggableAllocator(
            [](std::size_t bytes, int, cudaStream_t stream) {
              return plain_allocator->raw_alloc_with_stream(bytes, stream);
            },
            [](void* address, std::size_t, int, cudaStream_t) { plain_allocator->raw_delete(address); }) {}

  c10::DataPtr allocate(std::size_t bytes) const { return hand_out(bytes); }
  c10::DataPtr allocate(std::size_t bytes) { return hand_out(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &let_go; }
  void* raw_alloc(std::size_t bytes) override { return plain_allocator->raw_alloc(bytes); }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    return plain_allocator->raw_alloc_with_stream(bytes, stream);
  }
  void raw_delete(void* address) override { plain_allocator->raw_delete(address); }
  void init(int device_count) override { plain_allocator->init(device_count); }
  bool initialized() override { return plain_allocator->initialized(); }

 private:
  static c10::DataPtr hand_out(std::size_t bytes) {
    c10::DataPtr paged = allocate_paged(bytes, device, &let_go);
    return paged ? std::move(paged) : plain_allocator->allocate(bytes);
  }
};

// LibTorch's exceptions have backtraces of many lines.
template <typename Action>
void translated(const char* what, const Action& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    throw Error(std::string("LibTorch on CUDA: ") + what + ": " + error.what_without_backtrace());
  }
}

}  // namespace

void install_allocator() {
  if (plain_allocator != nullptr) return;
  plain_allocator = caching::allocator.load();
  static auto* const allocator = new PagedAllocator;  // storages outlive main
  caching::allocator.store(allocator);
  c10::SetAllocator(c10::DeviceType::CUDA, allocator, 100);
}

void let_go_of_workspaces() { at::cuda::clearCublasWorkspaces(); }

void synchronize() {
  translated("an op", [] {
    const c10::cuda::CUDAStream ops = c10::cuda::getDefaultCUDAStream(device_index);
    ops.synchronize();
    const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(device_index);
    if (current != ops) current.synchronize();
  });
}

}  // namespace tencache::torch_cuda
