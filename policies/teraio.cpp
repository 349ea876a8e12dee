// teraio: Yuan et al., "Cost-Efficient LLM Training with Lifetime-Aware Tensor Offloading via GPUDirect Storage"
// (NeurIPS'25, arXiv 2506.06472), its algorithm for the offloading plan and its migration engine.
//
// Before the run, on a clock without stalls:
//   1. Everything alive is taken to be resident; M' is the memory that each kernel then needs.
//   2. While M' is above `limit` of the GPU anywhere: of each inactive period (of weights and optimizer states also the
//      one over the iteration's end)
//        t_off   the first kernel that can find it offloaded, given the write bandwidth that is left,
//        t_pref  the last kernel with which its prefetch can begin, given the read bandwidth that is left,
//        C       the kernels in [t_off, t_pref) with M' above the limit.
//      Take the one with the greatest benefit / cost; of equal ones the largest, then the first. None left: stop.
//        benefit=listing  size x time of C, over size (what the paper's algorithm lists)
//        benefit=text     size x time of C as far as it is above the limit, over the time of both transfers (what its
//                         text says)
//   3. It goes to the SSD; if nothing is left of the SSD's bandwidth where its offload would be, or if C is empty on
//      this way, to CPU memory, as far as `cpu_memory` goes (0: SSD only; what the paper calls Mixed has a size).
//      Offload and prefetch take the bandwidth; between them M' is less.
// Run, whole tensors: the offload starts with the period's first kernel, the prefetch with t_pref. While a kernel runs,
// what the next one needs and has not come is urgent: it overtakes what is pending. What the plan missed is fetched on
// demand, and only that evicts: the coldest leave, to the SSD (`overflow`). Every offload writes (`copies`).
//
// Without an SSD, CPU memory takes its place. Differences: docs/policies.md.
#include <algorithm>
#include <limits>
#include <optional>

#include "policies/common_options.h"
#include "policies/moving_unit.h"
#include "policies/planning/bandwidth_plan.h"
#include "policies/planning/candidates.h"
#include "policies/planning/hints.h"
#include "policies/planning/kernels.h"
#include "policies/planning/memory_profile.h"
#include "policies/planning/range_peaks.h"
#include "policies/policy_library.h"

namespace tencache {
namespace {

struct TeraioOptions {
  double limit = 1;  // of the GPU's memory, for the plan
  bool excess_over_time = false;
  Bytes cpu_memory = 0;
};

struct TeraioMigration {
  TensorId tensor = none;
  TierId destination = no_tier;
  KernelIndex offload_at = 0, prefetch_at = 0, use_at = 0;
};

// What the plan has left of memory and bandwidth, and the ways out and back that periods have through it.
class TeraioWays {
 public:
  struct Way {
    TierId tier = no_tier;
    KernelIndex offloaded = 0, prefetch_at = 0;
    std::uint64_t ratio = 0;  // above 0
  };
  // What is known of a period.
  struct Found {
    KernelIndex offloaded_alone = 0;  // the kernel in which its offload to the SSD would end if nothing else moved
    bool fits_cpu = false;            // as far as is known
    Way way;                          // the best when it was looked at last
  };

  TeraioWays(const Trace& trace, const Kernels& kernels, const MachineSpec& machine, const TeraioOptions& options)
      : options_(options),
        granularity_(machine.tiers[0].granularity),
        kernels_(kernels),
        bandwidth_(kernels_, machine),
        gpu_(kernels_, trace, static_cast<Bytes>(static_cast<double>(machine.tiers[0].capacity) * options.limit), 0,
             granularity_),
        ssd_tier_(reached(machine, TierKind::nvme)),
        cpu_tier_(reached(machine, TierKind::cpu)),
        cpu_limit_(static_cast<std::int64_t>(
            ssd_tier_ == no_tier && cpu_tier_ != no_tier ? machine.tiers[cpu_tier_].capacity : options.cpu_memory)),
        cpu_(std::vector<std::int64_t>(kernels_.ops.size(), 0)) {}

