#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/error.h"
#include "core/thread_annotations.h"
#include "executor/chunk_memory.h"
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

// What an op reports: a Report and a word for each access, in the device's memory and, when it is over, in the host's.
class OpReport {
 public:
  // The device outlives it.
  explicit OpReport(CudaDevice& device) : device_(device), driver_(device.driver()) {}
  ~OpReport() {
    if (pinned_) device_.unpin(host_.get());
    if (memory_ != 0 && device_.try_bind()) driver_.cuMemFree(memory_);
  }
  OpReport(const OpReport&) = delete;
  OpReport& operator=(const OpReport&) = delete;

  // Nothing is under way. `pinned`: the host's is page-locked where that is allowed.
  void make_room(std::size_t accesses, bool pinned) {
    words_ = header_words + accesses;
    if (room_words_ >= words_) return;
    if (pinned_) device_.unpin(host_.get());
    if (memory_ != 0) driver_.cuMemFree(memory_);
    memory_ = 0;
    room_words_ = 0;
    pinned_ = false;
    const Bytes room = round_up(2 * words_ * sizeof(std::uint64_t), page_bytes);
    check_cuda(driver_, driver_.cuMemAlloc(&memory_, room), "memory for reports");
    host_ = aligned_buffer(room, std::byte{0});
    std::string reason;  // copies are slower then
    pinned_ = pinned && device_.pin(host_.get(), room, reason);
    room_words_ = room / sizeof(std::uint64_t);
  }
  const CUdeviceptr& memory() const { return memory_; }
  CUdeviceptr wrong_at(std::size_t access) const { return memory_ + (header_words + access) * sizeof(std::uint64_t); }
  void* host() { return host_.get(); }
  std::size_t bytes() const { return words_ * sizeof(std::uint64_t); }

  // Says where accesses were wrong; returns how long checking and writing took.
  Nanoseconds read(std::span<ReplayAccess> accesses) const {
    const auto* words = reinterpret_cast<const std::uint64_t*>(host_.get());
    for (std::size_t i = 0; i < accesses.size(); i++) {
      const std::uint64_t word = words[header_words + i];
      accesses[i].wrong_at = word == ~std::uint64_t{0} ? unlimited : word / page_bytes * page_bytes;
    }
    return static_cast<Nanoseconds>(words[1]);
  }

 private:
  CudaDevice& device_;
  const CudaDriver& driver_;
  CUdeviceptr memory_ = 0;
  AlignedBuffer host_;
  bool pinned_ = false;
  std::size_t words_ = 0, room_words_ = 0;
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
        compute_(kernels_.find("tencache_replay_compute")),
        report_(device) {}
  CudaReplayKernels(const CudaReplayKernels&) = delete;
  CudaReplayKernels& operator=(const CudaReplayKernels&) = delete;

  Nanoseconds run(std::span<ReplayAccess> accesses, Nanoseconds duration_ns, const ReplayOptions& options) override {
    device_.bind();
    report_.make_room(accesses.size(), false);
    launch(accesses, duration_ns, options, report_);
    kernels_.finish();
    return report_.read(accesses);
  }

  DeviceStream stream() const override { return kernels_.stream(); }

  void start(std::span<const ReplayAccess> accesses, Nanoseconds duration_ns, const ReplayOptions& options) override {
    device_.bind();
    std::unique_ptr<OpReport> report = spare_report();
    report->make_room(accesses.size(), true);
    launch(accesses, duration_ns, options, *report);
    const MutexLock lock(mutex_);
    started_.push_back(std::move(report));
  }

  Nanoseconds finish(std::span<ReplayAccess> accesses) override {
    const MutexLock lock(mutex_);
    TENCACHE_CHECK(!started_.empty());
    spare_.push_back(std::move(started_.front()));
    started_.pop_front();
    return spare_.back()->read(accesses);
  }

 private:
  std::unique_ptr<OpReport> spare_report() {
    const MutexLock lock(mutex_);
    if (spare_.empty()) return std::make_unique<OpReport>(device_);
    std::unique_ptr<OpReport> report = std::move(spare_.back());
    spare_.pop_back();
    return report;
  }

  void launch(std::span<const ReplayAccess> accesses, Nanoseconds duration_ns, const ReplayOptions& options,
              OpReport& report) {
    try {
      give(accesses, duration_ns, options, report);
    } catch (...) {
      kernels_.settle();  // what was launched before touches memory that the caller may unmap now
      throw;
    }
  }

  void give(std::span<const ReplayAccess> accesses, Nanoseconds duration_ns, const ReplayOptions& options,
            OpReport& report) {
    CUdeviceptr memory = report.memory();
    void* report_only[] = {&memory};
    TENCACHE_ORDER_PAIR("fill, kernel",
                        check_cuda(driver_, driver_.cuMemsetD8Async(memory, 0xff, report.bytes(), kernels_.stream()),
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
        CUdeviceptr wrong_at = report.wrong_at(i);
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
    void* parameters[] = {&memory, &duration};
    TENCACHE_ORDER_PAIR(
        "kernel, copy", kernels_.launch_one(compute_, parameters),
        check_cuda(driver_, driver_.cuMemcpyDtoHAsync(report.host(), memory, report.bytes(), kernels_.stream()),
                   "an op's report"));
  }

  CudaDevice& device_;
  const CudaDriver& driver_;
  CudaKernels kernels_;
  CUfunction begin_, write_, check_, compute_;
  OpReport report_;  // of `run`
  Mutex mutex_;
  std::deque<std::unique_ptr<OpReport>> started_ TENCACHE_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<OpReport>> spare_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<ReplayKernels> make_replay_kernels(CudaDevice& device) {
  return std::make_unique<CudaReplayKernels>(device);
}

}  // namespace tencache
