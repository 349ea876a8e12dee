// How far off the modelled times of a trace's GPU ops may be: the errors that the kernel model carries by kind of
// kernel (KernelConstants::error), taken together for a trace, or drawn for intervals.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/trace.h"
#include "traces/generate/gpu_spec.h"

namespace tencache {

struct KernelTime {
  double seconds = 0;  // modelled
  double error = 0;    // median of |ln(measured ÷ modelled)| on shapes that nothing was fitted on
};

struct GpuTime {
  std::string gpu;        // that the times are modelled for
  std::string stack;      // the header's; empty: not known
  bool measured = false;  // kernels of this GPU's chip were measured; else the constants are means over other chips
  double seconds = 0;     // all GPU ops of an iteration, measured ones too; mean over ranks, gaps apart
  // Of that. Ops of one kind share one error, and kinds are independent: the root of the sum over the kinds of
  // (seconds × error)², ÷ seconds. Measured ops have none.
  double error = 0;
  double extrapolated_share = 0;  // of `seconds`, of ops beyond the measured shapes (KernelModel::extrapolates)
  std::array<KernelTime, kernel_kind_count> by_kernel{};  // by kernel_of_error
};

// Whose error an op has. Ops of unknown kind: as elementwise; those with a rendezvous: collectives.
KernelKind kernel_of_error(const Trace& trace, const Op& op);
// Kinds for which the constants have none: as elementwise.
double error_of(const KernelConstants& constants, KernelKind kind);

// `gpu`: that the trace's modelled durations are of. nullopt: none of the GPU's durations is modelled.
std::optional<GpuTime> gpu_time_of(const Trace& trace, const GpuSpec& gpu);

// A factor for each kind of kernel: the true time ÷ the modelled one, as far as the errors say.
using KernelFactors = std::array<double, kernel_kind_count>;

// Of samples 0 to samples - 1: the logarithm of a factor is normal, and its median size is the kind's error. A sample's
// factors depend on the seed and the name of the GPU alone, not on how many samples there are nor on the trace. The
// same on every computer: mt19937_64 and the four operations of IEEE arithmetic.
std::vector<KernelFactors> draw_kernel_factors(const GpuTime& time, std::uint64_t seed, std::uint64_t samples);

// Every modelled duration of a GPU op multiplied by its kind's factor. Gaps and measured durations stay.
Trace with_kernel_factors(Trace trace, const KernelFactors& factors);

}  // namespace tencache
