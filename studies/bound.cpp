#include "studies/bound.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/recompute.h"
#include "core/schedule.h"
#include "studies/bound_late.h"
#include "studies/bound_paths.h"
#include "studies/bound_trace.h"
#include "studies/bound_windows.h"
#include "traces/transform/lower.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

constexpr std::size_t parts_at_most = 400;
constexpr std::size_t parts_to_choose_weights = 64;
constexpr std::size_t most_turns = 4;

// A way to bound the time of a window: what its fixed ops need, which may be negative, and what each movable op adds if
// it stays on the GPU.
struct Need {
  std::string name;  // empty: the compute
  std::vector<TierId> inside;
  Border border;
  double bytes_per_second = 1;
  double held = 0;  // bytes that need not cross
  Crossed crossed = {};
  std::vector<double> of_movable = {};  // nanoseconds

  bool in() const { return crossed.crossing != Crossing::out; }
  bool out() const { return crossed.crossing != Crossing::in; }
};

// The CPU's lane: T >= fixed_ns + sum of of_movable over the ops that are moved to it.
struct CpuSide {
  double fixed_ns = 0;
  std::vector<double> of_movable = {};
};
// How much the CPU's side counts.
struct Weight {
  double weight = 0;
  const CpuSide* side = nullptr;
};

// The iteration as one that begins with another op: what was alive there is kept from one to the next.
Trace turned(const Trace& trace, OpIndex begin) {
  Trace result = trace;
  std::rotate(result.ops.begin(), result.ops.begin() + begin, result.ops.end());
  std::vector<std::uint8_t> before(trace.tensors.size(), 0);
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const Op& op = trace.ops[index];
    for (std::uint64_t i = op.accesses.first; i < op.accesses.end(); ++i) {
      const TensorId tensor = trace.accesses[i];
      if (index < begin) {
        before[tensor] = 1;
      } else if (before[tensor] != 0) {
        result.tensors[tensor].persistent = true;
      }
    }
  }
  return result;
}

class RankBound {
 public:
  // `sides`: those of the iteration as it is, for one that was turned; empty: this is it.
  RankBound(const Trace& trace, const MachineSpec& machine, std::vector<CpuSide> sides = {})
      : machine_(machine), trace_(trace, machine), sides_(std::move(sides)) {
    add_needs();
    std::vector<Crossed> crossed;
    for (const Need& need : needs_) crossed.push_back(need.crossed);
    cut_ = cut(trace_, BoundCuts(trace_, parts_at_most), crossed);
    if (sides_.empty()) add_cpu_sides();
    find_exceeding();
    choose_weights(cut(trace_, cut_.cuts.coarser(trace_, parts_to_choose_weights), crossed));
  }

  Bound bound() {
    Bound bound = own_bound();
    // What holds for a steady period only.
    bound.any_run_seconds = bound.seconds;
    add_late_terms(bound, true);
    bound.steps = steps_;
    return bound;
  }

  // In a steady period each lane runs all of its ops once, also those that could run before their iteration has begun:
  // of a generation. The least over all placements is concave in the weight.
  void bind_lanes(Bound& bound) const {
    const auto tells = [this](const LateOp& op) {
      return op.movable != none && trace_.movable[op.movable].cpu_ns == 0 &&
             trace_.trace->ops[op.op].phase != Phase::optimizer;
    };
    if (std::ranges::none_of(trace_.late, tells)) return;
    const auto least_ns = [this](double weight) {
      double ns = (1 - weight) * static_cast<double>(trace_.gpu_ns);
      for (const LateOp& op : trace_.late) {
        const double cpu_ns = weight * op.cpu_ns;
        if (op.movable == none) ns += cpu_ns;
        if (op.movable != none)
          ns += std::min(cpu_ns, (1 - weight) * static_cast<double>(trace_.movable[op.movable].gpu_ns));
      }
      return ns;
    };
    double from = 0, to = 1;
    for (int step = 0; step < 60; ++step) {
      const double third = (to - from) / 3;
      if (least_ns(from + third) < least_ns(to - third)) {
        from += third;
      } else {
        to -= third;
      }
    }
    const double seconds = least_ns((from + to) / 2) * (1 - 1e-12) * 1e-9;
    bound.terms.push_back({.name = "lanes", .seconds = seconds});
    if (seconds > bound.seconds) bind(bound, bound.terms.back(), seconds);
  }

