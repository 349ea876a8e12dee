#include "executor/cuda/cuda_replay_kernels.h"

#include <algorithm>

#include "core/check.h"
#include "core/error.h"
#include "executor/cuda/replay_kernels.h"
#include "executor/replay_pattern.h"

namespace tencache {
namespace {

#include "replay_kernels_ptx.inc"  // unsigned char replay_kernels_ptx[]

using replay_kernels::Report;
constexpr std::size_t header_words = sizeof(Report) / sizeof(std::uint64_t);

}  // namespace

CudaReplayKernels::CudaReplayKernels(CudaDevice& device) : device_(device), driver_(device.driver()) {
  device_.bind();
  if (const CUresult result = driver_.cuModuleLoadData(&module_, replay_kernels_ptx); result != CUDA_SUCCESS) {
    throw Error("CUDA: the driver does not take the kernels of a replay: " + cuda_error(driver_, result) +
                "; they were built with CUDA " + std::to_string(CUDA_VERSION / 1000) + "." +
                std::to_string(CUDA_VERSION % 1000 / 10) + ", the driver must be for that or a later one");
  }
  const auto find = [this](CUfunction& function, const char* name) {
    check_cuda(driver_, driver_.cuModuleGetFunction(&function, module_, name), name);
  };
  find(begin_, "tencache_replay_begin");
  find(write_, "tencache_replay_write");
  find(check_, "tencache_replay_check");
  find(compute_, "tencache_replay_compute");
  check_cuda(driver_, driver_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "making a stream for ops");
}

CudaReplayKernels::~CudaReplayKernels() {
  try {
    device_.bind();
  } catch (const Error&) {
    return;
  }
  driver_.cuStreamSynchronize(stream_);
  if (report_ != 0) driver_.cuMemFree(report_);
  driver_.cuStreamDestroy(stream_);
  driver_.cuModuleUnload(module_);
}

void CudaReplayKernels::make_room(std::size_t accesses) {
  host_report_.resize(header_words + accesses);
  if (report_words_ >= host_report_.size()) return;
  if (report_ != 0) driver_.cuMemFree(report_);
  report_ = 0;
  report_words_ = 2 * host_report_.size();
  check_cuda(driver_, driver_.cuMemAlloc(&report_, report_words_ * sizeof(std::uint64_t)), "memory for reports");
}

void CudaReplayKernels::launch(CUfunction function, std::uint64_t threads, void** parameters) {
  const std::uint64_t blocks =
      std::max<std::uint64_t>(1, (threads + replay_kernels::threads_a_block - 1) / replay_kernels::threads_a_block);
  const unsigned grid = static_cast<unsigned>(std::min<std::uint64_t>(blocks, replay_kernels::most_blocks));
  const unsigned block = threads == 1 ? 1 : replay_kernels::threads_a_block;
  check_cuda(driver_, driver_.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream_, parameters, nullptr),
             "starting a kernel");
}

Nanoseconds CudaReplayKernels::run(std::span<ReplayAccess> accesses, Nanoseconds duration_ns,
                                   const ReplayOptions& options) {
  device_.bind();
  make_room(accesses.size());
  const std::size_t report_bytes = host_report_.size() * sizeof(std::uint64_t);
  check_cuda(driver_, driver_.cuMemsetD8Async(report_, 0xff, report_bytes, stream_), "clearing a report");
  void* report_only[] = {&report_};
  launch(begin_, 1, report_only);
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
      launch(check_, words / step + 2, parameters);
    }
    if (access.write) {
      std::uint64_t seed = replay_pattern::seed(access.tensor, access.version + 1);
      std::uint64_t step = options.write_everything ? 1 : replay_pattern::words_a_page;
      void* parameters[] = {&seed, &content, &bytes, &step};
      launch(write_, words / step + 2, parameters);
    }
  }
  std::uint64_t duration = static_cast<std::uint64_t>(std::max<Nanoseconds>(duration_ns, 0));
  void* parameters[] = {&report_, &duration};
  launch(compute_, 1, parameters);
  check_cuda(driver_, driver_.cuMemcpyDtoHAsync(host_report_.data(), report_, report_bytes, stream_), "an op's report");
  check_cuda(driver_, driver_.cuStreamSynchronize(stream_), "an op");
  for (std::size_t i = 0; i < accesses.size(); i++) {
    const std::uint64_t word = host_report_[header_words + i];
    accesses[i].wrong_at = word == ~std::uint64_t{0} ? unlimited : word / page_bytes * page_bytes;
  }
  return static_cast<Nanoseconds>(host_report_[1]);
}

}  // namespace tencache
