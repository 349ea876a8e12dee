// See replay_kernels.h. Compiled to PTX, which the driver compiles for the device that it finds.
#include "executor/cuda/replay_kernels.h"
#include "executor/replay_pattern.h"

namespace pattern = tencache::replay_pattern;
using tencache::replay_kernels::Report;

namespace {

__device__ std::uint64_t clock_ns() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__device__ std::uint64_t first_index() { return static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ std::uint64_t stride() { return static_cast<std::uint64_t>(gridDim.x) * blockDim.x; }

}  // namespace

extern "C" __global__ void tencache_replay_begin(Report* report) { report->start_ns = clock_ns(); }

extern "C" __global__ void tencache_replay_write(std::uint64_t seed, unsigned char* content, std::uint64_t bytes,
                                                 std::uint64_t step) {
  for (std::uint64_t i = first_index() * step; i * 8 < bytes; i += stride() * step) {
    pattern::write_word(seed, content, bytes, i);
  }
}

extern "C" __global__ void tencache_replay_check(std::uint64_t seed, const unsigned char* content, std::uint64_t bytes,
                                                 std::uint64_t step, unsigned long long* wrong_at) {
  for (std::uint64_t i = first_index() * step; i * 8 < bytes; i += stride() * step) {
    if (!pattern::word_is_right(seed, content, bytes, i)) atomicMin(wrong_at, static_cast<unsigned long long>(i * 8));
  }
}

extern "C" __global__ void tencache_replay_compute(Report* report, std::uint64_t duration_ns) {
  const std::uint64_t start_ns = report->start_ns;
  report->reached_ns = clock_ns() - start_ns;
  while (clock_ns() - start_ns < duration_ns) {  // computing
  }
}