  // Where phases change: windows of an iteration that begins there may reach over the end of this one.
  std::vector<OpIndex> turning_points() const {
    std::vector<OpIndex> points;
    const auto phase_at = [&](std::size_t unit) { return trace_.trace->ops[trace_.units[unit].first].phase; };
    for (std::size_t unit = 1; unit < trace_.units.size() && points.size() < most_turns; ++unit) {
      if (phase_at(unit) == phase_at(unit - 1) || phase_at(unit) == Phase::loss) continue;
      points.push_back(trace_.units[unit].first);
    }
    return points;
  }
  // What the CPU's lane needs, for the iteration that begins with that op.
  std::vector<CpuSide> sides_from(OpIndex begin) const {
    std::vector<CpuSide> sides = sides_;
    const auto before =
        std::ranges::count_if(trace_.movable, [&](const MovableOp& op) { return trace_.units[op.unit].first < begin; });
    for (CpuSide& side : sides) {
      std::rotate(side.of_movable.begin(), side.of_movable.begin() + before, side.of_movable.end());
    }
    return sides;
  }

  // As of one that began with that op of the iteration as it is.
  void bind_turned(Bound& bound, OpIndex begin) {
    const BestWindows together = best(exceeding_);
    bound.steps += steps_;
    const double seconds = together.ns * (1 - 1e-12) * 1e-9;
    if (seconds <= bound.seconds) return;
    std::vector<double> excess_ns(needs_.size(), 0);
    for (const NeededWindow& window : together.windows) {
      if (window.need != 0) excess_ns[window.need] += window.ns - window.first_ns;
    }
    const auto most = std::ranges::max_element(excess_ns);
    if (*most <= 0) return;
    const auto as_recorded = [&](std::vector<BoundWindow>& windows) {
      const auto count = static_cast<OpIndex>(trace_.trace->ops.size());
      for (BoundWindow& window : windows) {
        window.first = (window.first + begin) % count;
        window.last = (window.last + begin) % count;
        window.term += "+turned";
      }
    };
    BoundTerm term = with_windows(static_cast<std::size_t>(most - excess_ns.begin()), together);
    term.name += "+turned";
    as_recorded(term.windows);
    bind(bound, term, seconds);
    bound.windows.clear();
    for (const NeededWindow& window : together.windows) {
      if (window.need != 0) bound.windows.push_back(described(window));
    }
    as_recorded(bound.windows);
    sort_windows(bound.windows);
    std::erase_if(bound.terms, [&](const BoundTerm& other) { return other.name == term.name; });
    bound.terms.push_back(std::move(term));
  }

 private:
  Bound own_bound() {
    Bound bound;
    const auto term = [&bound](const char* name, double ns) {
      bound.terms.push_back({.name = name, .seconds = ns * 1e-9});
      if (bound.term.empty() || ns * 1e-9 > bound.seconds) bind(bound, bound.terms.back(), ns * 1e-9);
    };
    const BestWindows compute = best({0});
    term("compute", compute.ns);
    term("cpu", std::max(0.0, static_cast<double>(trace_.cpu_ns)));
    term("dependencies", static_cast<double>(trace_.dependencies_ns));
    bound.compute_seconds = bound.seconds;
    bound.compute_term = bound.term;
    for (std::size_t need = 1; need < needs_.size(); ++need) {
      bound.terms.push_back(with_windows(need, exceeds(need) ? best({0, need}) : compute));
    }
    add_late_terms(bound, false);
    const BestWindows together = best(exceeding_);
    std::vector<double> excess_ns(needs_.size(), 0);
    for (const NeededWindow& window : together.windows) {
      if (window.need == 0) continue;
      excess_ns[window.need] += window.ns - window.first_ns;
      bound.windows.push_back(described(window));
    }
    sort_windows(bound.windows);
    // Sums of quotients: what rounding may have added goes.
    const double seconds = together.ns * (1 - 1e-12) * 1e-9;
    if (seconds > bound.seconds) {
      const auto most = std::ranges::max_element(excess_ns);
      const auto need = static_cast<std::size_t>(most - excess_ns.begin());
      bind(bound, *most > 0 ? with_windows(need, together) : bound.terms.front(), seconds);
    }
    bound.misfit = misfit();
    return bound;
  }

