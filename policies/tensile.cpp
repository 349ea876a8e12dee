// tensile: Zhang et al., "TENSILE: A Tensor granularity dynamic GPU memory scheduling method toward multiple dynamic
// workloads system" (arXiv 2105.13336), its swapping for one workload; recomputation is the trace's affair.
//
// Before the run, on a clock without stalls:
//   1. Everything alive is taken to be resident.
//   2. The moment with the highest demand (the first, of equal ones) is looked at. If that fits `limit` of the GPU:
//   done.
//   3. Of the tensors that are alive there and not in use, the largest (of equal ones: that with the longest period
//      without a use) is swapped out for which the link has free slots: one after its last use, as early as possible
//      and over by then, and one for its return, as late as possible before its next use and not begun by then. Slots
//      do not overlap: a transfer has the link for itself. Periods of tensors that persist run over the iteration's
//      end.
//   4. Again, from 2 on. Where no tensor can be swapped the peak stays, and so does all below it: done.
// It goes to CPU memory or, if that has no room, to the next tier.
// Run: each slot begins with its kernel. What the plan missed is fetched on demand, and only that evicts: the coldest
// leave.
#include <algorithm>

#include "policies/common_options.h"
#include "policies/moving_unit.h"
#include "policies/planning/bandwidth_plan.h"
#include "policies/planning/first_covering.h"
#include "policies/planning/hints.h"
#include "policies/planning/kernels.h"
#include "policies/planning/memory_profile.h"
#include "policies/planning/swap_space.h"
#include "policies/policy_library.h"

namespace tencache {
namespace {

class TensilePlanner {
 public:
  TensilePlanner(const Trace& trace, const Schedule& schedule, const MachineSpec& machine, double limit)
      : granularity_(machine.tiers[0].granularity),
        kernels_(trace, schedule),
        periods_(inactive_periods(kernels_, trace)),
        bandwidth_(kernels_, machine),
        gpu_(kernels_, trace, static_cast<Bytes>(static_cast<double>(machine.tiers[0].capacity) * limit), 0,
             granularity_),
        space_(kernels_, machine, bandwidth_),
        idle_(kernels_.count()) {
    std::ranges::stable_sort(periods_, [](const InactivePeriod& a, const InactivePeriod& b) {
      return a.bytes != b.bytes ? a.bytes > b.bytes : a.length_ns > b.length_ns;
    });
    for (const InactivePeriod& period : periods_) idle_.put(period.begin, period.end);
  }

  bool fits() const { return gpu_.fits(); }

  Hints plan() {
    while (!gpu_.fits() && lower_the_peak()) {
    }
    hints_.sort();
    return std::move(hints_);
  }

 private:
  struct Slots {
    TierId tier = no_tier;
    KernelIndex out_end = 0, in_begin = 0;
    bool empty() const { return out_end < 0 || in_begin <= out_end; }
  };

  bool lower_the_peak() {
    const KernelIndex peak = gpu_.peak();
    const bool lowered = lower(peak);
    idle_.end_round();
    return lowered;
  }

  // Slots and room only become fewer: where there are none now, there never will be, and no others than there are.
  bool lower(KernelIndex peak) {
    while (const auto item = idle_.take(peak)) {
      const InactivePeriod& period = periods_[*item];
      const TierId tier = space_.tier_for(period);
      const Slots slots = tier == no_tier ? Slots() : slots_of(period, tier);
      if (slots.empty()) {
        idle_.remove(*item);
      } else if (covers(slots, peak)) {
        swap(period, slots);
        idle_.remove(*item);
        return true;
      } else {
        narrow(*item, slots);
      }
    }
    return false;
  }

  bool covers(const Slots& slots, KernelIndex kernel) const {
    return (slots.out_end <= kernel && kernel < slots.in_begin) ||
           (slots.out_end <= kernel + kernels_.count() && kernel + kernels_.count() < slots.in_begin);
  }

  // To what its slots leave between them, in this tier and in those that it goes to when this one is full.
  void narrow(FirstCovering::Item item, const Slots& slots) {
    KernelIndex from = slots.out_end, to = slots.in_begin;
    for (const TierId tier : space_.tiers_after(slots.tier)) {
      const Slots other = slots_of(periods_[item], tier);
      if (other.empty()) continue;
      from = std::min(from, other.out_end);
      to = std::max(to, other.in_begin);
    }
    idle_.narrow(item, from, to);
  }

  Slots slots_of(const InactivePeriod& period, TierId tier) const {
    const std::int64_t bytes = static_cast<std::int64_t>(period.bytes);
    return {.tier = tier,
            .out_end = bandwidth_.left(0, tier).forward(period.begin, bytes),
            .in_begin = bandwidth_.left(tier, 0).backward(period.end, bytes)};
  }

  void swap(const InactivePeriod& period, const Slots& slots) {
    bandwidth_.take_earliest(0, slots.tier, period.begin, slots.out_end, period.bytes);
    bandwidth_.take_earliest(slots.tier, 0, slots.in_begin, period.end, period.bytes);
    space_.take(period, slots.tier);
    gpu_.add(slots.out_end, slots.in_begin, -period.footprint(granularity_));
    hints_.evict(kernels_.op_of(period.begin), period.tensor, slots.tier);
    hints_.fetch(kernels_.op_of(slots.in_begin), period.tensor);
  }

  Bytes granularity_;
  Kernels kernels_;
  std::vector<InactivePeriod> periods_;  // the largest first
  BandwidthPlan bandwidth_;
  MemoryProfile gpu_;
  SwapSpace space_;
  FirstCovering idle_;  // when periods are of use, by their numbers
  Hints hints_;
};

class Tensile final : public SwapPolicy {
 public:
  explicit Tensile(Options& options) {
    add_limit_option(options, limit_);
    add_chunk_option(options, layout_.chunk_bytes, true);
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) {
      TensilePlanner planner(view.program->trace, *view.schedule, view.machine, limit_);
      hints_ = planner.plan();
      fits_ = planner.fits();
    }
    if (event.kind == EventKind::op_issued && event.device == Device::gpu && event.op != none) {
      hints_.give(event.op, view, actions);
    }
  }

  void notes(std::vector<std::string>& notes) const override {
    if (!fits_) {
      notes.push_back(
          "the plan does not bring the memory below the limit: at its peak no tensor that is left can be "
          "swapped in time; the rest is fetched on demand");
    }
  }

 private:
  double limit_ = 1;
  bool fits_ = true;
  Hints hints_;
};

}  // namespace

TENCACHE_POLICY({"tensile",
                 "lowers the peak again and again: the largest idle tensor that has free slots on the link is swapped",
                 "TENSILE, arXiv 2105.13336, its swapping", make_policy_of<Tensile>, 150})

}  // namespace tencache
