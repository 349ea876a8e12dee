#include "policies/planning/choose_levels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <set>

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
  Search(const Trace& trace, const ProgramTime& takes, std::uint64_t most_work)
      : trace_(trace),
        takes_(takes),
        most_work_(most_work),
        orders_{by_waiting_time(trace), evenly_spread(trace.choices.size())} {}

  ChosenLevels run() {
    std::array<Nanoseconds, recompute_level_count> alone_ns{};
    for (std::size_t level = 0; level < recompute_level_count; ++level) {
      alone_ns[level] = time_of(all_at(trace_, static_cast<RecomputeLevel>(level)), longest_clock_ns);
    }
    const RecomputeLevel light = alone_ns[1] <= alone_ns[0] ? RecomputeLevel::elementwise : RecomputeLevel::keep;
    const std::size_t count = trace_.choices.size();
    for (const RecomputeLevel level : {RecomputeLevel::attention, RecomputeLevel::block}) {
      attempt(moved(all_at(trace_, light), {.order = 1, .to = level, .end = count}, count / 2));
    }
    if (best_ns_ == longest_clock_ns) return {Levels(count, RecomputeLevel::keep), ""};
    constexpr std::size_t parts = 4, least_parts = 32;
    for (std::size_t batch = count / parts; batch > 0 && batch * least_parts >= count; batch /= 2) improve(batch);
    return {best_, note(alone_ns.front(), alone_ns.back())};
  }

 private:
  // Choices from `begin` to before `end` that take another level, in an order.
  struct Move {
    std::size_t order = 0;
    RecomputeLevel to = RecomputeLevel::keep;
    bool rises = true;
    std::size_t begin = 0, end = 0;
  };

  // So many layers more at another level, until no move makes it faster.
  void improve(std::size_t batch) {
    const std::size_t count = trace_.choices.size();
    std::vector<Move> moves;
    const auto add = [&](std::size_t begin, std::size_t end) {
      for (std::size_t level = 0; level < recompute_level_count; ++level) {
        for (std::size_t order = 0; order < orders_.size(); ++order) {
          for (const bool rises : {true, false}) {
            moves.push_back({order, static_cast<RecomputeLevel>(level), rises, begin, end});
          }
        }
      }
    };
    add(0, count);
    constexpr std::size_t quarters = 4;
    for (std::size_t i = 0; i < quarters && batch * quarters < count; ++i) {
      add(count * i / quarters, count * (i + 1) / quarters);
    }
    for (std::size_t next = 0, in_vain = 0; in_vain < moves.size() && work_ < most_work_;) {
      const bool is_better = attempt(moved(best_, moves[next], batch));
      in_vain = is_better ? 0 : in_vain + 1;
      if (!is_better) next = (next + 1) % moves.size();
    }
  }
  // Levels below that one raised to it, in the order; or those above lowered, against the order.
  Levels moved(Levels levels, const Move& move, std::size_t batch) const {
    const std::vector<std::size_t>& order = orders_[move.order];
    for (std::size_t i = 0; i < order.size() && batch > 0; ++i) {
      const std::size_t choice = move.rises ? order[i] : order[order.size() - 1 - i];
      const bool moves = move.rises ? levels[choice] < move.to : levels[choice] > move.to;
      if (!moves || choice < move.begin || choice >= move.end || !trace_.choices[choice].offers(move.to)) continue;
      levels[choice] = move.to;
      --batch;
    }
    return levels;
  }
  // Of an iteration, if no more than that; the best may become these.
  Nanoseconds time_of(const Levels& levels, Nanoseconds least_ns) {
    tried_.insert(levels);
    const ProgramRun run = takes_(with_levels(trace_, levels), least_ns);
    work_ += run.work;
    if (run.iteration_ns < best_ns_) {
      best_ = levels;
      best_ns_ = run.iteration_ns;
    }
    return run.iteration_ns;
  }
  // Whether these are faster than the best. None is tried twice.
  bool attempt(const Levels& levels) {
    const Nanoseconds before_ns = best_ns_;
    return work_ < most_work_ && !tried_.contains(levels) && time_of(levels, before_ns) < before_ns;
  }
  std::string note(Nanoseconds kept_ns, Nanoseconds blocks_ns) const {
    const auto text = [](Nanoseconds ns) { return ns == longest_clock_ns ? "does not fit" : format_duration(ns); };
    return "recomputation was chosen by rehearsals: " + format_duration(best_ns_) + ", with everything kept " +
           text(kept_ns) + ", with every block recomputed " + text(blocks_ns);
  }

  const Trace& trace_;
  const ProgramTime& takes_;
  std::uint64_t most_work_, work_ = 0;
  std::array<std::vector<std::size_t>, 2> orders_;
  std::set<Levels> tried_;
  Levels best_;
  Nanoseconds best_ns_ = longest_clock_ns;
};

}  // namespace

std::vector<RecomputeLevel> all_at(const Trace& trace, RecomputeLevel level) {
  std::vector<RecomputeLevel> levels(trace.choices.size(), RecomputeLevel::keep);
  for (std::size_t i = 0; i < levels.size(); ++i) {
    if (trace.choices[i].offers(level)) levels[i] = level;
  }
  return levels;
}

ChosenLevels choose_levels(const Trace& trace, const ProgramTime& takes, std::uint64_t most_work) {
  return Search(trace, takes, most_work).run();
}

}  // namespace tencache