  static void bind(Bound& bound, BoundTerm term, double seconds) {
    bound.seconds = seconds;
    bound.term = term.name;
    bound.binding = std::move(term);
  }

  // The need as a term, with its own windows of these.
  BoundTerm with_windows(std::size_t need, const BestWindows& best) const {
    BoundTerm term{.name = needs_[need].name,
                   .seconds = best.ns * 1e-9,
                   .inside = needs_[need].inside,
                   .links = needs_[need].border.links,
                   .bytes_per_second = needs_[need].bytes_per_second};
    for (const NeededWindow& window : best.windows) {
      if (window.need == need) term.windows.push_back(described(window));
    }
    sort_windows(term.windows);
    return term;
  }

  // What the CPU's lane and the GPU's ops need together, where both of their tiers are inside. For any run; or, as a
  // whole round, for a run that goes on.
  void add_late_terms(Bound& bound, bool rounds) const {
    const TierId cpu = machine_.tier_of(Device::cpu);
    const std::size_t plain_terms = bound.terms.size();
    const LateDemand late = late_demand(trace_, machine_);
    for (const Need& need : needs_) {
      if (need.name.empty()) continue;
      const bool with_cpu = std::ranges::find(need.inside, cpu) != need.inside.end();
      if (!with_cpu && !trace_.late.empty()) continue;
      const std::vector<double>&in = rounds ? late.round_in : late.in, &out = rounds ? late.round_out : late.out;
      double most = 0;
      std::size_t place = 0;
      for (std::size_t unit = 0; unit < trace_.units.size(); ++unit) {
        const double bytes = (need.in() ? in[unit] : 0) + (need.out() ? out[unit] : 0) - need.held;
        if (bytes <= most) continue;
        most = bytes;
        place = unit;
      }
      BoundTerm term{.name = need.name + (rounds ? "+round" : "+late"),
                     .seconds = most / need.bytes_per_second,
                     .inside = need.inside,
                     .links = need.border.links,
                     .bytes_per_second = need.bytes_per_second};
      const bool tells = std::none_of(
          bound.terms.begin(), bound.terms.begin() + static_cast<std::ptrdiff_t>(plain_terms),
          [&](const BoundTerm& other) {
            return other.seconds >= term.seconds && other.links == term.links && other.inside == term.inside;
          });
      if (!tells) continue;
      const OpIndex first = trace_.units[place].first;
      term.windows.push_back({.first = first,
                              .last = static_cast<OpIndex>(rounds && first > 0 ? first : trace_.trace->ops.size()) - 1,
                              .seconds = term.seconds,
                              .bytes = most,
                              .term = term.name});
      if (const double seconds = term.seconds * (1 - 1e-12); seconds > bound.seconds) bind(bound, term, seconds);
      bound.terms.push_back(std::move(term));
    }
  }

