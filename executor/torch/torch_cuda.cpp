#include "executor/torch/torch_cuda.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <cstdlib>
#include <mutex>
#include <string>

#include "core/error.h"
#include "executor/torch/paged_storage.h"

namespace tencache::torch_cuda {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

constexpr c10::DeviceIndex device_index = 0;
const c10::Device device(c10::DeviceType::CUDA, device_index);

bool is_open = false;
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

at::CUDAGeneratorImpl& generator() {
  return *at::check_generator<at::CUDAGeneratorImpl>(at::cuda::detail::getDefaultCUDAGenerator(device_index));
}

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

bool available() { return true; }

c10::Device open() {
  if (c10::cuda::device_count() <= device_index) {
    throw Error(
        "LibTorch finds no GPU: see nvidia-smi (its driver must be for the CUDA version of LibTorch or a later one), "
        "or "
        "let ordinary memory stand in for the GPU's (--device host)");
  }
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  translated("starting", [] {
    static_cast<void>(at::globalContext().defaultGenerator(device));  // starts it
    c10::cuda::set_device(device_index);
  });
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // a kernel for each allocation, for nothing
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
  at::globalContext().setFloat32MatmulPrecision(std::string("highest"));  // no TF32
  at::globalContext().setAllowTF32CuDNN(false);
  is_open = true;
  return device;
}

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

std::optional<RandomState> random_state() {
  if (!is_open) return std::nullopt;
  at::CUDAGeneratorImpl& of = generator();
  const std::lock_guard lock(of.mutex_);
  return RandomState{of.current_seed(), of.philox_offset_per_thread()};
}

void set_random_state(const RandomState& state) {
  if (!is_open) return;
  at::CUDAGeneratorImpl& of = generator();
  const std::lock_guard lock(of.mutex_);
  of.set_current_seed(state.seed);
  of.set_philox_offset_per_thread(state.offset);
}

}  // namespace tencache::torch_cuda