  // Where what is on no list goes, too: the SSD or, without one, CPU memory.
  TierId destination() const { return ssd_tier_ != no_tier ? ssd_tier_ : cpu_tier_; }
  bool fits() const { return gpu_.fits(); }

  Found look_at(const InactivePeriod& period) const {
    const Nanoseconds alone_ns = bandwidth_.trip_ns(0, destination(), period.bytes);
    return {.offloaded_alone = kernels_.at_time(kernels_.start_of(period.begin) + alone_ns),
            .fits_cpu = static_cast<std::int64_t>(period.bytes) <= cpu_limit_,
            .way = {}};
  }

  std::optional<Way> best_way(const InactivePeriod& period, const Found& found) const {
    const bool cpu = cpu_tier_ != no_tier && found.fits_cpu;
    if (ssd_tier_ == no_tier) return cpu ? way_to(period, cpu_tier_) : std::nullopt;
    const bool saturated = cpu && bandwidth_.left(0, ssd_tier_).between(period.begin, found.offloaded_alone) == 0;
    std::optional<Way> way;
    if (saturated) way = way_to(period, cpu_tier_);
    if (!way) way = way_to(period, ssd_tier_);
    if (!way && cpu && !saturated) way = way_to(period, cpu_tier_);
    return way;
  }

  // Room in CPU memory only shrinks: a period for which there is none will not find any.
  bool has_room(const InactivePeriod& period, Found& found) const {
    if (found.way.tier != cpu_tier_) return true;
    const std::int64_t bytes = static_cast<std::int64_t>(period.bytes);
    found.fits_cpu = bytes <= cpu_limit_ && cpu_.most(period.begin, period.end) + bytes <= cpu_limit_;
    return found.fits_cpu;
  }

  std::uint64_t ratio_of(const InactivePeriod& period, const Way& way) const {
    const Nanoseconds over_ns = gpu_.time_over(way.offloaded, way.prefetch_at);
    if (!options_.excess_over_time || over_ns == 0) return static_cast<std::uint64_t>(over_ns);
    const Bytes bytes = static_cast<Bytes>(period.footprint(granularity_));
    const uint128 relief = static_cast<uint128>(gpu_.excess(way.offloaded, way.prefetch_at, bytes));
    const Nanoseconds cost_ns =
        bandwidth_.trip_ns(0, way.tier, period.bytes) + bandwidth_.trip_ns(way.tier, 0, period.bytes);
    const uint128 ratio = relief / static_cast<uint128>(std::max<Nanoseconds>(cost_ns, 1));
    return static_cast<std::uint64_t>(std::clamp<uint128>(ratio, 1, std::numeric_limits<std::uint64_t>::max()));
  }

  void take(const InactivePeriod& period, const Way& way) {
    bandwidth_.take_earliest(0, way.tier, period.begin, way.offloaded, period.bytes);
    bandwidth_.take_earliest(way.tier, 0, way.prefetch_at, period.end, period.bytes);
    gpu_.add(way.offloaded, way.prefetch_at, -period.footprint(granularity_));
    if (way.tier == cpu_tier_) cpu_.add(period.begin, period.end, static_cast<std::int64_t>(period.bytes));
  }

 private:
  // The first tier of the kind that copies reach from the GPU and back.
  TierId reached(const MachineSpec& machine, TierKind kind) const {
    for (TierId tier = 1; tier < machine.tiers.size(); ++tier) {
      if (machine.tiers[tier].kind == kind && bandwidth_.exists(0, tier) && bandwidth_.exists(tier, 0)) return tier;
    }
    return no_tier;
  }

  // None if no kernel between the transfers is above the limit.
  std::optional<Way> way_to(const InactivePeriod& period, TierId tier) const {
    Way way{.tier = tier};
    way.offloaded = bandwidth_.left(0, tier).forward(period.begin, static_cast<std::int64_t>(period.bytes));
    if (way.offloaded < 0 || way.offloaded >= period.end) return std::nullopt;
    way.prefetch_at = bandwidth_.left(tier, 0).backward(period.end, static_cast<std::int64_t>(period.bytes));
    if (way.prefetch_at <= way.offloaded) return std::nullopt;
    way.ratio = ratio_of(period, way);
    if (way.ratio == 0) return std::nullopt;
    return way;
  }

