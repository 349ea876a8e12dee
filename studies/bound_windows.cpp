#include "studies/bound_windows.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

namespace tencache {
namespace {

Phase phase_of(const BoundTrace& trace, std::size_t unit) { return trace.trace->ops[trace.units[unit].first].phase; }

bool begins_phase(const BoundTrace& trace, std::size_t unit) {
  return unit > 0 && phase_of(trace, unit) != phase_of(trace, unit - 1);
}

}  // namespace

BoundCuts::BoundCuts(const BoundTrace& trace, std::size_t most) {
  double all_bytes = 1;
  for (const Touch& touch : trace.all_touches)
    all_bytes += static_cast<double>(trace.trace->tensors[touch.tensor].bytes);
  const double all_ns = static_cast<double>(trace.gpu_ns) + 1, all_units = static_cast<double>(trace.units.size());
  double weight = 0;  // of 3
  for (std::uint32_t unit = 0; unit < trace.units.size(); ++unit) {
    const bool new_phase = begins_phase(trace, unit);
    if (unit == 0 || (new_phase && count() < 2 * most) || weight * static_cast<double>(most) >= 3) {
      first_unit.push_back(unit);
      weight = 0;
    }
    part_of_unit.push_back(static_cast<std::uint32_t>(count() - 1));
    double bytes = 0;
    for (const Touch& touch : trace.touches(unit))
      bytes += static_cast<double>(trace.trace->tensors[touch.tensor].bytes);
    weight += bytes / all_bytes + static_cast<double>(trace.units[unit].gpu_ns) / all_ns + 1 / all_units;
  }
}

BoundCuts BoundCuts::coarser(const BoundTrace& trace, std::size_t most) const {
  const std::size_t stride = (count() + most - 1) / most;
  BoundCuts result;
  std::vector<std::uint32_t> part_of_part;
  for (std::size_t part = 0; part < count(); ++part) {
    if (part % stride == 0 || begins_phase(trace, first_unit[part])) result.first_unit.push_back(first_unit[part]);
    part_of_part.push_back(static_cast<std::uint32_t>(result.count() - 1));
  }
  for (const std::uint32_t part : part_of_unit) result.part_of_unit.push_back(part_of_part[part]);
  return result;
}

namespace {

// Not sorted.
struct WindowDemand {
  std::vector<DemandChange> in, out;
};

// The tensors' states while the units go by, in parts of the cut.
class CutDemand {
 public:
  CutDemand(const BoundTrace& trace, const BoundCuts& cuts, bool with_cpu)
      : trace_(trace),
        with_cpu_(with_cpu),
        parts_(static_cast<std::int64_t>(cuts.count())),
        tensors_(trace.trace->tensors.size()) {
    find_first_touches();
    for (std::size_t unit = 0; unit < trace.units.size(); ++unit) {
      for (const Touch& touch : trace.touches(unit)) visit(touch, cuts.part_of_unit[unit]);
    }
    for (TensorId tensor = 0; tensor < tensors_.size(); ++tensor) {
      State& state = tensors_[tensor];
      if (state.written >= 0 && trace.trace->tensors[tensor].persistent && state.read_in_next) state.live = parts_;
      close(tensor);
    }
  }
  WindowDemand take() { return std::move(result_); }

 private:
  static constexpr std::int64_t outside = -1;  // no window holds what is read next
  static constexpr std::int64_t unknown = std::numeric_limits<std::int64_t>::max();  // it may be made at any time

  struct State {
    std::int64_t held = outside;  // the part after whose begin a window holds the content without bringing it in
    std::int64_t written = -1;    // the part in which a fixed GPU op wrote the present content; -1: none did
    std::int64_t live = -1;       // a window that ends at or before this part's begin must keep that content
    bool read_in_next = false;    // the first to touch it in the next iteration reads it
  };

  // As it crosses a link.
  double bytes_of(TensorId tensor) const { return static_cast<double>(trace_.trace->tensors[tensor].least_bytes()); }
  static void add(std::vector<DemandChange>& changes, std::int64_t end, std::int64_t begin, bool later, double bytes) {
    changes.push_back({.end = static_cast<std::uint32_t>(end),
                       .begin = static_cast<std::uint32_t>(begin),
                       .later = later,
                       .bytes = bytes});
  }

