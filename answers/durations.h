// What results say of their durations: how those of another GPU were rescaled, how far modelled ones may be off, and how
// long the tool itself took. docs/results.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "answers/described.h"
#include "studies/workload.h"

namespace tencache {

struct RescalingAnswer {
  std::string from, to, precision;
  double factor = 1;  // of all GPU time
  std::uint64_t ops = 0, guessed_ops = 0;
};
TENCACHE_ANSWER(RescalingAnswer, from, to, precision, factor, ops, guessed_ops)
// None: durations are as the trace has them.
std::optional<RescalingAnswer> rescaling_answer(const Workload& workload);

struct KernelTimeAnswer {
  double seconds = 0, error = 0;
};
TENCACHE_ANSWER(KernelTimeAnswer, seconds, error)

// How far off the modelled durations of GPU ops may be (traces/generate/gpu_time.h).
struct GpuTimeAnswer {
  std::string gpu;
  TextOrNull stack;
  bool measured = false;
  double error = 0, extrapolated_share = 0;
  Named<KernelTimeAnswer> by_kernel;  // kinds that take time
};
TENCACHE_ANSWER(GpuTimeAnswer, gpu, stack, measured, error, extrapolated_share, by_kernel)
// None: no duration is modelled, or the GPU is unknown.
std::optional<GpuTimeAnswer> gpu_time_answer(const Workload& workload);

// Of the tool; all else of an answer is the same from run to run.
struct Timing {
  Absent<double> load_seconds;
  double run_seconds = 0;
};
TENCACHE_ANSWER(Timing, load_seconds, run_seconds)

}  // namespace tencache