  void add_needs() {
    Need compute;
    for (const MovableOp& op : trace_.movable) compute.of_movable.push_back(static_cast<double>(op.gpu_ns));
    needs_.push_back(std::move(compute));
    const TierId cpu = machine_.tier_of(Device::cpu);
    std::vector<bool> inside(machine_.tiers.size(), false);
    std::vector<TierId> tiers;
    double capacity = 0;
    for (TierId tier = 0; tier + std::size_t{1} < machine_.tiers.size(); ++tier) {
      inside[tier] = true;
      tiers.push_back(tier);
      if (machine_.tiers[tier].capacity >= unlimited) break;
      capacity += static_cast<double>(machine_.tiers[tier].capacity);
      const bool with_cpu = cpu != no_tier && inside[cpu];
      double held = capacity;
      if (machine_.staging.count > 0 && inside[machine_.staging.tier])
        held += static_cast<double>(machine_.staging.all_bytes());
      held += held_by_copies_under_way();
      const Border in = border_of(machine_, inside, Crossing::in), out = border_of(machine_, inside, Crossing::out);
      const Border both = border_of(machine_, inside, Crossing::both);
      add_need(name_of(tiers, "fetch", "read"), tiers, in, held, {Crossing::in, with_cpu});
      add_need(name_of(tiers, "evict", "write"), tiers, out, held, {Crossing::out, with_cpu});
      if (both.bandwidth < in.bandwidth + out.bandwidth || both.sustained < in.sustained + out.sustained)
        add_need(name_of(tiers, "fetch+evict", "read+write"), tiers, both, 2 * held, {Crossing::both, with_cpu});
    }
  }
  void add_need(const std::string& name, const std::vector<TierId>& tiers, const Border& border, double held,
                Crossed crossed) {
    Need need{.name = name, .inside = tiers, .border = border, .held = held, .crossed = crossed};
    const auto add = [&](double bytes_per_second) {
      need.of_movable.clear();
      for (const MovableOp& op : trace_.movable) {
        const double bytes =
            (need.in() ? static_cast<double>(op.bytes_in) : 0) + (need.out() ? static_cast<double>(op.bytes_out) : 0);
        need.of_movable.push_back(bytes * 1e9 / bytes_per_second);
      }
      need.bytes_per_second = bytes_per_second;
      needs_.push_back(need);
    };
    if (border.bandwidth > 0) add(border.bandwidth);
    if (border.sustained > 0 && border.sustained < border.bandwidth) {
      need.held += border.burst;
      add(border.sustained);
    }
  }
  // Where the host runs ahead, the room of a copy's source is free when it is handed to its stream.
  double held_by_copies_under_way() const {
    if (machine_.run_ahead.ops == 0) return 0;
    Bytes largest = 0;
    for (const Tensor& tensor : trace_.trace->tensors) largest = std::max(largest, tensor.bytes);
    double held = 0;
    for (const Link& link : machine_.links) {
      held += (machine_.run_ahead.copies + 1.0) * static_cast<double>(largest) +
              static_cast<double>(link.bandwidth) * to_seconds(machine_.run_ahead.copies_ns);
    }
    return held;
  }
  std::string name_of(const std::vector<TierId>& inside, const char* around_gpu, const char* further) const {
    if (inside.size() == 1) return around_gpu;
    bool nvme = true;
    for (std::size_t tier = inside.size(); tier < machine_.tiers.size(); ++tier)
      nvme = nvme && machine_.tiers[tier].kind == TierKind::nvme;
    return nvme ? std::string("nvme_") + further : further;
  }

  // The whole lane, and of ops that wait for what comes late and are needed early: they fit between the two. For any r
  // and n, with the ops that are ready at r or later and needed at n or earlier, T >= r - n + their time.
  void add_cpu_sides() {
    CpuSide lane{.fixed_ns = static_cast<double>(trace_.cpu_ns)};
    for (const MovableOp& op : trace_.movable) lane.of_movable.push_back(static_cast<double>(op.cpu_ns));
    sides_.push_back(lane);
    std::vector<double> ready, needed;
    for (const LateOp& op : trace_.late) {
      if (!std::isfinite(op.ready_ns) || !std::isfinite(op.needed_ns)) continue;
      ready.push_back(op.ready_ns);
      needed.push_back(op.needed_ns);
    }
    if (ready.empty()) return;
    std::ranges::sort(ready);
    std::ranges::sort(needed);
    CpuSide mean{.of_movable = std::vector<double>(trace_.movable.size(), 0)};
    constexpr std::array<double, 4> shares = {0.25, 0.5, 0.75, 1};
    for (const double share : shares) {
      CpuSide side = cpu_side(ready.front(), quantile(needed, share));
      mean.fixed_ns += side.fixed_ns / shares.size();
      for (std::size_t i = 0; i < side.of_movable.size(); ++i) mean.of_movable[i] += side.of_movable[i] / shares.size();
      sides_.push_back(std::move(side));
      if (share < 1) sides_.push_back(cpu_side(quantile(ready, 1 - share), needed.back()));
    }
    sides_.push_back(std::move(mean));
  }
  static double quantile(const std::vector<double>& sorted, double share) {
    return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
  }
  CpuSide cpu_side(double ready_ns, double needed_ns) const {
    CpuSide side{.fixed_ns = ready_ns - needed_ns, .of_movable = std::vector<double>(trace_.movable.size(), 0)};
    for (const LateOp& op : trace_.late) {
      if (op.ready_ns < ready_ns || op.needed_ns > needed_ns) continue;
      if (op.movable == none) {
        side.fixed_ns += op.cpu_ns;
      } else {
        side.of_movable[op.movable] = op.cpu_ns;
      }
    }
    return side;
  }

