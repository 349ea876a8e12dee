#include <algorithm>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/error.h"
#include "executor/cuda/cuda_device.h"
#include "executor/cuda/replay_kernels.h"
#include "executor/order_site.h"
#include "executor/replay_bodies.h"
#include "executor/replay_pattern.h"

namespace tencache {
namespace {

#include "replay_kernels_ptx.inc"  // unsigned char replay_kernels_ptx[]

using replay_kernels::Report;
constexpr std::size_t header_words = sizeof(Report) / sizeof(std::uint64_t);
constexpr unsigned threads_a_block = 256;  // whole warps
constexpr std::uint64_t most_blocks = 4096;

// The kernels' module, and a stream of their own. Used by one thread; the device outlives it. What it launches is
// finished before it is destroyed.
class CudaKernels {
 public:
  // Throws Error if the driver cannot compile the kernels' PTX (it is older than the toolkit that this was built with).
  explicit CudaKernels(CudaDevice& device) : device_(device), driver_(device.driver()) {
    device_.bind();
    if (const CUresult result = driver_.cuModuleLoadData(&module_, replay_kernels_ptx); result != CUDA_SUCCESS) {
      throw Error("CUDA: the driver does not take the kernels of a replay: " + cuda_error(driver_, result) +
                  "; they were built with CUDA " + std::to_string(CUDA_VERSION / 1000) + "." +
                  std::to_string(CUDA_VERSION % 1000 / 10) + ", the driver must be for that or a later one");
    }
    const CUresult made = driver_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
    if (made != CUDA_SUCCESS) driver_.cuModuleUnload(module_);
    check_cuda(driver_, made, "making a stream for ops");
  }
  ~CudaKernels() {
    if (!device_.try_bind()) return;
    driver_.cuStreamDestroy(stream_);
    driver_.cuModuleUnload(module_);
  }
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  CUfunction find(const char* name) const {
    CUfunction function = nullptr;
    device_.bind();
    check_cuda(driver_, driver_.cuModuleGetFunction(&function, module_, name), name);
    return function;
  }
  // `threads`: how many have work. Whole blocks are started; kernels go on in strides beyond them.
  void launch(CUfunction function, std::uint64_t threads, void** parameters) const {
    const std::uint64_t blocks = std::max<std::uint64_t>(1, (threads + threads_a_block - 1) / threads_a_block);
    start(function, static_cast<unsigned>(std::min(blocks, most_blocks)), threads_a_block, parameters);
  }
  void launch_one(CUfunction function, void** parameters) const { start(function, 1, 1, parameters); }  // one thread
  CUstream stream() const { return stream_; }
  void finish() const {  // waits for the stream
    device_.bind();
    check_cuda(driver_, TENCACHE_ORDER_SITE("wait", driver_.cuStreamSynchronize(stream_)), "an op");
  }
  void settle() const noexcept {  // the same after a failure, whatever that was
    if (device_.try_bind()) TENCACHE_ORDER_SITE("wait", driver_.cuStreamSynchronize(stream_));
  }

 private:
  void start(CUfunction function, unsigned grid, unsigned block, void** parameters) const {
    check_cuda(driver_, driver_.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream_, parameters, nullptr),
               "starting a kernel");
  }

  CudaDevice& device_;
  const CudaDriver& driver_;
  CUmodule module_ = nullptr;
  CUstream stream_ = nullptr;
};

// Kernels that check and write the patterns, and one that is busy for the recorded duration. `run` returns when their
// stream is done.
class CudaReplayKernels final : public ReplayKernels {
 public:
  explicit CudaReplayKernels(CudaDevice& device)
      : device_(device),
        driver_(device.driver()),
        kernels_(device),
        begin_(kernels_.find("tencache_replay_begin")),
        write_(kernels_.find("tencache_replay_write")),
        check_(kernels_.find("tencache_replay_check")),
        compute_(kernels_.find("tencache_replay_compute")) {}
  ~CudaReplayKernels() override {
    if (report_ != 0 && device_.try_bind()) driver_.cuMemFree(report_);
  }
  CudaReplayKernels(const CudaReplayKernels&) = delete;
  CudaReplayKernels& operator=(const CudaReplayKernels&) = delete;

