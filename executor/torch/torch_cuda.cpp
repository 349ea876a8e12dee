#include "executor/torch/torch_cuda.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "executor/torch/paged_storage.h"
#include "executor/torch/paging.h"

namespace tencache::torch_cuda {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

constexpr c10::DeviceIndex device_index = 0;
const c10::Device device(c10::DeviceType::CUDA, device_index);

caching::CUDAAllocator* plain_allocator = nullptr;

using DeviceStats = decltype(plain_allocator->getDeviceStats(0));

// Streams that the runtime's storages were used on besides the one that ops run on (Tensor.record_stream), by the
// context of their DataPtrs: it stays where a storage moves.
class OtherStreams {
 public:
  void add(const void* context, c10::cuda::CUDAStream stream) {
    const std::lock_guard lock(mutex_);
    uses_.emplace(context, stream);
    any_ = true;
  }
  // Waits for all that was started on the storage's, which is freed. A failure of the device is reported by the next
  // call that waits for it.
  void await(const void* context) noexcept {
    if (!any_) return;
    std::vector<c10::cuda::CUDAStream> streams;
    {
      const std::lock_guard lock(mutex_);
      const auto [first, last] = uses_.equal_range(context);
      for (auto use = first; use != last; ++use) streams.push_back(use->second);
      uses_.erase(first, last);
      any_ = !uses_.empty();
    }
    for (const c10::cuda::CUDAStream& stream : streams) static_cast<void>(cudaStreamSynchronize(stream.stream()));
  }
  static OtherStreams& get() {
    static auto* const instance = new OtherStreams;  // storages outlive main
    return *instance;
  }

 private:
  std::mutex mutex_;
  std::unordered_multimap<const void*, c10::cuda::CUDAStream> uses_;
  std::atomic<bool> any_ = false;
};

// A graph's kernels would go on using the addresses that they were captured with, and the memory of a pool is not ours
// to hand out.
[[noreturn]] void refuse_capture() {
  TORCH_CHECK(false,
              "tencache: CUDA graphs and memory pools (torch.cuda.graph, torch.cuda.make_graphed_callables, "
              "torch.cuda.MemPool) keep addresses, and tensors that are paged move: leave them out");
}
void check_not_captured() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t failure = cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(device_index).stream(), &status);
  if (failure == cudaSuccess && status != cudaStreamCaptureStatusNone) refuse_capture();
}