  // Needs that take longer than the compute in some window, whatever the weight: of two sums of minima, the greater
  // exceeds the other by no more than the sum of what each of its terms exceeds the other's. Always with the compute.
  void find_exceeding() {
    const std::vector<double> nothing(cut_.cuts.count() + 1, 0);
    exceeding_ = {0};
    for (std::size_t need = 1; need < needs_.size(); ++need) {
      const std::vector<double> more = before_parts(
          cut_, [&](std::size_t op) { return std::max(0.0, needs_[need].of_movable[op] - needs_[0].of_movable[op]); });
      const std::array needs = {window_need(cut_, 0, nothing), window_need(cut_, need, more)};
      const BestWindows best = best_windows(needs, 1);
      steps_ += best.steps;
      if (std::ranges::any_of(best.windows, [](const NeededWindow& window) { return window.need == 1; }))
        exceeding_.push_back(need);
    }
  }
  bool exceeds(std::size_t need) const { return std::ranges::binary_search(exceeding_, need); }

  // Of all sides and some weights those with which the windows of all needs together, or one alone, bound the most.
  void choose_weights(const CutTrace& coarse) {
    weights_ = {{.weight = 0, .side = &sides_[0]}};
    if (trace_.movable.empty()) return;
    std::vector<std::vector<std::size_t>> together = {{0}};
    if (exceeding_.size() > 1) together.push_back(exceeding_);
    for (std::size_t need = 1; need + 1 < needs_.size(); ++need) {
      if (exceeds(need)) together.push_back({0, need});
    }
    for (const std::vector<std::size_t>& needs : together) {
      Weight best_weight = weights_[0];
      double most = best(coarse, needs, best_weight).ns;
      const auto attempt = [&](Weight weight) {
        if (weight.weight <= 0 || weight.weight >= 1) return;
        const double ns = best(coarse, needs, weight).ns;
        if (ns <= most) return;
        most = ns;
        best_weight = weight;
      };
      for (const CpuSide& side : sides_) {
        for (const double weight : {0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8}) {
          attempt({.weight = weight, .side = &side});
        }
        // Where all movable ops together cost as much on either lane.
        const double on_gpu = std::accumulate(needs_[0].of_movable.begin(), needs_[0].of_movable.end(), 0.0);
        const double on_cpu = std::accumulate(side.of_movable.begin(), side.of_movable.end(), 0.0);
        if (on_gpu > 0 && on_cpu > 0) attempt({.weight = on_gpu / (on_gpu + on_cpu), .side = &side});
      }
      for (double step = 0.05; step > 0.005; step /= 2) {
        const Weight around = best_weight;
        attempt({.weight = around.weight + step, .side = around.side});
        attempt({.weight = around.weight - step, .side = around.side});
      }
      if (best_weight.weight > 0) weights_.push_back(best_weight);
    }
  }

  // What movable ops add to windows, before each part.
  template <typename OfMovable>
  std::vector<double> before_parts(const CutTrace& cut, OfMovable ns) const {
    std::vector<double> sums(cut.cuts.count() + 1, 0);
    for (std::size_t op = 0; op < trace_.movable.size(); ++op) {
      sums[cut.cuts.part_of_unit[trace_.movable[op].unit] + 1] += ns(op);
    }
    std::partial_sum(sums.begin(), sums.end(), sums.begin());
    return sums;
  }
  WindowNeed window_need(const CutTrace& cut, std::size_t need, std::span<const double> movable_ns) const {
    return {.compute_ns = need == 0 ? std::span<const double>(cut.compute_ns) : std::span<const double>(),
            .movable_ns = movable_ns,
            .changes = cut.changes[need],
            .held = needs_[need].held,
            .bytes_per_second = needs_[need].bytes_per_second};
  }

