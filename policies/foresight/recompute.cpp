#include "policies/foresight/recompute.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "core/recompute.h"

namespace tencache {
namespace {

using Levels = std::vector<RecomputeLevel>;

// Choices by how long their results wait for the backward pass, the longest first.
std::vector<std::size_t> by_waiting_time(const Trace& trace) {
  std::vector<Nanoseconds> begins{0};  // of each op, without stalls
  for (const Op& op : trace.ops) begins.push_back(begins.back() + op.occupied_ns());
  const auto waits_ns = [&](std::size_t choice) {
    const RecomputeChoice& of = trace.choices[choice];
    const std::vector<OpIndex>& again = of.again.back();
    return again.empty() ? 0 : begins[of.before] - begins[again.back()];
  };
  std::vector<std::size_t> order(trace.choices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return waits_ns(a) > waits_ns(b); });
  return order;
}

// Each next one as far as can be from those before it.
std::vector<std::size_t> evenly_spread(std::size_t count) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < std::bit_ceil(count); ++i) {
    std::size_t reversed = 0;
    for (std::size_t bit = 1; bit < std::bit_ceil(count); bit *= 2) reversed = 2 * reversed + ((i & bit) != 0 ? 1 : 0);
    if (reversed < count) order.push_back(reversed);
  }
  return order;
}

class Search {
 public:
  Search(const Trace& trace, const ProgramTime& takes)
      : trace_(trace), takes_(takes), orders_{by_waiting_time(trace), evenly_spread(trace.choices.size())} {}

  ChosenLevels run() {
    std::array<Nanoseconds, recompute_level_count> alone_ns{};
    for (std::size_t level = 0; level < recompute_level_count; ++level) {
      alone_ns[level] = start(static_cast<RecomputeLevel>(level));
    }
    const RecomputeLevel light = alone_ns[1] <= alone_ns[0] ? RecomputeLevel::elementwise : RecomputeLevel::keep;
    const std::size_t count = trace_.choices.size();
    for (const RecomputeLevel level : {RecomputeLevel::attention, RecomputeLevel::block}) {
      attempt(moved(uniform(light), orders_[1], level, true, count / 2));
    }
    if (best_ns_ == longest_clock_ns) return {Levels(count, RecomputeLevel::keep), ""};
    constexpr std::size_t parts = 4, least_parts = 32;
    for (std::size_t batch = count / parts; batch > 0 && batch * least_parts >= count; batch /= 2) {
      while (improve(batch)) {
      }
    }
    return {best_, note(alone_ns.front(), alone_ns.back())};
  }

 private:
  // So many layers more at another level.
  bool improve(std::size_t batch) {
    for (std::size_t level = 0; level < recompute_level_count; ++level) {
      for (const std::vector<std::size_t>& order : orders_) {
        for (const bool rises : {true, false}) {
          if (attempt(moved(best_, order, static_cast<RecomputeLevel>(level), rises, batch))) return true;
        }
      }
    }
    return false;
  }
  // Levels below that one raised to it, in the order; or those above lowered, against the order.
  Levels moved(Levels levels, const std::vector<std::size_t>& order, RecomputeLevel to, bool rises,
               std::size_t batch) const {
    for (std::size_t i = 0; i < order.size() && batch > 0; ++i) {
      const std::size_t choice = rises ? order[i] : order[order.size() - 1 - i];
      const bool moves = rises ? levels[choice] < to : levels[choice] > to;
      if (!moves || !trace_.choices[choice].offers(to)) continue;
      levels[choice] = to;
      --batch;
    }
    return levels;
  }
  Levels uniform(RecomputeLevel level) const {
    Levels levels(trace_.choices.size(), RecomputeLevel::keep);
    for (std::size_t i = 0; i < levels.size(); ++i) {
      if (trace_.choices[i].offers(level)) levels[i] = level;
    }
    return levels;
  }
  Nanoseconds start(RecomputeLevel level) {
    const Levels levels = uniform(level);
    const Nanoseconds takes_ns = takes_(with_levels(trace_, levels), longest_clock_ns);
    keep_if_faster(levels, takes_ns);
    return takes_ns;
  }
  bool attempt(const Levels& levels) {
    return levels != best_ && keep_if_faster(levels, takes_(with_levels(trace_, levels), best_ns_));
  }
  bool keep_if_faster(const Levels& levels, Nanoseconds takes_ns) {
    if (takes_ns >= best_ns_) return false;
    best_ = levels;
    best_ns_ = takes_ns;
    return true;
  }
  std::string note(Nanoseconds kept_ns, Nanoseconds blocks_ns) const {
    const auto text = [](Nanoseconds ns) { return ns == longest_clock_ns ? "does not fit" : format_duration(ns); };
    return "recomputation was chosen by rehearsals: " + format_duration(best_ns_) + ", with everything kept " +
           text(kept_ns) + ", with every block recomputed " + text(blocks_ns);
  }

  const Trace& trace_;
  const ProgramTime& takes_;
  std::array<std::vector<std::size_t>, 2> orders_;
  Levels best_;
  Nanoseconds best_ns_ = longest_clock_ns;
};

}  // namespace

ChosenLevels choose_levels(const Trace& trace, const ProgramTime& takes) { return Search(trace, takes).run(); }

}  // namespace tencache