  TeraioOptions options_;
  Bytes granularity_;
  const Kernels& kernels_;
  BandwidthPlan bandwidth_;
  MemoryProfile gpu_;  // M'
  TierId ssd_tier_, cpu_tier_;
  std::int64_t cpu_limit_;  // of what the plan keeps in CPU memory: the plan's or, without an SSD, the tier's
  RangePeaks cpu_;          // that
};

class TeraioPlanner {
 public:
  TeraioPlanner(const Trace& trace, const Schedule& schedule, const MachineSpec& machine, const TeraioOptions& options)
      : kernels_(trace, schedule),
        periods_(inactive_periods(kernels_, trace)),
        ways_(trace, kernels_, machine, options) {
    std::ranges::stable_sort(periods_, std::greater<>(), &InactivePeriod::bytes);
  }

  const Kernels& kernels() const { return kernels_; }
  const TeraioWays& ways() const { return ways_; }

  std::vector<TeraioMigration> plan() {
    // A ratio only falls while memory and bandwidth are taken (unless a period changes from the SSD to CPU memory,
    // which does not lift it here), so the greatest is one that, looked at again, is still on top.
    if (ways_.destination() == no_tier) return {};
    std::vector<Candidate> all;
    for (std::uint32_t i = 0; i < periods_.size(); ++i) {
      found_.push_back(ways_.look_at(periods_[i]));
      if (const auto way = ways_.best_way(periods_[i], found_[i])) {
        found_[i].way = *way;
        all.push_back({way->ratio, i});
      }
    }
    Candidates<Candidate> candidates(std::move(all));
    std::uint64_t looks = 0;
    while (!ways_.fits() && !candidates.empty()) {
      const Candidate top = candidates.top();
      const std::uint64_t near =
          ++looks > exact_looks * periods_.size() ? top.ratio - top.ratio / tolerance : top.ratio;
      const InactivePeriod& period = periods_[top.period];
      TeraioWays::Found& found = found_[top.period];
      // Mostly because less is above the limit: that is quickly seen, and enough to lower it.
      const std::uint64_t at_most = ways_.ratio_of(period, found.way);
      if (at_most > 0 && at_most < near) {
        candidates.lower_top({at_most, top.period});
        continue;
      }
      const auto way = ways_.best_way(period, found);
      if (way) found.way = *way;
      if (way && way->ratio < near && !candidates.lower_top({way->ratio, top.period})) continue;
      if (way && !ways_.has_room(period, found)) continue;
      candidates.pop();
      if (!way) continue;
      ways_.take(period, *way);
      migrations_.push_back({period.tensor, way->tier, period.begin, way->prefetch_at, period.end});
    }
    return std::move(migrations_);
  }

 private:
  struct Candidate {
    std::uint64_t ratio;
    std::uint32_t period;
    bool operator<(const Candidate& other) const {
      return ratio != other.ratio ? ratio < other.ratio : period > other.period;
    }
  };

  // Of a very large program nearly all periods would be looked at again for each one that is taken. After
  // `exact_looks` for each, the first that is within 1 / `tolerance` of the greatest is taken.
  static constexpr std::uint64_t exact_looks = 16, tolerance = 64;