  // The best disjoint windows for these needs, over all weights.
  BestWindows best(const std::vector<std::size_t>& needs) {
    BestWindows result;
    for (const Weight& weight : weights_) {
      BestWindows one = best(cut_, needs, weight);
      if (weight.weight == 0 || one.ns > result.ns) result = std::move(one);
    }
    return result;
  }
  // needs[0] is the compute.
  BestWindows best(const CutTrace& cut, const std::vector<std::size_t>& needs, const Weight& weight) {
    const double gpu_weight = 1 - weight.weight;
    std::vector<std::vector<double>> movable_ns;
    std::vector<WindowNeed> weighted;
    for (const std::size_t need : needs) {
      movable_ns.push_back(before_parts(cut, [&](std::size_t op) {
        return std::min(gpu_weight * needs_[need].of_movable[op], weight.weight * weight.side->of_movable[op]);
      }));
      weighted.push_back(window_need(cut, need, movable_ns.back()));
    }
    BestWindows result = best_windows(weighted, gpu_weight);
    steps_ += result.steps;
    result.ns += weight.weight * weight.side->fixed_ns;
    for (NeededWindow& window : result.windows) window.need = needs[window.need];
    return result;
  }

  BoundWindow described(const NeededWindow& window) const {
    const std::vector<std::uint32_t>& first_unit = cut_.cuts.first_unit;
    const std::size_t last_unit =
        window.end == cut_.cuts.count() ? trace_.units.size() - 1 : first_unit[window.end] - std::size_t{1};
    return {.first = trace_.units[first_unit[window.begin]].first,
            .last = trace_.units[last_unit].end - 1,
            .seconds = window.ns * 1e-9,
            .compute_seconds = (cut_.compute_ns[window.end] - cut_.compute_ns[window.begin]) * 1e-9,
            .bytes = window.need == 0 ? 0 : std::max(0.0, window.bytes),
            .term = needs_[window.need].name};
  }
  static void sort_windows(std::vector<BoundWindow>& windows) {
    std::ranges::stable_sort(windows, [](const BoundWindow& a, const BoundWindow& b) {
      return a.seconds - a.compute_seconds > b.seconds - b.compute_seconds;
    });
  }

  // An op that needs more than its tier has, or more persistent data than all tiers have.
  std::string misfit() const {
    const Trace& trace = *trace_.trace;
    double persistent = 0, capacity = 0;
    for (const Tensor& tensor : trace.tensors)
      persistent += tensor.persistent ? static_cast<double>(tensor.least_bytes()) : 0;
    for (const Tier& tier : machine_.tiers) capacity += static_cast<double>(tier.capacity);
    if (persistent > capacity) {
      return "persistent tensors take " + format_bytes(static_cast<Bytes>(persistent)) + ", all tiers together have " +
             format_bytes(static_cast<Bytes>(capacity));
    }
    std::vector<OpIndex> seen(trace.tensors.size(), none);
    for (OpIndex index = 0; index < trace.ops.size(); ++index) {
      const Op& op = trace.ops[index];
      const TierId tier = machine_.tier_of(op.device);
      if (tier == no_tier) return "op '" + trace.name(op) + "' runs on the CPU, the machine has no such tier";
      if (bound_kind_of(trace, op, machine_) == OpKind::movable) continue;
      Bytes bytes = 0;
      for (std::uint64_t i = op.accesses.first; i < op.accesses.end(); ++i) {
        const TensorId tensor = trace.accesses[i];
        if (seen[tensor] == index) continue;
        seen[tensor] = index;
        bytes += tier == 0 ? trace.tensors[tensor].bytes : trace.tensors[tensor].least_bytes();
      }
      if (bytes > machine_.tiers[tier].capacity) {
        return "op '" + trace.name(op) + "' (op " + std::to_string(index) + ") needs " + format_bytes(bytes) +
               " in tier '" + machine_.tiers[tier].name + "', which has " + format_bytes(machine_.tiers[tier].capacity);
      }
    }
    return "";
  }

