// capuchin: Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning" (ASPLOS'20), its swapping;
// recomputation is the trace's affair.
//
//   1. Passive mode, in the first iteration: nothing is planned; what misses is fetched on demand, the coldest leave.
//   2. From the accesses of that iteration each pair of successive accesses of a tensor has a free time:
//        (time of the back access - swap time) - (time of the evicted access + swap time),
//      on a clock without stalls, the swap time being bytes / bandwidth as if the link were free.
//   3. The pair with the largest free time (of equal ones: the largest tensor) is swapped, if memory is above `limit`
//      of the GPU somewhere between its transfers; and so on until it fits. Pairs without free time are left: for those
//      Capuchin recomputes.
//   4. From the second iteration on a tensor leaves after its evicted access, and its return begins with the kernel
//      that runs at its swap-in time. Demand is the fallback.
// Only intermediate results are swapped, not what persists (`persistent`: that too, over the end of the iteration). It
// goes to CPU memory or, if that has no room, to the next tier.
#include <algorithm>

#include "policies/common_options.h"
#include "policies/moving_unit.h"
#include "policies/planning/bandwidth_plan.h"
#include "policies/planning/hints.h"
#include "policies/planning/kernels.h"
#include "policies/planning/memory_profile.h"
#include "policies/planning/swap_space.h"
#include "policies/policy_library.h"

namespace tencache {
namespace {

class CapuchinPlanner {
 public:
  CapuchinPlanner(const Trace& trace, const Schedule& schedule, const MachineSpec& machine, double limit,
                  bool persistent)
      : granularity_(machine.tiers[0].granularity),
        kernels_(trace, schedule),
        bandwidth_(kernels_, machine),
        gpu_(kernels_, trace, static_cast<Bytes>(static_cast<double>(machine.tiers[0].capacity) * limit), 0,
             granularity_),
        space_(kernels_, machine, bandwidth_) {
    for (const InactivePeriod& period : inactive_periods(kernels_, trace)) {
      if (!persistent && trace.tensors[period.tensor].persistent) continue;
      const TierId tier = space_.tier_for(period);  // for its free time; which one it is, is decided when it is chosen
      if (tier == no_tier) continue;
      const Nanoseconds free_ns = swap_of(period, tier).free_ns();
      if (free_ns > 0) pairs_.push_back({period, free_ns});
    }
    std::ranges::stable_sort(pairs_, [](const Pair& a, const Pair& b) {
      return a.free_ns != b.free_ns ? a.free_ns > b.free_ns : a.period.bytes > b.period.bytes;
    });
  }

  bool fits() const { return gpu_.fits(); }

  Hints plan() {
    Hints hints;
    for (const Pair& pair : pairs_) {
      if (gpu_.fits()) break;
      const TierId tier = space_.tier_for(pair.period);
      if (tier == no_tier) continue;
      const Swap swap = swap_of(pair.period, tier);
      KernelIndex from = kernels_.at_time(swap.out_end_ns);
      if (kernels_.start_of(from) < swap.out_end_ns) ++from;  // the first that finds its room free
      const KernelIndex to = kernels_.at_time(swap.in_begin_ns);
      if (to <= from || gpu_.time_over(from, to) == 0) continue;
      gpu_.add(from, to, -pair.period.footprint(granularity_));
      space_.take(pair.period, tier);
      hints.evict(kernels_.op_of(pair.period.begin), pair.period.tensor, tier);
      hints.fetch(kernels_.op_of(to), pair.period.tensor);
    }
    hints.sort();
    return hints;
  }

 private:
  struct Swap {
    Nanoseconds out_end_ns = 0, in_begin_ns = 0;
    Nanoseconds free_ns() const { return in_begin_ns - out_end_ns; }
  };
  struct Pair {
    InactivePeriod period;
    Nanoseconds free_ns = 0;
  };

  Swap swap_of(const InactivePeriod& period, TierId tier) const {
    return {.out_end_ns = kernels_.start_of(period.begin) + bandwidth_.trip_ns(0, tier, period.bytes),
            .in_begin_ns = kernels_.start_of(period.end) - bandwidth_.trip_ns(tier, 0, period.bytes)};
  }

  Bytes granularity_;
  Kernels kernels_;
  BandwidthPlan bandwidth_;
  MemoryProfile gpu_;
  SwapSpace space_;
  std::vector<Pair> pairs_;  // the largest free time first
};

class Capuchin final : public SwapPolicy {
 public:
  explicit Capuchin(Options& options) {
    add_limit_option(options, limit_);
    options.flag("persistent", persistent_, "parameters and optimizer states are swapped too");
    add_chunk_option(options, layout_.chunk_bytes, true);
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) {
      CapuchinPlanner planner(view.program->trace, *view.schedule, view.machine, limit_, persistent_);
      hints_ = planner.plan();
      fits_ = planner.fits();
    }
    if (event.kind != EventKind::op_issued || event.device != Device::gpu || event.op == none) return;
    passive_ = view.iteration == 0;
    if (!passive_) hints_.give(event.op, view, actions);
  }

  // What the passive iteration leaves may look like what a planned one does.
  std::uint64_t fingerprint() const override { return passive_ ? 1 : 0; }

  void notes(std::vector<std::string>& notes) const override {
    if (!fits_) {
      notes.push_back(
          "the plan does not bring the memory below the limit: no tensor is left that has free time where "
          "it is above; the rest is fetched on demand");
    }
  }

 private:
  double limit_ = 1;
  bool persistent_ = false;
  bool passive_ = true, fits_ = true;
  Hints hints_;
};

}  // namespace

TENCACHE_POLICY({"capuchin",
                 "the tensors with the most free time between their transfers are swapped, after a passive iteration",
                 "Capuchin (ASPLOS'20), its swapping", make_policy_of<Capuchin>, 140})

}  // namespace tencache