  // Over the iteration's end: who touches each tensor first, and whether the CPU's lane may still be writing it.
  void find_first_touches() {
    std::vector<std::uint8_t> seen(tensors_.size(), 0);
    for (const Touch& touch : trace_.all_touches) {
      State& state = tensors_[touch.tensor];
      if (seen[touch.tensor] == 0) {
        seen[touch.tensor] = 1;
        state.read_in_next =
            !touch.output() && (with_cpu_ ? touch.gpu_read && !touch.asynchronous_write() : touch.reads());
      }
      if (!with_cpu_) continue;
      if (touch.asynchronous_write()) {
        state.held = unknown;
      } else if (touch.gpu()) {
        state.held = outside;
      }
    }
  }

  void visit(const Touch& touch, std::int64_t part) {
    State& state = tensors_[touch.tensor];
    // Into the set: read here, and not since the window's begin in it.
    const bool made_here = touch.output() || (with_cpu_ && touch.asynchronous_write());
    if (touch.gpu_read && !made_here && state.held < part)
      add(result_.in, part + 1, state.held + 1, true, bytes_of(touch.tensor));
    if (with_cpu_ && touch.asynchronous_write()) {
      state.held = unknown;
    } else if (touch.gpu() || touch.movable_output) {
      state.held = part;
    } else if (touch.cpu_write) {
      state.held = outside;
    }
    // Out of it: what a window wrote and others read after it.
    if (state.written >= 0 && !touch.output()) {
      if (with_cpu_ ? touch.gpu_read : touch.reads()) state.live = std::max(state.live, part);
      if (!with_cpu_ && touch.cpu_read) state.live = parts_;
    }
    if (touch.gpu_write || touch.asynchronous_write()) {
      close(touch.tensor);
      if (touch.gpu_write && !touch.asynchronous_write()) state.written = part;
    }
  }

  // Windows in which it was written and that end before it is read for the last time.
  void close(TensorId tensor) {
    State& state = tensors_[tensor];
    if (state.written >= 0 && state.live > state.written) {
      add(result_.out, state.written + 1, 0, true, bytes_of(tensor));
      if (state.live < parts_) add(result_.out, state.live + 1, state.written + 1, false, bytes_of(tensor));
    }
    state.written = state.live = -1;
  }

  const BoundTrace& trace_;
  bool with_cpu_;
  std::int64_t parts_;
  std::vector<State> tensors_;
  WindowDemand result_;
};

}  // namespace

CutTrace cut(const BoundTrace& trace, BoundCuts cuts, std::span<const Crossed> crossed) {
  CutTrace result{.cuts = std::move(cuts), .compute_ns = {}, .changes = {}};
  result.compute_ns.assign(result.cuts.count() + 1, 0);
  for (std::size_t unit = 0; unit < trace.units.size(); ++unit) {
    result.compute_ns[result.cuts.part_of_unit[unit] + 1] += static_cast<double>(trace.units[unit].gpu_ns);
  }
  std::partial_sum(result.compute_ns.begin(), result.compute_ns.end(), result.compute_ns.begin());
  std::array<std::optional<WindowDemand>, 2> demands;
  for (const auto& [crossing, with_cpu] : crossed) {
    std::vector<DemandChange>& changes = result.changes.emplace_back();
    if (!crossing) continue;
    auto& demand = demands[with_cpu ? 1 : 0];
    if (!demand) demand = CutDemand(trace, result.cuts, with_cpu).take();
    if (crossing != Crossing::out) changes.insert(changes.end(), demand->in.begin(), demand->in.end());
    if (crossing != Crossing::in) changes.insert(changes.end(), demand->out.begin(), demand->out.end());
    changes = in_order(std::move(changes));
  }
  return result;
}

std::vector<DemandChange> in_order(std::vector<DemandChange> changes) {
  const auto key = [](const DemandChange& change) { return std::tuple(change.end, change.begin, change.later); };
  std::ranges::sort(changes, [&](const DemandChange& a, const DemandChange& b) { return key(a) < key(b); });
  std::vector<DemandChange> result;
  for (const DemandChange& change : changes) {
    if (!result.empty() && key(result.back()) == key(change)) {
      result.back().bytes += change.bytes;
    } else {
      result.push_back(change);
    }
  }
  return result;
}

namespace {

// Of the windows that end at one place, for one need, the begin at which the best cut of what lies before it and the
// window are longest together, while the end moves on.
//
// Every change lets later begins gain on earlier ones: what a window needs is submodular, as the bytes of the tensors
// that it touches are. So a begin that has been overtaken is never the best again. Those that are left are each worse
// than the one before, the first is the best, and a change touches one pair of neighbours: the one on whose sides it
// tells apart. Which that is is a question for disjoint sets, in which the overtaken are one with who overtook them.
class WindowBegins {
 public:
  WindowBegins(const WindowNeed& need, double gpu_weight)
      : changes_(need.changes), ns_per_byte_(gpu_weight * 1e9 / need.bytes_per_second) {}