  Nanoseconds run(std::span<ReplayAccess> accesses, Nanoseconds duration_ns, const ReplayOptions& options) override {
    device_.bind();
    make_room(accesses.size());
    try {
      start(accesses, duration_ns, options);
    } catch (...) {
      kernels_.settle();  // what was launched before touches memory that the caller may unmap now
      throw;
    }
    kernels_.finish();
    for (std::size_t i = 0; i < accesses.size(); i++) {
      const std::uint64_t word = host_report_[header_words + i];
      accesses[i].wrong_at = word == ~std::uint64_t{0} ? unlimited : word / page_bytes * page_bytes;
    }
    return static_cast<Nanoseconds>(host_report_[1]);
  }

 private:
  void make_room(std::size_t accesses) {
    host_report_.resize(header_words + accesses);
    if (report_words_ >= host_report_.size()) return;
    if (report_ != 0) driver_.cuMemFree(report_);
    report_ = 0;
    report_words_ = 0;
    const std::size_t words = 2 * host_report_.size();
    check_cuda(driver_, driver_.cuMemAlloc(&report_, words * sizeof(std::uint64_t)), "memory for reports");
    report_words_ = words;
  }

  void start(std::span<const ReplayAccess> accesses, Nanoseconds duration_ns, const ReplayOptions& options) {
    const std::size_t report_bytes = host_report_.size() * sizeof(std::uint64_t);
    void* report_only[] = {&report_};
    TENCACHE_ORDER_PAIR("fill, kernel",
                        check_cuda(driver_, driver_.cuMemsetD8Async(report_, 0xff, report_bytes, kernels_.stream()),
                                   "clearing a report"),
                        kernels_.launch_one(begin_, report_only));
    for (std::size_t i = 0; i < accesses.size(); i++) {
      const ReplayAccess& access = accesses[i];
      CUdeviceptr content = reinterpret_cast<CUdeviceptr>(access.content.data());
      std::uint64_t bytes = access.content.size();
      const std::uint64_t words = (bytes + 7) / 8;
      if (access.read) {
        std::uint64_t seed = replay_pattern::seed(access.tensor, access.version);
        std::uint64_t step = options.check_everything ? 1 : replay_pattern::words_a_page;
        CUdeviceptr wrong_at = report_ + (header_words + i) * sizeof(std::uint64_t);
        void* parameters[] = {&seed, &content, &bytes, &step, &wrong_at};
        kernels_.launch(check_, words / step + 1, parameters);
      }
      if (access.write) {
        std::uint64_t seed = replay_pattern::seed(access.tensor, access.version + 1);
        std::uint64_t step = options.write_everything ? 1 : replay_pattern::words_a_page;
        void* parameters[] = {&seed, &content, &bytes, &step};
        kernels_.launch(write_, words / step + 1, parameters);
      }
    }
    std::uint64_t duration = static_cast<std::uint64_t>(std::max<Nanoseconds>(duration_ns, 0));
    void* parameters[] = {&report_, &duration};
    TENCACHE_ORDER_PAIR(
        "kernel, copy", kernels_.launch_one(compute_, parameters),
        check_cuda(driver_, driver_.cuMemcpyDtoHAsync(host_report_.data(), report_, report_bytes, kernels_.stream()),
                   "an op's report"));
  }

  CudaDevice& device_;
  const CudaDriver& driver_;
  CudaKernels kernels_;
  CUfunction begin_, write_, check_, compute_;
  CUdeviceptr report_ = 0;  // a Report and a word for each access
  std::size_t report_words_ = 0;
  std::vector<std::uint64_t> host_report_;
};

}  // namespace

std::unique_ptr<ReplayKernels> make_replay_kernels(CudaDevice& device) {
  return std::make_unique<CudaReplayKernels>(device);
}

}  // namespace tencache
