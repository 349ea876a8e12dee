// Kernels of a replay and what they share with the host: included by nvcc and by the C++ compiler.
#pragma once

#include <cstdint>

namespace tencache::replay_kernels {

// What an op's kernels leave behind, in the device's memory.
struct Report {
  std::uint64_t start_ns = 0;    // of the device's clock
  std::uint64_t reached_ns = 0;  // from the start until checking and writing were over
  // Behind it, for each access: the position of the first word that differs, or all ones.
};

// Names of the functions, with their parameters:
//   tencache_replay_begin(Report*)
//   tencache_replay_write(seed, content, bytes, step)            every `step`-th word from the first on
//   tencache_replay_check(seed, content, bytes, step, wrong_at)
//   tencache_replay_compute(Report*, duration_ns)                until so long after the begin; one thread

}  // namespace tencache::replay_kernels