  // To the next end. `ns`: of a window of no bytes that begins at the last end, and of the best cut before it, but for
  // what is the same for all begins.
  void move_on(double ns) {
    const std::uint32_t added = end_++;
    begins_.push_back({.ns = ns, .gained = -bytes_of_last_, .before = added - 1, .by = added});
    bytes_of_last_ = 0;
    overtake(added);
    for (; next_ < changes_.size() && changes_[next_].end == end_; ++next_) change(changes_[next_]);
    ++steps_;
  }

  std::size_t best() const { return best_; }
  double bytes() const { return bytes_; }  // of the window from there
  std::uint64_t steps() const { return steps_; }

 private:
  struct Begin {
    double ns = 0;
    double gained = 0;         // bytes that its window needs beyond those of the one before it that is left
    std::uint32_t before = 0;  // which that is
    std::uint32_t by = 0;      // who overtook it; itself: nobody
  };

  void change(const DemandChange& change) {
    ++steps_;
    const std::uint32_t begin = left(change.begin);
    if (change.later) bytes_of_last_ += change.bytes;
    if (begin == best_) {  // all that are left are on its later side
      if (change.later) bytes_ += change.bytes;
      return;
    }
    if (!change.later) bytes_ -= change.bytes;
    begins_[begin].gained += change.bytes;
    overtake(begin);
  }

  void overtake(std::uint32_t at) {
    Begin& begin = begins_[at];
    while (at != best_ && begin.ns + ns_per_byte_ * begin.gained > begins_[begin.before].ns) {
      ++steps_;
      Begin& slower = begins_[begin.before];
      slower.by = at;
      if (begin.before == best_) {
        best_ = at;
        bytes_ += begin.gained;
      }
      begin.gained += slower.gained;
      begin.before = slower.before;
    }
  }

  // The first that is left, of those from `begin` on.
  std::uint32_t left(std::uint32_t begin) {
    while (begins_[begin].by != begin) {
      ++steps_;
      begins_[begin].by = begins_[begins_[begin].by].by;
      begin = begins_[begin].by;
    }
    return begin;
  }

  std::span<const DemandChange> changes_;
  double ns_per_byte_;
  std::vector<Begin> begins_;
  std::uint32_t end_ = 0, best_ = 0;
  std::size_t next_ = 0;      // change
  double bytes_ = 0;          // of the window from the best begin
  double bytes_of_last_ = 0;  // of the shortest window
  std::uint64_t steps_ = 0;
};

}  // namespace

BestWindows best_windows(std::span<const WindowNeed> needs, double gpu_weight) {
  const std::size_t parts = needs.front().movable_ns.size() - 1;
  // Of a need, before a place.
  const auto compute_at = [](const WindowNeed& need, std::size_t place) {
    return need.compute_ns.empty() ? 0 : need.compute_ns[place];
  };
  std::vector<WindowBegins> begins;
  for (const WindowNeed& need : needs) begins.emplace_back(need, gpu_weight);
  std::vector<double> most(parts + 1, 0);
  std::vector<NeededWindow> last(parts + 1);
  for (std::size_t end = 1; end <= parts; ++end) {
    NeededWindow& window = last[end];
    most[end] = -1;
    for (std::size_t n = 0; n < needs.size(); ++n) {
      const WindowNeed& need = needs[n];
      begins[n].move_on(most[end - 1] - gpu_weight * compute_at(need, end - 1) - need.movable_ns[end - 1]);
      const std::size_t begin = begins[n].best();
      const double base = compute_at(need, end) - compute_at(need, begin) +
                          (begins[n].bytes() - need.held) * 1e9 / need.bytes_per_second;
      const double ns = gpu_weight * base + need.movable_ns[end] - need.movable_ns[begin];
      const double sum = most[begin] + ns;
      if (sum < most[end] || (sum == most[end] && begin >= window.begin)) continue;
      most[end] = sum;
      window = {.begin = begin, .end = end, .need = n, .ns = ns, .bytes = begins[n].bytes() - need.held};
    }
    const WindowNeed& first = needs.front();
    window.first_ns = gpu_weight * (compute_at(first, end) - compute_at(first, window.begin)) + first.movable_ns[end] -
                      first.movable_ns[window.begin];
  }
  BestWindows result{.ns = most[parts]};
  for (std::size_t end = parts; end > 0; end = last[end].begin) result.windows.push_back(last[end]);
  std::reverse(result.windows.begin(), result.windows.end());
  for (const WindowBegins& one : begins) result.steps += one.steps();
  return result;
}

}  // namespace tencache