  Kernels kernels_;
  std::vector<InactivePeriod> periods_;  // of equal ratios, the first is taken
  TeraioWays ways_;
  std::vector<TeraioWays::Found> found_;  // by period
  std::vector<TeraioMigration> migrations_;
};

class Teraio final : public SwapPolicy {
 public:
  explicit Teraio(Options& options) {
    std::string benefit = "listing", copies = "exclusive";
    options.choice("benefit", benefit, {"listing", "text"},
                   "listing: size x time above the limit, over size; text: the excess that goes, over transfer time");
    options.bytes("cpu_memory", plan_options_.cpu_memory,
                  "CPU memory that the plan may use when the SSD is saturated; 0: SSD only");
    options
        .choice("overflow", overflow_, {"ssd", "any"},
                "where what the plan missed goes on demand: to the SSD, or to the fastest tier with room")
        .fixed(Options::counts_misfits);
    add_limit_option(options, plan_options_.limit);
    options
        .choice("copies", copies, {"exclusive", "inclusive"},
                "exclusive: every offload writes; inclusive: what has not changed since it was read is dropped")
        .fixed(Options::rules_of_a_system);
    add_chunk_option(options, layout_.chunk_bytes, true);
    plan_options_.excess_over_time = benefit == "text";
    layout_.exclusive_copies = copies == "exclusive";
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) make_plan(view);
    if (event.device != Device::gpu || destination_ == no_tier) return;
    if (event.kind == EventKind::op_ready && event.op != none) make_urgent(next_op_[event.op], view, actions);
    if (event.kind != EventKind::op_issued) return;
    if (event.op != none) hints_.give(event.op, view, actions);
    if (overflow_ == "ssd") evict_coldest_for(event, view, destination_, actions);
  }

  void notes(std::vector<std::string>& notes) const override {
    if (!fits_) {
      notes.push_back(
          "the plan does not bring the memory below the limit everywhere: no inactive period is left whose transfers "
          "fit the bandwidth; the rest is fetched on demand");
    }
  }

 private:
  void make_plan(const View& view) {
    TeraioPlanner planner(view.program->trace, *view.schedule, view.machine, plan_options_);
    std::vector<TeraioMigration> plan = planner.plan();
    fits_ = planner.ways().fits();
    destination_ = planner.ways().destination();
    const Kernels& kernels = planner.kernels();
    next_op_.assign(view.program->trace.ops.size(), none);
    for (KernelIndex kernel = 0; kernel < kernels.count(); ++kernel) {
      next_op_[kernels.op_of(kernel)] = kernels.op_of(kernel + 1);
    }
    std::ranges::stable_sort(plan, [](const TeraioMigration& a, const TeraioMigration& b) {
      return a.use_at - a.prefetch_at < b.use_at - b.prefetch_at;  // of one kernel's prefetches, the most urgent first
    });
    hints_ = {};
    for (const TeraioMigration& migration : plan) {
      hints_.evict(kernels.op_of(migration.offload_at), migration.tensor, migration.destination);
      hints_.fetch(kernels.op_of(migration.prefetch_at), migration.tensor);
    }
    hints_.sort();
  }

  // What the op reads and is not there. Not while the op before still waits: its late demands would queue behind these,
  // which may find no room.
  static void make_urgent(OpIndex op, const View& view, Actions& actions) {
    for (const Use& use : view.schedule->uses(op)) {
      const TensorId tensor = use.read ? view.memory_tensor(use.tensor) : none;
      if (tensor == none || view.dead(tensor) || view.memory.resident(tensor, 0)) continue;
      const ChunkId first = view.memory.first_chunk(tensor);
      for (ChunkId chunk = first; chunk < first + view.memory.chunk_count(tensor); ++chunk) {
        if (view.memory.valid(chunk, 0) || !view.memory.valid_elsewhere(chunk, 0)) continue;
        actions.push({.verb = Verb::fetch, .tier = 0, .urgent = true, .tensor = tensor, .chunk = chunk - first});
      }
    }
  }

  std::string overflow_ = "ssd";
  TeraioOptions plan_options_;
  bool fits_ = true;
  TierId destination_ = no_tier;  // of what leaves for lack of room
  std::vector<OpIndex> next_op_;  // of the GPU, by op
  Hints hints_;
};

}  // namespace

TENCACHE_POLICY(
    {"teraio",
     "plans offloads and prefetches over inactive periods of tensors by the time they relieve, to the SSD first",
     "TERAIO (NeurIPS'25), arXiv 2506.06472", make_policy_of<Teraio>, 160})

}  // namespace tencache
