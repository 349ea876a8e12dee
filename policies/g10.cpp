// g10: Zhang et al., "G10: Enabling An Efficient Unified GPU Memory and Storage Architecture with Smart Tensor
// Migrations" (MICRO'23), section 4; where the paper leaves a choice open, the rule of its public simulator.
//
// Before the run, on a clock without stalls:
//   1. Everything alive is taken to be resident; intermediates are allocated one kernel before their first use and
//      freed after their last.
//   2. While some kernel needs more than `limit` of the GPU: of all inactive periods with such a kernel between "half
//      of it has left" and "half of it must return" (over the SSD, given the bandwidth that is left), take the one with
//      the greatest benefit: bytes x the time in there for which the whole GPU would not be enough; of equal ones
//      (benefits may be 0, as the limit is less than the whole) the greatest bytes x length. A period that does not
//      lead to a migration is not looked at again.
//   3. Longer than two SSD trips and a half: to the SSD, or to CPU memory if all the SSD's write slots of one trip
//      from its begin are taken and the CPU has room. Else, longer than two CPU trips and a half: to CPU memory.
//   4. The eviction takes the bandwidth that is left from the period's begin on, the prefetch what is left before its
//      end, as late as possible; if they meet there is no migration. Between them the memory is free.
//      Periods that run over the iteration's end (of weights) are different: their benefit counts the whole period,
//      their trips take as long as alone on the link, half a trip more for the prefetch, and reserve nothing.
//   5. Then prefetches, the earliest first, move to the earliest kernel since which there is room.
// Run: what the plan has for a kernel is given when its op is issued, evictions first. What misses all the same is
// fetched on demand, and only that evicts: the coldest leave. Copies are exclusive.
//
// mode=g10-simulator repeats more of that simulator, to compare with its published times. Differences:
// docs/policies.md.
#include <algorithm>
#include <optional>

#include "policies/common_options.h"
#include "policies/planning/bandwidth_plan.h"
#include "policies/planning/best_period.h"
#include "policies/planning/hints.h"
#include "policies/planning/kernels.h"
#include "policies/planning/memory_profile.h"
#include "policies/planning/range_peaks.h"
#include "policies/policy_library.h"