  const MachineSpec& machine_;
  BoundTrace trace_;
  std::vector<Need> needs_;  // [0]: compute
  CutTrace cut_;             // what it needs: of each need
  std::vector<std::size_t> exceeding_;
  std::vector<CpuSide> sides_;  // [0]: the whole lane
  std::vector<Weight> weights_;
  std::uint64_t steps_ = 0;
};

Bound bound_of_rank(const Trace& recorded_trace, const MachineSpec& machine) {
  std::optional<Trace> timed;
  if (std::ranges::any_of(recorded_trace.ops, lacks_cpu_time)) {
    timed = recorded_trace;
    time_cpu_ops(*timed, machine);
  }
  const Trace& trace = timed ? *timed : recorded_trace;
  RankBound recorded(trace, machine);
  Bound bound = recorded.bound();
  for (const OpIndex begin : recorded.turning_points()) {
    const Trace begun_there = turned(trace, begin);
    RankBound(begun_there, machine, recorded.sides_from(begin)).bind_turned(bound, begin);
  }
  bound.unsteady_seconds = bound.seconds;
  recorded.bind_lanes(bound);
  return bound;
}

}  // namespace

double least_seconds(const BoundSeconds& bound, bool steady, std::uint64_t iterations) {
  if (steady || iterations == 0) return bound.seconds;
  return std::max(bound.any_run_seconds,
                  bound.unsteady_seconds * static_cast<double>(iterations - 1) / static_cast<double>(iterations));
}

std::optional<double> recorded_bound_seconds(const Trace& trace, const MachineSpec& machine) {
  if (trace.choices.empty()) return std::nullopt;
  const std::vector<RecomputeLevel> kept(trace.choices.size(), RecomputeLevel::keep);
  return lower_bound_of(with_levels(trace, kept), machine).seconds;
}

Bound lower_bound_of(const Trace& trace, const MachineSpec& machine) {
  if (!trace.choices.empty()) return bound_of_rank(without_choices(trace), machine);
  const std::size_t count = rank_count(trace);
  if (count == 1) return bound_of_rank(trace, machine);
  if (count > machine.rank_count()) {
    throw Error("the trace has " + std::to_string(count) + " ranks, machine '" + machine.name + "' has " +
                std::to_string(machine.rank_count()) + "; take a machine with as many ranks");
  }
  const std::vector<Trace> traces = split_ranks(trace);
  Bound result;
  double compute_seconds = 0, any_run_seconds = 0, unsteady_seconds = 0;
  std::uint64_t steps = 0;
  std::string compute_term, misfit;
  for (std::size_t rank = 0; rank < count; ++rank) {
    Bound one = bound_of_rank(traces[rank], machine.of_rank(rank));
    if (rank == 0 || one.compute_seconds > compute_seconds) {
      compute_seconds = one.compute_seconds;
      compute_term = one.compute_term;
    }
    any_run_seconds = std::max(any_run_seconds, one.any_run_seconds);
    unsteady_seconds = std::max(unsteady_seconds, one.unsteady_seconds);
    steps += one.steps;
    if (misfit.empty() && !one.misfit.empty()) misfit = "rank " + std::to_string(rank) + ": " + one.misfit;
    if (rank > 0 && one.seconds <= result.seconds) continue;
    result = std::move(one);
    result.rank = rank;
  }
  std::vector<OpIndex> op_of_rank;
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    if (trace.ops[op].rank == result.rank) op_of_rank.push_back(op);
  }
  const auto renumber = [&op_of_rank](std::vector<BoundWindow>& windows) {
    for (BoundWindow& window : windows) {
      window.first = op_of_rank[window.first];
      window.last = op_of_rank[window.last];
    }
  };
  renumber(result.windows);
  renumber(result.binding.windows);
  for (BoundTerm& term : result.terms) renumber(term.windows);
  result.compute_seconds = compute_seconds;
  result.any_run_seconds = any_run_seconds;
  result.unsteady_seconds = unsteady_seconds;
  result.compute_term = compute_term;
  result.steps = steps;
  result.misfit = misfit;
  return result;
}

}  // namespace tencache