// Everything but tensors' storages is LibTorch's own allocator's, and so are questions about its memory, whose answers
// leave the runtime's out: what is cached and free, statistics, the emptying of the cache. Signatures differ between
// versions of LibTorch; of several of a name the one that the base class knows overrides it.
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
  c10::DeleterFnPtr raw_deleter() const override { return plain_allocator->raw_deleter(); }
  void* raw_alloc(std::size_t bytes) override { return plain_allocator->raw_alloc(bytes); }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    return plain_allocator->raw_alloc_with_stream(bytes, stream);
  }
  void raw_delete(void* address) override { plain_allocator->raw_delete(address); }
  void init(int device_count) override { plain_allocator->init(device_count); }
  bool initialized() override { return plain_allocator->initialized(); }

  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    if (!is_paged(data)) return plain_allocator->recordStream(data, stream);
    OtherStreams::get().add(data.get_context(), stream);
  }
  // What captures begin with; other names and types in other versions, of which the base class knows one each.
  void beginAllocateToPool(int of, c10::cuda::MempoolId_t pool, std::function<bool(cudaStream_t)> filter) {
    begin_pool(*plain_allocator, of, pool, std::move(filter));
  }
  void beginAllocateToPool(c10::DeviceIndex of, c10::cuda::MempoolId_t pool, std::function<bool(cudaStream_t)> filter) {
    begin_pool(*plain_allocator, of, pool, std::move(filter));
  }
  void beginAllocateStreamToPool(int of, cudaStream_t stream, c10::cuda::MempoolId_t pool) {
    begin_stream_pool(*plain_allocator, of, stream, pool);
  }
  void endAllocateToPool(int of, c10::cuda::MempoolId_t pool) { end_pool(*plain_allocator, of, pool); }
  void endAllocateToPool(c10::DeviceIndex of, c10::cuda::MempoolId_t pool) { end_pool(*plain_allocator, of, pool); }
  void endAllocateStreamToPool(int of, cudaStream_t stream) { end_stream_pool(*plain_allocator, of, stream); }
  void releasePool(int of, c10::cuda::MempoolId_t pool) { plain_allocator->releasePool(of, pool); }
  void releasePool(c10::DeviceIndex of, c10::cuda::MempoolId_t pool) { plain_allocator->releasePool(of, pool); }
  // Before 2.3 devices are int.
  void cacheInfo(int of, std::size_t* largest) { plain_allocator->cacheInfo(of, largest); }
  void cacheInfo(c10::DeviceIndex of, std::size_t* largest) { plain_allocator->cacheInfo(of, largest); }
  DeviceStats getDeviceStats(int of) { return plain_allocator->getDeviceStats(of); }
  DeviceStats getDeviceStats(c10::DeviceIndex of) { return plain_allocator->getDeviceStats(of); }
  void resetAccumulatedStats(int of) { plain_allocator->resetAccumulatedStats(of); }
  void resetAccumulatedStats(c10::DeviceIndex of) { plain_allocator->resetAccumulatedStats(of); }
  void resetPeakStats(int of) { plain_allocator->resetPeakStats(of); }
  void resetPeakStats(c10::DeviceIndex of) { plain_allocator->resetPeakStats(of); }
  void emptyCache() { plain_allocator->emptyCache(); }
  void emptyCache(c10::cuda::MempoolId_t pool) { empty_cache(*plain_allocator, pool); }

 private:
  static c10::DataPtr hand_out(std::size_t bytes) {
    if (paging::attached() != nullptr) check_not_captured();
    c10::DataPtr paged = allocate_paged(bytes, device, plain_allocator->raw_deleter());
    return paged ? std::move(paged) : plain_allocator->allocate(bytes);
  }
  template <typename Plain, typename Device>
  static void begin_pool(Plain& plain, Device of, c10::cuda::MempoolId_t pool,
                         std::function<bool(cudaStream_t)> filter) {
    if (paging::attached() != nullptr) refuse_capture();
    if constexpr (requires { plain.beginAllocateToPool(of, pool, filter); }) {
      plain.beginAllocateToPool(of, pool, std::move(filter));
    }
  }
  template <typename Plain>
  static void begin_stream_pool(Plain& plain, int of, cudaStream_t stream, c10::cuda::MempoolId_t pool) {
    if (paging::attached() != nullptr) refuse_capture();
    if constexpr (requires { plain.beginAllocateStreamToPool(of, stream, pool); }) {
      plain.beginAllocateStreamToPool(of, stream, pool);
    }
  }
  template <typename Plain, typename Device>
  static void end_pool(Plain& plain, Device of, c10::cuda::MempoolId_t pool) {
    if constexpr (requires { plain.endAllocateToPool(of, pool); }) plain.endAllocateToPool(of, pool);
  }
  template <typename Plain>
  static void end_stream_pool(Plain& plain, int of, cudaStream_t stream) {
    if constexpr (requires { plain.endAllocateStreamToPool(of, stream); }) plain.endAllocateStreamToPool(of, stream);
  }
  template <typename Plain>
  static void empty_cache(Plain& plain, c10::cuda::MempoolId_t pool) {
    if constexpr (requires { plain.emptyCache(pool); }) {
      plain.emptyCache(pool);
    } else {
      plain.emptyCache();
    }
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

void before_release(const void* context) { OtherStreams::get().await(context); }

void synchronize() {
  translated("an op", [] {
    const c10::cuda::CUDAStream ops = c10::cuda::getDefaultCUDAStream(device_index);
    ops.synchronize();
    const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(device_index);
    if (current != ops) current.synchronize();
  });
}

void* current_stream() { return c10::cuda::getCurrentCUDAStream(device_index).stream(); }

}  // namespace tencache::torch_cuda
