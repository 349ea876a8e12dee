// The recorded iteration as a cycle of kernels on a clock without stalls, and the periods in which tensors are not
// used.
//
// Kernels are the ops of the GPU, numbered from 0 in program order; ops of the CPU take no time on this clock. The
// iteration is cyclic: with K kernels, number K + k is kernel k of the next iteration. Planners work with whole
// kernels: a range [from, to) of such numbers, at most K long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/metrics.h"
#include "core/schedule.h"
#include "core/trace.h"
#include "core/units.h"

namespace tencache {

using KernelIndex = std::int64_t;

struct Kernels {
  Kernels(const Trace& trace, const Schedule& schedule);
  // Of some ops, ascending, on any clock: when each begins, and at last the iteration's end.
  Kernels(const Schedule& schedule, std::vector<OpIndex> ops, std::vector<Nanoseconds> starts_ns);

  KernelIndex count() const { return static_cast<KernelIndex>(ops.size()); }
  // The kernels that use the tensor, ascending.
  std::span<const KernelIndex> uses_of(TensorId tensor) const {
    return {uses.data() + first_use[tensor], uses.data() + first_use[tensor + 1]};
  }
  // Duration of [from, to).
  Nanoseconds between(KernelIndex from, KernelIndex to) const { return start_of(to) - start_of(from); }
  Nanoseconds start_of(KernelIndex kernel) const {
    return kernel / count() * starts_ns.back() + starts_ns[static_cast<std::size_t>(kernel % count())];
  }

  // The kernel that runs at that time, counted from the iteration's begin.
  KernelIndex at_time(Nanoseconds time_ns) const;
  OpIndex op_of(KernelIndex kernel) const { return ops[static_cast<std::size_t>(kernel % count())]; }

  std::vector<OpIndex> ops;               // of each kernel
  std::vector<Nanoseconds> durations_ns;  // the gap before it and its op
  std::vector<Nanoseconds> starts_ns;     // of each kernel, and at last the whole iteration
  std::vector<KernelIndex> uses;          // by tensor
  std::vector<std::size_t> first_use;     // of each tensor in `uses`, and at last their number
};

// The kernels between two uses of a tensor, of which there is at least one. A persistent tensor's last period runs over
// the iteration's end.
struct InactivePeriod {
  TensorId tensor = none;
  Bytes bytes = 0;
  KernelIndex begin = 0;  // the first kernel that does not use it, less than K
  KernelIndex end = 0;    // the kernel of the next use
  Nanoseconds length_ns = 0;

  // What it takes in a tier that gives out multiples of `granularity`.
  std::int64_t footprint(Bytes granularity) const {
    return static_cast<std::int64_t>((bytes + granularity - 1) / granularity * granularity);
  }
};
// By tensor, then in order of time. Tensors that no kernel uses have none.
std::vector<InactivePeriod> inactive_periods(const Kernels& kernels, const Trace& trace);

}  // namespace tencache