namespace tencache {
namespace {

struct G10Options {
  double limit = 0.99;            // of the GPU's memory, for the plan
  bool eager = true;              // step 5
  bool reserve_wrapping = false;  // periods over the iteration's end are like all others
  bool gib = false;               // the planner takes a GB/s for a GiB/s
};

struct G10Migration {
  TensorId tensor = none;
  Bytes bytes = 0;
  TierId destination = no_tier;
  KernelIndex evict_at = 0, evicted = 0;    // the eviction's first kernel, and the first that finds the room free
  KernelIndex prefetch_at = 0, use_at = 0;  // the prefetch's first kernel, and that of the use
  bool fixed = false;                       // its prefetch stays where it is
};

MachineSpec as_planned(MachineSpec machine, bool gib) {
  const auto scale = [gib](BytesPerSecond& bandwidth) {
    if (gib) bandwidth = static_cast<BytesPerSecond>(static_cast<uint128>(bandwidth) * GiB / 1'000'000'000);
  };
  for (Link& link : machine.links) scale(link.bandwidth);
  for (Resource& resource : machine.resources) scale(resource.bandwidth);
  return machine;
}

class G10Planner {
 public:
  G10Planner(const Trace& trace, const Schedule& schedule, const MachineSpec& machine, const G10Options& options)
      : options_(options),
        kernels_(trace, schedule),
        periods_(inactive_periods(kernels_, trace)),
        bandwidth_(kernels_, as_planned(machine, options.gib)),
        whole_(kernels_, trace, machine.tiers[0].capacity, allocated_ahead),
        limited_(kernels_, trace, static_cast<Bytes>(static_cast<double>(machine.tiers[0].capacity) * options.limit),
                 allocated_ahead),
        in_cpu_(std::vector<std::int64_t>(kernels_.ops.size(), 0)) {
    for (TierId tier = 1; tier < machine.tiers.size(); ++tier) {
      if (!bandwidth_.exists(0, tier) || !bandwidth_.exists(tier, 0)) continue;
      if (ssd_ == no_tier && machine.tiers[tier].kind == TierKind::nvme) ssd_ = tier;
      if (cpu_ == no_tier && machine.tiers[tier].kind == TierKind::cpu) cpu_ = tier;
    }
    if (cpu_ != no_tier) cpu_capacity_ = static_cast<std::int64_t>(machine.tiers[cpu_].capacity);
  }

  const Kernels& kernels() const { return kernels_; }

  std::vector<G10Migration> plan() {
    if (ssd_ == no_tier && cpu_ == no_tier) return {};
    BestPeriod best(periods_, kernels_.count(), whole_, limited_,
                    [this](const InactivePeriod& period) { return between_halves(period); });
    while (!limited_.fits()) {
      const std::optional<std::size_t> next = best.take();
      if (!next) break;
      place(periods_[*next]);
    }
    if (options_.eager) move_prefetches_earlier();
    return std::move(migrations_);
  }

 private:
  static constexpr KernelIndex allocated_ahead = 1;

  bool wraps(const InactivePeriod& period) const { return !options_.reserve_wrapping && period.end > kernels_.count(); }

  // The kernels between the halves of its trips.
  BestPeriod::Range between_halves(const InactivePeriod& period) const {
    if (wraps(period)) return {period.begin, period.end};
    const TierId tier = ssd_ != no_tier ? ssd_ : cpu_;
    const std::int64_t half = static_cast<std::int64_t>(std::max<Bytes>(period.bytes / 2, 1));
    const KernelIndex left = bandwidth_.left(0, tier).forward(period.begin, half);
    if (left <= 0) return {};
    return {left - 1, bandwidth_.left(tier, 0).backward(period.end, half)};  // from the kernel in which half has left
  }

  void place(const InactivePeriod& period) {
    if (period.end - period.begin == 1) return;
    if (ssd_ != no_tier && period.length_ns > threshold_ns(ssd_, period.bytes)) {
      migrate(period, !wraps(period) && nothing_left_for(kernels_, bandwidth_, 0, ssd_, period.begin, period.bytes) &&
                              cpu_has_room(period)
                          ? cpu_
                          : ssd_);
    } else if (cpu_ != no_tier && period.length_ns > threshold_ns(cpu_, period.bytes) && cpu_has_room(period)) {
      migrate(period, cpu_);
    }
  }

  Nanoseconds threshold_ns(TierId tier, Bytes bytes) const {
    const Nanoseconds in_ns = bandwidth_.trip_ns(tier, 0, bytes);
    return bandwidth_.trip_ns(0, tier, bytes) + in_ns + in_ns / 2;
  }

  bool cpu_has_room(const InactivePeriod& period) const {
    return cpu_ != no_tier &&
           in_cpu_.most(period.begin, period.end) + static_cast<std::int64_t>(period.bytes) <= cpu_capacity_;
  }

  void migrate(const InactivePeriod& period, TierId tier) {
    const std::int64_t bytes = static_cast<std::int64_t>(period.bytes);
    G10Migration migration{period.tensor, period.bytes, tier, period.begin, 0, 0, period.end, wraps(period)};
    if (wraps(period)) {
      const Nanoseconds out_ns = bandwidth_.trip_ns(0, tier, period.bytes);
      const Nanoseconds in_ns = bandwidth_.trip_ns(tier, 0, period.bytes);
      migration.evicted = kernels_.at_time(kernels_.start_of(period.begin) + out_ns) + 1;
      migration.prefetch_at = kernels_.at_time(kernels_.start_of(period.end) - in_ns - in_ns / 2);
      if (migration.prefetch_at == period.begin) return;
    } else {
      migration.evicted = bandwidth_.left(0, tier).forward(period.begin, bytes);
      migration.prefetch_at = bandwidth_.left(tier, 0).backward(period.end, bytes);
      if (migration.evicted < 0 || migration.prefetch_at < migration.evicted) return;
      bandwidth_.take_earliest(0, tier, period.begin, migration.evicted, period.bytes);
      bandwidth_.take_earliest(tier, 0, migration.prefetch_at, period.end, period.bytes);
    }
    whole_.add(migration.evicted, migration.prefetch_at, -bytes);
    limited_.add(migration.evicted, migration.prefetch_at, -bytes);
    if (tier == cpu_) in_cpu_.add(period.begin, period.end, bytes);
    migrations_.push_back(migration);
  }

  void move_prefetches_earlier() {
    std::ranges::stable_sort(migrations_, {}, &G10Migration::prefetch_at);
    for (G10Migration& migration : migrations_) {
      if (migration.fixed) continue;
      const std::int64_t bytes = static_cast<std::int64_t>(migration.bytes);
      const KernelIndex full = limited_.last_above(migration.evicted, migration.prefetch_at, limited_.limit() - bytes);
      limited_.add(full + 1, migration.prefetch_at, bytes);
      migration.prefetch_at = full + 1;
    }
  }

  G10Options options_;
  Kernels kernels_;
  std::vector<InactivePeriod> periods_;
  BandwidthPlan bandwidth_;
  MemoryProfile whole_, limited_;  // against all of the GPU's memory, and against the limit
  RangePeaks in_cpu_;              // what the plan keeps there
  TierId ssd_ = no_tier, cpu_ = no_tier;
  std::int64_t cpu_capacity_ = 0;
  std::vector<G10Migration> migrations_;
};

class G10 final : public Policy {
 public:
  explicit G10(Options& options) {
    std::string mode = "ours", victim = "lru", units = "GB";
    options
        .choice("mode", mode, {"ours", "g10-simulator"},
                "g10-simulator: as its public simulator; unless set, victim=fifo, promote=false, "
                "overlap_faults=true, planner_units=GiB")
        .fixed(Options::rules_of_a_system);
    const bool simulator = mode == "g10-simulator";
    if (simulator) victim = "fifo", units = "GiB";
    layout_.promote = !simulator;
    layout_.overlap_faults = simulator;
    options.choice("victim", victim, {"lru", "fifo"},
                   "who leaves for a fault: the least recently used, or the first to have arrived");
    add_promote_option(options, layout_.promote);
    add_overlap_faults_option(options, layout_.overlap_faults);
    options
        .choice("planner_units", units, {"GB", "GiB"},
                "GiB: the planner takes links to be 7 % faster than they are, as G10's does")
        .fixed(Options::rules_of_a_system);
    add_limit_option(options, plan_options_.limit);
    options.flag("eager", plan_options_.eager, "prefetches move earlier while memory fits");
    options.flag("reserve_wrapping", plan_options_.reserve_wrapping,
                 "periods over the iteration's end reserve bandwidth, as all others do; not so in G10");
    add_chunk_option(options, layout_.chunk_bytes);
    plan_options_.gib = units == "GiB";
    layout_.use_touches = victim == "lru";
    layout_.exclusive_copies = true;
  }

  Layout layout(const MachineSpec&, const Program*) const override { return layout_; }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) make_plan(view);
    if (event.kind != EventKind::op_issued || event.device != Device::gpu || event.op == none) return;
    hints_.give(event.op, view, actions);
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (!request.prefetch) coldest_victims(request, view, victims);
  }

 private:
  void make_plan(const View& view) {
    G10Planner planner(view.program->trace, *view.schedule, view.machine, plan_options_);
    std::vector<G10Migration> plan = planner.plan();
    const auto op_of = [&](KernelIndex kernel) { return planner.kernels().op_of(kernel); };
    std::ranges::stable_sort(plan, [](const G10Migration& a, const G10Migration& b) {
      return a.use_at - a.prefetch_at < b.use_at - b.prefetch_at;  // of one kernel's prefetches, the most urgent first
    });
    hints_ = {};
    for (const G10Migration& migration : plan) {
      hints_.evict(op_of(migration.evict_at), migration.tensor, migration.destination);
      hints_.fetch(op_of(migration.prefetch_at), migration.tensor);
    }
    hints_.sort();
  }

  Layout layout_;
  G10Options plan_options_;
  Hints hints_;
};

}  // namespace

TENCACHE_POLICY(
    {"g10", "plans evictions and prefetches over inactive periods of tensors, to the SSD first, then to CPU memory",
     "G10 (MICRO'23)", make_policy_of<G10>, 100})

}  // namespace tencache
