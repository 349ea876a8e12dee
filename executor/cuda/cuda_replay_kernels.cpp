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

CudaReplayKernels::CudaReplayKernels(CudaDevice& device)
    : device_(device),
      driver_(device.driver()),
      kernels_(device, replay_kernels_ptx, "a replay"),
      begin_(kernels_.find("tencache_replay_begin")),
      write_(kernels_.find("tencache_replay_write")),
      check_(kernels_.find("tencache_replay_check")),
      compute_(kernels_.find("tencache_replay_compute")) {}

CudaReplayKernels::~CudaReplayKernels() {
  try {
    kernels_.finish();
  } catch (const Error&) {
    return;
  }
  if (report_ != 0) driver_.cuMemFree(report_);
}

void CudaReplayKernels::make_room(std::size_t accesses) {
  host_report_.resize(header_words + accesses);
  if (report_words_ >= host_report_.size()) return;
  if (report_ != 0) driver_.cuMemFree(report_);
  report_ = 0;
  report_words_ = 0;
  const std::size_t words = 2 * host_report_.size();
  check_cuda(driver_, driver_.cuMemAlloc(&report_, words * sizeof(std::uint64_t)), "memory for reports");
  report_words_ = words;
}

Nanoseconds CudaReplayKernels::run(std::span<ReplayAccess> accesses, Nanoseconds duration_ns,
                                   const ReplayOptions& options) {
  device_.bind();
  make_room(accesses.size());
  const std::size_t report_bytes = host_report_.size() * sizeof(std::uint64_t);
  check_cuda(driver_, driver_.cuMemsetD8Async(report_, 0xff, report_bytes, kernels_.stream()), "clearing a report");
  void* report_only[] = {&report_};
  kernels_.launch_one(begin_, report_only);
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
  kernels_.launch_one(compute_, parameters);
  check_cuda(driver_, driver_.cuMemcpyDtoHAsync(host_report_.data(), report_, report_bytes, kernels_.stream()),
             "an op's report");
  kernels_.finish();
  for (std::size_t i = 0; i < accesses.size(); i++) {
    const std::uint64_t word = host_report_[header_words + i];
    accesses[i].wrong_at = word == ~std::uint64_t{0} ? unlimited : word / page_bytes * page_bytes;
  }
  return static_cast<Nanoseconds>(host_report_[1]);
}

}  // namespace tencache
